// How threads wait for each other: for how long they spin, when they sleep, and who wakes them.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "pools.h"

namespace check {
namespace {

// How often a thread of this process has given up its CPU.
long switches(long thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string name = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.compare(0, name.size(), name) == 0) return std::stol(line.substr(name.size()));
    }
    return -1;
}

// A run wakes the threads that take part in it, and no others.
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
    CHECK(before >= 0 && after - before < 8, "it gave up its CPU %ld times, and then %ld times", before, after);
}

using Time = AdaptiveSpin::Time;

Time milliseconds(double count) { return Time(int64_t(count * 1e6)); }

// A clock that pauses, yields and sleeping move on, and the time spent on pauses.
struct FakeTime {
    Time at{0}, spun{0}, taken{0};  // taken: how long another thread has the CPU at each yield
    int parks = 0, yields = 0;

    Time now() const { return at; }
    void pause() { at += Time(50), spun += Time(50); }
    void yield() { at += taken, yields++; }
    // A partner that arrives after `length`; returns how long this wait spun.
    Time wait(AdaptiveSpin& spin, Time length) {
        const Time until = at + length, before = spun;
        spin.wait([&] { return at >= until; }, [&] { parks++, at = until; }, *this);
        return spun - before;
    }
    // A run that comes after `length`; returns for how long this wait spun.
    Time wait(IdleSpin& idle, Time length) {
        const Time until = at + length, before = spun;
        idle.wait([&] { return at >= until; }, [&] { parks++, at = until; }, *this);
        return spun - before;
    }
};

// On CPUs of its own a thread always spins, whatever lies between two barriers; a single long wait changes nothing.
void test_spin_on_free_cpus() {
    AdaptiveSpin spin;
    FakeTime time;
    for (int i = 0; i < 5000; i++) time.wait(spin, Time(i % 400 * 1000));
    CHECK(time.parks == 0, "%d parks of waits that are shorter than the limit", time.parks);
    const Time spun = time.wait(spin, milliseconds(0.8));
    CHECK(time.parks == 1 && spun >= AdaptiveSpin::LONGEST && spun < AdaptiveSpin::LONGEST + milliseconds(0.01),
          "%d parks, %ld ns", time.parks, long(spun.count()));
    CHECK(spin.limit() == AdaptiveSpin::LONGEST, "one such wait is no sign of neighbours: %ld ns",
          long(spin.limit().count()));
}

// With other programs on the CPUs every 50th wait lasts a time slice: those park early, the short ones between them
// never.
void test_spin_on_shared_cpus() {
    AdaptiveSpin spin;
    FakeTime time;
    time.wait(spin, milliseconds(4));
    CHECK(spin.limit() == AdaptiveSpin::SHORTEST, "%ld ns after a wait of a time slice", long(spin.limit().count()));
    Time long_ones{0};
    int parks = 0;
    for (int i = 1; i <= 5000; i++) {
        const int before = time.parks;
        const Time spun = time.wait(spin, i % 50 ? Time(i % 20 * 2000) : milliseconds(4));
        if (i % 50) continue;
        long_ones += spun, parks += time.parks - before;
    }
    CHECK(parks == 100 && time.parks == 101, "%d parks in 100 long waits, %d in all", parks, time.parks);
    CHECK(long_ones < 100 * (AdaptiveSpin::SHORTEST * 3 / 2), "%ld ns of spinning in them", long(long_ones.count()));
    // The neighbours have gone.
    for (int i = 0; i < 1000; i++) time.wait(spin, Time(2000));
    CHECK(spin.limit() == AdaptiveSpin::LONGEST, "%ld ns after 1000 short waits", long(spin.limit().count()));
    parks = time.parks;
    time.wait(spin, milliseconds(0.3));
    CHECK(time.parks == parks, "it does not spin again");
}

// A spurious wake-up, as by a signal: the thread sleeps on and does not spin again.
void test_spurious_wakeups() {
    AdaptiveSpin spin;
    FakeTime time;
    const Time until = milliseconds(9);
    int parks = 0;
    const bool spinning =
        spin.wait([&] { return time.at >= until; }, [&] { parks++, time.at += milliseconds(3); }, time);
    CHECK(!spinning && parks == 3, "%d parks", parks);
    CHECK(time.spun < AdaptiveSpin::LONGEST + milliseconds(0.01), "%ld ns", long(time.spun.count()));
}

Time processor_time() {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + Time(used.tv_nsec);
}

