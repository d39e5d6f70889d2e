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

// A worker's waits for the next run. Between two passes Python takes some hundred microseconds, or milliseconds where
// there are many requests, so the worker spins a little longer than the last waits were; but the CPU may be wanted by
// the program's own threads, such as a server's, which would wait for the end of a time slice. So the worker yields at
// every look at the clock, and sleeps at once where another thread has taken the CPU.
class IdleSpin {
public:
    using Time = std::chrono::nanoseconds;
    static constexpr Time SHORTEST{2'000'000}, LONGEST{10'000'000};  // how long it spins, without other threads
    static constexpr Time TAKEN{50'000};  // between two looks at the clock: another thread had the CPU
    static constexpr int PAUSES = 64;     // between two looks at the clock
    static constexpr int MARGIN = 4;      // it spins 1/4 longer than the last wait …
    static constexpr int DECAY = 16;      // … or 1/16 less than before that wait

    // For how long the next wait spins.
    Time limit() const { return limit_; }

    // Spins until done() is true; past the limit, or beside another thread, it calls sleep() instead, which may return
    // early. True where spinning was enough.
    template <class Done, class Sleep, class Clock>
    bool wait(Done&& done, Sleep&& sleep, Clock&& clock) {
        const Time started = clock.now();
        const Spun spun = spin(done, clock, started);
        if (spun != DONE) {
            while (!done()) sleep();
        }
        learn(spun == TAKEN_AWAY, clock.now() - started);
        return spun == DONE;
    }

private:
    enum Spun { DONE, TOO_LONG, TAKEN_AWAY };

    template <class Done, class Clock>
    Spun spin(Done&& done, Clock&& clock, Time started) const {
        for (Time last = started;;) {
            for (int i = 0; i < PAUSES; i++) {
                if (done()) return DONE;
                clock.pause();
            }
            clock.yield();
            const Time now = clock.now();
            if (now - started >= limit_ || now - last >= TAKEN) {
                if (done()) return DONE;
                return now - last >= TAKEN ? TAKEN_AWAY : TOO_LONG;
            }
            last = now;
        }
    }
    // A wait longer than LONGEST lies between two requests, not between two passes, and says nothing of the next one.
    void learn(bool taken, Time waited) {
        if (taken) limit_ = SHORTEST;
        else if (waited < LONGEST) limit_ = std::max(waited + waited / MARGIN, limit_ - limit_ / DECAY);
        limit_ = std::clamp(limit_, SHORTEST, LONGEST);
    }

    Time limit_ = SHORTEST;
};

}  // namespace ipex_assist
