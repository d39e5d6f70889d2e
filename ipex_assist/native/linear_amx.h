// Linears of many rows on AMX. Integers give the bits of linear_integer.h; bf16 has its own order of sums, which is why
// only prompts come here (see FEW in kernels.h). Rows.values must have room for rows up to a multiple of 32.
#pragma once
#include "linear_integer.h"
#include "tiles.h"

namespace ipex_assist {
namespace {

constexpr int TILE = 16;

// 16 rows of 16 columns of `out` from tile memory, as far as `rows` reach.
inline void copy_tile(const float* tile, int64_t rows, float* out, int64_t stride) {
    for (int64_t r = 0; r < rows && r < TILE; r++) _mm512_storeu_ps(out + r * stride, _mm512_load_ps(tile + r * TILE));
}

// What the sums of a tile start from: what `out` has so far, or the bias.
inline void fill_tile(float* tile, int64_t rows, const float* out, int64_t stride, bool resume, const float* bias) {
    const __m512 start = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
    for (int64_t r = 0; r < TILE; r++) {
        _mm512_store_ps(tile + r * TILE, resume && r < rows ? _mm512_loadu_ps(out + r * stride) : start);
    }
}

// 32 rows times two blocks over one chunk of the depth. Tiles 0…3: sums, 4 and 5: rows, 6 and 7: weights.
inline void amx_bf16_square(const uint8_t* rows, int64_t row_bytes, int64_t count, const uint8_t* left,
                            const uint8_t* right, int64_t depth, const float* bias, bool resume, float* out,
                            int64_t stride) {
    alignas(64) float c[4][TILE * TILE];
    const float* right_bias = bias && right ? bias + LANES : nullptr;
    float* lower = out + TILE * stride;
    fill_tile(c[0], count, out, stride, resume, bias);
    TILE_LOAD(0, c[0], 64);
    fill_tile(c[1], count - TILE, lower, stride, resume, bias);
    TILE_LOAD(1, c[1], 64);
    if (right) {
        fill_tile(c[2], count, out + LANES, stride, resume, right_bias);
        TILE_LOAD(2, c[2], 64);
        fill_tile(c[3], count - TILE, lower + LANES, stride, resume, right_bias);
        TILE_LOAD(3, c[3], 64);
    }
    for (int64_t k = 0; k < depth; k += 32) {
        TILE_LOAD(4, rows + k * 2, row_bytes);
        TILE_LOAD(6, left + k * 32, 64);
        TILE_DOT_BF16(0, 4, 6);
        TILE_LOAD(5, rows + TILE * row_bytes + k * 2, row_bytes);
        TILE_DOT_BF16(1, 5, 6);
        if (right) {
            TILE_LOAD(7, right + k * 32, 64);
            TILE_DOT_BF16(2, 4, 7);
            TILE_DOT_BF16(3, 5, 7);
        }
    }
    TILE_STORE(0, c[0], 64);
    copy_tile(c[0], count, out, stride);
    TILE_STORE(1, c[1], 64);
    copy_tile(c[1], count - TILE, lower, stride);
    if (right) {
        TILE_STORE(2, c[2], 64);
        copy_tile(c[2], count, out + LANES, stride);
        TILE_STORE(3, c[3], 64);
        copy_tile(c[3], count - TILE, lower + LANES, stride);
    }
}

inline void amx_bf16(const Linear& w, const Rows& in, int64_t count, int64_t first, int64_t last, float* out,
                     int64_t stride) {
    constexpr int64_t GROUP = 8;
    const int64_t bytes = block_bytes(BF16, 0, w.depth), row_bytes = w.depth * 2;
    tiles_begin();
    for (int64_t group = first; group < last; group += GROUP) {
        const int64_t group_end = group + GROUP < last ? group + GROUP : last;
        for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
            const int64_t depth = k + DEPTH_CHUNK < w.depth ? DEPTH_CHUNK : w.depth - k;
            for (int64_t r = 0; r < count; r += 2 * TILE) {
                for (int64_t b = group; b < group_end; b += 2) {
                    const uint8_t* left = w.weights + b * bytes + k * 32;
                    const uint8_t* right = b + 1 < group_end ? left + bytes : nullptr;
                    amx_bf16_square(in.values + r * row_bytes + k * 2, row_bytes, count - r, left, right, depth,
                                    w.bias ? w.bias + b * LANES : nullptr, k > 0,
                                    out + r * stride + (b - first) * LANES, stride);
                }
            }
        }
    }
    tiles_end();
}

// One group of int4 weights as unsigned bytes in the order of int8 weights.
inline void unpack_group(const uint8_t* block, int64_t lines, uint8_t* out) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int64_t s = 0; s < lines; s++) {
        const __m512i both = _mm512_loadu_si512(block + s * 64);
        uint8_t* to = out + (s / 4 * 8 + s % 4) * 64;
        _mm512_storeu_si512(to, _mm512_and_si512(both, nibble));
        _mm512_storeu_si512(to + 4 * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
    }
}

