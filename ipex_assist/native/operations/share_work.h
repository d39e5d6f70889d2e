// How threads share the parts of several items evenly, whichever threads have which items.
#pragma once
#include <algorithm>

#include "threads/barrier.h"

namespace ipex_assist {

struct Sharers {  // of work: this one's number, and how many there are
    int thread, threads;
};

struct Range {
    int64_t first, end;
    int64_t size() const { return end - first; }
};

// f(item, first, end) for a sharer's part of the parts(item) of items 0 <= item < count, each of which takes as long as
// cost(item) says.
template <class Parts, class Cost, class F>
void share_work(int32_t count, const Sharers& sharers, Parts&& parts, Cost&& cost, F&& f) {
    int64_t total = 0, at = 0;
    for (int32_t i = 0; i < count; i++) {
        const int64_t size = parts(i).size();
        if (size) total += size * cost(i);
    }
    const int64_t low = share(total, sharers.thread, sharers.threads),
                  high = share(total, sharers.thread + 1, sharers.threads);
    for (int32_t i = 0; i < count && at < high; i++) {
        const Range all = parts(i);
        if (!all.size()) continue;
        const int64_t each = cost(i);
        const auto from = [&](int64_t border) {
            return all.first + std::min(all.size(), (std::max<int64_t>(0, border - at) + each - 1) / each);
        };
        if (from(low) < from(high)) f(i, from(low), from(high));
        at += all.size() * each;
    }
}

}  // namespace ipex_assist
