// Linears of fp32 and bf16. The products of an output are summed in one order, whatever other rows and columns are
// computed with it: so a row's result does not depend on its neighbours. That order is, for each chunk of 1024 input
// columns: two chains of multiply-adds from zero, of the chunk's even and odd steps (the latency of a single chain
// would exceed the time to read its weights); their sum is added to the total, which starts from the bias or from zero.
// (A total from zero is never -0, whatever the signs of zeros in the chains: see attention.h.)
#pragma once
#include "kernels/multiply_add.h"
#include "kernels/prefetch.h"

namespace ipex_assist {
namespace {

constexpr int64_t DEPTH_CHUNK = 1024;  // 8 rows and 8 blocks of this depth fit into L1 and L2
constexpr int64_t STREAMED_ROWS = 16;  // up to as many rows stream the weights; changes speed, not bits

template <class D>
constexpr int64_t CHUNK_STEPS = DEPTH_CHUNK / D::STEP;

// Adds M rows times a chunk of one block to `total`, and moves the rows to the chunk's end. `steps` is a multiple of 4.
template <class D, int M, Prefetch P>
inline __attribute__((always_inline)) void add_chunk(RowPointers<typename D::Row, M>& rows, const uint8_t* block,
                                                     int64_t steps, __m512 (&total)[M]) {
    __m512 chains[2][M];  // of even steps, and of odd ones
    FOR_EACH(m, M, chains[0][m] = chains[1][m] = _mm512_setzero_ps());
    for (const uint8_t* end = block + steps * 64; block < end; block += 4 * 64, rows.move(4 * D::STEP)) {
        FOR_EACH(s, 4, {
            prefetch_line<P, P == Prefetch::FAR ? FAR_BYTES : CHUNK_STEPS<D> * 64>(block + s * 64, s);
            const __m512i weights = _mm512_loadu_si512(block + s * 64);
            FOR_EACH(m, M, chains[s % 2][m] = D::dot(chains[s % 2][m], weights, rows.at[m] + s * D::STEP));
        });
    }
    FOR_EACH(m, M, total[m] = _mm512_add_ps(total[m], _mm512_add_ps(chains[0][m], chains[1][m])));
}

// M rows times `steps` of one block, from the start of a chunk. The total starts from `start`: at the start of the
// block the bias (16 columns, the same for all rows: start_stride 0), or null for zero; later the contents of `out`.
template <class D, int M, Prefetch P>
HOT_LOOP void float_tile(const typename D::Row* from, int64_t row_stride, const uint8_t* block, int64_t steps,
                         const float* start, int64_t start_stride, float* out, int64_t stride) {
    RowPointers<typename D::Row, M> rows(from, row_stride);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = start ? _mm512_loadu_ps(start + m * start_stride) : _mm512_setzero_ps());
    for (int64_t s = 0; s < steps; s += CHUNK_STEPS<D>) {
        const int64_t part = s + CHUNK_STEPS<D> < steps ? CHUNK_STEPS<D> : steps - s;
        add_chunk<D, M, P>(rows, block + s * 64, part, total);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

// `count` rows (1 to 8) times one block.
template <class D, class P = Near>
inline void float_rows(int64_t count, const typename D::Row* rows, int64_t row_stride, const uint8_t* block,
                       int64_t steps, const float* start, int64_t start_stride, float* out, int64_t stride) {
#define CALL(M) float_tile<D, M, P::of(M)>(rows, row_stride, block, steps, start, start_stride, out, stride)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

// 9 to 16 rows times one block: two tiles take turns at its chunks.
template <class D>
void float_pair(const Linear& w, const typename D::Row* rows, int64_t count, int64_t b, float* out, int64_t stride) {
    const uint8_t* block = w.weights + b * block_bytes(w.precision, 0, w.depth);
    for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
        const int64_t steps = (k + DEPTH_CHUNK < w.depth ? DEPTH_CHUNK : w.depth - k) / D::STEP;
        const auto start = [&](float* to) { return k > 0 ? to : w.bias ? w.bias + b * LANES : nullptr; };
        const int64_t start_stride = k > 0 ? stride : 0;
        float* lower = out + TILE_ROWS * stride;
        float_tile<D, TILE_ROWS, FarEven::of(TILE_ROWS)>(rows + k, w.depth, block + k / D::STEP * 64, steps, start(out),
                                                         start_stride, out, stride);
        float_rows<D, FarOdd>(count - TILE_ROWS, rows + TILE_ROWS * w.depth + k, w.depth, block + k / D::STEP * 64,
                              steps, start(lower), start_stride, lower, stride);
    }
}

// Decode: block after block, so that the weights are read from memory in one stream.
template <class D>
void float_few(const Linear& w, const typename D::Row* rows, int64_t count, int64_t first, int64_t last, float* out,
               int64_t stride) {
    const int64_t bytes = block_bytes(w.precision, 0, w.depth);
    for (int64_t b = first; b < last; b++) {
        float* to = out + (b - first) * LANES;
        if (IN_TURNS && count > TILE_ROWS) {
            float_pair<D>(w, rows, count, b, to, stride);
            continue;
        }
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            float_rows<D, Streaming>(part, rows + r * w.depth, w.depth, w.weights + b * bytes, w.depth / D::STEP,
                                     w.bias ? w.bias + b * LANES : nullptr, 0, to + r * stride, stride);
        }
    }
}

// Prefill: chunk after chunk of 8 blocks, so that the rows and weights that are used again are still in cache.
template <class D>
void float_many(const Linear& w, const typename D::Row* rows, int64_t count, int64_t first, int64_t last, float* out,
                int64_t stride) {
    constexpr int64_t GROUP = 8;
    const int64_t bytes = block_bytes(w.precision, 0, w.depth);
    for (int64_t group = first; group < last; group += GROUP) {
        const int64_t group_end = group + GROUP < last ? group + GROUP : last;
        for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
            const int64_t steps = (k + DEPTH_CHUNK < w.depth ? DEPTH_CHUNK : w.depth - k) / D::STEP;
            for (int64_t r = 0; r < count; r += TILE_ROWS) {
                const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
                const typename D::Row* from = rows + r * w.depth + k;
                for (int64_t b = group; b < group_end; b++) {
                    const uint8_t* block = w.weights + b * bytes + k / D::STEP * 64;
                    float* to = out + r * stride + (b - first) * LANES;
                    const float* start = k > 0 ? to : w.bias ? w.bias + b * LANES : nullptr;
                    const int64_t start_stride = k > 0 ? stride : 0;
                    float_rows<D>(part, from, w.depth, block, steps, start, start_stride, to, stride);
                }
            }
        }
    }
}

}  // namespace
}  // namespace ipex_assist
