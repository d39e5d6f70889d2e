// Linears of int8 and int4 weights with int8 rows. The sums of 128 products are integers, so exact; they are scaled and
// added in the order of the input columns, on every instruction set and whatever other rows are computed with them.
#pragma once
#include "kernels/multiply_add.h"
#include "kernels/linear_fp32_bf16.h"

namespace ipex_assist {
namespace {

// The nibbles of a line of weights, as bytes. IN_PLACE: the upper ones times 16, which saves a shift.
template <bool IN_PLACE>
struct Nibbles {
    __m512i low, high;
    explicit Nibbles(const uint8_t* line) {
        const __m512i both = _mm512_loadu_si512(line), nibble = _mm512_set1_epi8(15);
        _mm_prefetch(reinterpret_cast<const char*>(line + PREFETCH), _MM_HINT_T0);
        low = _mm512_and_si512(both, nibble);
        high = IN_PLACE ? _mm512_andnot_si512(nibble, both) : _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
};

constexpr int64_t INT16_LINES = 8;  // lines of 64 bytes of weights whose sums fit into 16 bits, where there is no VNNI

// Adds the products of M rows with INT16_LINES lines of int8 weights to the sums.
//
// Without VNNI: the nibbles of the unsigned bytes times signed bytes, in pairs. A pair is at most 2 · 15 · 128 = 3840,
// and INT16_LINES of them are 30720: below 32767, the limit of vpmaddubsw and of 16 bits. So the sums are exact.
template <int M>
inline __attribute__((always_inline)) void add_bytes(const uint8_t* lines, const RowPointers<int8_t, M>& rows,
                                                     __m512i (&acc)[M]) {
#ifdef IPEX_ASSIST_VNNI
    FOR_EACH(s, INT16_LINES, {
        _mm_prefetch(reinterpret_cast<const char*>(lines + s * 64 + PREFETCH), _MM_HINT_T0);
        const __m512i weights = _mm512_loadu_si512(lines + s * 64);
        FOR_EACH(m, M, acc[m] = dot_bytes(acc[m], weights, rows.at[m] + s * 4));
    });
#else
    __m512i low[M], high[M];
    FOR_EACH(s, INT16_LINES, {
        const Nibbles<false> line(lines + s * 64);
        FOR_EACH(m, M, {
            const __m512i row = broadcast4(rows.at[m] + s * 4);
            const __m512i l = _mm512_maddubs_epi16(line.low, row), h = _mm512_maddubs_epi16(line.high, row);
            low[m] = s > 0 ? _mm512_add_epi16(low[m], l) : l, high[m] = s > 0 ? _mm512_add_epi16(high[m], h) : h;
            KEEP_VECTOR(low[m]);
            KEEP_VECTOR(high[m]);
        });
    });
    FOR_EACH(m, M, {
        acc[m] = _mm512_add_epi32(acc[m], _mm512_madd_epi16(low[m], _mm512_set1_epi16(1)));
        acc[m] = _mm512_add_epi32(acc[m], _mm512_madd_epi16(high[m], _mm512_set1_epi16(16)));
    });
#endif
}

// M rows times one block of int8 weights.
template <int M>
HOT_LOOP void int8_tile(const Linear& w, const LinearRows& in, int64_t row, const uint8_t* block, int64_t column,
                        float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + row * w.depth, w.depth);
    RowStrides<float, M> scales(in.scales + row * spans, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + row * spans, spans);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (int64_t g = 0; g < spans; g++) {
        __m512i acc[M];
        // Weights are stored + 128, which adds 128 times the sum of the row.
        FOR_EACH(m, M, acc[m] = _mm512_slli_epi32(_mm512_set1_epi32(*sums.at(m)), 7));
        for (const uint8_t* end = block + SCALE_COLUMNS * LANES; block < end;
             block += INT16_LINES * 64, rows.move(INT16_LINES * 4)) {
            add_bytes(block, rows, acc);
        }
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), _mm512_set1_ps(*scales.at(m)), total[m]));
        scales.move(1), sums.move(1);
    }
    const __m512 scale = _mm512_loadu_ps(w.scales + column);
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps();
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, _mm512_fmadd_ps(total[m], scale, bias)));
}

