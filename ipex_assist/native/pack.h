// Packing: 16 output columns of a checkpoint's matrix into one block of the layout in kernels.h.
#pragma once
#include <cmath>

#include "rows.h"

namespace ipex_assist {
namespace {

bool widen(SourceType type, const void* source, int64_t size, float* out) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        __m512 v;
        if (type == SOURCE_F32) {
            v = _mm512_maskz_loadu_ps(mask, static_cast<const float*>(source) + i);
        } else {
            const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(source) + i);
            v = type == SOURCE_F16 ? _mm512_cvtph_ps(half)
                                   : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
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

// Column j's consecutive dwords (from `columns`, `pitch` dwords apart) to lane j of `count` lines of 64 bytes.
inline void interleave(const uint32_t* columns, int64_t pitch, int64_t count, uint8_t* block) {
    const __m512i index = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(int32_t(pitch)));
    for (int64_t i = 0; i < count; i++) {
        _mm512_storeu_si512(block + i * 64, _mm512_i32gather_epi32(index, columns + i, 4));
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
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(128))));
    }
    return most / 127.0f;
}

struct Grid {
    float scale;
    int32_t zero;
};

// A scale without the bits that hold the zero; never 0, because values are divided by it.
inline float storable(float scale) {
    uint32_t bits;
    std::memcpy(&bits, &scale, 4);
    bits = (bits + ZERO_BITS / 2) & ~uint32_t(ZERO_BITS);
    std::memcpy(&scale, &bits, 4);
    return scale > 1e-30f ? scale : 0.0f;
}

// Nibbles of 16 values on a grid.
inline __m512i nibbles(__m512 x, __m512 reciprocal, __m512i zero) {
    const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, reciprocal)), zero);
    return _mm512_min_epi32(_mm512_max_epi32(q, _mm512_setzero_si512()), _mm512_set1_epi32(15));
}

// Squared error of a group on a grid, and the scale that fits its nibbles best (least squares).
inline float grid_error(const float* x, int64_t size, Grid grid, float* fitted) {
    const __m512 scale = _mm512_set1_ps(grid.scale), reciprocal = _mm512_set1_ps(1.0f / grid.scale);
    const __m512i zero = _mm512_set1_epi32(grid.zero);
    __m512 error = _mm512_setzero_ps(), product = error, square = error;
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512 v = _mm512_loadu_ps(x + i);
        const __m512 q = _mm512_cvtepi32_ps(_mm512_sub_epi32(nibbles(v, reciprocal, zero), zero));
        const __m512 miss = _mm512_fnmadd_ps(scale, q, v);
        error = _mm512_fmadd_ps(miss, miss, error);
        product = _mm512_fmadd_ps(v, q, product);
        square = _mm512_fmadd_ps(q, q, square);
    }
    const float squares = _mm512_reduce_add_ps(square);
    *fitted = squares > 0 ? storable(_mm512_reduce_add_ps(product) / squares) : 0.0f;
    return _mm512_reduce_add_ps(error);
}

// The grid of least squared error among: minimum to maximum, that range clipped, and the symmetric one with 8 steps
// below zero (GGUF's Q4_0, which is then met exactly in groups of 32); each also with its scale refitted. Then the best
// one's zero is moved while that helps.
inline Grid search_grid(const float* x, int64_t size) {
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        low = _mm512_min_ps(low, _mm512_loadu_ps(x + i));
        high = _mm512_max_ps(high, _mm512_loadu_ps(x + i));
    }
    const float least = _mm512_reduce_min_ps(low), most = _mm512_reduce_max_ps(high);
    const float range = most - least;
    const int32_t zero = range > 0 ? int32_t(std::lrint(-least * 15.0f / range)) : 0;
    const Grid symmetric{storable((most > -least ? most : -least) / 8.0f), most > -least ? 7 : 8};
    Grid best = symmetric.scale > 0 ? symmetric : Grid{0.0f, 8};  // stays where squared errors overflow
    float best_error = INFINITY;
    const auto consider = [&](Grid grid) {
        float fitted = 0;
        for (int pass = 0; pass < 2 && grid.scale > 0; pass++) {
            const float error = grid_error(x, size, grid, &fitted);
            if (error < best_error) best = grid, best_error = error;
            grid.scale = fitted;
        }
    };
    consider(symmetric);
    for (int step = 0; step < 10; step++) consider({storable(range / 15.0f * (1.0f - 0.04f * float(step))), zero});
    for (int side = -1; side <= 1; side += 2) {
        for (int32_t moved = best.zero + side; moved >= 0 && moved <= 15; moved += side) {
            const float before = best_error;
            consider({best.scale, moved});
            if (best_error == before) break;
        }
    }
    return best;
}

