// Linears of block formats with int8 rows, of one row or thousands: weights are unpacked once for all rows of a call.
//
// A row has a scale for 128 columns, and minus the sums of 16 columns each. An output starts from the bias, or from
// zero. Added to it are, in the order of the columns, for each block
//     with minima     minimum · row scale times Σ row
//                     scale · row scale times Σ (code - ZERO) · row
// and for each half of a superblock, 128 columns
//     with minima     scale of minima · row scale times -Σ over groups of minimum · Σ row
//                     scale · row scale times Σ over groups of factor · Σ (code - ZERO) · row
// each by one multiply-add. The sums are integers below 2^31 and exact, so that a row's bits depend on nothing but the
// row, on every instruction set.
#pragma once
#include <algorithm>

#include "formats/blocks/unpack.h"
#include "kernels/integer_linear.h"

namespace ipex_assist {
namespace {

// Columns of a panel as they are multiplied.
struct BlockColumns {
    const uint8_t* codes;  // 8 lines for 32 columns, `stride` bytes from 128 columns to the next
    int64_t stride;
    const float *scales, *minima;
    const int32_t *factors, *pairs;  // of superblocks
    int64_t first, spans;            // of 128 columns: before these, and these
    const float* start;              // of the panel's totals: the bias, or null for zero
};

// acc + the products of two pairs of 16-bit numbers.
inline __m512i add_pairs(__m512i acc, __m512i pair, const int32_t* sums) {
#ifdef IPEX_ASSIST_VNNI
    return dot_words(acc, pair, sums);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pair, broadcast4(sums)));
#endif
}

// Adds the products of M rows with COUNT lines of codes. Without VNNI those of up to 6 bits, unless they are WIDE: two
// lines' pairs of products are at most 4 · 63 · 128 = 32256, below the limit of 16 bits.
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
    BlockTileRows(const LinearRows& in, int64_t row, int64_t first, int64_t spans)
        : values(reinterpret_cast<const int8_t*>(in.values) + row * in.depth + first * SCALE_COLUMNS, in.depth),
          scales(in.scales + row * spans + first, spans),
          sums(in.negated_sums + (row * spans + first) * 4, spans * 4) {}
    __attribute__((always_inline)) void next_span() { scales.move(1), sums.move(4); }
};

// How units are multiplied: blocks, with ZERO or with minima.
template <bool MINIMA, int ZERO, bool WIDE_>
struct BlockSpans {
    static constexpr bool WIDE = WIDE_;

    template <int M>
    static __attribute__((always_inline)) void add_span(BlockColumns& c, BlockTileRows<M>& rows, Ahead& ahead,
                                                        __m512 (&total)[M]) {
        const __m512i zero = _mm512_set1_epi32(ZERO << 16 | ZERO);
        const uint8_t* lines = c.codes;
        for (int k = 0; k < 4; k++, lines += 8 * 64, rows.values.move(32), c.scales += LANES) {
            ahead.go_on();
            __m512i acc[M];
            if (MINIMA) {
                const __m512 minimum = _mm512_loadu_ps(c.minima);
                FOR_EACH(m, M, {
                    const __m512i sum =
                        add_pairs(_mm512_setzero_si512(), _mm512_set1_epi32(1 << 16 | 1), rows.sums.at(m) + k);
                    const __m512 factor = _mm512_mul_ps(minimum, _mm512_set1_ps(*rows.scales.at(m)));
                    total[m] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum), factor, total[m]);
                    acc[m] = _mm512_setzero_si512();
                });
                c.minima += LANES;
            } else {
                FOR_EACH(m, M, acc[m] = add_pairs(_mm512_setzero_si512(), zero, rows.sums.at(m) + k));
            }
            add_codes<8, WIDE>(lines, rows.values, acc);
            const __m512 scale = _mm512_loadu_ps(c.scales);
            FOR_EACH(m, M, {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*rows.scales.at(m)));
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), factor, total[m]);
            });
        }
    }
};

// Superblocks, of which `add_span` adds a half.
template <bool MINIMA, int GROUP, bool WIDE_>
struct SuperblockSpans {
    static constexpr bool WIDE = WIDE_;

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
            add(rows, c.minima, sums, total);
            FOR_EACH(m, M, sums[m] = _mm512_setzero_si512());
        }
        const uint8_t* lines = c.codes;
        for (int k = 0; k < 4; k++) {
            ahead.go_on();
            for (int g = 0; g < 32 / GROUP; g++) {
                __m512i acc[M];
                FOR_EACH(m, M, acc[m] = _mm512_setzero_si512());
                add_codes<GROUP / 4, WIDE>(lines, rows.values, acc);
                rows.values.move(GROUP);
                const __m512i factor = _mm512_loadu_si512(c.factors);
                FOR_EACH(m, M, sums[m] = _mm512_add_epi32(sums[m], _mm512_mullo_epi32(acc[m], factor)));
                lines += GROUP / 4 * 64, c.factors += LANES;
            }
        }
        add(rows, c.scales, sums, total);
        c.pairs += 4 * LANES;
        if ((c.first++) % 2) c.scales += LANES, c.minima += LANES;
    }

