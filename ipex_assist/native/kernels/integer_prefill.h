// Linears of integer weights with more rows than one tile has, by VNNI on vectors: two panels at a time. A value
// of a row is loaded once for both: with one panel each multiplication has a load of its own, and processors that
// multiply two vectors a cycle load no more than two. What is no bytes becomes such once for all rows. The sums and
// their order are those of integer_linear.h, so the bits are, too.
//
// T says how a format's weights become bytes:
//   ZERO            what they have above their values
//   SCALED_AT_END   columns have one scale, and groups none
//   UNPACKED        whether they are no bytes yet
//   groups(w)       of a span that have a scale of their own
//   FOLDS, folds(span)
//                   whether some spans can do with one scale, and a span's lines such that it can
//   unpack(w, from, spans, folded, to, scales)
//                   spans to bytes; bits of `folded` say which are to have one scale
#pragma once
#include <algorithm>

#include "kernels/integer_linear.h"
#include "kernels/own_memory.h"

#if defined(IPEX_ASSIST_VNNI) && defined(__AVX512F__)
#define IPEX_ASSIST_BYTE_PAIRS

namespace ipex_assist {
namespace {

constexpr int64_t UNPACKED_ROWS = 33;  // from so many rows on: fewer do not pay for the bytes that are stored
constexpr int64_t CHUNK_SPANS = 8;  // of two panels: 1024 columns, 32 KB of bytes, which L1 holds beside a tile's rows
constexpr int64_t PREFETCHING = 4;  // tiles
constexpr int64_t KEPT_BYTES = 256 << 10;                                   // of rows, beside weights
constexpr int64_t CHUNK_SCALES = CHUNK_SPANS * SCALE_COLUMNS / 32 * LANES;  // of a panel

// Spans of one or two panels, as bytes.
struct ByteChunk {
    const uint8_t* lines[PAIR];  // unsigned: value + zero
    const float* scales[PAIR];   // (spans · groups, 16)
    int64_t first, spans, all;   // spans before these, these, and those of the whole depth
    int64_t groups;              // of a span that have a scale of their own …
    uint32_t folded;             // … but of spans whose bits these are, which have one
    const float* bias;           // of the panels' columns, or null
    const float* columns;        // scales of the panels' columns, or null
};

// Sums start from the bits of 1.5 · 2^23: so a sum, as a float, is as much larger, exactly where it is below 2^22, and its
// conversion is a subtraction, which processors with adders of their own do beside the products.
constexpr float LIFTED_ZERO = 12582912.0f;
constexpr int32_t LIFT_BITS = 0x4b400000;

// acc + Σ of four products of unsigned bytes with signed ones, in each lane. As assembly: of the intrinsic gcc 12 copies
// the sums to other registers, and spills some of them.
inline __attribute__((always_inline)) void add_products(__m512i& acc, __m512i unsigned_bytes, __m512i signed_bytes) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// Adds the products of 32 columns, which M rows are moved by. `second`: bytes to the lines of the second panel; further:
// to what is prefetched of it, 0 where there is none.
template <int M, int N>
inline __attribute__((always_inline)) void byte_turn(RowPointers<int8_t, M>& rows, const uint8_t* lines, int64_t second,
                                                     Ahead& next, int64_t further, __m512i (&acc)[N][M]) {
    next.go_on(further);
    FOR_EACH(s, 8, {
        const __m512i weights = _mm512_loadu_si512(lines + s * 64), more = _mm512_loadu_si512(lines + second + s * 64);
        FOR_EACH(m, M, {
            const __m512i value = broadcast4(rows.at[m] + s * 4);
            add_products(acc[0][m], weights, value);
            if (N > 1) add_products(acc[N - 1][m], more, value);
        });
    });
    rows.move(32);
}

// Totals of a chunk, or what becomes of them at the end of all columns.
template <int M, int N>
inline __attribute__((always_inline)) void byte_end(const ByteChunk& c, __m512 (&total)[N][M], float* out,
                                                    int64_t stride) {
    const bool ends = c.columns && c.first + c.spans == c.all;
    FOR_EACH(n, N, {
        if (ends) {
            const __m512 scale = _mm512_loadu_ps(c.columns + n * LANES);
            const __m512 bias = c.bias ? _mm512_loadu_ps(c.bias + n * LANES) : _mm512_setzero_ps();
            FOR_EACH(m, M, total[n][m] = _mm512_fmadd_ps(total[n][m], scale, bias));
        }
        FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride + n * LANES, total[n][m]));
    });
}

