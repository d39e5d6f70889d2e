// Packing into int4: the grid of each group of each column is searched for.
#pragma once
#include <cmath>

#include "formats/int4/format.h"
#include "kernels/pack_rows.h"

namespace ipex_assist {
namespace {

// 16 columns at a time, one in each lane, so that 16 searches take the time of one
//
// Which grid is best, and so every bit of the image, depends on the rounding of sums over a group. They are added as a
// vector of 16 consecutive values would be: lane by lane, then halves, quarters, pairs (gcc's _mm512_reduce_add_ps).

struct Grids {
    __m512 scale, zero;  // of each column; zeros are whole numbers from 0 to 15
};

struct Sums {
    __m512 error, product, square;
};

struct Trial {
    const float* x;  // (SIZE, 16)
    __m512 scale, reciprocal, lowest, highest;
};

// The nearest whole numbers, ties to even.
inline __m512 nearest(__m512 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }

// Scales rounded to the bits that the zero leaves them; 0 where they are too small to divide by.
inline __m512 storable(__m512 scale) {
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(scale), _mm512_set1_epi32(ZERO_BITS / 2));
    const __m512 kept = _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(~ZERO_BITS)));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(kept, _mm512_set1_ps(1e-30f), _CMP_GT_OQ), kept);
}

// Sums over the values first, first + STEP, … of a group, in the order above: the squared error on a grid and, with
// FIT, the sums that a least-squares fit of the scale needs.
template <bool FIT, int SIZE, int STEP = 1>
inline __attribute__((always_inline)) Sums sums_of(const Trial& trial, int64_t first) {
    if constexpr (STEP < LANES) {
        const Sums a = sums_of<FIT, SIZE, 2 * STEP>(trial, first),
                   b = sums_of<FIT, SIZE, 2 * STEP>(trial, first + STEP);
        return {_mm512_add_ps(a.error, b.error), FIT ? _mm512_add_ps(a.product, b.product) : a.product,
                FIT ? _mm512_add_ps(a.square, b.square) : a.square};
    } else {
        Sums sums{_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 8
        for (int64_t k = first; k < SIZE; k += LANES) {
            const __m512 v = _mm512_loadu_ps(trial.x + k * LANES);
            const __m512 q =
                _mm512_min_ps(_mm512_max_ps(nearest(_mm512_mul_ps(v, trial.reciprocal)), trial.lowest), trial.highest);
            const __m512 miss = _mm512_fnmadd_ps(trial.scale, q, v);
            sums.error = _mm512_fmadd_ps(miss, miss, sums.error);
            if constexpr (FIT) {
                sums.product = _mm512_fmadd_ps(v, q, sums.product);
                sums.square = _mm512_fmadd_ps(q, q, sums.square);
            }
        }
        return sums;
    }
}

// The best grids so far of 16 columns' groups x (size, 16).
struct Search {
    const float* x;
    int64_t size;
    Grids best;
    __m512 error;

    template <bool FIT>
    __attribute__((noinline)) Sums sums(__m512 scale, __m512 zero) const {
        const Trial trial{x, scale, _mm512_div_ps(_mm512_set1_ps(1.0f), scale),
                          _mm512_sub_ps(_mm512_setzero_ps(), zero), _mm512_sub_ps(_mm512_set1_ps(15.0f), zero)};
        switch (size) {
            case 32: return sums_of<FIT, 32>(trial, 0);
            case 64: return sums_of<FIT, 64>(trial, 0);
            default: return sums_of<FIT, 128>(trial, 0);
        }
    }

    // Takes grids where they are better, and then those whose scale fits the nibbles best (least squares).
    void consider(__mmask16 columns, Grids grids) {
        columns = valid(columns, grids.scale);
        if (!bool(columns)) return;
        const Sums first = sums<true>(usable(columns, grids.scale), grids.zero);
        keep(columns, grids, first.error);
        const __mmask16 fits = _mm512_cmp_ps_mask(first.square, _mm512_setzero_ps(), _CMP_GT_OQ);
        grids.scale = _mm512_maskz_mov_ps(fits, storable(_mm512_div_ps(first.product, first.square)));
        columns = valid(columns, grids.scale);
        if (bool(columns)) keep(columns, grids, sums<false>(usable(columns, grids.scale), grids.zero).error);
    }

    static __mmask16 valid(__mmask16 columns, __m512 scale) {
        return columns & _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    }
    static __m512 usable(__mmask16 columns, __m512 scale) {
        return _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), columns, scale);
    }
    void keep(__mmask16 columns, const Grids& grids, __m512 errors) {
        const __mmask16 better = columns & _mm512_cmp_ps_mask(errors, error, _CMP_LT_OQ);
        error = _mm512_mask_mov_ps(error, better, errors);
        best.scale = _mm512_mask_mov_ps(best.scale, better, grids.scale);
        best.zero = _mm512_mask_mov_ps(best.zero, better, grids.zero);
    }
};

