// Locks, and pools and locks in a child of fork().
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "threads/lock.h"
#include "pools.h"

namespace check {
namespace {

#ifdef FORKS_ALONE

// Runs f in a child of fork(), which must end well within some seconds.
template <class F>
void in_child(const char* what, F&& f) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        const long before = failed;
        f();
        std::_Exit(failed > before);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "%s: the child's status is %x", what, unsigned(status));
}

// A child of fork() has none of the pool's threads: it gets new ones, whatever those of the parent were doing.
void test_forks() {
    Pool pool(3, nullptr);
    in_child("not used before", [&] { rounds(pool, 20); });
    rounds(pool, 20), rounds(pool, 20, 2);
    in_child("used before", [&] {
        rounds(pool, 20, 2), rounds(pool, 20);
        in_child("a child's child", [&] { rounds(pool, 20); });
        rounds(pool, 20);
    });
    in_child("deleted", [&] { Pool(2, nullptr), rounds(pool, 1); });
    auto passed_on = std::make_unique<Pool>(3, nullptr);
    in_child("deleted without a run", [&] { passed_on.reset(); });
    rounds(pool, 20);
}

#endif

#ifdef FORKS_AMONG_THREADS

// Another thread of the parent holds the pool, or waits for its turn, when the child is made.
void test_forks_within_runs() {
    Pool pool(3, nullptr);
    std::atomic<bool> stop{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; i++) {
        callers.emplace_back([&] {
            while (!stop)
                pool.run([&](int thread) {
                    for (int j = 0; j < 50; j++) pool.wait(thread);
                });
        });
    }
    for (int i = 0; i < 20; i++) {
        std::this_thread::sleep_for(std::chrono::microseconds(i * 130));
        in_child("in the middle of a run", [&] { rounds(pool, 5); });
    }
    stop = true;
    for (std::thread& caller : callers) caller.join();
}

#endif

// A lock is held by one at a time, and those who wait for it wake.
void test_lock() {
    Lock lock;
    long sum = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            for (int j = 0; j < 3000; j++) {
                const std::lock_guard<Lock> turn(lock);
                sum++;
                if (j % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(sum == 12000, "%ld of 12000 turns", sum);
    CHECK(lock.lock(), "a lock that was left in good order is said to be left behind");
    lock.unlock();
#ifdef FORKS_ALONE
    lock.lock();
    in_child("held by the parent", [&] {
        CHECK(!lock.lock(), "a lock whose holder is in the parent is said to be in good order");
        lock.unlock();
        CHECK(lock.lock(), "the second time");
    });
    lock.unlock();
#endif
}

}  // namespace

void test_locks_and_forks() {
    test_lock();
#ifdef FORKS_ALONE
    test_forks();
#endif
#ifdef FORKS_AMONG_THREADS
    test_forks_within_runs();
#endif
}

}  // namespace check
