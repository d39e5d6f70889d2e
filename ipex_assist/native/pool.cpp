// A fixed set of threads on fixed CPUs that run one function together.
#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace ipex_assist {
namespace {

constexpr int SPINS = 1 << 14;  // some hundred microseconds of pauses
// Between two passes Python takes some hundred microseconds; after that a waiting thread gives its CPU back.
constexpr std::chrono::microseconds IDLE_SPIN{2000};

// Until `value` is no longer `old`.
void spin_until_changed(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; value.load(std::memory_order_acquire) == old; i++) {
        if (i < SPINS) {
            _mm_pause();
        } else {
            sched_yield();
        }
    }
}

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
    static_assert(sizeof word == sizeof value, "a futex is 32 bits");
    syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

bool bind_this_thread(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

// Binds the calling thread and undoes it: threads that Python starts later must not inherit one CPU.
class Binding {
public:
    Binding(bool wanted, int cpu) : bound_(wanted && sched_getaffinity(0, sizeof before_, &before_) == 0) {
        if (bound_) bind_this_thread(cpu);
    }
    ~Binding() {
        if (bound_) sched_setaffinity(0, sizeof before_, &before_);
    }
    Binding(const Binding&) = delete;
    Binding& operator=(const Binding&) = delete;

private:
    cpu_set_t before_;
    bool bound_;
};

}  // namespace

Barrier::Barrier(int threads)
    : threads_(threads), groups_((threads + GROUP - 1) / GROUP), counters_(size_t(groups_) + 1) {}

void Barrier::wait(int thread) {
    if (threads_ == 1) return;
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    const int group = thread / GROUP;
    const int members = group + 1 < groups_ ? GROUP : threads_ - group * GROUP;
    auto& mine = counters_[size_t(group)].arrived;
    if (mine.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
        mine.store(0, std::memory_order_relaxed);
        auto& root = counters_[size_t(groups_)].arrived;
        if (root.fetch_add(1, std::memory_order_acq_rel) + 1 == groups_) {
            root.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
    }
    spin_until_changed(generation_, generation);
}

Pool::Pool(int threads, const int32_t* cpus) : threads_(threads), barrier_(threads) {
    if (cpus) cpus_.assign(cpus, cpus + threads);
    try {
        for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
        end();  // threads that nobody joins would end the program
        throw;
    }
}

Pool::~Pool() { end(); }

void Pool::end() {
    stop_ = true;
    job_.fetch_add(1, std::memory_order_seq_cst);
    futex(job_, FUTEX_WAKE, INT32_MAX);
    for (auto& worker : workers_) worker.join();
}

void Pool::run_any(Function function, void* context) {
    const std::lock_guard<std::mutex> lock(turn_);
    const Binding binding(!cpus_.empty(), cpus_.empty() ? 0 : cpus_[0]);
    function_ = function;
    context_ = context;
    job_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(job_, FUTEX_WAKE, INT32_MAX);
    function(context, 0);
    barrier_.wait(0);
}

void Pool::work(int thread) {
    if (!cpus_.empty()) bind_this_thread(cpus_[size_t(thread)]);
    for (uint32_t seen = 0;;) {
        const auto idle_from = std::chrono::steady_clock::now();
        for (int i = 0; job_.load(std::memory_order_acquire) == seen; i++) {
            _mm_pause();
            if (i % 64 != 63 || std::chrono::steady_clock::now() - idle_from < IDLE_SPIN) continue;
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            // Returns at once if a job came in between.
            futex(job_, FUTEX_WAIT, seen);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
        seen++;  // the caller waits for all threads before it posts the next job
        if (stop_) return;
        function_(context_, thread);
        barrier_.wait(thread);
    }
}

}  // namespace ipex_assist
