// Linears of integer weights with more rows than one tile has, by VNNI on vectors: two panels at a time. A value
// of a row is loaded once for both: with one panel each multiplication has a load of its own, and processors that
// multiply two vectors a cycle load no more than two. What is no bytes becomes such once for all rows. The sums and
// their order are those of integer_linear.h, so the bits are, too.
#pragma once
#include <algorithm>

#include "kernels/integer_linear.h"

#if defined(IPEX_ASSIST_VNNI) && defined(__AVX512F__)
#define IPEX_ASSIST_BYTE_PAIRS

namespace ipex_assist {
namespace {

constexpr int64_t CHUNK_SPANS = 16;  // of a panel: 2048 columns, 32 KB of bytes

// Spans of one or two panels, as bytes.
struct ByteChunk {
    const uint8_t* lines[PAIR];  // unsigned: value + zero
    const float* scales[PAIR];   // (spans · groups, 16)
    int64_t first, spans, all;   // spans before these, these, and those of the whole depth
    int64_t groups;              // of a span that have a scale of their own
    int32_t zero;
    const float* bias;                                             // of the panels' columns, or null
    const float* columns;                                          // scales of the panels' columns, or null
    int64_t turns() const { return SCALE_COLUMNS / 32 / groups; }  // of 32 columns, in a group
};

// Where totals start, and what becomes of them.
template <int M, int N>
inline __attribute__((always_inline)) void byte_start(const ByteChunk& c, const float* out, int64_t stride,
                                                      __m512 (&total)[N][M]) {
    FOR_EACH(n, N, {
        const __m512 start = c.bias && !c.columns ? _mm512_loadu_ps(c.bias + n * LANES) : _mm512_setzero_ps();
        FOR_EACH(m, M, total[n][m] = c.first ? _mm512_loadu_ps(out + m * stride + n * LANES) : start);
    });
}

template <int M, int N>
inline __attribute__((always_inline)) void byte_end(const ByteChunk& c, float* out, int64_t stride,
                                                    __m512 (&total)[N][M]) {
    FOR_EACH(n, N, {
        if (c.columns && c.first + c.spans == c.all) {
            const __m512 scale = _mm512_loadu_ps(c.columns + n * LANES);
            const __m512 bias = c.bias ? _mm512_loadu_ps(c.bias + n * LANES) : _mm512_setzero_ps();
            FOR_EACH(m, M, total[n][m] = _mm512_fmadd_ps(total[n][m], scale, bias));
        }
        FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride + n * LANES, total[n][m]));
    });
}

// M rows from `row` on times a chunk of N panels; `out` holds the sums of the chunks before.
template <int M, int N>
HOT_LOOP void byte_tile(const LinearRows& in, int64_t row, const ByteChunk& c, Ahead next, float* out, int64_t stride) {
    const int64_t before = row * c.all + c.first;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, in.depth);
    RowStrides<float, M> scales(in.scales + before, c.all);
    RowStrides<int32_t, M> sums(in.negated_sums + before * c.groups, c.all * c.groups);
    const uint8_t *lines = c.lines[0], *second = c.lines[N - 1];
    const __m512i zero = _mm512_set1_epi32(c.zero);
    __m512 total[N][M];
    byte_start(c, out, stride, total);
    for (int64_t g = 0; g < c.spans * c.groups; g++) {
        __m512i acc[N][M];
        // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
        FOR_EACH(m, M, {
            const __m512i start = _mm512_madd_epi16(zero, _mm512_set1_epi32(*sums.at(m)));
            FOR_EACH(n, N, acc[n][m] = start);
        });
        for (int64_t turn = 0; turn < c.turns(); turn++, lines += 8 * 64, second += 8 * 64, rows.move(32)) {
            next.go_on();
            FOR_EACH(s, 8, {
                const __m512i weights = _mm512_loadu_si512(lines + s * 64), more = _mm512_loadu_si512(second + s * 64);
                FOR_EACH(m, M, {
                    const __m512i value = broadcast4(rows.at[m] + s * 4);
                    acc[0][m] = _mm512_dpbusd_epi32(acc[0][m], weights, value);
                    if (N > 1) acc[N - 1][m] = _mm512_dpbusd_epi32(acc[N - 1][m], more, value);
                });
            });
        }
        FOR_EACH(n, N, {
            const __m512 scale = _mm512_loadu_ps(c.scales[n] + g * LANES);
            FOR_EACH(m, M, {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.at(m)));
                total[n][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[n][m]), factor, total[n][m]);
            });
        });
        sums.move(1);
        if ((g + 1) % c.groups == 0) scales.move(1);
    }
    byte_end(c, out, stride, total);
}

