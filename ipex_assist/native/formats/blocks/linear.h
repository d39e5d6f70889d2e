// Linears of block formats with int8 rows, of one row or thousands.
//
// A row has a scale for 128 columns, and minus the sums of 16 columns each. An output starts from the bias, or from
// zero. Added to it are, in the order of the columns, for each block (of NVFP4 16 columns)
//     with minima     minimum · row scale times Σ row
//                     scale · row scale times Σ (code - ZERO) · row
// and for each half of a superblock, 128 columns
//     with minima     scale of minima · row scale times -Σ over groups of minimum · Σ row
//                     scale · row scale times Σ over groups of factor · Σ (code - ZERO) · row
// each by one multiply-add. Where columns have scales of their own, an output starts from zero and ends as the bias and
// this scale times the sum. The sums are integers below 2^31 and exact, so that a row's bits depend on nothing but the
// row, on every instruction set.
#pragma once
#include <algorithm>

#include "formats/blocks/spans.h"

namespace ipex_assist {
namespace {

// M rows from `row` on times some columns of a panel; `out` holds the totals of those before.
template <class K, int M>
HOT_LOOP void block_tile(const LinearRows& in, int64_t row, BlockColumns c, Ahead ahead, float* out, int64_t stride) {
    BlockTileRows<M> rows(in, row, c.first);
    __m512 total[M];
    const __m512 start = c.start ? _mm512_loadu_ps(c.start) : _mm512_setzero_ps();
    FOR_EACH(m, M, total[m] = c.first ? _mm512_loadu_ps(out + m * stride) : start);
    for (int64_t s = 0; s < c.spans; s++) {
        K::add_span(c, rows, ahead, total);
        c.codes += c.stride, c.upper += c.stride;
        rows.next_span();
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

constexpr int64_t BLOCKS_AHEAD = 8192;  // bytes of weights that are prefetched before they are unpacked

// All rows times a panel, whose columns are unpacked to the cache, a chunk at a time.
template <class F>
void block_chunks(const Linear& w, const LinearRows& in, int64_t count, int64_t panel, float* out, int64_t stride) {
    using Kind = typename KindOf<F>::Kind;
    constexpr int64_t EACH = (F::UNIT / 64 + F::DEPTH / 32 - 1) / (F::DEPTH / 32);
    const int64_t tile = even_tile(count, TILE_ROWS);
    const uint8_t* unit = w.weights + panel * F::panel_bytes(0, w.depth);
    UnpackedBlocks unpacked;
    for (int64_t k = 0; k < w.depth; k += BLOCK_CHUNK, unit += BLOCK_CHUNK / F::DEPTH * F::UNIT) {
        const int64_t columns = std::min(BLOCK_CHUNK, w.depth - k);
        unpack_blocks<F>(unit, columns, unpacked);
        BlockColumns c(unpacked, k / SCALE_COLUMNS, columns / SCALE_COLUMNS, F::ZERO, start_of<F>(w, panel));
        c.codes = unpacked.codes, c.upper = unpacked.upper;
        if constexpr (F::PLAIN) c.codes = unit + F::LOW_AT, c.stride = F::UNIT;
        for (int64_t r = 0; r < count; r += tile) {
            const Ahead ahead{unit + BLOCKS_AHEAD, r ? 0 : EACH};
#define CALL(M) block_tile<Kind, M>(in, r, c, ahead, out + r * stride, stride)
            IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
        }
    }
}

template <class F>
std::enable_if_t<IS_BLOCKS<F>> format_linear(F, const Linear& w, const LinearRows& in, int64_t count, int64_t first,
                                             int64_t last, float* out, int64_t stride) {
    for (int64_t b = first; b < last; b++, out += LANES) {
        block_chunks<F>(w, in, count, b, out, stride);
        if constexpr (F::COLUMN_SCALES) {
            const __m512 scale = _mm512_loadu_ps(w.scales + b * LANES);
            const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
            for (int64_t r = 0; r < count; r++) {
                float* to = out + r * stride;
                _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), scale, bias));
            }
        }
    }
}

// Output column `column` of a linear, as fp32: a row of a table of embeddings.
template <class F>
void look_up_blocks(const Linear& w, int64_t column, float* out) {
    const uint8_t* unit = w.weights + column / LANES * F::panel_bytes(0, w.depth);
    const int64_t lane = column % LANES;
    const float whole = F::COLUMN_SCALES ? w.scales[column] : 1;
    UnpackedBlocks unpacked;
    for (int64_t k = 0; k < w.depth; k += F::DEPTH, unit += F::UNIT, out += F::DEPTH) {
        unpack_blocks<F>(unit, F::DEPTH, unpacked);
        const uint8_t* codes = unpacked.codes;
        if constexpr (F::PLAIN) codes = unit + F::LOW_AT;
        for (int64_t i = 0; i < F::DEPTH; i++) {
            const int64_t at = i / 4 * 64 + lane * 4 + i % 4, block = F::SUPER ? 0 : i / F::GROUP;
            const int64_t pair = F::SUPER ? unpacked.pairs[i / 32][lane] : 0;
            int code = codes[at] - F::ZERO;
            if (F::WORDS) code = (unpacked.upper[at] - F::ZERO) * 256 + codes[at];
            float scale = unpacked.scales[block][lane];
            if (F::SUPER && F::GROUP < 128) scale *= float(unpacked.factors[i / F::GROUP][lane]);
            out[i] = scale * float(code) * whole;
            if (!F::MINIMA) continue;
            const float minimum = unpacked.minima[block][lane];
            out[i] += F::SUPER ? -minimum * float(int16_t(i % 32 < 16 ? pair : pair >> 16)) : minimum;
        }
    }
}

}  // namespace
}  // namespace ipex_assist
