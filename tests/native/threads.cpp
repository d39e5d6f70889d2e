// The pool and its barrier with more threads than processors; nothing here uses vectors.
#include <sched.h>
#include <sys/resource.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "pools.h"
#include "threads/background.h"

namespace check {
namespace {

void test_rounds() {
    for (int threads = 1; threads <= 4; threads++) {
        Pool pool(threads, nullptr);
        CHECK(pool.threads() == threads, "%d", pool.threads());
        // Where threads outnumber processors, a round costs as long as one waits before it parks.
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

// Threads of several nodes, each with a word of its own to wait at: as many as another node has, fewer than a group,
// one alone, and more than a group. A node that is let go before another has arrived, or not at all.
void test_rounds_of_nodes() {
    for (const std::vector<int>& counts :
         std::vector<std::vector<int>>{{1, 1}, {3, 5}, {1, 9}, {9, 2}, {2, 1, 3}, {1, 17, 9}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        Pool pool(int(nodes.size()), nullptr, nodes);
        CHECK(pool.nodes() == int(counts.size()), "%d nodes", pool.nodes());
        rounds(pool, 8);
        rounds(pool, 1);
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

// Calls beside the caller, who comes back before they are done, or finds the thread asleep.
void test_background() {
    Background background;
    int done = 0;
    for (int i = 0; i < 300; i++) {
        background.start([&] {
            if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
            done++;
        });
        if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(4));
        background.wait();
        CHECK(background.done() && done == i + 1, "%d calls of %d", done, i + 1);
    }
}

// Runs of fewer threads than there are, by turns with others: who takes no part is in none, misses many, and comes when
// it is asked again, from its sleep, too.
void test_fewer_threads() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{4}, {9}, {2, 3}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        const int threads = int(nodes.size());
        Pool pool(threads, nullptr, nodes);
        for (const int team : {1, threads, 2, 3, threads, threads - 1, 99, 2, 0}) rounds(pool, 3, team);
        for (int i = 0; i < 200; i++) rounds(pool, 1, 2);
        rounds(pool, 3);
        std::this_thread::sleep_for(std::chrono::milliseconds(4));
        for (const int team : {3, 1, threads, 2, threads}) rounds(pool, 1, team);
        const PoolStatistics before = pool.statistics();
        rounds(pool, 5, 2), rounds(pool, 4, 3);
        const PoolStatistics after = pool.statistics();
        CHECK(after.barriers - before.barriers == 18 && after.waits - before.waits == 44, "%lu barriers, %lu waits",
              (unsigned long)(after.barriers - before.barriers), (unsigned long)(after.waits - before.waits));
    }
}

// A failing thread of a run that not all take part in: the next one is whole, with fewer and with all.
void test_failures_of_fewer() {
    Pool pool(5, nullptr, nodes_of({2, 3}));
    for (const int failing : {0, 2}) {
        std::string message;
        try {
            pool.run(
                [&](int thread) {
                    if (thread == failing) throw std::runtime_error("few");
                    pool.wait(thread);
                },
                3);
        } catch (const std::exception& error) {
            message = error.what();
        }
        CHECK(message == "few", "%s", message.c_str());
        for (const int team : {3, 0, 2}) rounds(pool, 3, team);
    }
}

// Callers in several threads take turns, each with a number of threads of its own; each run is whole.
void test_callers() {
    Pool pool(3, nullptr);
    std::vector<long> sums(3);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; c++) {
        callers.emplace_back([&, c] {
            for (int i = 0; i < 60; i++) {
                pool.run(
                    [&](int thread) {
                        sums[size_t(thread)]++;
                        pool.wait(thread);
                    },
                    c);
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK((sums == std::vector<long>{240, 180, 120}), "%ld, %ld and %ld runs", sums[0], sums[1], sums[2]);
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

// A thread that fails in any round, before or behind others at the barrier: everybody leaves, the caller gets the
// exception, and the next run is whole.
void test_failures() {
    for (int threads = 1; threads <= 4; threads++) {
        Pool pool(threads, nullptr);
        for (int failing = 0; failing < threads; failing++) {
            for (int round = 0; round < 3; round++) {
                std::string message;
                std::atomic<int> left{0};
                try {
                    pool.run([&](int thread) {
                        struct Leaving {
                            std::atomic<int>& left;
                            ~Leaving() { left++; }
                        } leaving{left};
                        for (int i = 0; i < 3; i++) {
                            if (i == round && thread == failing) throw std::runtime_error("round " + std::to_string(i));
                            pool.wait(thread);
                        }
                    });
                } catch (const std::exception& error) {
                    message = error.what();
                }
                CHECK(message == "round " + std::to_string(round), "thread %d of %d: %s", failing, threads,
                      message.c_str());
                CHECK(left == threads, "%d of %d threads have left", left.load(), threads);
                rounds(pool, 2);
            }
        }
    }
    // All at once, and beyond one group of the barrier.
    Pool pool(10, nullptr);
    for (int i = 0; i < 4; i++) {
        std::string message;
        try {
            pool.run([&](int thread) {
                if (i % 2 || thread == 9) throw std::runtime_error("all");
                pool.wait(thread);
            });
        } catch (const std::exception& error) {
            message = error.what();
        }
        CHECK(message == "all", "%s", message.c_str());
        rounds(pool, 2);
    }
}

// Threads compute alike whatever the caller's control register says when they start or when they run, and the caller
// gets its own back, whether the run ended well or not.
void test_float_control() {
    const uint32_t usual = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8040 | 0x2000);    // denormals are zero, rounding down
    const uint32_t flushing = _mm_getcsr();  // valgrind knows only the rounding
    Pool pool(3, nullptr);
    std::vector<uint32_t> within(3);
    pool.run([&](int thread) { within[size_t(thread)] = _mm_getcsr(); });
    CHECK(_mm_getcsr() == flushing, "%x behind a run", _mm_getcsr());
    for (const uint32_t control : within) CHECK((control & ~0x3fu) == 0x1f80, "%x within", control);
    try {
        pool.run([](int) { throw std::runtime_error("none"); });
    } catch (const std::exception&) {
    }
    CHECK(_mm_getcsr() == flushing, "%x behind a failed run", _mm_getcsr());
    _mm_setcsr(usual);
}

// Shares are contiguous, cover everything once, and differ by one at most.
void test_shares() {
    for (int64_t total = 0; total < 40; total++) {
        for (int threads = 1; threads < 9; threads++) {
            CHECK(share(total, 0, threads) == 0 && share(total, threads, threads) == total, "%ld among %d", long(total),
                  threads);
            for (int t = 0; t < threads; t++) {
                const int64_t size = share(total, t + 1, threads) - share(total, t, threads);
                CHECK(size == total / threads || size == total / threads + 1, "%ld of %ld among %d", long(size),
                      long(total), threads);
            }
        }
    }
}

}  // namespace

void test_threads() {
    test_rounds();
    test_background();
    test_rounds_of_nodes();
    test_pauses();
    test_fewer_threads();
    test_failures_of_fewer();
    test_callers();
    test_lifetimes();
    test_binding();
    test_failures();
    test_float_control();
    test_shares();
    test_waiting();
    test_locks_and_forks();
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

}  // namespace check