struct alignas(64) ByteBuffers {
    uint8_t bytes[PAIR][CHUNK_SPANS * SCALE_COLUMNS * LANES];
    float scales[PAIR][CHUNK_SPANS * SCALE_COLUMNS / 32 * LANES];
};

// Spans of N panels from `panel` on, as bytes by T.
template <class T, int N>
ByteChunk byte_chunk(const Linear& w, int64_t panel, int64_t first, ByteBuffers& buffers) {
    ByteChunk c{};
    c.first = first, c.all = w.depth / SCALE_COLUMNS, c.spans = std::min(CHUNK_SPANS, c.all - first);
    c.groups = T::groups(w), c.zero = T::ZERO;
    c.bias = w.bias ? w.bias + panel * LANES : nullptr;
    c.columns = T::SCALED_AT_END ? w.scales + panel * LANES : nullptr;
    for (int n = 0; n < N; n++) {
        const uint8_t* from = w.weights + (panel + n) * panel_bytes(w.precision, w.group, w.depth) +
                              first * panel_bytes(w.precision, w.group, SCALE_COLUMNS);
        c.lines[n] = T::UNPACKED ? buffers.bytes[n] : from, c.scales[n] = buffers.scales[n];
        T::unpack(w, from, c.spans * c.groups, buffers.bytes[n], buffers.scales[n]);
    }
    return c;
}

// All rows times N panels. The first tiles ask for the next chunk of a panel each, or for the next panels.
template <class T, int N>
void byte_panels(const Linear& w, const LinearRows& in, int64_t count, int64_t panel, ByteBuffers& buffers, float* out,
                 int64_t stride) {
    const int64_t bytes = panel_bytes(w.precision, w.group, w.depth), tile = even_tile(count, TILE_ROWS);
    const int64_t span_bytes = panel_bytes(w.precision, w.group, SCALE_COLUMNS);
    for (int64_t first = 0; first < w.depth / SCALE_COLUMNS; first += CHUNK_SPANS) {
        const ByteChunk c = byte_chunk<T, N>(w, panel, first, buffers);
        const bool last = first + c.spans == c.all;
        for (int64_t r = 0, n = 0; r < count; r += tile, n++) {
            const uint8_t* ahead =
                w.weights + (panel + n + (last ? N : 0)) * bytes + (last ? 0 : first + c.spans) * span_bytes;
            const Ahead next{ahead, n < N ? (span_bytes + 255) / 256 : 0};
#define CALL(M) byte_tile<M, N>(in, r, c, next, out + r * stride, stride)
            IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
        }
    }
}

// T: how a format's weights become bytes. Where they are scaled at the end, the scales of groups are 1.
template <class T>
inline void byte_pairs(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                       int64_t stride) {
    ByteBuffers buffers;
    if (T::SCALED_AT_END) std::fill_n(&buffers.scales[0][0], sizeof buffers.scales / sizeof(float), 1.0f);
    for (int64_t b = first; b < last; b += PAIR) {
        float* to = out + (b - first) * LANES;
        last - b < PAIR ? byte_panels<T, 1>(w, in, count, b, buffers, to, stride)
                        : byte_panels<T, PAIR>(w, in, count, b, buffers, to, stride);
    }
}

}  // namespace
}  // namespace ipex_assist

#endif
