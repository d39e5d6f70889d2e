// How long a thread that waits for others spins before it parks.
//
// The threads of a pass come to a barrier within microseconds of each other, and a thread that parks comes back late:
// so it spins. Where others use the same CPUs, a partner may be away for a time slice of milliseconds. Who spins then
// uses up its own share of time for nothing, and is away itself when the partner is back; who parks keeps its share,
// and pre-empts the neighbour when it is woken. A wait of a slice's length is how a thread knows, and from then on it
// parks early, until waits have been short for a while.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ipex_assist {

// What a wait does with time; a test has a clock of its own.
struct SystemTime {
    std::chrono::nanoseconds now() const { return std::chrono::steady_clock::now().time_since_epoch(); }
    void pause() const { _mm_pause(); }
};

class Patience {
public:
    using Time = std::chrono::nanoseconds;
    static constexpr Time LONGEST{500'000}, SHORTEST{100'000};  // that a thread spins
    static constexpr Time SLICE{1'000'000};                     // as long as a partner is away that waits for a CPU
    static constexpr int GROWTH = 256;                          // ten passes of short waits make it patient again
    static constexpr int PAUSES = 32;                           // between two looks at the clock: some microseconds

    // For how long the next wait will spin.
    Time limit() const { return limit_; }

    // Until there() is true: spins, and then calls park(), which returns when that may be. True where spinning was
    // enough.
    template <class There, class Park, class Clock>
    bool wait(There&& there, Park&& park, Clock&& clock) {
        for (int i = 0; i < PAUSES; i++) {
            if (there()) return grow(), true;
            clock.pause();
        }
        const Time started = clock.now();
        for (int i = 1; !there(); i++) {
            clock.pause();
            if (i % PAUSES || clock.now() - started < limit_) continue;
            while (!there()) park();
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

}  // namespace ipex_assist
