// Linears of integer weights on AMX for up to 16 rows, with the bits of integer_linear.h. F is how a format's groups of
// columns become tiles. LinearRows.values must have room for 16 rows or a multiple of 32.
#pragma once
#include "kernels/bf16_amx.h"
#include "kernels/integer_linear.h"
#include "kernels/own_memory.h"

namespace ipex_assist {
namespace {

constexpr int64_t VECTOR_ROWS = 1;  // one is as fast without tiles, and faster where its weights are in a cache

// int8 rows as the tiles take them, with the scales and start values of a span or group side by side.
struct AmxRows {
    const uint8_t* values;
    const float* scales;    // (spans, M)
    const int32_t* starts;  // (groups, M)
};

// Sums of up to 16 rows with a group of one panel or two. Tiles 0 and 1: sums, 2 and 3: rows, 5 to 7: weights.
#define INTEGER_DOT(c, a, b)               \
    if (F::SIGNED) {                       \
        TILE_DOT_SIGNED(c, a, b);          \
    } else {                               \
        TILE_DOT_SIGNED_UNSIGNED(c, a, b); \
    }
template <class F, int N>
inline void amx_group_of_16(const uint8_t* rows, int64_t depth, const uint8_t* left, const uint8_t* right,
                            int32_t* sums, int32_t* right_sums) {
    TILE_ZERO(0);
    if (N > 1) TILE_ZERO(1);
    TILE_LOAD(2, rows, depth);
    TILE_LOAD(5, left, 64);
    INTEGER_DOT(0, 2, 5);
    if (N > 1) {
        TILE_LOAD(6, right, 64);
        INTEGER_DOT(1, 2, 6);
    }
    if (F::COLUMNS > 64) {
        TILE_LOAD(3, rows + 64, depth);
        TILE_LOAD(7, left + TILE_BYTES, 64);
        INTEGER_DOT(0, 3, 7);
        if (N > 1) {
            TILE_LOAD(5, right + TILE_BYTES, 64);
            INTEGER_DOT(1, 3, 5);
        }
    }
    TILE_STORE(0, sums, 64);
    if (N > 1) TILE_STORE(1, right_sums, 64);
}
#undef INTEGER_DOT

// `count` rows (at most M) times N panels. Weights and sums go through memory on their way to and from the tiles:
// weights are unpacked one span before the tiles need them, and sums are used one span later.
template <class F, int M, int N, int64_t AHEAD>
HOT_LOOP void amx_integer_panels(const Linear& w, const AmxRows& in, int64_t count, int64_t b, float* out,
                                 int64_t stride) {
    constexpr int GROUPS = F::GROUPS;
    constexpr int64_t SPAN_BYTES = GROUPS * F::BYTES;
    const int64_t spans = w.depth / SCALE_COLUMNS, bytes = spans * SPAN_BYTES;
    const uint8_t* panel = w.weights + b * bytes;
    alignas(64) int32_t sums[2][GROUPS][N][M * LANES];
    alignas(64) uint8_t unpacked[2][GROUPS][N][F::UNPACKED];
    const uint8_t* weights[2][GROUPS][N];
    __m512 total[N][M];
    const auto unpack = [&](int64_t s, int g, int n) __attribute__((always_inline)) {
        weights[s & 1][g][n] = F::unpack(panel + n * bytes + s * SPAN_BYTES + g * F::BYTES, unpacked[s & 1][g][n]);
    };
    FOR_EACH(n, N, {
        const __m512 start = F::begin(w, b + n);
        FOR_EACH(m, M, total[n][m] = start);
        for (int g = 0; g < GROUPS; g++) unpack(0, g, n);
    });
    const auto add = [&](int64_t s) __attribute__((always_inline)) {
        FOR_EACH(n, N, {
            F::template add<M>(panel + n * bytes + s * SPAN_BYTES, sums[s & 1][0][n], N * M * LANES, in.scales + s * M,
                               in.starts + s * GROUPS * M, total[n]);
        });
    };
    for (int64_t s = 0; s < spans; s++) {
        const uint8_t* rows = in.values + s * SCALE_COLUMNS;
        for (int g = 0; g < GROUPS; g++) {
            for (int n = 0; n < N; n++) {
                prefetch_lines<AHEAD>(panel + n * bytes + s * SPAN_BYTES + g * F::BYTES, F::BYTES / 64);
                if (s + 1 < spans) unpack(s + 1, g, n);
            }
            amx_group_of_16<F, N>(rows + g * F::COLUMNS, w.depth, weights[s & 1][g][0], weights[s & 1][g][N - 1],
                                  sums[s & 1][g][0], sums[s & 1][g][N - 1]);
        }
        if (s > 0) add(s - 1);
    }
    add(spans - 1);
    FOR_EACH(n, N, FOR_EACH(m, M, {
                 if (m < count) _mm512_storeu_ps(out + m * stride + n * LANES, F::end(w, b + n, total[n][m]));
             }));
}

// `count` rows (at most M) times panels [first, last), of which N at a time share the tiles of rows.
template <class F, int M, int N, int64_t AHEAD = F::AHEAD / N>
inline void amx_integer_strip(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last,
                              float* out, int64_t stride) {
    const int64_t groups = w.depth / F::COLUMNS, spans = w.depth / SCALE_COLUMNS;
    float* scales = reinterpret_cast<float*>(own_memory(size_t((spans + groups) * M * 4)));
    int32_t* starts = reinterpret_cast<int32_t*>(scales + spans * M);
    // Rows from `count` on are computed, too: with a scale of 0, because a random one may make denormal numbers,
    // each of which costs a hundred cycles.
    for (int64_t m = 0; m < M; m++) {
        for (int64_t s = 0; s < spans; s++) scales[s * M + m] = m < count ? in.scales[m * spans + s] : 0;
        for (int64_t g = 0; g < groups; g++) {
            starts[g * M + m] = m < count ? F::start(in.negated_sums[m * groups + g]) : 0;
        }
    }
    const AmxRows rows{in.values, scales, starts};
    tiles_begin(M);
    int64_t b = first;
    for (; b + N <= last; b += N)
        amx_integer_panels<F, M, N, AHEAD>(w, rows, count, b, out + (b - first) * LANES, stride);
    for (; b < last; b++) amx_integer_panels<F, M, 1, F::AHEAD>(w, rows, count, b, out + (b - first) * LANES, stride);
}

// Up to 16 rows. MORE: the same groups in the form for more than 8 rows.
template <class F, class MORE = F>
inline void amx_integer_rows(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last,
                             float* out, int64_t stride) {
    if (count <= 4) {
        amx_integer_strip<F, 4, 2>(w, in, count, first, last, out, stride);
    } else if (count <= 6) {  // 5: what drafts of 4 take
        amx_integer_strip<F, 6, 2>(w, in, count, first, last, out, stride);
    } else if (count <= 8) {
        amx_integer_strip<F, 8, 2>(w, in, count, first, last, out, stride);
    } else {
        amx_integer_strip<MORE, 16, 2>(w, in, count, first, last, out, stride);
    }
    tiles_end();
}

}  // namespace
}  // namespace ipex_assist
