// Packing: 16 output columns of a checkpoint's matrix into one block of the layout in kernels.h.
#pragma once
#include <cmath>

#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

// Values i to i + 15 of a row in fp32, 0 where the mask leaves one out.
inline __m512 widened(SourceType type, __mmask16 mask, const void* source, int64_t i) {
    if (type == SOURCE_F32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(source) + i);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(source) + i);
    return type == SOURCE_F16 ? _mm512_cvtph_ps(half)
                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

bool widen(SourceType type, const void* source, int64_t size, float* out) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 v = widened(type, mask, source, i);
        largest = _mm512_max_epu32(largest, size_bits(v));
        _mm512_mask_storeu_ps(out + i, mask, v);
    }
    return finite(largest);
}

void narrow(SourceType type, const float* source, int64_t size, void* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 v = _mm512_maskz_loadu_ps(mask, source + i);
        if (type == SOURCE_F32) {
            _mm512_mask_storeu_ps(static_cast<float*>(out) + i, mask, v);
        } else {
            _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + i, mask, to_bf16(v));
        }
    }
}

// Dword j of line i from dword i of line j: by pairs of lines, then by fours, then whole quarters change places.
inline void transpose(__m512i (&line)[LANES]) {
    __m512i pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(line[i], line[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(line[i], line[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
        const __m512i c = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xdd);
        const __m512i d = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xdd);
        line[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        line[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88);
        line[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        line[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

// The first `count` dwords (a multiple of 16) of column j (columns are `pitch` dwords apart) to lane j of `count`
// lines.
inline void interleave(const uint32_t* columns, int64_t pitch, int64_t count, uint8_t* block) {
    for (int64_t i = 0; i < count; i += LANES) {
        __m512i line[LANES];
        for (int64_t j = 0; j < LANES; j++) line[j] = _mm512_loadu_si512(columns + j * pitch + i);
        transpose(line);
        for (int64_t k = 0; k < LANES; k++) _mm512_storeu_si512(block + (i + k) * 64, line[k]);
    }
}

inline float largest(const float* x, int64_t size) {
    __m512 most = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(most);
}

// int8: one scale a column, largest / 127.
inline float pack_int8_column(const float* x, int64_t depth, uint8_t* out) {
    const float most = largest(x, depth);
    const __m512 factor = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    for (int64_t i = 0; i < depth; i += LANES) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(128))));
    }
    return most / 127.0f;
}

// ---- int4: 16 columns at a time, one in each lane, so that 16 searches take the time of one
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

// The 32 nibbles from `first` on of 16 columns, one in each lane, as 4 lines.
template <class F>
inline void store_nibbles(int64_t first, const F& nibble, uint8_t* to) {
    const auto byte = [&](int64_t k) { return _mm512_or_si512(nibble(k), _mm512_slli_epi32(nibble(k + 16), 4)); };
    for (int64_t k = first; k < first + 16; k += 4, to += 64) {
        const __m512i half = _mm512_or_si512(byte(k), _mm512_slli_epi32(byte(k + 1), 8));
        const __m512i rest = _mm512_or_si512(byte(k + 2), _mm512_slli_epi32(byte(k + 3), 8));
        _mm512_storeu_si512(to, _mm512_or_si512(half, _mm512_slli_epi32(rest, 16)));
    }
}

// Packs a group of 16 columns, x (size, 16), as kernels.h describes: scales and zeros, then lines of nibbles.
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

// Calls to(g, x) for each group of 16 columns from input column g on, x (group, 16) in fp32. False where a weight is
// NaN or infinite.
template <class F>
inline bool for_groups(int32_t group, SourceType type, const uint8_t* source, int64_t stride, int64_t columns,
                       int64_t width, int64_t depth, const F& to) {
    alignas(64) float turned[LANES * SCALE_COLUMNS];
    const int64_t element = type == SOURCE_F32 ? 4 : 2;
    __m512i most = _mm512_setzero_si512();
    for (int64_t g = 0; g < depth; g += group) {
        for (int64_t k = 0; k < group; k += LANES) {
            __m512i line[LANES];
            const __mmask16 mask = lanes(width - g - k);
            for (int64_t j = 0; j < LANES; j++) {
                line[j] = j < columns ? _mm512_castps_si512(widened(type, mask, source + j * stride * element, g + k))
                                      : _mm512_setzero_si512();
                most = _mm512_max_epu32(most, size_bits(_mm512_castsi512_ps(line[j])));
            }
            transpose(line);
            for (int64_t i = 0; i < LANES; i++) _mm512_store_si512(turned + (k + i) * LANES, line[i]);
        }
        to(g, turned);
    }
    return finite(most);
}

inline bool pack_int4(int32_t group, SourceType type, const uint8_t* source, int64_t stride, int64_t columns,
                      int64_t width, int64_t depth, uint8_t* block) {
    return for_groups(group, type, source, stride, columns, width, depth, [&](int64_t g, const float* x) {
        pack_int4_group(x, group, block + g / group * (group / 8 + 1) * 64);
    });
}

}  // namespace
}  // namespace ipex_assist
