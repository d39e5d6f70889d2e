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
#ifdef IPEX_ASSIST_HAS_AMX
#include "formats/blocks/tiles.h"
#endif

namespace ipex_assist {
namespace {

// Spans of 128 columns of N panels, the first of all `first`, whose codes lie in memory; those of PLAIN formats are
// `stride` bytes apart. `start`: of the panels' totals, the bias, or null for zero.
struct BlockChunk {
    const UnpackedBlocks& unpacked;
    UnpackedCodes codes;
    int64_t stride, first, spans;
    int zero;
    const float* start;
};

// M rows from `row` on times a chunk of N panels; `out` holds the totals of those before.
template <class K, int M, int N>
HOT_LOOP void block_tile(const LinearRows& in, int64_t row, BlockChunk chunk, Ahead ahead, float* out, int64_t stride) {
    constexpr bool IN_MEMORY = N > 1 && K::MORE_SUMS;
    BlockTileRows<M> rows(in, row, chunk.first);
    BlockColumns c(chunk.unpacked, chunk.first, chunk.zero);
    UnpackedCodes upper{chunk.unpacked.upper};
    __m512 held[N][M];
    alignas(64) float kept[IN_MEMORY ? N * M : 1][LANES];
    float* memory = kept[0];
    KEEP_IN("r", memory);
    const BlockTotals<M, N, IN_MEMORY> total{held, memory};
    FOR_EACH(n, N, {
        const __m512 start = chunk.start ? _mm512_loadu_ps(chunk.start + n * LANES) : _mm512_setzero_ps();
        FOR_EACH(m, M, total.put(n, m, chunk.first ? _mm512_loadu_ps(out + m * stride + n * LANES) : start));
    });
    for (int64_t s = 0; s < chunk.spans; s++) {
        UnpackedCodes codes = chunk.codes;
        K::add_span(codes, upper, c, rows, ahead, total);
        chunk.codes.lines += chunk.stride, upper.lines += SCALE_COLUMNS * LANES;
        rows.next_span();
    }
    FOR_EACH(n, N, FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride + n * LANES, total.at(n, m))));
}

constexpr int64_t BLOCKS_AHEAD = 8192;  // bytes of weights that are prefetched before they are unpacked

// Lines of a unit for each 32 columns, at most.
template <class F>
constexpr int64_t LINES_OF_32 = (F::UNIT / 64 + F::DEPTH / 32 - 1) / (F::DEPTH / 32);

// All rows times a chunk of N panels, which is unpacked to the cache. `distance`: from its weights to those that come
// after it, which the first tiles ask for.
template <class F, int N>
void block_chunk(const Linear& w, const LinearRows& in, int64_t count, int64_t panel, int64_t k, int64_t distance,
                 UnpackedBlocks* unpacked, float* out, int64_t stride) {
    using Kind = typename KindOf<F>::Kind;
    constexpr int MOST = N > 1 ? PAIR_ROWS : TILE_ROWS;
    const int64_t bytes = F::panel_bytes(0, w.depth), columns = std::min(BLOCK_CHUNK, w.depth - k);
    const uint8_t* unit = w.weights + panel * bytes + k / F::DEPTH * F::UNIT;
    for (int n = 0; n < N; n++) unpack_blocks<F>(unit + n * bytes, columns, unpacked[n]);
    const int64_t first = k / SCALE_COLUMNS, spans = columns / SCALE_COLUMNS;
    const float* start = start_of<F>(w, panel);
    BlockChunk chunk{*unpacked, {unpacked->codes}, SCALE_COLUMNS * LANES, first, spans, F::ZERO, start};
    if constexpr (F::PLAIN) chunk.codes = {unit + F::LOW_AT, bytes}, chunk.stride = F::UNIT;
    const int64_t tile = even_tile(count, MOST);
    for (int64_t r = 0, n = 0; r < count; r += tile, n++) {
        const Ahead ahead{unit + n * bytes + distance, n < N ? LINES_OF_32<F> : 0};
#define CALL(M) block_tile<Kind, std::min(M, MOST), N>(in, r, chunk, ahead, out + r * stride, stride)
        IPEX_ASSIST_BY_ROWS(std::min(tile, count - r), CALL)
#undef CALL
    }
}

#ifdef IPEX_ASSIST_BYTE_PAIRS
// Up to 5 rows, what drafts of 4 take, times a panel whose codes are made where they are multiplied: nothing goes
// through memory between reading weights and adding products, so that reading never waits.
constexpr int64_t FEW_ROWS = 5;

template <class F>
constexpr bool HAS_FEW_ROWS = F::BY_ITSELF && !F::PLAIN && !F::WORDS;

