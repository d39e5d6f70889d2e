// The pool and its barrier with more threads than processors, and the choice of kernels; nothing here uses vectors.
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "cpu.h"
#include "pool.h"

// guard.cpp's, where that is linked.
extern std::atomic<bool> arch_prctl_refused __attribute__((weak));

namespace check {
namespace {

// Plain integers that each thread writes and all others read a barrier later: a thread that is let through too early or
// too late reads another round's value (and ThreadSanitizer sees the race). Of the first `threads`, 0: of all.
void rounds(Pool& pool, int count, int threads = 0) {
    const int team = threads ? std::min(threads, pool.threads()) : pool.threads();
    std::vector<int> slots(size_t(team), -1);
    std::atomic<int> wrong{0}, calls{0};
    pool.run([&](int thread) {
        calls++;
        for (int i = 0; i < count; i++) {
            slots.at(size_t(thread)) = i;
            pool.wait(thread);
            for (const int slot : slots) wrong += slot != i;
            pool.wait(thread);
        }
    }, threads);
    CHECK(wrong == 0, "%d of %d threads' values are of another round", wrong.load(), team);
    CHECK(calls == team, "%d calls of %d threads", calls.load(), team);
}

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

// The nodes of threads of which each node has so many.
std::vector<int32_t> nodes_of(const std::vector<int>& counts) {
    std::vector<int32_t> nodes;
    for (size_t i = 0; i < counts.size(); i++) nodes.insert(nodes.end(), size_t(counts[i]), int32_t(i));
    return nodes;
}

// Threads of several nodes, each with a word of its own to wait at: as many as another node has, fewer than a group, one
// alone, and more than a group. A node that is let go before another has arrived, or not at all.
void test_rounds_of_nodes() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{1, 1}, {3, 5}, {1, 9}, {9, 2}, {2, 1, 3}, {1, 17, 9}}) {
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

// Runs of fewer threads than there are, by turns with others: who takes no part is in none, misses many, and comes when it
// is asked again, from its sleep, too.
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
        const Statistics before = pool.statistics();
        rounds(pool, 5, 2), rounds(pool, 4, 3);
        const Statistics after = pool.statistics();
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
            pool.run([&](int thread) {
                if (thread == failing) throw std::runtime_error("few");
                pool.wait(thread);
            }, 3);
        } catch (const std::exception& error) {
            message = error.what();
        }
        CHECK(message == "few", "%s", message.c_str());
        for (const int team : {3, 0, 2}) rounds(pool, 3, team);
    }
}

// How often a thread of this process has given its processor back.
long switches(long thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string name = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.compare(0, name.size(), name) == 0) return std::stol(line.substr(name.size()));
    }
    return -1;
}

