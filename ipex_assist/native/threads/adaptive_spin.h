// How long a thread that waits for others spins before it sleeps.
//
// At a barrier: the threads of a pass arrive within microseconds of each other, and a thread that sleeps comes back
// late, so it spins first. Where other programs use the same CPUs, a partner may be off its CPU for a time slice of
// milliseconds. A thread that spins meanwhile uses up its own share of CPU time for nothing and is descheduled itself
// when the partner is back; a thread that sleeps keeps its share, and preempts the neighbour when it is woken. A wait
// as long as a time slice is the sign of such neighbours: from then on a thread sleeps early, until waits have been
// short for a while.
//
// Between two runs: see IdleSpin.
#pragma once
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ipex_assist {

// The clock and the CPU of a waiting thread; tests have their own.
struct SystemTime {
    std::chrono::nanoseconds now() const { return std::chrono::steady_clock::now().time_since_epoch(); }
    void pause() const { _mm_pause(); }
    void yield() const { sched_yield(); }
};

// The waits of one thread at a barrier.
class AdaptiveSpin {
public:
    using Time = std::chrono::nanoseconds;
    static constexpr Time LONGEST{500'000}, SHORTEST{100'000};  // how long a thread spins
    static constexpr Time SLICE{1'000'000};  // a wait at least as long means that the partner had lost its CPU
    static constexpr int GROWTH = 256;       // a short wait adds 1/256 to the limit: full again after ten passes
    static constexpr int PAUSES = 32;        // between two looks at the clock: some microseconds

    // For how long the next wait spins.
    Time limit() const { return limit_; }

    // Spins until done() is true; past the limit it calls park() instead, which may return early. True where spinning
    // was enough.
    template <class Done, class Park, class Clock>
    bool wait(Done&& done, Park&& park, Clock&& clock) {
        for (int i = 0; i < PAUSES; i++) {
            if (done()) return grow(), true;
            clock.pause();
        }
        const Time started = clock.now();
        for (int i = 1; !done(); i++) {
            clock.pause();
            if (i % PAUSES || clock.now() - started < limit_) continue;
            while (!done()) park();
            if (clock.now() - started >= SLICE) {
                limit_ = SHORTEST;
            } else {
                grow();
            }
            return false;
        }
        return grow(), true;
    }

private:
    void grow() { limit_ = std::min(LONGEST, limit_ + limit_ / GROWTH); }

    Time limit_ = LONGEST;
};

// A worker's wait for the next run. Python takes some hundred microseconds between two passes, so the worker spins; but
// the CPU may be wanted by the program's own threads, such as a server's, which would wait for the end of a time slice.
// So the worker yields at every look at the clock, and sleeps at once where another thread has taken the CPU.
struct IdleSpin {
    using Time = std::chrono::nanoseconds;
    static constexpr Time LONGEST{2'000'000};  // without other threads
    static constexpr Time TAKEN{50'000};       // between two looks at the clock: another thread had the CPU
    static constexpr int PAUSES = 64;          // between two looks at the clock

    // Spins until done() is true; false where the thread is to sleep instead.
    template <class Done, class Clock>
    static bool wait(Done&& done, Clock&& clock) {
        const Time started = clock.now();
        for (Time last = started;;) {
            for (int i = 0; i < PAUSES; i++) {
                if (done()) return true;
                clock.pause();
            }
            clock.yield();
            const Time now = clock.now();
            if (now - started >= LONGEST || now - last >= TAKEN) return done();
            last = now;
        }
    }
};

}  // namespace ipex_assist