template <class F, int M>
HOT_LOOP void few_rows(const Linear& w, const LinearRows& in, int64_t panel, float* out, int64_t stride) {
    using Kind = typename KindOf<F>::Kind;
    const float* bias = start_of<F>(w, panel);
    const __m512 start = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
    BlockTileRows<M> rows(in, 0, 0);
    BlockScales scales;
    __m512 held[1][M];
    const BlockTotals<M, 1, false> total{held, nullptr};
    FOR_EACH(m, M, held[0][m] = start);
    const uint8_t* unit = w.weights + panel * F::panel_bytes(0, w.depth);
    for (const uint8_t* end = unit + F::panel_bytes(0, w.depth); unit < end; unit += F::UNIT) {
        unpack_scales(F(), F(), unit, 0, scales);
        BlockColumns c(scales, 0, F::ZERO);
        PackedCodes<F> codes(unit);
        Ahead ahead{unit + BLOCKS_AHEAD, LINES_OF_32<F>};
        for (int64_t s = 0; s < F::DEPTH; s += SCALE_COLUMNS) {
            Kind::add_span(codes, {nullptr}, c, rows, ahead, total);
            rows.next_span();
        }
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, held[0][m]));
}
#endif

// Panels [first, last), one by one.
template <class F>
void block_panels(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                  int64_t stride) {
    UnpackedBlocks unpacked;
    for (int64_t b = first; b < last; b++, out += LANES) {
#ifdef IPEX_ASSIST_BYTE_PAIRS
        if constexpr (HAS_FEW_ROWS<F>) {
            const auto few = [&](auto m) { few_rows<F, std::min<int>(m, FEW_ROWS)>(w, in, b, out, stride); };
            if (count <= FEW_ROWS) {
#define CALL(M) few(std::integral_constant<int, M>())
                IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
                continue;
            }
        }
#endif
        for (int64_t k = 0; k < w.depth; k += BLOCK_CHUNK)
            block_chunk<F, 1>(w, in, count, b, k, BLOCKS_AHEAD, &unpacked, out, stride);
    }
}

#ifdef IPEX_ASSIST_BYTE_PAIRS
// Two at a time, chunk after chunk of some panels, so that the rows are still in L2 for the next of them.
template <class F>
void block_pairs(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                 int64_t stride) {
    constexpr int64_t GROUP = 8;  // panels
    UnpackedBlocks unpacked[PAIR];
    const int64_t bytes = F::panel_bytes(0, w.depth);
    for (int64_t group = first; group < last; group += GROUP) {
        const int64_t end = std::min(group + GROUP, last);
        for (int64_t k = 0; k < w.depth; k += BLOCK_CHUNK) {
            const int64_t next = k + BLOCK_CHUNK < w.depth ? BLOCK_CHUNK / F::DEPTH * F::UNIT
                                                           : (end - group) * bytes - k / F::DEPTH * F::UNIT;
            for (int64_t b = group; b < end; b += PAIR) {
                float* to = out + (b - first) * LANES;
                end - b < PAIR ? block_chunk<F, 1>(w, in, count, b, k, next, unpacked, to, stride)
                               : block_chunk<F, PAIR>(w, in, count, b, k, next, unpacked, to, stride);
            }
        }
    }
}
#endif

// By tiles, two panels, or one.
template <class F>
void block_rows(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if constexpr (SquaresOf<F>::PAYS) {
        using Squares = typename SquaresOf<F>::Squares;
        if (count > TILE) return amx_many<Squares>(w, in, count, first, last, out, stride, block_tiles<F>);
    }
#endif
#ifdef IPEX_ASSIST_BYTE_PAIRS
    if (count > TILE_ROWS) return block_pairs<F>(w, in, count, first, last, out, stride);
#endif
    block_panels<F>(w, in, count, first, last, out, stride);
}

template <class F>
std::enable_if_t<IS_BLOCKS<F>> format_linear(F, const Linear& w, const LinearRows& in, int64_t count, int64_t first,
                                             int64_t last, float* out, int64_t stride) {
    block_rows<F>(w, in, count, first, last, out, stride);
    if constexpr (F::COLUMN_SCALES) {
        for (int64_t b = first; b < last; b++, out += LANES) {
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
            if (F::SUPER && F::GROUP < 128 && !F::WEIGHED) scale *= float(unpacked.factors[i / F::GROUP][lane]);
            out[i] = scale * float(code) * whole;
            if (!F::MINIMA) continue;
            const float minimum = unpacked.minima[block][lane];
            out[i] += F::SUPER ? -minimum * float(int16_t(i % 32 < 16 ? pair : pair >> 16)) : minimum;
        }
    }
}

}  // namespace
}  // namespace ipex_assist
