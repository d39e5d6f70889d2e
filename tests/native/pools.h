// What tests of pools of threads share.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "check.h"
#include "threads/pool.h"

namespace check {

// Plain integers that each thread writes and all others read a barrier later: a thread that is let through too early or
// too late reads another round's value (and ThreadSanitizer sees the race). Of the first `threads`, 0: of all.
inline void rounds(Pool& pool, int count, int threads = 0) {
    const int team = threads ? std::min(threads, pool.threads()) : pool.threads();
    std::vector<int> slots(size_t(team), -1);
    std::atomic<int> wrong{0}, calls{0};
    pool.run(
        [&](int thread) {
            calls++;
            for (int i = 0; i < count; i++) {
                slots.at(size_t(thread)) = i;
                pool.wait(thread);
                for (const int slot : slots) wrong += slot != i;
                pool.wait(thread);
            }
        },
        threads);
    CHECK(wrong == 0, "%d of %d threads' values are of another round", wrong.load(), team);
    CHECK(calls == team, "%d calls of %d threads", calls.load(), team);
}

// The nodes of threads of which each node has so many.
inline std::vector<int32_t> nodes_of(const std::vector<int>& counts) {
    std::vector<int32_t> nodes;
    for (size_t i = 0; i < counts.size(); i++) nodes.insert(nodes.end(), size_t(counts[i]), int32_t(i));
    return nodes;
}

}  // namespace check