// int4 of one column: nibble pairs as in kernels.h (depth / 2 bytes), and a head of scale and zero for each group.
inline void pack_int4_column(const float* x, int64_t depth, int32_t group, uint8_t* bytes, uint32_t* heads) {
    for (int64_t g = 0; g < depth; g += group) {
        const Grid grid = search_grid(x + g, group);
        uint32_t head;
        std::memcpy(&head, &grid.scale, 4);
        heads[g / group] = head | uint32_t(grid.zero);
        const __m512 reciprocal = _mm512_set1_ps(grid.scale > 0 ? 1.0f / grid.scale : 0.0f);
        const __m512i zero = _mm512_set1_epi32(grid.zero);
        for (int64_t k = g; k < g + group; k += 32) {
            const __m512i low = nibbles(_mm512_loadu_ps(x + k), reciprocal, zero);
            const __m512i high = nibbles(_mm512_loadu_ps(x + k + 16), reciprocal, zero);
            const __m512i both = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + k / 2), _mm512_cvtepi32_epi8(both));
        }
    }
}

bool pack(Precision precision, int32_t group, SourceType type, const void* source, int64_t stride, int64_t columns,
          int64_t width, int64_t depth, uint8_t* block, float* scales, float* scratch) {
    // scratch: one column in fp32, then 16 columns as they will be stored, then their heads.
    const int64_t bytes = precision == FP32 ? depth * 4 : precision == BF16 ? depth * 2 : precision == INT8 ? depth : depth / 2;
    float* column = scratch;
    uint8_t* staged = reinterpret_cast<uint8_t*>(scratch + depth);
    const int64_t groups = precision == INT4 ? depth / group : 0;
    uint32_t* heads = reinterpret_cast<uint32_t*>(staged + bytes * LANES);
    bool numbers = true;
    for (int64_t j = 0; j < LANES; j++) {
        const int64_t used = j < columns ? width : 0;
        const int64_t element = type == SOURCE_F32 ? 4 : 2;
        numbers &= widen(type, static_cast<const uint8_t*>(source) + (j < columns ? j * stride * element : 0), used, column);
        std::memset(column + used, 0, (depth - used) * sizeof(float));
        uint8_t* to = staged + j * bytes;
        if (precision == FP32) {
            std::memcpy(to, column, bytes);
        } else if (precision == BF16) {
            for (int64_t i = 0; i < depth; i += LANES) {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * 2), to_bf16(_mm512_loadu_ps(column + i)));
            }
        } else if (precision == INT8) {
            scales[j] = pack_int8_column(column, depth, to);
        } else {
            pack_int4_column(column, depth, group, to, heads + j * groups);
        }
    }
    if (precision != INT4) {
        interleave(reinterpret_cast<uint32_t*>(staged), bytes / 4, bytes / 4, block);
        return numbers;
    }
    const int64_t lines = group / 8;  // of nibbles in a group
    for (int64_t g = 0; g < groups; g++, block += (lines + 1) * 64) {
        interleave(heads + g, groups, 1, block);
        interleave(reinterpret_cast<uint32_t*>(staged) + g * lines, bytes / 4, lines, block + 64);
    }
    return numbers;
}

}  // namespace
}  // namespace ipex_assist