// Who sleeps and takes no part is not woken, whoever else is.
void test_sleepers_are_left_alone() {
    Pool pool(8, nullptr);
    std::atomic<long> last{0};
    pool.run([&](int thread) {
        if (thread == 7) last = syscall(SYS_gettid);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    const long before = switches(last);
    for (int i = 0; i < 20; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(4));
        rounds(pool, 1, 2);
    }
    const long after = switches(last);
    CHECK(before >= 0 && after - before < 8, "it gave its processor back %ld times, and then %ld", before, after);
}

using Time = Patience::Time;

Time milliseconds(double count) { return Time(int64_t(count * 1e6)); }

// A clock that goes on by pauses and by sleeping, and what was spent on each.
struct FakeTime {
    Time at{0}, spun{0};
    int parks = 0;

    // Both are called through a reference.
    Time now() const { return at; }
    void pause() { at += Time(50), spun += Time(50); }
    // A partner that comes after `length`; returns for how long this wait span.
    Time wait(Patience& patience, Time length) {
        const Time until = at + length, before = spun;
        patience.wait([&] { return at >= until; }, [&] { parks++, at = until; }, *this);
        return spun - before;
    }
};

// Whoever waits alone on the machine always spins, whatever lies between two barriers, and parks late once in a while.
void test_patience_alone() {
    Patience patience;
    FakeTime time;
    for (int i = 0; i < 5000; i++) time.wait(patience, Time(i % 400 * 1000));
    CHECK(time.parks == 0, "%d parks of waits that are shorter than the limit", time.parks);
    const Time spun = time.wait(patience, milliseconds(0.8));
    CHECK(time.parks == 1 && spun >= Patience::LONGEST && spun < Patience::LONGEST + milliseconds(0.01),
          "%d parks, %ld ns", time.parks, long(spun.count()));
    CHECK(patience.limit() == Patience::LONGEST, "one such wait is no company: %ld ns", long(patience.limit().count()));
}

// With neighbours on the CPUs every 50th wait lasts a slice: those park early, and the short ones between them never.
void test_patience_in_company() {
    Patience patience;
    FakeTime time;
    time.wait(patience, milliseconds(4));
    CHECK(patience.limit() == Patience::SHORTEST, "%ld ns behind a slice", long(patience.limit().count()));
    Time long_ones{0};
    int parks = 0;
    for (int i = 1; i <= 5000; i++) {
        const int before = time.parks;
        const Time spun = time.wait(patience, i % 50 ? Time(i % 20 * 2000) : milliseconds(4));
        if (i % 50) continue;
        long_ones += spun, parks += time.parks - before;
    }
    CHECK(parks == 100 && time.parks == 101, "%d parks in 100 long waits, %d in all", parks, time.parks);
    CHECK(long_ones < 100 * (Patience::SHORTEST * 3 / 2), "%ld ns of spinning in them", long(long_ones.count()));
    // The neighbours have gone.
    for (int i = 0; i < 1000; i++) time.wait(patience, Time(2000));
    CHECK(patience.limit() == Patience::LONGEST, "%ld ns after 1000 short waits", long(patience.limit().count()));
    parks = time.parks;
    time.wait(patience, milliseconds(0.3));
    CHECK(time.parks == parks, "it does not spin again");
}

// A wake-up that is none, as signals cause them: the thread sleeps on, and does not spin again.
void test_patience_false_alarm() {
    Patience patience;
    FakeTime time;
    const Time until = milliseconds(9);
    int parks = 0;
    const bool spinning = patience.wait([&] { return time.at >= until; }, [&] { parks++, time.at += milliseconds(3); }, time);
    CHECK(!spinning && parks == 3, "%d parks", parks);
    CHECK(time.spun < Patience::LONGEST + milliseconds(0.01), "%ld ns", long(time.spun.count()));
}

Time processor_time() {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + Time(used.tv_nsec);
}

// Who waits for a partner that is away leaves its CPU to others, and is back when the partner is; what the pool counted.
void test_parking() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{2}, {10}, {3, 2}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        const int threads = int(nodes.size());
        Pool pool(threads, nullptr, nodes);
        const Statistics before = pool.statistics();
        Time waited{0};
        pool.run([&](int thread) {
            for (int i = 0; i < 5; i++) {
                if (thread == 1) std::this_thread::sleep_for(milliseconds(20));
                const Time started = processor_time();
                pool.wait(thread);
                if (thread == 0) waited += processor_time() - started;
            }
        });
        const Statistics after = pool.statistics();
        CHECK(waited < milliseconds(30), "%ld ns of processor time in 100 ms of waiting", long(waited.count()));
        CHECK(after.runs - before.runs == 1 && after.barriers - before.barriers == 5, "%lu runs, %lu barriers",
              (unsigned long)after.runs, (unsigned long)after.barriers);
        CHECK(after.waits - before.waits == 5ul * unsigned(threads), "%lu waits", (unsigned long)after.waits);
        CHECK(after.parks > before.parks, "nobody slept");
    }
}

// A thread that fails wakes those who sleep for it, on every node.
void test_failure_wakes() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{3}, {2, 3}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        Pool pool(int(nodes.size()), nullptr, nodes);
        std::string message;
        try {
            pool.run([&](int thread) {
                if (thread == 1) {
                    std::this_thread::sleep_for(milliseconds(20));
                    throw std::runtime_error("late");
                }
                pool.wait(thread);
            });
        } catch (const std::exception& error) {
            message = error.what();
        }
        CHECK(message == "late", "%s", message.c_str());
        CHECK(pool.statistics().parks > 0, "nobody slept");
        rounds(pool, 20);
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
                pool.run([&](int thread) {
                    sums[size_t(thread)]++;
                    pool.wait(thread);
                }, c);
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

