// Which weights a tile of rows asks for while it multiplies those before them.
#pragma once
#include <cstdint>

#include "kernels/avx512_by_avx2.h"

namespace ipex_assist {
namespace {

// NEAR: into L1, just far enough to cover the latency of memory at one core's bandwidth: at 40 GB/s a core 2 KB lose 5
// % with one row and 20 % with three. For up to 3 rows, which are multiplied as fast as memory is read; and where the
// weights are read again before the next ones.
// FAR: into L2. 4 to 8 rows are multiplied in bursts, a group at a time; memory goes on meanwhile if enough is asked
// for. FAR_EVEN, FAR_ODD: 9 to 16 rows are two tiles, which take turns at chunks of a panel. Each asks for every other
// line of the chunk after, so that memory is read during both.
enum class Prefetch { NEAR, FAR, FAR_EVEN, FAR_ODD };

#ifndef IPEX_ASSIST_NEAR_BYTES  // others were compared: benchmarks/results/passes.md
#define IPEX_ASSIST_NEAR_BYTES 6144
#endif
#ifndef IPEX_ASSIST_FAR_BYTES
#define IPEX_ASSIST_FAR_BYTES 16384
#endif
#ifndef IPEX_ASSIST_FAR_ROWS
#define IPEX_ASSIST_FAR_ROWS 4
#endif
constexpr int64_t NEAR_BYTES = IPEX_ASSIST_NEAR_BYTES, FAR_BYTES = IPEX_ASSIST_FAR_BYTES;

// Whether two tiles take turns. AVX2 multiplies them too slowly for memory to matter, and has fewer kernels for it.
#ifdef __AVX512F__
constexpr bool IN_TURNS = true;
#else
constexpr bool IN_TURNS = false;
#endif

// What a tile of so many rows does: one that streams the weights, the first and the second of two, and all others.
struct Streaming {
    static constexpr Prefetch of(int rows) { return rows >= IPEX_ASSIST_FAR_ROWS ? Prefetch::FAR : Prefetch::NEAR; }
};
struct FarEven {
    static constexpr Prefetch of(int rows) { return IN_TURNS && rows > 4 ? Prefetch::FAR_EVEN : Streaming::of(rows); }
};
struct FarOdd {
    static constexpr Prefetch of(int rows) { return IN_TURNS && rows > 3 ? Prefetch::FAR_ODD : Streaming::of(rows); }
};
struct Near {
    static constexpr Prefetch of(int) { return Prefetch::NEAR; }
};

// `line` is the one that is multiplied now, the `index`th of its group. BYTES: how far FAR is; of two tiles that take
// turns the length of their chunk, or more.
template <Prefetch P, int64_t BYTES = FAR_BYTES>
inline __attribute__((always_inline)) void prefetch_line(const uint8_t* line, int index) {
    const char* at = reinterpret_cast<const char*>(line);
    if (P == Prefetch::NEAR) {
        _mm_prefetch(at + NEAR_BYTES, _MM_HINT_T0);
    } else if (P == Prefetch::FAR) {
        _mm_prefetch(at + BYTES, _MM_HINT_T1);
    } else if (index % 2 == (P == Prefetch::FAR_ODD)) {
        _mm_prefetch(at + BYTES, _MM_HINT_T1);
    }
}

// Lines that are read from memory, into L2, while others are multiplied that are in cache: those of the next panel of
// keys and values, or of the next chunk of weights. Some are prefetched with every group of products: all at once they
// would queue.
struct Ahead {
    const uint8_t* at;
    int64_t each;  // lines for each group
    // `columns`: what is multiplied; `distance`: from there to what is next, 0 where nothing is; `lines`: for each
    // group, of which the `part`th of `parts` tiles prefetches its share.
    static Ahead of(const uint8_t* columns, int64_t distance, int64_t groups, int64_t lines, int64_t part,
                    int64_t parts) {
        const int64_t share = (lines + parts - 1) / parts, each = distance && part * share < lines ? share : 0;
        return {columns + distance + part * share * groups * 64, each};
    }
    __attribute__((always_inline)) void go_on(int64_t further = 0) {
        for (const uint8_t* end = at + each * 64; at < end; at += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
            if (further) _mm_prefetch(reinterpret_cast<const char*>(at + further), _MM_HINT_T1);
        }
    }
};

}  // namespace
}  // namespace ipex_assist
