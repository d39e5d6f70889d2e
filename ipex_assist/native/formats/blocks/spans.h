// Rows times 128 columns of a panel: what all block formats share.
#pragma once
#include "formats/blocks/unpack.h"
#include "kernels/integer_linear.h"

namespace ipex_assist {
namespace {

// Columns of a panel as they are multiplied.
struct BlockColumns {
    const uint8_t *codes = nullptr, *upper = nullptr;  // 8 lines for 32 columns
    int64_t stride = SCALE_COLUMNS * LANES;            // bytes from 128 columns of codes to the next
    const float *scales, *minima;
    const int32_t *factors, *pairs;  // of superblocks
    int64_t first, spans;            // of 128 columns: before these, and these
    int zero;                        // of blocks, what codes have above their values
    const float* start;              // of the panel's totals: the bias, or null for zero
    BlockColumns(const BlockScales& from, int64_t first_, int64_t spans_, int zero_, const float* start_)
        : scales(from.scales[0]),
          minima(from.minima[0]),
          factors(from.factors[0]),
          pairs(from.pairs[0]),
          first(first_),
          spans(spans_),
          zero(zero_),
          start(start_) {}
};

// Where totals of a panel start.
template <class F>
const float* start_of(const Linear& w, int64_t panel) {
    return w.bias && !F::COLUMN_SCALES ? w.bias + panel * LANES : nullptr;
}

// acc + the products of two pairs of 16-bit numbers.
inline __m512i add_pairs(__m512i acc, __m512i pair, const int32_t* sums) {
#ifdef IPEX_ASSIST_VNNI
    return dot_words(acc, pair, sums);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pair, broadcast4(sums)));
#endif
}

// Adds the products of M rows with COUNT lines of codes. Without VNNI those of up to 6 bits, unless
// they are WIDE: two lines' pairs of products are at most 4 · 63 · 128 = 32256, below the limit of 16 bits.
template <int COUNT, bool WIDE, int M>
inline __attribute__((always_inline)) void add_codes(const uint8_t* lines, const RowPointers<int8_t, M>& rows,
                                                     __m512i (&acc)[M]) {
#ifdef IPEX_ASSIST_VNNI
    FOR_EACH(s, COUNT, {
        const __m512i codes = _mm512_loadu_si512(lines + s * 64);
        FOR_EACH(m, M, acc[m] = dot_bytes(acc[m], codes, rows.at[m] + s * 4));
    });
#else
    __m512i low[M], high[M];
    FOR_EACH(s, COUNT, {
        const __m512i codes = _mm512_loadu_si512(lines + s * 64);
        const Nibbles<false> halves(lines + s * 64);
        const bool starts = WIDE ? s == 0 : s % 2 == 0, ends = WIDE ? s == COUNT - 1 : s % 2 == 1;
        FOR_EACH(m, M, {
            const __m512i row = broadcast4(rows.at[m] + s * 4);
            const __m512i l = _mm512_maddubs_epi16(WIDE ? halves.low : codes, row);
            low[m] = starts ? l : _mm512_add_epi16(low[m], l);
            KEEP_VECTOR(low[m]);
            if (WIDE) {
                const __m512i h = _mm512_maddubs_epi16(halves.high, row);
                high[m] = starts ? h : _mm512_add_epi16(high[m], h);
                KEEP_VECTOR(high[m]);
            }
            if (ends) acc[m] = _mm512_add_epi32(acc[m], _mm512_madd_epi16(low[m], _mm512_set1_epi16(1)));
            if (ends && WIDE) acc[m] = _mm512_add_epi32(acc[m], _mm512_madd_epi16(high[m], _mm512_set1_epi16(16)));
        });
    });
#endif
}

// The rows of a tile, at some columns of a panel.
template <int M>
struct BlockTileRows {
    RowPointers<int8_t, M> values;
    RowStrides<float, M> scales;
    RowStrides<int32_t, M> sums;  // 4 pairs in a span of 128 columns
    BlockTileRows(const LinearRows& in, int64_t row, int64_t first)
        : BlockTileRows(in, row * (in.depth / SCALE_COLUMNS) + first, in.depth / SCALE_COLUMNS, 0) {}
    __attribute__((always_inline)) void next_span() { scales.move(1), sums.move(4); }

private:
    BlockTileRows(const LinearRows& in, int64_t before, int64_t spans, int)
        : values(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, in.depth),
          scales(in.scales + before, spans),
          sums(in.negated_sums + before * 4, spans * 4) {}
};

// total += sum · scale · row scale
template <int M>
inline __attribute__((always_inline)) void add_scaled(const BlockTileRows<M>& rows, const float* scales,
                                                      const __m512i (&sums)[M], __m512 (&total)[M]) {
    const __m512 scale = _mm512_loadu_ps(scales);
    FOR_EACH(m, M, {
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*rows.scales.at(m)));
        total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m]), factor, total[m]);
    });
}

