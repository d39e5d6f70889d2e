// Rows times 128 columns of a panel: what all block formats share.
#pragma once
#include "formats/blocks/unpack.h"
#include "kernels/integer_prefill.h"

namespace ipex_assist {
namespace {

// Codes of one panel or two in memory, 8 lines for 32 columns.
struct UnpackedCodes {
    static constexpr int PERIOD = 1;
    const uint8_t* lines;
    int64_t second = sizeof(UnpackedBlocks);  // bytes from the first panel's to the second's

    void next() { lines += 8 * 64; }
    template <int QUAD>
    __attribute__((always_inline)) __m512i at(int panel = 0) const {
        return _mm512_loadu_si512(lines + QUAD * 64 + panel * second);
    }
};

// What is beside the codes of one panel or two as they are multiplied; of two it lies as in UnpackedBlocks.
struct BlockColumns {
    const float *scales, *minima;
    const int32_t *factors, *pairs;  // of superblocks
    int64_t first;                   // spans of 128 columns before these
    int zero;                        // of blocks, what codes have above their values
    BlockColumns(const BlockScales& from, int64_t first_, int zero_)
        : scales(from.scales[0]),
          minima(from.minima[0]),
          factors(from.factors[0]),
          pairs(from.pairs[0]),
          first(first_),
          zero(zero_) {}
};

constexpr int64_t NEXT_PANEL = sizeof(UnpackedBlocks) / 4;  // numbers from those of the first panel to the second's

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

// Adds the products of M rows with COUNT lines of codes of each panel, from the FIRST on. Without VNNI those of up to 6
// bits, unless they are WIDE: two lines' pairs of products are at most 4 · 63 · 128 = 32256, below the limit of 16 bits.
template <int FIRST, int COUNT, bool WIDE, class C, int M, int N>
inline __attribute__((always_inline)) void add_codes(const C& from, const RowPointers<int8_t, M>& rows,
                                                     __m512i (&acc)[N][M]) {
#ifdef IPEX_ASSIST_VNNI
    FOR_EACH_CONSTANT(s, COUNT, {
        const __m512i codes = from.template at<FIRST + s>();
        if constexpr (N == 1) {
            FOR_EACH(m, M, acc[0][m] = dot_bytes(acc[0][m], codes, rows.at[m] + s * 4));
        } else {
            const __m512i more = from.template at<FIRST + s>(1);
            FOR_EACH(m, M, {
                const __m512i value = broadcast4(rows.at[m] + s * 4);
                add_products(acc[0][m], codes, value);
                add_products(acc[1][m], more, value);
            });
        }
    });
#else
    static_assert(N == 1);
    __m512i low[M], high[M];
    FOR_EACH_CONSTANT(s, COUNT, {
        const __m512i codes = from.template at<FIRST + s>(), low_halves = bytes_of(codes, 15);
        const __m512i high_halves = bytes_of(shifted<4>(codes), 15);
        const bool starts = WIDE ? s == 0 : s % 2 == 0, ends = WIDE ? s == COUNT - 1 : s % 2 == 1;
        FOR_EACH(m, M, {
            const __m512i row = broadcast4(rows.at[m] + s * 4);
            const __m512i l = _mm512_maddubs_epi16(WIDE ? low_halves : codes, row);
            low[m] = starts ? l : _mm512_add_epi16(low[m], l);
            KEEP_VECTOR(low[m]);
            if (WIDE) {
                const __m512i h = _mm512_maddubs_epi16(high_halves, row);
                high[m] = starts ? h : _mm512_add_epi16(high[m], h);
                KEEP_VECTOR(high[m]);
            }
            __m512i& sum = acc[0][m];
            if (ends) sum = _mm512_add_epi32(sum, _mm512_madd_epi16(low[m], _mm512_set1_epi16(1)));
            if (ends && WIDE) sum = _mm512_add_epi32(sum, _mm512_madd_epi16(high[m], _mm512_set1_epi16(16)));
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

// Totals of M rows and N panels: in registers, or, where sums take those, in memory.
template <int M, int N, bool IN_MEMORY>
struct BlockTotals {
    __m512 (&held)[N][M];
    float* memory;
    __attribute__((always_inline)) __m512 at(int n, int m) const {
        return IN_MEMORY ? _mm512_load_ps(memory + (n * M + m) * LANES) : held[n][m];
    }
    __attribute__((always_inline)) void put(int n, int m, __m512 total) const {
        if (IN_MEMORY) _mm512_store_ps(memory + (n * M + m) * LANES, total);
        else held[n][m] = total;
    }
};

// total += sum · scale · row scale
template <int M, int N, bool IN_MEMORY>
inline __attribute__((always_inline)) void add_scaled(const BlockTileRows<M>& rows, const float* scales,
                                                      const __m512i (&sums)[N][M],
                                                      const BlockTotals<M, N, IN_MEMORY>& total) {
    FOR_EACH(n, N, {
        const __m512 scale = _mm512_loadu_ps(scales + n * NEXT_PANEL);
        FOR_EACH(m, M, {
            const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*rows.scales.at(m)));
            total.put(n, m, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[n][m]), factor, total.at(n, m)));
        });
    });
}

template <int M, int N>
inline __attribute__((always_inline)) void set_zero(__m512i (&sums)[N][M]) {
    FOR_EACH(n, N, FOR_EACH(m, M, sums[n][m] = _mm512_setzero_si512()));
}

// How units are multiplied: blocks, with a zero or with minima, and a scale for GROUP columns.
template <bool MINIMA, int GROUP, bool WIDE, bool WORDS>
struct BlockSpans {
    static constexpr bool MORE_SUMS = WORDS;  // than one for each output

    template <class C, int M, int N, bool IN_MEMORY>
    static __attribute__((always_inline)) void add_span(C& codes, UnpackedCodes upper_codes, BlockColumns& c,
                                                        BlockTileRows<M>& rows, Ahead& ahead,
                                                        const BlockTotals<M, N, IN_MEMORY>& total) {
        static_assert(C::PERIOD == 1);
        for (int k = 0; k < 4; k++, codes.next(), upper_codes.next()) {
            ahead.go_on();
            __m512i acc[N][M];
            if (MINIMA) {
                start(k, rows, _mm512_set1_epi32(-1), acc);
                add_scaled(rows, c.minima, acc, total);
                c.minima += LANES;
            }
            FOR_EACH_CONSTANT(g, 32 / GROUP, {
                const int zero = GROUP == 32 ? c.zero << 16 | c.zero : c.zero << 16 * g;
                if (WORDS) {
                    __m512i upper[N][M];
                    start(k, rows, _mm512_set1_epi32(zero), upper);
                    add_codes<g * GROUP / 4, GROUP / 4, WIDE>(upper_codes, rows.values, upper);
                    FOR_EACH(n, N, FOR_EACH(m, M, acc[n][m] = _mm512_slli_epi32(upper[n][m], 8)));
                } else if (MINIMA) {
                    set_zero(acc);
                } else {
                    start(k, rows, _mm512_set1_epi32(zero), acc);
                }
                add_codes<g * GROUP / 4, GROUP / 4, WIDE>(codes, rows.values, acc);
                add_scaled(rows, c.scales, acc, total);
                c.scales += LANES, rows.values.move(GROUP);
            });
        }
    }

private:
    template <int M, int N>
    static __attribute__((always_inline)) void start(int k, const BlockTileRows<M>& rows, __m512i zero,
                                                     __m512i (&acc)[N][M]) {
        FOR_EACH(m, M, {
            acc[0][m] = add_pairs(_mm512_setzero_si512(), zero, rows.sums.at(m) + k);
            if (N > 1) acc[N - 1][m] = acc[0][m];
        });
    }
};

// Superblocks, of which `add_span` adds a half, or blocks of 128 columns. GROUP 128: without factors. SPANS: in a unit.
template <bool MINIMA, int GROUP, bool WIDE, int SPANS>
struct SuperblockSpans {
    static constexpr bool MORE_SUMS = GROUP <= 32;

    template <class C, int M, int N, bool IN_MEMORY>
    static __attribute__((always_inline)) void add_span(C& codes, UnpackedCodes, BlockColumns& c,
                                                        BlockTileRows<M>& rows, Ahead& ahead,
                                                        const BlockTotals<M, N, IN_MEMORY>& total) {
        __m512i sums[N][M];
        set_zero(sums);
        FOR_EACH(p, 4, FOR_EACH(n, N, {
                     const __m512i pair = _mm512_loadu_si512(c.pairs + n * NEXT_PANEL + p * LANES);
                     FOR_EACH(m, M, sums[n][m] = add_pairs(sums[n][m], pair, rows.sums.at(m) + p));
                 }));
        if (MINIMA) {
            add_scaled(rows, c.minima, sums, total);
            set_zero(sums);
        }
        for (int k = 0; k < 4; k += C::PERIOD, codes.next()) {
            FOR_EACH_CONSTANT(j, C::PERIOD, {
                ahead.go_on();
                if constexpr (GROUP > 32) add_codes<j * 8, 8, WIDE>(codes, rows.values, sums);
                else
                    FOR_EACH_CONSTANT(g, 32 / GROUP, {
                        constexpr int LINES = GROUP / 4;
                        __m512i acc[N][M];
                        set_zero(acc);
                        add_codes<j * 8 + g * LINES, LINES, WIDE>(codes, rows.values, acc);
                        add_weighed(acc, c.factors, sums);
                        if (g + 1 < 32 / GROUP) rows.values.move(GROUP);
                        c.factors += LANES;
                    });
                rows.values.move(GROUP > 32 ? 32 : GROUP);
            });
        }
        add_scaled(rows, c.scales, sums, total);
        c.pairs += 4 * LANES;
        if (++c.first % SPANS == 0) c.scales += LANES, c.minima += LANES;
    }

private:
    template <int M, int N>
    static __attribute__((always_inline)) void add_weighed(const __m512i (&acc)[N][M], const int32_t* factors,
                                                           __m512i (&sums)[N][M]) {
        FOR_EACH(n, N, {
            const __m512i factor = _mm512_loadu_si512(factors + n * NEXT_PANEL);
            FOR_EACH(m, M, sums[n][m] = _mm512_add_epi32(sums[n][m], _mm512_mullo_epi32(acc[n][m], factor)));
        });
    }
};

template <class F>
struct KindOf {
#ifdef IPEX_ASSIST_VNNI
    static constexpr bool WIDE = false;  // all codes are multiplied alike
#else
    static constexpr bool WIDE = F::WIDE;
#endif
    static constexpr bool WHOLE = F::COLUMNS >= 128;  // spans have one scale
    using Kind =
        std::conditional_t<WHOLE,
                           SuperblockSpans<F::MINIMA, F::WEIGHED ? 128 : F::GROUP, WIDE, F::DEPTH / SCALE_COLUMNS>,
                           BlockSpans<F::MINIMA, WHOLE ? 32 : F::GROUP, WIDE, F::WORDS>>;
};

}  // namespace
}  // namespace ipex_assist
