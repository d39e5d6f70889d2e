// A thread that calls a function while its caller does something else.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "threads/adaptive_spin.h"
#include "threads/lock.h"

namespace ipex_assist {

// One call at a time: `start`, then `wait` before the next, both of one thread. The thread is made at the first call; a
// child of fork() makes its own.
class Background {
public:
    Background() = default;
    ~Background() { end(); }
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // f must not throw.
    void start(std::function<void()> f) {
        if (!thread_ || forks_at_start_ != forks()) {
            end();
            state_.store(IDLE), forks_at_start_ = forks();
            thread_ = std::make_unique<std::thread>([this] { work(); });
        }
        function_ = std::move(f);
        change(BUSY);
    }
    bool done() const { return state_.load(std::memory_order_acquire) != BUSY; }
    // Sleeps at once: its CPU may be one of those that the function's threads run on.
    void wait() {
        while (!done()) futex_wait(state_, BUSY);
    }

private:
    enum State : uint32_t { IDLE, BUSY, STOP };

    void change(State to) {
        state_.store(to, std::memory_order_release);
        futex_wake(state_, INT32_MAX);
    }
    void work() {
        const auto called = [&] { return state_.load(std::memory_order_acquire) != IDLE; };
        for (IdleSpin idle;;) {
            idle.wait(called, [&] { futex_wait(state_, IDLE); }, SystemTime());
            if (state_.load() == STOP) return;
            function_();
            change(IDLE);
        }
    }
    void end() {
        if (!thread_) return;
        if (forks_at_start_ != forks()) {
            thread_.release();  // the parent's: nobody can join it here
            return;
        }
        wait();
        change(STOP);
        thread_->join();
        thread_.reset();
    }

    std::atomic<uint32_t> state_{IDLE};
    std::function<void()> function_;
    std::unique_ptr<std::thread> thread_;
    uint32_t forks_at_start_ = 0;
};

}  // namespace ipex_assist