private:
    template <int M>
    static __attribute__((always_inline)) void add(const BlockTileRows<M>& rows, const float* scales,
                                                   const __m512i (&sums)[M], __m512 (&total)[M]) {
        const __m512 scale = _mm512_loadu_ps(scales);
        FOR_EACH(m, M, {
            const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*rows.scales.at(m)));
            total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m]), factor, total[m]);
        });
    }
};

// M rows from `row` on times some columns of a panel; `out` holds the totals of those before.
template <class K, int M>
HOT_LOOP void block_tile(const LinearRows& in, int64_t row, BlockColumns c, Ahead ahead, float* out, int64_t stride) {
    BlockTileRows<M> rows(in, row, c.first, in.depth / SCALE_COLUMNS);
    __m512 total[M];
    const __m512 start = c.start ? _mm512_loadu_ps(c.start) : _mm512_setzero_ps();
    FOR_EACH(m, M, total[m] = c.first ? _mm512_loadu_ps(out + m * stride) : start);
    for (int64_t s = 0; s < c.spans; s++, c.codes += c.stride) {
        K::template add_span<M>(c, rows, ahead, total);
        rows.next_span();
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

template <class F>
struct KindOf {
    static constexpr bool WIDE = F::LOW == 8 || F::TABLE;
    using Kind =
        std::conditional_t<F::SUPER, SuperblockSpans<F::MINIMA, F::GROUP, WIDE>, BlockSpans<F::MINIMA, F::ZERO, WIDE>>;
};

constexpr int64_t BLOCKS_AHEAD = 8192;  // bytes of weights that are prefetched before they are unpacked

template <class F>
std::enable_if_t<IS_BLOCKS<F>> format_linear(F, const Linear& w, const LinearRows& in, int64_t count, int64_t first,
                                             int64_t last, float* out, int64_t stride) {
    using Kind = typename KindOf<F>::Kind;
    constexpr int64_t UNIT = F::LINES * 64, EACH = (F::LINES + F::DEPTH / 32 - 1) / (F::DEPTH / 32);
    constexpr bool BYTES = F::LOW == 8;
    const int64_t bytes = F::panel_bytes(0, w.depth), tile = even_tile(count, TILE_ROWS);
    UnpackedBlocks unpacked;
    for (int64_t b = first; b < last; b++, out += LANES) {
        const uint8_t* unit = w.weights + b * bytes;
        for (int64_t k = 0; k < w.depth; k += BLOCK_CHUNK, unit += BLOCK_CHUNK / F::DEPTH * UNIT) {
            const int64_t columns = std::min(BLOCK_CHUNK, w.depth - k);
            unpack_blocks<F>(unit, columns, unpacked);
            const BlockColumns c{BYTES ? unit + F::LOW_AT * 64 : unpacked.codes,
                                 BYTES ? UNIT : SCALE_COLUMNS * LANES,
                                 unpacked.scales[0],
                                 unpacked.minima[0],
                                 unpacked.factors[0],
                                 unpacked.pairs[0],
                                 k / SCALE_COLUMNS,
                                 columns / SCALE_COLUMNS,
                                 w.bias ? w.bias + b * LANES : nullptr};
            for (int64_t r = 0; r < count; r += tile) {
                const Ahead ahead{unit + BLOCKS_AHEAD, r ? 0 : EACH};
#define CALL(M) block_tile<Kind, M>(in, r, c, ahead, out + r * stride, stride)
                IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
            }
        }
    }
}

// Output column `column` of a linear, as fp32: a row of a table of embeddings.
template <class F>
void look_up_blocks(const Linear& w, int64_t column, float* out) {
    const uint8_t* unit = w.weights + column / LANES * F::panel_bytes(0, w.depth);
    const int64_t lane = column % LANES;
    UnpackedBlocks unpacked;
    for (int64_t k = 0; k < w.depth; k += F::DEPTH, unit += F::LINES * 64, out += F::DEPTH) {
        unpack_blocks<F>(unit, F::DEPTH, unpacked);
        const uint8_t* codes = (F::LOW == 8 ? unit + F::LOW_AT * 64 : unpacked.codes) + lane * 4;
        for (int64_t i = 0; i < F::DEPTH; i++) {
            const int64_t block = F::SUPER ? 0 : i / 32, pair = unpacked.pairs[i / 32][lane];
            const float code = float(int(codes[i / 4 * 64 + i % 4]) - F::ZERO);
            float scale = unpacked.scales[block][lane];
            if (F::SUPER) scale *= float(unpacked.factors[i / F::GROUP][lane]);
            out[i] = scale * code;
            if (!F::MINIMA) continue;
            const float minimum = unpacked.minima[block][lane];
            out[i] += F::SUPER ? -minimum * float(int16_t(i % 32 < 16 ? pair : pair >> 16)) : minimum;
        }
    }
}

}  // namespace
}  // namespace ipex_assist