// Sums of 32 rows with one group of weights (64 or 128 columns deep, as unsigned bytes).
inline void amx_group(const uint8_t* rows, int64_t depth, const uint8_t* weights, int64_t group,
                      int32_t (&sums)[2 * TILE * TILE]) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    for (int64_t k = 0; k < group; k += 64) {
        TILE_LOAD(6, weights + k * LANES, 64);
        TILE_LOAD(4, rows + k, depth);
        TILE_DOT_SIGNED_UNSIGNED(0, 4, 6);
        TILE_LOAD(5, rows + TILE * depth + k, depth);
        TILE_DOT_SIGNED_UNSIGNED(1, 5, 6);
    }
    TILE_STORE(0, sums, 64);
    TILE_STORE(1, sums + TILE * TILE, 64);
}

inline void amx_int8_block(const Linear& w, const Rows& in, int64_t count, int64_t b, float* out, int64_t stride) {
    const int64_t spans = w.depth / SPAN;
    const uint8_t* block = w.weights + b * block_bytes(INT8, 0, w.depth);
    const __m512 scale = _mm512_loadu_ps(w.scales + b * LANES);
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    alignas(64) int32_t sums[2 * TILE * TILE];
    for (int64_t r = 0; r < count; r += 2 * TILE) {
        const int64_t part = count - r < 2 * TILE ? count - r : 2 * TILE;
        __m512 total[2 * TILE];
        for (int64_t m = 0; m < part; m++) total[m] = _mm512_setzero_ps();
        for (int64_t g = 0; g < spans; g++) {
            amx_group(in.values + r * w.depth + g * SPAN, w.depth, block + g * SPAN * LANES, SPAN, sums);
            for (int64_t m = 0; m < part; m++) {
                const int64_t at = (r + m) * spans + g;
                const __m512i start = _mm512_slli_epi32(_mm512_set1_epi32(in.negated_sums[at]), 7);
                const __m512i sum = _mm512_add_epi32(start, _mm512_load_si512(sums + m * TILE));
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(in.scales[at]), total[m]);
            }
        }
        for (int64_t m = 0; m < part; m++) {
            _mm512_storeu_ps(out + (r + m) * stride, _mm512_fmadd_ps(total[m], scale, bias));
        }
    }
}

inline void amx_int4_block(const Linear& w, const Rows& in, int64_t count, int64_t b, float* out, int64_t stride) {
    const int64_t spans = w.depth / SPAN, groups = w.depth / w.group, lines = w.group / 8;
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    alignas(64) int32_t sums[2 * TILE * TILE];
    alignas(64) uint8_t weights[SPAN * LANES];
    for (int64_t r = 0; r < count; r += 2 * TILE) {
        const int64_t part = count - r < 2 * TILE ? count - r : 2 * TILE;
        const uint8_t* block = w.weights + b * block_bytes(INT4, w.group, w.depth);
        __m512 total[2 * TILE];
        for (int64_t m = 0; m < part; m++) {
            total[m] = w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
        }
        for (int64_t g = 0; g < groups; g++, block += (lines + 1) * 64) {
            const __m512i head = _mm512_loadu_si512(block);
            const __m512i zero = _mm512_and_si512(head, zero_bits);
            const __m512 scale = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
            unpack_group(block + 64, lines, weights);
            amx_group(in.values + r * w.depth + g * w.group, w.depth, weights, w.group, sums);
            for (int64_t m = 0; m < part; m++) {
                const __m512i start = _mm512_madd_epi16(zero, _mm512_set1_epi32(in.negated_sums[(r + m) * groups + g]));
                const __m512i sum = _mm512_add_epi32(start, _mm512_load_si512(sums + m * TILE));
                const float row_scale = in.scales[(r + m) * spans + g * w.group / SPAN];
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(row_scale)), total[m]);
            }
        }
        for (int64_t m = 0; m < part; m++) _mm512_storeu_ps(out + (r + m) * stride, total[m]);
    }
}

// int8, and int4 in groups of 64 and 128; a group of 32 does not fill a tile.
inline void amx_integer(const Linear& w, const Rows& in, int64_t count, int64_t first, int64_t last, float* out,
                        int64_t stride) {
    tiles_begin();
    for (int64_t b = first; b < last; b++) {
        float* to = out + (b - first) * LANES;
        w.precision == INT8 ? amx_int8_block(w, in, count, b, to, stride) : amx_int4_block(w, in, count, b, to, stride);
    }
    tiles_end();
}

}  // namespace
}  // namespace ipex_assist
