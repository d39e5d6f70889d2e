// Linears of int8 and int4 weights with more rows than one tile has, by VNNI on vectors: two blocks at a time. A value
// of a row is loaded once for both: with one block each multiplication has a load of its own, and processors that
// multiply two vectors a cycle load no more than two. int4 becomes bytes once for all rows. The sums and their order
// are those of linear_int8_int4.h, so the bits are, too.
#pragma once
#include <algorithm>

#include "kernels/linear_int8_int4.h"

#if defined(IPEX_ASSIST_VNNI) && defined(__AVX512F__)
#define IPEX_ASSIST_BYTE_PAIRS

namespace ipex_assist {
namespace {

constexpr int64_t CHUNK_SPANS = 16;    // of a block: 2048 columns, 32 KB of bytes
constexpr int64_t UNPACKED_ROWS = 33;  // int4 from so many rows on: fewer do not pay for the bytes that are stored
constexpr int LIFT = 32;               // what int4 weights as bytes have above their values

// Spans of one or two blocks, as bytes.
struct ByteChunk {
    const uint8_t* lines[PAIR];  // unsigned: value + zero
    const float* scales[PAIR];   // (spans · groups, 16)
    int64_t first, spans, all;   // spans before these, these, and those of the whole depth
    int64_t groups;              // of a span that have a scale of their own
    int32_t zero;
    const float* bias;                                             // of the blocks' columns, or null
    const float* columns;                                          // int8: scales of the blocks' columns; else null
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

// M rows from `row` on times a chunk of N blocks; `out` holds the sums of the chunks before.
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

// Groups of int4 weights to bytes, in the order of their columns: nibble - zero + LIFT; and the groups' scales.
HOT_LOOP void int4_to_bytes(const uint8_t* from, int64_t group, int64_t groups, uint8_t* to, float* scales) {
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    const __m512i first_bytes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    for (int64_t g = 0; g < groups; g++, from += 64, scales += LANES) {
        const __m512i head = _mm512_loadu_si512(from);
        const __m512i zero = _mm512_shuffle_epi8(_mm512_and_si512(head, zero_bits), first_bytes);
        const __m512i lift = _mm512_sub_epi8(_mm512_set1_epi8(LIFT), zero);
        _mm512_storeu_ps(scales, _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head)));
        for (const uint8_t* end = from + group * 8; from < end; from += 256, to += 512) {
            FOR_EACH(s, 4, {
                const Nibbles<false> line(from + 64 + s * 64);
                _mm512_storeu_si512(to + s * 64, _mm512_add_epi8(line.low, lift));
                _mm512_storeu_si512(to + (4 + s) * 64, _mm512_add_epi8(line.high, lift));
            });
        }
    }
}

struct alignas(64) ByteBuffers {
    uint8_t bytes[PAIR][CHUNK_SPANS * SCALE_COLUMNS * LANES];
    float scales[PAIR][CHUNK_SPANS * SCALE_COLUMNS / 32 * LANES];
};

// Spans of N blocks from `block` on; int8 weights are where they were, with scales of 1.
template <int N>
ByteChunk byte_chunk(const Linear& w, int64_t block, int64_t first, ByteBuffers& buffers) {
    const bool bytes = w.precision == INT8;
    ByteChunk c{};
    c.first = first, c.all = w.depth / SCALE_COLUMNS, c.spans = std::min(CHUNK_SPANS, c.all - first);
    c.groups = bytes ? 1 : SCALE_COLUMNS / w.group, c.zero = bytes ? 128 : LIFT;
    c.bias = w.bias ? w.bias + block * LANES : nullptr;
    c.columns = bytes ? w.scales + block * LANES : nullptr;
    for (int n = 0; n < N; n++) {
        const uint8_t* from = w.weights + (block + n) * block_bytes(w.precision, w.group, w.depth) +
                              first * block_bytes(w.precision, w.group, SCALE_COLUMNS);
        c.lines[n] = bytes ? from : buffers.bytes[n], c.scales[n] = buffers.scales[n];
        if (!bytes) int4_to_bytes(from, w.group, c.spans * c.groups, buffers.bytes[n], buffers.scales[n]);
    }
    return c;
}

// All rows times N blocks. The first tiles ask for the next chunk of a block each, or for the next blocks.
template <int N>
void byte_blocks(const Linear& w, const LinearRows& in, int64_t count, int64_t block, ByteBuffers& buffers, float* out,
                 int64_t stride) {
    const int64_t bytes = block_bytes(w.precision, w.group, w.depth), tile = even_tile(count, TILE_ROWS);
    const int64_t span_bytes = block_bytes(w.precision, w.group, SCALE_COLUMNS);
    for (int64_t first = 0; first < w.depth / SCALE_COLUMNS; first += CHUNK_SPANS) {
        const ByteChunk c = byte_chunk<N>(w, block, first, buffers);
        const bool last = first + c.spans == c.all;
        for (int64_t r = 0, n = 0; r < count; r += tile, n++) {
            const uint8_t* ahead =
                w.weights + (block + n + (last ? N : 0)) * bytes + (last ? 0 : first + c.spans) * span_bytes;
            const Ahead next{ahead, n < N ? (span_bytes + 255) / 256 : 0};
#define CALL(M) byte_tile<M, N>(in, r, c, next, out + r * stride, stride)
            IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
        }
    }
}

// Whether as many rows are multiplied so.
inline bool takes_byte_pairs(const Linear& w, int64_t rows) {
    return (w.precision == INT8 && rows > TILE_ROWS) || (w.precision == INT4 && rows >= UNPACKED_ROWS);
}

inline void byte_pairs(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                       int64_t stride) {
    ByteBuffers buffers;
    if (w.precision == INT8) std::fill_n(&buffers.scales[0][0], sizeof buffers.scales / sizeof(float), 1.0f);
    for (int64_t b = first; b < last; b += PAIR) {
        float* to = out + (b - first) * LANES;
        last - b < PAIR ? byte_blocks<1>(w, in, count, b, buffers, to, stride)
                        : byte_blocks<PAIR>(w, in, count, b, buffers, to, stride);
    }
}

}  // namespace
}  // namespace ipex_assist

#endif