// The grids of least squared error among: minimum to maximum, that range clipped, and the symmetric one with 8 steps
// below zero (so that GGUF's Q4_0 is represented exactly in groups of 32); each also with a refitted scale. Then the
// zero of the best one is moved while the error falls.
inline Grids search_grids(const float* x, int64_t size) {
    const __m512 none = _mm512_setzero_ps();
    __m512 least = none, most = none;
    for (int64_t k = 0; k < size; k++) {
        least = _mm512_min_ps(least, _mm512_loadu_ps(x + k * LANES));
        most = _mm512_max_ps(most, _mm512_loadu_ps(x + k * LANES));
    }
    const __m512 below = _mm512_sub_ps(none, least), range = _mm512_sub_ps(most, least);
    const __m512 ratio = _mm512_div_ps(_mm512_mul_ps(below, _mm512_set1_ps(15.0f)), range);
    const __mmask16 number = _mm512_cmp_ps_mask(ratio, _mm512_set1_ps(16.0f), _CMP_LT_OQ);  // not where sums overflow
    const __m512 zero = _mm512_maskz_mov_ps(number & _mm512_cmp_ps_mask(range, none, _CMP_GT_OQ), nearest(ratio));
    const __mmask16 upward = _mm512_cmp_ps_mask(most, below, _CMP_GT_OQ);
    const __m512 eight = _mm512_set1_ps(8.0f);
    const Grids symmetric{storable(_mm512_div_ps(_mm512_mask_mov_ps(below, upward, most), eight)),
                          _mm512_mask_mov_ps(eight, upward, _mm512_set1_ps(7.0f))};
    const __mmask16 all = 0xffff, some = Search::valid(all, symmetric.scale);
    // The initial grid stays where squared errors overflow.
    Search search{
        x, size, {symmetric.scale, _mm512_mask_mov_ps(eight, some, symmetric.zero)}, _mm512_set1_ps(INFINITY)};
    search.consider(all, symmetric);
    const __m512 step_size = _mm512_div_ps(range, _mm512_set1_ps(15.0f));
    for (int step = 0; step < 10; step++) {
        search.consider(all, {storable(_mm512_mul_ps(step_size, _mm512_set1_ps(1.0f - 0.04f * float(step)))), zero});
    }
    for (int side = -1; side <= 1; side += 2) {
        __mmask16 going = all;
        for (__m512 moved = search.best.zero;;) {
            moved = _mm512_add_ps(moved, _mm512_set1_ps(float(side)));
            going = going & _mm512_cmp_ps_mask(moved, none, _CMP_GE_OQ) &
                    _mm512_cmp_ps_mask(moved, _mm512_set1_ps(15.0f), _CMP_LE_OQ);
            if (!bool(going)) break;
            const __m512 before = search.error;
            search.consider(going, {search.best.scale, moved});
            going = going & _mm512_cmp_ps_mask(search.error, before, _CMP_LT_OQ);
        }
    }
    return search.best;
}

// Packs a group of 16 columns, x (size, 16), as format.h describes: scales and zeros, then lines of nibbles.
inline void pack_int4_group(const float* x, int64_t size, uint8_t* to) {
    const Grids grids = search_grids(x, size);
    const __mmask16 some = _mm512_cmp_ps_mask(grids.scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512 reciprocal = _mm512_maskz_mov_ps(some, _mm512_div_ps(_mm512_set1_ps(1.0f), grids.scale));
    const __m512i zero = _mm512_cvtps_epi32(grids.zero);
    _mm512_storeu_si512(to, _mm512_or_si512(_mm512_castps_si512(grids.scale), zero));
    const auto nibble = [&](int64_t k) {
        const __m512 v = _mm512_loadu_ps(x + k * LANES);
        const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(v, reciprocal)), zero);
        return _mm512_min_epi32(_mm512_max_epi32(q, _mm512_setzero_si512()), _mm512_set1_epi32(15));
    };
    for (int64_t run = 0; run < size; run += 32, to += 4 * 64) store_nibbles(run, nibble, to + 64);
}

inline bool format_pack(Int4Format, const PackRequest& p) {
    return pack_groups(p, p.group, [&](int64_t g, const float* x) {
        pack_int4_group(x, p.group, p.panel + g / p.group * (p.group / 8 + 1) * 64);
    });
}

}  // namespace
}  // namespace ipex_assist
