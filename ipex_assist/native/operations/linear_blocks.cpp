#include "operations/linear_blocks.h"

#include <algorithm>

#include "operations/share_work.h"

namespace ipex_assist {
namespace {

constexpr int64_t UNIT_ROWS = 32;  // that are not divided
constexpr int64_t FEW_ROWS = 128;  // up to which threads share panels alone
// Products that a core adds up in the time of reading a byte from a cache that it shares with others: about 40 of
// AVX-512's in int8, 130 of AMX's.
constexpr int64_t PRODUCTS_A_BYTE = 64;

// What the busiest thread reads and multiplies, in bytes, where panels are in so many groups, each of which some of the
// threads share by rows, or, where these are 0, shared alone. pieces: of `granularity` panels that stay together.
int64_t cost(const Linear& linear, int64_t pieces, int64_t groups, int64_t rows, int64_t row_bytes, int threads) {
    const int64_t units = (rows + UNIT_ROWS - 1) / UNIT_ROWS, each = linear.granularity;
    const int64_t panel = panel_bytes(linear.precision, linear.group, linear.depth);
    const int64_t products = LANES * UNIT_ROWS * linear.depth / PRODUCTS_A_BYTE;  // of a panel and a unit
    if (!groups) {
        const int64_t panels = (pieces + threads - 1) / threads * each;
        return panels * units * products + panels * panel + rows * row_bytes;
    }
    const int64_t panels = (pieces + groups - 1) / groups * each, sharers = threads / groups;
    // Where groups have the same number of threads, each thread is in one. Else its units are in two or three, and at
    // both ends some are its neighbours'.
    const bool even = threads % groups == 0;
    const int64_t own = even ? (units + sharers - 1) / sharers : units * groups / threads + 2;
    return own * panels * products + (even ? 1 : 2) * panels * panel + std::min(rows, own * UNIT_ROWS) * row_bytes;
}

// The number of groups with the least cost, 0 for none.
int64_t best_groups(const Linear& linear, int64_t pieces, int64_t rows, int64_t row_bytes, int threads) {
    int64_t best = 0, least = cost(linear, pieces, 0, rows, row_bytes, threads);
    for (int64_t sharers = 1; threads > 1 && sharers <= threads; sharers = threads / (threads / sharers) + 1) {
        const int64_t groups = std::min<int64_t>(pieces, threads / sharers);
        const int64_t found = groups ? cost(linear, pieces, groups, rows, row_bytes, threads) : least;
        if (found < least) best = groups, least = found;
    }
    return best;
}

}  // namespace

LinearBlocks::LinearBlocks(const Linear& linear, int64_t rows, int64_t row_bytes, const TeamNodes& team, int thread) {
    const int node = team.node(thread), begin = team.first_thread(node), threads = team.threads_of(node);
    const int64_t each = linear.granularity, from = slice(linear, begin, team.threads()).first / each;
    const int64_t pieces = slice(linear, begin + threads - 1, team.threads()).second / each - from;
    const int64_t count = rows > FEW_ROWS ? best_groups(linear, pieces, rows, row_bytes, threads) : 0;
    if (!count) {
        const auto [first, last] = slice(linear, thread, team.threads());
        add({0, rows, first, last});
        return;
    }
    const auto group = [&](int32_t g) {
        return Range{share(pieces, g, int(count)) * each, share(pieces, g + 1, int(count)) * each};
    };
    const Range units{0, (rows + UNIT_ROWS - 1) / UNIT_ROWS};
    const auto take = [&](int32_t g, int64_t first, int64_t end) {
        const Range panels = group(g);
        add({first * UNIT_ROWS, std::min(rows, end * UNIT_ROWS), from * each + panels.first, from * each + panels.end});
    };
    const int own = thread - begin, sharers = int(threads / count);
    if (threads % count == 0) {
        const int part = own % sharers;
        take(own / sharers, share(units.end, part, sharers), share(units.end, part + 1, sharers));
    } else {
        share_work(
            int32_t(count), {own, threads}, [&](int32_t) { return units; }, [&](int32_t g) { return group(g).size(); },
            take);
    }
}

}  // namespace ipex_assist