// M rows from `row` on times a chunk of N panels; `out` holds the sums of the chunks before. GROUPED: some spans have more
// scales than one.
template <class T, bool GROUPED, int M, int N>
HOT_LOOP void byte_tile(const LinearRows& in, const int32_t* starts, int64_t row, const ByteChunk& c, Ahead next,
                        int64_t further, float* out, int64_t stride) {
    const int64_t before = row * c.all + c.first;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, in.depth);
    RowStrides<float, M> scales(in.scales + before, c.all);
    const int64_t of_span = c.groups + T::FOLDS;
    RowStrides<int32_t, M> sums(starts + before * of_span, c.all * of_span);
    const uint8_t* lines = c.lines[0];
    const int64_t second = c.lines[N - 1] - lines;
    __m512 total[N][M];
    // Where they would be more than registers with the sums of a span.
    alignas(64) float kept[GROUPED ? N * M : 1][LANES];
    float* memory = kept[0];
    KEEP_IN("r", memory);
    FOR_EACH(n, N, {
        const __m512 start = c.bias && !c.columns ? _mm512_loadu_ps(c.bias + n * LANES) : _mm512_setzero_ps();
        FOR_EACH(m, M, {
            total[n][m] = c.first ? _mm512_loadu_ps(out + m * stride + n * LANES) : start;
            if (GROUPED) _mm512_store_ps(memory + (n * M + m) * LANES, total[n][m]);
        });
    });
    const float* group_scales = c.scales[0];
    const __m512 lift = _mm512_set1_ps(LIFTED_ZERO);
    for (int64_t span = 0; span < c.spans; span++) {
        const bool folded = T::FOLDS && (!GROUPED || c.folded >> span & 1);
        const int64_t groups = GROUPED && !folded ? c.groups : 1, turns = SCALE_COLUMNS / 32 / groups;
        if (T::FOLDS && !folded) sums.move(1);
        __m512 sum[N][M];
        FOR_EACH(n, N, FOR_EACH(m, M, sum[n][m] = _mm512_setzero_ps()));
        for (int64_t g = 0; g < groups; g++) {
            __m512i acc[N][M];
            FOR_EACH(m, M, FOR_EACH(n, N, acc[n][m] = _mm512_set1_epi32(*sums.at(m))));
            for (int64_t i = 0; i < turns; i++, lines += 8 * 64) byte_turn(rows, lines, second, next, further, acc);
            FOR_EACH(n, N, {
                const __m512 scale =
                    T::SCALED_AT_END ? _mm512_setzero_ps() : _mm512_loadu_ps(group_scales + n * CHUNK_SCALES);
                FOR_EACH(m, M, {
                    const __m512 of_group = _mm512_sub_ps(_mm512_castsi512_ps(acc[n][m]), lift);
                    sum[n][m] = T::SCALED_AT_END ? of_group : _mm512_fmadd_ps(of_group, scale, sum[n][m]);
                });
            });
            sums.move(1), group_scales += LANES;
        }
        if (folded) sums.move(c.groups), group_scales += (c.groups - 1) * LANES;
        FOR_EACH(m, M, {
            const __m512 row_scale = _mm512_set1_ps(*scales.at(m));
            FOR_EACH(n, N, {
                float* to = memory + (n * M + m) * LANES;
                total[n][m] = _mm512_fmadd_ps(sum[n][m], row_scale, GROUPED ? _mm512_load_ps(to) : total[n][m]);
                if (GROUPED) _mm512_store_ps(to, total[n][m]);
            });
        });
        scales.move(1);
    }
    if (GROUPED) FOR_EACH(n, N, FOR_EACH(m, M, total[n][m] = _mm512_load_ps(memory + (n * M + m) * LANES)));
    byte_end(c, total, out, stride);
}

struct alignas(64) ByteBuffers {
    uint8_t bytes[PAIR][CHUNK_SPANS * SCALE_COLUMNS * LANES];
    float scales[PAIR][CHUNK_SCALES];
};

// Spans of N panels from `panel` on, as bytes by T.
template <class T, int N>
ByteChunk byte_chunk(const Linear& w, int64_t panel, int64_t first, int64_t spans, ByteBuffers& buffers) {
    ByteChunk c{};
    c.first = first, c.all = w.depth / SCALE_COLUMNS, c.spans = std::min(spans, c.all - first);
    c.groups = T::groups(w), c.folded = T::FOLDS ? ~uint32_t(0) : 0;
    c.bias = w.bias ? w.bias + panel * LANES : nullptr;
    c.columns = T::SCALED_AT_END ? w.scales + panel * LANES : nullptr;
    const int64_t span_bytes = panel_bytes(w.precision, w.group, SCALE_COLUMNS);
    const auto from = [&](int n) {
        return w.weights + (panel + n) * panel_bytes(w.precision, w.group, w.depth) + first * span_bytes;
    };
    if constexpr (T::FOLDS) {
        for (int n = 0; n < N; n++) {
            for (int64_t s = 0; s < c.spans; s++) {
                if (!T::folds(from(n) + s * span_bytes)) c.folded &= ~(uint32_t(1) << s);
            }
        }
    }
    for (int n = 0; n < N; n++) {
        c.lines[n] = T::UNPACKED ? buffers.bytes[n] : from(n), c.scales[n] = buffers.scales[n];
        T::unpack(w, from(n), c.spans, c.folded, buffers.bytes[n], buffers.scales[n]);
    }
    return c;
}

