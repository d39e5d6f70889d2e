// How threads wait for each other: for how long they spin, when they sleep, and who wakes them.
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
    const bool spinning =
        patience.wait([&] { return time.at >= until; }, [&] { parks++, time.at += milliseconds(3); }, time);
    CHECK(!spinning && parks == 3, "%d parks", parks);
    CHECK(time.spun < Patience::LONGEST + milliseconds(0.01), "%ld ns", long(time.spun.count()));
}

Time processor_time() {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + Time(used.tv_nsec);
}

// Who waits for a partner that is away leaves its CPU to others, and is back when the partner is; what the pool
// counted.
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

}  // namespace

void test_waiting() {
    test_sleepers_are_left_alone();
    test_patience_alone();
    test_patience_in_company();
    test_patience_false_alarm();
    test_parking();
    test_failure_wakes();
}

}  // namespace check