// Processors of one node and of two, as the system's folders tell it; a node without processors is nobody's.
void test_nodes() {
    char made[] = "/tmp/nodes-XXXXXX";
    const std::string folder = mkdtemp(made);
    for (const char* name : {"/node0", "/node1", "/node3"}) std::filesystem::create_directory(folder + name);
    for (const char* name : {"/node1/cpu2", "/node1/cpu7", "/node3/cpu12"}) std::filesystem::create_directory(folder + name);
    const int32_t near[] = {2, 7}, far[] = {2, 7, 12}, again[] = {2, 12, 7}, unknown[] = {5, 6};
    using Nodes = std::vector<int32_t>;
    CHECK(memory_nodes(near, 2, folder).empty(), "one node");
    CHECK((memory_nodes(far, 3, folder) == Nodes{0, 0, 1}), "two nodes");
    CHECK((memory_nodes(again, 3, folder) == Nodes{0, 1, 2}), "a node that comes again");
    CHECK(memory_nodes(far, 1, folder).empty(), "one processor");
    CHECK(memory_nodes(unknown, 2, folder).empty(), "nodes that the system does not tell");
    std::filesystem::remove_all(folder);
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
                CHECK(message == "round " + std::to_string(round), "thread %d of %d: %s", failing, threads, message.c_str());
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
    _mm_setcsr(0x1f80 | 0x8040 | 0x2000);  // denormals are zero, rounding down
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
            while (!stop) pool.run([&](int thread) { for (int j = 0; j < 50; j++) pool.wait(thread); });
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
    test_rounds_of_nodes();
    test_pauses();
    test_fewer_threads();
    test_failures_of_fewer();
    test_sleepers_are_left_alone();
    test_patience_alone();
    test_patience_in_company();
    test_patience_false_alarm();
    test_parking();
    test_failure_wakes();
    test_callers();
    test_lifetimes();
    test_nodes();
    test_binding();
    test_failures();
    test_float_control();
    test_lock();
#ifdef FORKS_ALONE
    test_forks();
#endif
#ifdef FORKS_AMONG_THREADS
    test_forks_within_runs();
#endif
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
    const char* names[] = {"none", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
    constexpr int best = 6;
    int before = 0;
    for (int limit = 0; limit <= best; limit++) {
        std::string remark;
        const Kernels* kernels = choose_kernels(names[limit], remark);
        std::printf("%s: %s\n", names[limit], kernels ? kernels->name : remark.c_str());
        const bool as_named = kernels && std::string(kernels->name) == names[limit];
        CHECK(as_named == remark.empty(), "%s: less than is named without a remark, or a remark without need: %s",
              names[limit], remark.c_str());
        int level = 0;
        for (int i = 0; kernels && i <= best; i++) level = std::string(kernels->name) == names[i] ? i : level;
        CHECK(level <= limit && level >= before, "%s gives level %d, a lower limit %d", names[limit], level, before);
        before = level;
    }
    std::string remark, other;
    if (&arch_prctl_refused && before == best) {
        arch_prctl_refused = true;  // as an old kernel or a filter of system calls does
        for (const char* limit : {"", "amx"}) {
            const Kernels* kernels = choose_kernels(limit, remark);
            CHECK(kernels && std::string(kernels->name) == "avx512_bf16", "AMX without permission");
            CHECK(remark == "this processor has AMX, but the system does not permit its tiles (arch_prctl: Operation not permitted)",
                  "%s", remark.c_str());
        }
        CHECK(choose_kernels("avx512_vnni", remark) && remark.empty(), "AMX was not asked for: %s", remark.c_str());
        arch_prctl_refused = false;
    }
    CHECK(choose_kernels(nullptr, remark) == choose_kernels("amx", other), "no limit is the best");
    CHECK(choose_kernels("", remark) == choose_kernels("amx", other), "an empty limit is none");
    for (const char* wrong : {"avx", "avx2-vnni", "AMX", "amx "}) {
        CHECK(!choose_kernels(wrong, remark), "%s is no level's name and must not mean any of them", wrong);
        CHECK(remark.find("none, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx") != std::string::npos, "%s", remark.c_str());
    }
}

}  // namespace check
