// Locks, and pools, locks and leases in a child of fork().
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "memory/memory.h"
#include "threads/lease.h"
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

// Bytes of addresses that this process has mapped.
size_t mapped_bytes() {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * size_t(sysconf(_SC_PAGESIZE));
}

// A child of fork() whose parent was using a value gets a new one and frees the parent's mappings: else each
// generation of children would keep those of all before it.
void test_leases() {
    constexpr size_t BYTES = size_t(64) << 20;
    Leased<Memory> shared;
    const Lease<Memory> held(shared);
    held->grow(BYTES);
    const auto generation = [&](auto&& next, int left) -> void {
        const size_t before = mapped_bytes();
        const Lease<Memory> own(shared);
        CHECK(own->size() == 0 && !own->data(), "%zu bytes of the parent's are still in use", own->size());
        // Valgrind and the allocator map some pages of their own meanwhile.
        CHECK(mapped_bytes() + BYTES / 2 <= before, "%zu bytes are mapped, and %zu before", mapped_bytes(), before);
        own->grow(BYTES);
        own->data()[BYTES - 1] = 1;
        if (left) in_child("a child's child", [&] { next(next, left - 1); });
    };
    in_child("in use by the parent", [&] { generation(generation, 3); });
    CHECK(held->size() == BYTES, "%zu bytes", held->size());
    held->data()[BYTES - 1] = 1;
}

// What is free when the child is made stays, with its contents.
void test_leases_that_are_free() {
    Leased<Memory> shared;
    {
        const Lease<Memory> lease(shared);
        lease->grow(1);
        *lease->data() = 7;
    }
    in_child("in use by nobody", [&] {
        const Lease<Memory> lease(shared);
        CHECK(lease->size() == 1 && *lease->data() == 7, "%zu bytes", lease->size());
    });
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
    test_leases();
    test_leases_that_are_free();
#endif
#ifdef FORKS_AMONG_THREADS
    test_forks_within_runs();
#endif
}

}  // namespace check