// A thread whose partner comes late leaves its CPU to others; and the pool's counts of such waits.
void test_parking() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{2}, {10}, {3, 2}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        const int threads = int(nodes.size());
        Pool pool(threads, nullptr, nodes);
        const PoolStatistics before = pool.statistics();
        Time waited{0};
        pool.run([&](int thread) {
            for (int i = 0; i < 5; i++) {
                if (thread == 1) std::this_thread::sleep_for(milliseconds(20));
                const Time started = processor_time();
                pool.wait(thread);
                if (thread == 0) waited += processor_time() - started;
            }
        });
        const PoolStatistics after = pool.statistics();
        CHECK(waited < milliseconds(30), "%ld ns of processor time in 100 ms of waiting", long(waited.count()));
        CHECK(after.runs - before.runs == 1 && after.barriers - before.barriers == 5, "%lu runs, %lu barriers",
              (unsigned long)after.runs, (unsigned long)after.barriers);
        CHECK(after.waits - before.waits == 5ul * unsigned(threads), "%lu waits", (unsigned long)after.waits);
        CHECK(after.parks > before.parks, "nobody slept");
    }
}

// A thread that fails wakes the threads that wait for it, on every node.
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

// Between two runs a worker spins for 2 ms where nobody else wants its CPU, and yields at every look at the clock.
void test_idle_on_free_cpus() {
    IdleSpin idle;
    FakeTime time;
    const Time spun = time.wait(idle, milliseconds(1000));
    CHECK(spun >= IdleSpin::SHORTEST && spun < IdleSpin::SHORTEST + milliseconds(0.01), "%ld ns", long(spun.count()));
    CHECK(time.yields == int(spun.count() / 50 / IdleSpin::PAUSES), "%d yields", time.yields);
    time.wait(idle, milliseconds(1.5));
    CHECK(time.parks == 1, "it sleeps before a run that comes after 1.5 ms");
}

// Many requests: passes are 3.5 ms apart. Only the first such wait ends asleep; a pause of the requests changes nothing;
// and when few are left, it spins for less again.
void test_idle_between_long_rounds() {
    IdleSpin idle;
    FakeTime time;
    for (int i = 0; i < 100; i++) time.wait(idle, milliseconds(i % 2 ? 3.3 : 3.5));
    CHECK(time.parks == 1, "%d of 100 waits of 3.5 ms end asleep", time.parks);
    CHECK(time.wait(idle, milliseconds(1000)) < milliseconds(4.5), "it spins on where no run comes");
    time.wait(idle, milliseconds(3.5));
    CHECK(time.parks == 2, "it has forgotten how long waits are");
    for (int i = 0; i < 100; i++) time.wait(idle, milliseconds(9.5));
    CHECK(time.wait(idle, milliseconds(1000)) <= IdleSpin::LONGEST + milliseconds(0.01), "it spins for too long");
    for (int i = 0; i < 40; i++) time.wait(idle, milliseconds(0.2));
    CHECK(idle.limit() == IdleSpin::SHORTEST, "%ld ns after short waits", long(idle.limit().count()));
}

// Where another thread takes the CPU, the worker sleeps as soon as it has it back, and expects it the next time; unless
// its run has come meanwhile.
void test_idle_on_shared_cpus() {
    IdleSpin idle;
    FakeTime time;
    for (int i = 0; i < 9; i++) time.wait(idle, milliseconds(6));
    time.taken = milliseconds(3), time.yields = 0;
    const Time spun = time.wait(idle, milliseconds(1000));
    CHECK(time.yields == 1 && spun < milliseconds(0.01), "%d yields, %ld ns", time.yields, long(spun.count()));
    CHECK(idle.limit() == IdleSpin::SHORTEST, "%ld ns beside another thread", long(idle.limit().count()));
    const int parks = time.parks;
    time.wait(idle, milliseconds(3));
    CHECK(time.parks == parks, "it sleeps though its run has come");
    time.taken = Time(1000), time.yields = 0;  // what the system call itself takes is nobody else's
    time.wait(idle, milliseconds(1000));
    CHECK(time.yields > 100, "%d yields", time.yields);
}

// The same with real threads: a busy thread on a worker's CPU gets it between two runs.
void test_idle_pool_beside_a_busy_thread() {
    cpu_set_t allowed, one;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int32_t cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        sched_setaffinity(0, sizeof one, &one);
        while (!stop) SystemTime().pause();
    });
    const int32_t cpus[] = {cpu, cpu};
    Pool pool(2, cpus);
    constexpr int RUNS = 40;
    Time first{0}, last{0};
    for (int i = 0; i <= RUNS; i++) {
        pool.run([&](int thread) {
            if (thread == 1) (i ? last : first) = processor_time();
        });
        std::this_thread::sleep_for(milliseconds(6));
    }
    stop = true;
    busy.join();
    CHECK(last - first < RUNS * IdleSpin::SHORTEST / 2, "%ld ns of CPU time in %d idle phases",
          long((last - first).count()), RUNS);
}

}  // namespace

void test_waiting() {
    test_sleepers_are_left_alone();
    test_spin_on_free_cpus();
    test_spin_on_shared_cpus();
    test_spurious_wakeups();
    test_parking();
    test_failure_wakes();
    test_idle_on_free_cpus();
    test_idle_between_long_rounds();
    test_idle_on_shared_cpus();
    test_idle_pool_beside_a_busy_thread();
}

}  // namespace check