// How units are multiplied: blocks, with a zero or with minima, and a scale for GROUP columns.
template <bool MINIMA, int GROUP, bool WIDE, bool WORDS>
struct BlockSpans {
    template <int M>
    static __attribute__((always_inline)) void add_span(BlockColumns& c, BlockTileRows<M>& rows, Ahead& ahead,
                                                        __m512 (&total)[M]) {
        const uint8_t *lines = c.codes, *upper_lines = c.upper;
        for (int k = 0; k < 4; k++) {
            ahead.go_on();
            if (MINIMA) {
                __m512i sums[M];
                start(k, rows, _mm512_set1_epi32(-1), sums);
                add_scaled(rows, c.minima, sums, total);
                c.minima += LANES;
            }
            FOR_EACH_CONSTANT(g, 32 / GROUP, {
                const int zero = GROUP == 32 ? c.zero << 16 | c.zero : c.zero << 16 * g;
                __m512i acc[M];
                FOR_EACH(m, M, acc[m] = _mm512_setzero_si512());
                if (WORDS) {
                    __m512i upper[M];
                    start(k, rows, _mm512_set1_epi32(zero), upper);
                    add_codes<GROUP / 4, WIDE>(upper_lines, rows.values, upper);
                    add_codes<GROUP / 4, WIDE>(lines, rows.values, acc);
                    FOR_EACH(m, M, acc[m] = _mm512_add_epi32(acc[m], _mm512_slli_epi32(upper[m], 8)));
                    upper_lines += GROUP / 4 * 64;
                } else {
                    if (!MINIMA) start(k, rows, _mm512_set1_epi32(zero), acc);
                    add_codes<GROUP / 4, WIDE>(lines, rows.values, acc);
                }
                add_scaled(rows, c.scales, acc, total);
                lines += GROUP / 4 * 64, c.scales += LANES, rows.values.move(GROUP);
            });
        }
    }

private:
    template <int M>
    static __attribute__((always_inline)) void start(int k, const BlockTileRows<M>& rows, __m512i zero,
                                                     __m512i (&acc)[M]) {
        FOR_EACH(m, M, acc[m] = add_pairs(_mm512_setzero_si512(), zero, rows.sums.at(m) + k));
    }
};

// Superblocks, of which `add_span` adds a half. GROUP 128: they have no factors.
template <bool MINIMA, int GROUP, bool WIDE>
struct SuperblockSpans {
    template <int M>
    static __attribute__((always_inline)) void add_span(BlockColumns& c, BlockTileRows<M>& rows, Ahead& ahead,
                                                        __m512 (&total)[M]) {
        __m512i sums[M];
        FOR_EACH(m, M, sums[m] = _mm512_setzero_si512());
        FOR_EACH(p, 4, {
            const __m512i pair = _mm512_loadu_si512(c.pairs + p * LANES);
            FOR_EACH(m, M, sums[m] = add_pairs(sums[m], pair, rows.sums.at(m) + p));
        });
        if (MINIMA) {
            add_scaled(rows, c.minima, sums, total);
            FOR_EACH(m, M, sums[m] = _mm512_setzero_si512());
        }
        const uint8_t* lines = c.codes;
        for (int k = 0; k < 4; k++) {
            ahead.go_on();
            if (GROUP > 32) add_codes<8, WIDE>(lines, rows.values, sums), lines += 8 * 64, rows.values.move(32);
            for (int g = 0; g < 32 / GROUP; g++) {
                constexpr int LINES = GROUP > 32 ? 8 : GROUP / 4;
                __m512i acc[M];
                FOR_EACH(m, M, acc[m] = _mm512_setzero_si512());
                add_codes<LINES, WIDE>(lines, rows.values, acc);
                rows.values.move(GROUP);
                const __m512i factor = _mm512_loadu_si512(c.factors);
                FOR_EACH(m, M, sums[m] = _mm512_add_epi32(sums[m], _mm512_mullo_epi32(acc[m], factor)));
                lines += LINES * 64, c.factors += LANES;
            }
        }
        add_scaled(rows, c.scales, sums, total);
        c.pairs += 4 * LANES;
        if ((c.first++) % 2) c.scales += LANES, c.minima += LANES;
    }
};

template <class F>
struct KindOf {
#ifdef IPEX_ASSIST_VNNI
    static constexpr bool WIDE = false;  // all codes are multiplied alike
#else
    static constexpr bool WIDE = F::WIDE;
#endif
    using Kind = std::conditional_t<F::SUPER, SuperblockSpans<F::MINIMA, F::GROUP, WIDE>,
                                    BlockSpans<F::MINIMA, F::SUPER ? 32 : F::GROUP, WIDE, F::WORDS>>;
};

}  // namespace
}  // namespace ipex_assist
