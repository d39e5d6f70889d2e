// Linears of integer weights with int8 rows: what int8, int4 and mxfp4 share. The sums of a group's products are integers,
// so exact. Those of a span of 128 columns are scaled by the weights' scales and added from zero, in the order of the
// input columns; what comes of it, times the row's scale of the span, is added to the total. That is so on every
// instruction set and whatever other rows are computed with them.
#pragma once
#include "kernels/multiply_add.h"
#include "kernels/float_linear.h"

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

// What a tile computes: rows from `row` on times spans first <= s < last of panel b. `out` is where the panel's first
// row goes; it holds the sums of the spans before, and the result after the last one.
struct IntegerTile {
    int64_t row, panel, first, last;
    float* out;
    int64_t stride;
};

// A tile of 1 to 8 rows, a number that is not a constant. T: T::tile<M, Prefetch>(w, in, t).
template <class T, class P>
inline void integer_rows(int64_t count, const Linear& w, const LinearRows& in, const IntegerTile& t) {
#define CALL(M) T::template tile<M, P::of(M)>(w, in, t)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

// 9 to 16 rows times one panel: two tiles of half of them take turns at its chunks.
template <class T>
inline void integer_pair(const Linear& w, const LinearRows& in, int64_t count, int64_t b, float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS, chunk = FAR_BYTES / panel_bytes(w.precision, w.group, SCALE_COLUMNS);
    const int64_t half = even_tile(count, TILE_ROWS);
    for (int64_t s = 0; s < spans; s += chunk) {
        const int64_t end = s + chunk < spans ? s + chunk : spans;
        integer_rows<T, FarEven>(half, w, in, {0, b, s, end, out, stride});
        integer_rows<T, FarOdd>(count - half, w, in, {half, b, s, end, out + half * stride, stride});
    }
}

template <class T>
inline void integer_linear(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last,
                           float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS;
    for (int64_t b = first; b < last; b++, out += LANES) {
        if (IN_TURNS && count > TILE_ROWS && count <= STREAMED_ROWS) {
            integer_pair<T>(w, in, count, b, out, stride);
            continue;
        }
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            integer_rows<T, Streaming>(part, w, in, {r, b, 0, spans, out + r * stride, stride});
        }
    }
}

}  // namespace
}  // namespace ipex_assist
