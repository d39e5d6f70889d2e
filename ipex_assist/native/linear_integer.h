// Linears of int8 and int4 weights with int8 rows. Sums of 128 products are integers and so exact; they are scaled and
// added up in the order of the input columns, whatever is computed beside them and by whichever instructions.
#pragma once
#include "dot.h"
#include "linear_float.h"

namespace ipex_assist {
namespace {

// M rows times one block of int8 weights.
template <int M>
inline void int8_tile(const Linear& w, const Rows& in, int64_t row, const uint8_t* block, int64_t column, float* out,
                      int64_t stride) {
    const int64_t spans = w.depth / SPAN;
    const int8_t* rows = reinterpret_cast<const int8_t*>(in.values) + row * w.depth;
    const float* scales = in.scales + row * spans;
    const int32_t* sums = in.negated_sums + row * spans;
    __m512 total[M];
    for (int m = 0; m < M; m++) total[m] = _mm512_setzero_ps();
    for (int64_t g = 0; g < spans; g++) {
        __m512i acc[M];
        // Weights are stored + 128, which adds 128 times the sum of the row.
        for (int m = 0; m < M; m++) acc[m] = _mm512_slli_epi32(_mm512_set1_epi32(sums[m * spans + g]), 7);
        const uint8_t* from = block + g * SPAN * LANES;
#pragma GCC unroll 4
        for (int64_t s = 0; s < SPAN / 4; s++) {
            _mm_prefetch(reinterpret_cast<const char*>(from + s * 64 + PREFETCH), _MM_HINT_T0);
            const __m512i weights = _mm512_loadu_si512(from + s * 64);
            for (int m = 0; m < M; m++) {
                acc[m] = dot_bytes(acc[m], weights, broadcast4(rows + m * w.depth + g * SPAN + s * 4));
            }
        }
        for (int m = 0; m < M; m++) {
            total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), _mm512_set1_ps(scales[m * spans + g]), total[m]);
        }
    }
    const __m512 scale = _mm512_loadu_ps(w.scales + column);
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps();
    for (int m = 0; m < M; m++) _mm512_storeu_ps(out + m * stride, _mm512_fmadd_ps(total[m], scale, bias));
}

// M rows times one block of int4 weights in groups of GROUP.
template <int M, int GROUP>
inline void int4_tile(const Linear& w, const Rows& in, int64_t row, const uint8_t* block, int64_t column, float* out,
                      int64_t stride) {
    const int64_t spans = w.depth / SPAN, groups = w.depth / GROUP;
    const int8_t* rows = reinterpret_cast<const int8_t*>(in.values) + row * w.depth;
    const float* scales = in.scales + row * spans;
    const int32_t* sums = in.negated_sums + row * groups;
    const __m512i nibble = _mm512_set1_epi8(15), zero_bits = _mm512_set1_epi32(ZERO_BITS);
    // Few rows have sums of their own for the high nibbles: one chain would be longer than reading the weights takes.
    constexpr bool TWO_CHAINS = 8 * M <= REGISTERS;
    __m512 total[M];
    for (int m = 0; m < M; m++) total[m] = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        const __m512i head = _mm512_loadu_si512(block);
        _mm_prefetch(reinterpret_cast<const char*>(block + PREFETCH), _MM_HINT_T0);
        const __m512i zero = _mm512_and_si512(head, zero_bits);
        const __m512 scale = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
        __m512i acc[M], acc_high[M];
        for (int m = 0; m < M; m++) acc_high[m] = _mm512_setzero_si512();
        // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
        for (int m = 0; m < M; m++) acc[m] = _mm512_madd_epi16(zero, _mm512_set1_epi32(sums[m * groups + g]));
        block += 64;
#pragma GCC unroll 4
        for (int s = 0; s < GROUP / 8; s++, block += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(block + PREFETCH), _MM_HINT_T0);
            const __m512i both = _mm512_loadu_si512(block);
            const __m512i low = _mm512_and_si512(both, nibble);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
            const int64_t at = g * GROUP + s / 4 * 32 + s % 4 * 4;
            for (int m = 0; m < M; m++) {
                acc[m] = dot_bytes(acc[m], low, broadcast4(rows + m * w.depth + at));
                __m512i& sum = TWO_CHAINS ? acc_high[m] : acc[m];
                sum = dot_bytes(sum, high, broadcast4(rows + m * w.depth + at + 16));
            }
        }
        const int64_t span = g * GROUP / SPAN;
        for (int m = 0; m < M; m++) {
            const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(scales[m * spans + span]));
            if (TWO_CHAINS) acc[m] = _mm512_add_epi32(acc[m], acc_high[m]);
            total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), factor, total[m]);
        }
    }
    for (int m = 0; m < M; m++) _mm512_storeu_ps(out + m * stride, total[m]);
}

// `count` rows (1 to 8) times one block, by the format of w.
inline void integer_rows(int64_t count, const Linear& w, const Rows& in, int64_t row, const uint8_t* block,
                         int64_t column, float* out, int64_t stride) {
#define CALL8(M) int8_tile<M>(w, in, row, block, column, out, stride)
#define CALL32(M) int4_tile<M, 32>(w, in, row, block, column, out, stride)
#define CALL64(M) int4_tile<M, 64>(w, in, row, block, column, out, stride)
#define CALL128(M) int4_tile<M, 128>(w, in, row, block, column, out, stride)
    if (w.precision == INT8) {
        IPEX_ASSIST_BY_ROWS(count, CALL8)
    } else if (w.group == 32) {
        IPEX_ASSIST_BY_ROWS(count, CALL32)
    } else if (w.group == 64) {
        IPEX_ASSIST_BY_ROWS(count, CALL64)
    } else {
        IPEX_ASSIST_BY_ROWS(count, CALL128)
    }
#undef CALL8
#undef CALL32
#undef CALL64
#undef CALL128
}

inline void integer_linear(const Linear& w, const Rows& in, int64_t count, int64_t first, int64_t last, float* out,
                           int64_t stride) {
    const int64_t bytes = block_bytes(w.precision, w.group, w.depth);
    for (int64_t b = first; b < last; b++) {
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            integer_rows(part, w, in, r, w.weights + b * bytes, b * LANES, out + r * stride + (b - first) * LANES,
                         stride);
        }
    }
}

}  // namespace
}  // namespace ipex_assist
