// Linears of bf16 on AMX, for any number of rows. Each output is one chain of sums over tiles of 32 input columns, from
// the bias or from zero: so a row's bits do not depend on other rows.
#pragma once
#include "kernels/float_linear.h"
#include "kernels/amx_tiles.h"

namespace ipex_assist {
namespace {

constexpr int TILE = 16;
constexpr int64_t TILE_BYTES = 1024;

alignas(64) constexpr float NO_BIAS[4 * LANES] = {};

template <int64_t AHEAD = 2048>
inline void prefetch_lines(const uint8_t* at, int64_t lines) {
    for (int64_t i = 0; i < lines; i++) _mm_prefetch(reinterpret_cast<const char*>(at + i * 64 + AHEAD), _MM_HINT_T0);
}

// What the sums of a tile start from: the bias, the same for all rows (stride 0), or the contents of `out`.
struct Start {
    const float* at;
    int64_t stride;
};

// Up to 16 rows times N panels (1 or 4, `bytes` apart) over `steps` of 32 input columns. Tiles 0 to 3: sums, 4: rows, 5
// to 7: weights.
template <int N>
HOT_LOOP void amx_bf16_strip(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t bytes, int64_t steps,
                             Start start, float* out, int64_t stride) {
    TILE_LOAD(0, start.at, start.stride * 4);
    if (N > 1) {
        TILE_LOAD(1, start.at + LANES, start.stride * 4);
        TILE_LOAD(2, start.at + 2 * LANES, start.stride * 4);
        TILE_LOAD(3, start.at + 3 * LANES, start.stride * 4);
    }
    for (int64_t s = 0; s < steps; s++) {
        const uint8_t* weights = panel + s * TILE_BYTES;
        TILE_LOAD(4, rows + s * 64, row_bytes);
        prefetch_lines(weights, TILE);
        TILE_LOAD(5, weights, 64);
        TILE_DOT_BF16(0, 4, 5);
        if (N == 1) continue;
        prefetch_lines(weights + bytes, TILE);
        TILE_LOAD(6, weights + bytes, 64);
        TILE_DOT_BF16(1, 4, 6);
        prefetch_lines(weights + 2 * bytes, TILE);
        TILE_LOAD(7, weights + 2 * bytes, 64);
        TILE_DOT_BF16(2, 4, 7);
        prefetch_lines(weights + 3 * bytes, TILE);
        TILE_LOAD(5, weights + 3 * bytes, 64);
        TILE_DOT_BF16(3, 4, 5);
    }
    TILE_STORE(0, out, stride * 4);
    if (N > 1) {
        TILE_STORE(1, out + LANES, stride * 4);
        TILE_STORE(2, out + 2 * LANES, stride * 4);
        TILE_STORE(3, out + 3 * LANES, stride * 4);
    }
}

// 17 to 32 rows times one panel or two. Tiles 0 and 1, 2 and 3: sums, 4 and 5: rows, 6 and 7: weights. TILED: rows are
// LinearRows.tiles. Else those whose bytes are a power of two apart share few places of the first cache: at a depth of
// 2048, all 16 of a tile one place, which holds 12.
template <bool RIGHT, bool TILED>
HOT_LOOP void amx_bf16_square(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t bytes,
                              int64_t steps, Start start, float* out, int64_t stride) {
    constexpr int64_t STEP = TILED ? TILE_BYTES : 64;
    const int64_t row_stride = TILED ? 64 : row_bytes;
    const uint8_t* lower = rows + TILE * row_bytes;
    const float* lower_start = start.at + TILE * start.stride;
    float* lower_out = out + TILE * stride;
    TILE_LOAD(0, start.at, start.stride * 4);
    TILE_LOAD(1, lower_start, start.stride * 4);
    if (RIGHT) {
        TILE_LOAD(2, start.at + LANES, start.stride * 4);
        TILE_LOAD(3, lower_start + LANES, start.stride * 4);
    }
    for (int64_t s = 0; s < steps; s++) {
        const uint8_t* weights = panel + s * TILE_BYTES;
        TILE_LOAD(4, rows + s * STEP, row_stride);
        prefetch_lines(weights, TILE);
        TILE_LOAD(6, weights, 64);
        TILE_DOT_BF16(0, 4, 6);
        TILE_LOAD(5, lower + s * STEP, row_stride);
        TILE_DOT_BF16(1, 5, 6);
        if (!RIGHT) continue;
        prefetch_lines(weights + bytes, TILE);
        TILE_LOAD(7, weights + bytes, 64);
        TILE_DOT_BF16(2, 4, 7);
        TILE_DOT_BF16(3, 5, 7);
    }
    TILE_STORE(0, out, stride * 4);
    TILE_STORE(1, lower_out, stride * 4);
    if (RIGHT) {
        TILE_STORE(2, out + LANES, stride * 4);
        TILE_STORE(3, lower_out + LANES, stride * 4);
    }
}

// `count` rows (up to 32, as tiles_begin was told) from `first_row` on, times panels first <= b < last, `depth` input
// columns from k on.
inline void amx_bf16_panels(const Linear& w, const LinearRows& in, int64_t first_row, int64_t count, int64_t first,
                            int64_t last, int64_t k, int64_t depth, float* out, int64_t stride) {
    const int64_t bytes = panel_bytes(BF16, 0, w.depth), row_bytes = w.depth * 2, steps = depth / 32;
    const bool tiled = in.tiles && count > TILE;
    const uint8_t* rows = (tiled ? in.tiles + k * 2 * TILE : in.values + k * 2) + first_row * row_bytes;
    for (int64_t b = first; b < last;) {
        const uint8_t* panel = w.weights + b * bytes + k * 32;
        float* to = out + (b - first) * LANES;
        const Start start = k > 0 ? Start{to, stride} : Start{w.bias ? w.bias + b * LANES : NO_BIAS, 0};
        const int64_t part = count > TILE ? (b + 2 <= last ? 2 : 1) : (b + 4 <= last ? 4 : 1);
        const auto multiply = count <= TILE ? (part == 4 ? amx_bf16_strip<4> : amx_bf16_strip<1>)
                              : tiled ? (part == 2 ? amx_bf16_square<true, true> : amx_bf16_square<false, true>)
                                      : (part == 2 ? amx_bf16_square<true, false> : amx_bf16_square<false, false>);
        multiply(rows, row_bytes, panel, bytes, steps, start, to, stride);
        b += part;
    }
}

// Up to 32 rows: the weights are read from memory in up to 4 streams, which share the tiles of rows. More rows: chunk
// after chunk of 8 panels, so that the rows and weights that are used again are still in cache.
inline void amx_bf16(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                     int64_t stride) {
    constexpr int64_t ROWS = 2 * TILE, GROUP = 8;
    tiles_begin(count);
    if (count <= ROWS) {
        amx_bf16_panels(w, in, 0, count, first, last, 0, w.depth, out, stride);
        return tiles_end();
    }
    const int64_t rest = count % ROWS, full = count - rest;
    for (int64_t group = first; group < last; group += GROUP) {
        const int64_t group_end = group + GROUP < last ? group + GROUP : last;
        float* to = out + (group - first) * LANES;
        for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
            const int64_t depth = k + DEPTH_CHUNK < w.depth ? DEPTH_CHUNK : w.depth - k;
            for (int64_t r = 0; r < full; r += ROWS) {
                amx_bf16_panels(w, in, r, ROWS, group, group_end, k, depth, to + r * stride, stride);
            }
            if (!rest) continue;
            tiles_begin(rest);
            amx_bf16_panels(w, in, full, rest, group, group_end, k, depth, to + full * stride, stride);
            tiles_begin(ROWS);
        }
    }
    tiles_end();
}

}  // namespace
}  // namespace ipex_assist