// Sums of the products of M rows with a group of int4 weights, 32 columns (4 lines) at a time.
template <int M>
struct NibbleSums {
#ifdef IPEX_ASSIST_VNNI
    // Few rows keep separate sums for the high nibbles: a single chain's latency would exceed the time to read weights.
    static constexpr bool TWO_CHAINS = 8 * M <= REGISTERS;
    __m512i sums[M], high[M];

    __attribute__((always_inline)) void start(int m, __m512i sum) { sums[m] = sum, high[m] = _mm512_setzero_si512(); }
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column) {
        FOR_EACH(s, 4, {
            const Nibbles<TWO_CHAINS> line(lines + s * 64);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                sums[m] = dot_bytes(sums[m], line.low, row);
                __m512i& upper = TWO_CHAINS ? high[m] : sums[m];
                upper = dot_bytes(upper, line.high, row + 16);
            });
        });
    }
    __attribute__((always_inline)) __m512i end(int m) const {
        return TWO_CHAINS ? _mm512_add_epi32(sums[m], _mm512_srai_epi32(high[m], 4)) : sums[m];
    }
#else
    // Pairs of nibbles times signed bytes are at most 2 · 15 · 128 = 3840, and the 8 pairs of a row in 32 columns
    // 30720: below 32767, the limit of vpmaddubsw and of 16 bits. So the sums are exact.
    __m512i sums[M];

    __attribute__((always_inline)) void start(int m, __m512i sum) { sums[m] = sum; }
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column) {
        __m512i pairs[M];
        FOR_EACH(s, 4, {
            const Nibbles<false> line(lines + s * 64);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                const __m512i pair = _mm512_maddubs_epi16(line.low, broadcast4(row));
                pairs[m] = s > 0 ? _mm512_add_epi16(pairs[m], pair) : pair;
                KEEP_VECTOR(pairs[m]);
                pairs[m] = _mm512_add_epi16(pairs[m], _mm512_maddubs_epi16(line.high, broadcast4(row + 16)));
                KEEP_VECTOR(pairs[m]);
            });
        });
        FOR_EACH(m, M, sums[m] = _mm512_add_epi32(sums[m], _mm512_madd_epi16(pairs[m], _mm512_set1_epi16(1))));
    }
    __attribute__((always_inline)) __m512i end(int m) const { return sums[m]; }
#endif
};

// M rows times one block of int4 weights in groups of GROUP.
template <int M, int GROUP>
HOT_LOOP void int4_tile(const Linear& w, const LinearRows& in, int64_t row, const uint8_t* block, int64_t column,
                        float* out, int64_t stride) {
    constexpr int GROUPS = SCALE_COLUMNS / GROUP, BYTES = (GROUP / 8 + 1) * 64;
    const int64_t spans = w.depth / SCALE_COLUMNS, groups = spans * GROUPS;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + row * w.depth, w.depth);
    RowStrides<float, M> scales(in.scales + row * spans, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + row * groups, groups);
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps());
    for (const uint8_t* end = block + groups * BYTES; block < end; block += GROUPS * BYTES) {
        FOR_EACH(g, GROUPS, {
            const uint8_t* group = block + g * BYTES;
            const __m512i head = _mm512_loadu_si512(group);
            _mm_prefetch(reinterpret_cast<const char*>(group + PREFETCH), _MM_HINT_T0);
            const __m512i zero = _mm512_and_si512(head, zero_bits);
            const __m512 scale = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
            NibbleSums<M> acc;
            // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
            FOR_EACH(m, M, acc.start(m, _mm512_madd_epi16(zero, _mm512_set1_epi32(sums.at(m)[g]))));
            FOR_EACH(part, GROUP / 32, acc.add(group + 64 + part * 256, rows, g * GROUP + part * 32));
            FOR_EACH(m, M, {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.at(m)));
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc.end(m)), factor, total[m]);
            });
        });
        rows.move(SCALE_COLUMNS), scales.move(1), sums.move(GROUPS);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

// `count` rows (1 to 8) times one block, by the format of w.
inline void integer_rows(int64_t count, const Linear& w, const LinearRows& in, int64_t row, const uint8_t* block,
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

inline void integer_linear(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last,
                           float* out, int64_t stride) {
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
