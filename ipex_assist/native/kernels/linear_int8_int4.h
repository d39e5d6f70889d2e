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
        low = _mm512_and_si512(both, nibble);
        high = IN_PLACE ? _mm512_andnot_si512(nibble, both) : _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
};

constexpr int64_t INT16_LINES = 8;  // lines of 64 bytes of weights whose sums fit into 16 bits, where there is no VNNI

// Adds the products of M rows with INT16_LINES lines of int8 weights to the sums.
//
// Without VNNI: the nibbles of the unsigned bytes times signed bytes, in pairs. A pair is at most 2 · 15 · 128 = 3840,
// and INT16_LINES of them are 30720: below 32767, the limit of vpmaddubsw and of 16 bits. So the sums are exact.
template <int M, Prefetch P>
inline __attribute__((always_inline)) void add_bytes(const uint8_t* lines, const RowPointers<int8_t, M>& rows,
                                                     __m512i (&acc)[M]) {
#ifdef IPEX_ASSIST_VNNI
    FOR_EACH(s, INT16_LINES, {
        prefetch_line<P>(lines + s * 64, s);
        const __m512i weights = _mm512_loadu_si512(lines + s * 64);
        FOR_EACH(m, M, acc[m] = dot_bytes(acc[m], weights, rows.at[m] + s * 4));
    });
#else
    __m512i low[M], high[M];
    FOR_EACH(s, INT16_LINES, {
        prefetch_line<P>(lines + s * 64, s);
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

// What a tile computes: rows from `row` on times spans first <= s < last of block b. `out` is where the block's first
// row goes; it holds the sums of the spans before, and the result after the last one.
struct IntegerTile {
    int64_t row, block, first, last;
    float* out;
    int64_t stride;
};

// M rows times some spans of a block of int8 weights.
template <int M, Prefetch P>
HOT_LOOP void int8_tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
    const int64_t spans = w.depth / SCALE_COLUMNS, before = t.row * spans + t.first;
    const uint8_t* block = w.weights + (t.block * spans + t.first) * SCALE_COLUMNS * LANES;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, w.depth);
    RowStrides<float, M> scales(in.scales + before, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + before, spans);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = t.first ? _mm512_loadu_ps(t.out + m * t.stride) : _mm512_setzero_ps());
    for (int64_t g = t.first; g < t.last; g++) {
        __m512i acc[M];
        // Weights are stored + 128, which adds 128 times the sum of the row.
        FOR_EACH(m, M, acc[m] = _mm512_slli_epi32(_mm512_set1_epi32(*sums.at(m)), 7));
        for (const uint8_t* end = block + SCALE_COLUMNS * LANES; block < end;
             block += INT16_LINES * 64, rows.move(INT16_LINES * 4)) {
            add_bytes<M, P>(block, rows, acc);
        }
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), _mm512_set1_ps(*scales.at(m)), total[m]));
        scales.move(1), sums.move(1);
    }
    if (t.last == spans) {
        const __m512 scale = _mm512_loadu_ps(w.scales + t.block * LANES);
        const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + t.block * LANES) : _mm512_setzero_ps();
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(total[m], scale, bias));
    }
    FOR_EACH(m, M, _mm512_storeu_ps(t.out + m * t.stride, total[m]));
}

// Sums of the products of M rows with a group of int4 weights, 32 columns (4 lines) at a time.
template <int M, Prefetch P>
struct NibbleSums {
#ifdef IPEX_ASSIST_VNNI
    // Separate sums for the high nibbles, where there are registers: a single chain waits for its own latency, and each
    // shift of a line costs more than one of a group's sums.
    static constexpr bool TWO_CHAINS = M == 1 || REGISTERS == 32;
    __m512i sums[M], high[M];

    __attribute__((always_inline)) void start(int m, __m512i sum) { sums[m] = sum, high[m] = _mm512_setzero_si512(); }
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column) {
        FOR_EACH(s, 4, {
            prefetch_line<P>(lines + s * 64, s);
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
            prefetch_line<P>(lines + s * 64, s);
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

// M rows times some spans of a block of int4 weights in groups of GROUP.
template <int M, int GROUP, Prefetch P>
HOT_LOOP void int4_tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
    constexpr int GROUPS = SCALE_COLUMNS / GROUP, BYTES = (GROUP / 8 + 1) * 64;
    const int64_t spans = w.depth / SCALE_COLUMNS, before = t.row * spans + t.first;
    const uint8_t* block = w.weights + (t.block * spans + t.first) * GROUPS * BYTES;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, w.depth);
    RowStrides<float, M> scales(in.scales + before, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + before * GROUPS, spans * GROUPS);
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + t.block * LANES) : _mm512_setzero_ps();
    __m512 total[M];
    FOR_EACH(m, M, total[m] = t.first ? _mm512_loadu_ps(t.out + m * t.stride) : bias);
    for (const uint8_t* end = block + (t.last - t.first) * GROUPS * BYTES; block < end; block += GROUPS * BYTES) {
        FOR_EACH(g, GROUPS, {
            const uint8_t* group = block + g * BYTES;
            const __m512i head = _mm512_loadu_si512(group);
            prefetch_line<P>(group, g);
            const __m512i zero = _mm512_and_si512(head, zero_bits);
            const __m512 scale = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
            NibbleSums<M, P> acc;
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
    FOR_EACH(m, M, _mm512_storeu_ps(t.out + m * t.stride, total[m]));
}

// A tile of M rows, by the format of w.
template <int M, Prefetch P>
inline void integer_tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
    if (w.precision == INT8) return int8_tile<M, P>(w, in, t);
    if (w.group == 32) return int4_tile<M, 32, P>(w, in, t);
    w.group == 64 ? int4_tile<M, 64, P>(w, in, t) : int4_tile<M, 128, P>(w, in, t);
}

// The same with a number of rows (1 to 8) that is not a constant.
template <class P>
inline void integer_rows(int64_t count, const Linear& w, const LinearRows& in, const IntegerTile& t) {
#define CALL(M) integer_tile<M, P::of(M)>(w, in, t)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

// 9 to 16 rows times one block: two tiles of half of them take turns at its chunks.
inline void integer_pair(const Linear& w, const LinearRows& in, int64_t count, int64_t b, float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS, chunk = FAR_BYTES / block_bytes(w.precision, w.group, SCALE_COLUMNS);
    const int64_t half = even_tile(count, TILE_ROWS);
    for (int64_t s = 0; s < spans; s += chunk) {
        const int64_t end = s + chunk < spans ? s + chunk : spans;
        integer_rows<FarEven>(half, w, in, {0, b, s, end, out, stride});
        integer_rows<FarOdd>(count - half, w, in, {half, b, s, end, out + half * stride, stride});
    }
}

inline void integer_linear(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last,
                           float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS;
    for (int64_t b = first; b < last; b++, out += LANES) {
        if (IN_TURNS && count > TILE_ROWS && count <= STREAMED_ROWS) {
            integer_pair(w, in, count, b, out, stride);
            continue;
        }
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            integer_rows<Streaming>(part, w, in, {r, b, 0, spans, out + r * stride, stride});
        }
    }
}

}  // namespace
}  // namespace ipex_assist