// All rows times a chunk of N panels. The first tiles, a share each, ask for what comes after it in the same panels.
template <class T, int N>
void byte_panels(const Linear& w, const LinearRows& in, const int32_t* starts, int64_t count, int64_t panel,
                 int64_t first, int64_t spans, ByteBuffers& buffers, int64_t distance, float* out, int64_t stride) {
    const int64_t bytes = panel_bytes(w.precision, w.group, w.depth), tile = even_tile(count, PAIR_ROWS);
    const int64_t span_bytes = panel_bytes(w.precision, w.group, SCALE_COLUMNS);
    const ByteChunk c = byte_chunk<T, N>(w, panel, first, spans, buffers);
    const bool grouped = c.groups > 1 && ~c.folded << (32 - c.spans);
    const uint8_t* lines = w.weights + panel * bytes + first * span_bytes;
    const int64_t parts = std::min((count + tile - 1) / tile, PREFETCHING), turns = c.spans * SCALE_COLUMNS / 32;
    for (int64_t r = 0, n = 0; r < count; r += tile, n++) {
        const Ahead next = Ahead::of(lines, n < parts ? distance : 0, turns, (span_bytes + 255) / 256, n, parts);
        const int64_t further = N > 1 ? bytes : 0;
        const auto multiply = [&](auto m) {
            constexpr int M = m <= PAIR_ROWS ? m : 1;
            if constexpr (!T::SCALED_AT_END) {
                if (grouped) return byte_tile<T, true, M, N>(in, starts, r, c, next, further, out + r * stride, stride);
            }
            byte_tile<T, false, M, N>(in, starts, r, c, next, further, out + r * stride, stride);
        };
#define CALL(M) multiply(std::integral_constant<int, M>())
        IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
    }
}

// What the sums of groups start from; before those of a span what its own does, where there are such.
template <class T>
void fill_starts(const int32_t* negated_sums, int64_t spans, int64_t groups, int32_t* to) {
    if constexpr (!T::FOLDS) {
        for (int64_t i = 0; i < spans * groups; i++) to[i] = negated_sums[i] * T::ZERO + LIFT_BITS;
    } else {
        for (int64_t s = 0; s < spans; s++, negated_sums += groups) {
            int32_t all = 0;
            for (int64_t g = 0; g < groups; g++) all += negated_sums[g];
            *to++ = all * T::ZERO + LIFT_BITS;
            for (int64_t g = 0; g < groups; g++) *to++ = negated_sums[g] * T::ZERO + LIFT_BITS;
        }
    }
}

// Chunk after chunk of two panels, or of more where the rows of all columns would not stay in L2 for the next panels;
// the weights are in L1 for the next rows. Chunks are as equal as can be, since each asks for as many lines as it has,
// and few are multiplied before any was asked for.
template <class T>
inline void byte_pairs(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                       int64_t stride) {
    ByteBuffers buffers;
    const int64_t panels = count * w.depth <= KEPT_BYTES ? PAIR : 8, spans = w.depth / SCALE_COLUMNS;
    const int64_t groups = T::groups(w), all = count * spans, chunk = even_tile(spans, CHUNK_SPANS);
    auto* starts = reinterpret_cast<int32_t*>(own_memory(size_t(all * (groups + T::FOLDS)) * sizeof(int32_t)));
    fill_starts<T>(in.negated_sums, all, groups, starts);
    for (int64_t group = first; group < last; group += panels) {
        const int64_t end = std::min(group + panels, last);
        for (int64_t s = 0; s < spans; s += chunk) {
            const bool ends = s + chunk >= spans;
            const int64_t distance = ends ? (end - group) * panel_bytes(w.precision, w.group, w.depth) -
                                                panel_bytes(w.precision, w.group, s * SCALE_COLUMNS)
                                          : panel_bytes(w.precision, w.group, chunk * SCALE_COLUMNS);
            for (int64_t b = group; b < end; b += PAIR) {
                float* to = out + (b - first) * LANES;
                end - b < PAIR ? byte_panels<T, 1>(w, in, starts, count, b, s, chunk, buffers, distance, to, stride)
                               : byte_panels<T, PAIR>(w, in, starts, count, b, s, chunk, buffers, distance, to, stride);
            }
        }
    }
}

}  // namespace
}  // namespace ipex_assist

#endif
