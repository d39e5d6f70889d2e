// The pool and its barrier with more threads than processors, and the choice of kernels; nothing here uses vectors.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "check.h"
#include "cpu.h"
#include "pool.h"

namespace check {
namespace {

// Plain integers that each thread writes and all others read a barrier later: a thread that is let through too early or
// too late reads another round's value (and ThreadSanitizer sees the race).
void rounds(Pool& pool, int count) {
    std::vector<int> slots(size_t(pool.threads()), -1);
    std::atomic<int> wrong{0};
    pool.run([&](int thread) {
        for (int i = 0; i < count; i++) {
            slots[size_t(thread)] = i;
            pool.wait(thread);
            for (const int slot : slots) wrong += slot != i;
            pool.wait(thread);
        }
    });
    CHECK(wrong == 0, "%d of %d threads' values are of another round", wrong.load(), pool.threads());
}

void test_rounds() {
    for (int threads = 1; threads <= 4; threads++) {
        Pool pool(threads, nullptr);
        CHECK(pool.threads() == threads, "%d", pool.threads());
        // Where threads outnumber processors, a round costs as long as one waits before it yields.
        const int count = threads > int(std::thread::hardware_concurrency()) ? 40 : 300;
        rounds(pool, count);
        for (int i = 0; i < count; i++) rounds(pool, 1);
    }
    // Beyond 8 threads the barrier counts in groups: whole ones, and one that is not.
    for (const int threads : {8, 9, 16, 19}) {
        Pool pool(threads, nullptr);
        rounds(pool, 8);
    }
}

// A run finds its threads spinning, falling asleep, or asleep.
void test_pauses() {
    Pool pool(3, nullptr);
    for (int i = 0; i < 40; i++) {
        std::this_thread::sleep_for(std::chrono::microseconds(i % 6 * 700));
        rounds(pool, 2);
    }
}

// Callers in several threads take turns; each run is whole.
void test_callers() {
    Pool pool(3, nullptr);
    std::vector<long> sums(3);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; c++) {
        callers.emplace_back([&] {
            for (int i = 0; i < 60; i++) {
                pool.run([&](int thread) {
                    sums[size_t(thread)]++;
                    pool.wait(thread);
                });
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    for (const long sum : sums) CHECK(sum == 240, "%ld of 240 runs", sum);
}

// Pools come and go, used and unused, while their threads spin or sleep.
void test_lifetimes() {
    for (int i = 0; i < 40; i++) {
        Pool unused(4, nullptr);
        Pool used(1 + i % 4, nullptr);
        rounds(used, 1);
        if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(4));
    }
}

// A run binds the caller to its processor and gives the old mask back; a processor that is not there changes nothing.
void test_binding() {
    cpu_set_t before, within, after;
    sched_getaffinity(0, sizeof before, &before);
    int allowed = 0;
    while (!CPU_ISSET(allowed, &before)) allowed++;
    const int32_t cpus[] = {allowed, allowed}, absent[] = {CPU_SETSIZE - 1, CPU_SETSIZE - 1};
    for (const int32_t* choice : {cpus, absent}) {
        Pool pool(2, choice);
        std::atomic<int> bound{0};
        for (int i = 0; i < 3; i++) {
            pool.run([&](int thread) {
                cpu_set_t mine;
                sched_getaffinity(0, sizeof mine, &mine);
                bound += CPU_COUNT(&mine) == 1 && CPU_ISSET(allowed, &mine);
                if (thread == 0) within = mine;
            });
        }
        sched_getaffinity(0, sizeof after, &after);
        CHECK(CPU_EQUAL(&before, &after), "the caller has another mask behind a run");
        if (choice == cpus) {
            CHECK(bound == 6, "%d of 6 times on the wanted processor", bound.load());
        } else {
            CHECK(CPU_EQUAL(&before, &within), "an absent processor changed the mask");
        }
    }
}

// Shares are contiguous, cover everything once, and differ by one at most.
void test_shares() {
    for (int64_t total = 0; total < 40; total++) {
        for (int threads = 1; threads < 9; threads++) {
            CHECK(share(total, 0, threads) == 0 && share(total, threads, threads) == total, "%ld among %d", long(total), threads);
            for (int t = 0; t < threads; t++) {
                const int64_t size = share(total, t + 1, threads) - share(total, t, threads);
                CHECK(size == total / threads || size == total / threads + 1, "%ld of %ld among %d", long(size), long(total), threads);
            }
        }
    }
}

}  // namespace

void test_threads() {
    test_rounds();
    test_pauses();
    test_callers();
    test_lifetimes();
    test_binding();
    test_shares();
}

// Threads that the system refuses are an exception, which the C interface makes a message of, and not the end.
void test_thread_limit() {
    const rlimit limit{1 << 28, 1 << 28};  // of addresses: room for some stacks of 8 MB, not for 200
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    std::string message;
    try {
        Pool pool(200, nullptr);
    } catch (const std::exception& error) {
        message = error.what();
    }
    CHECK(!message.empty(), "200 threads were started after all");
    std::printf("%s\n", message.c_str());
    Pool pool(2, nullptr);  // what had been started is gone, so that there is room again
    rounds(pool, 10);
}

void test_cpu() {
    const char* names[] = {"none", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
    int before = 0;
    for (int limit = 0; limit < 5; limit++) {
        const char* reason = nullptr;
        const Kernels* kernels = choose_kernels(names[limit], &reason);
        std::printf("%s: %s\n", names[limit], kernels ? kernels->name : reason);
        CHECK((kernels == nullptr) == (reason != nullptr), "%s: neither or both of kernels and reason", names[limit]);
        int level = 0;
        for (int i = 0; kernels && i < 5; i++) level = std::string(kernels->name) == names[i] ? i : level;
        CHECK(level <= limit && level >= before, "%s gives level %d, a lower limit %d", names[limit], level, before);
        before = level;
    }
    const char *reason = nullptr, *other = nullptr;
    CHECK(choose_kernels(nullptr, &reason) == choose_kernels("amx", &other), "no limit is the best");
    CHECK(choose_kernels("", &reason) == choose_kernels("amx", &other), "an empty limit is none");
    CHECK(!choose_kernels("avx2", &reason) && reason, "a limit that is no level's name must not mean any of them");
}

}  // namespace check
