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

constexpr int64_t DEPTH_CHUNK = 1024;  // 8 rows and 8 panels of this depth fit into L1 and L2
constexpr int64_t STREAMED_ROWS = 16;  // up to as many rows stream the weights; changes speed, not bits

template <class D>
constexpr int64_t CHUNK_STEPS = DEPTH_CHUNK / D::STEP;

// Adds M rows times a chunk of one panel to `total`, and moves the rows to the chunk's end. `steps` is a multiple of 4.
template <class D, int M, Prefetch P>
inline __attribute__((always_inline)) void add_chunk(RowPointers<typename D::Row, M>& rows, const uint8_t* panel,
                                                     int64_t steps, __m512 (&total)[M]) {
    __m512 chains[2][M];  // of even steps, and of odd ones
    FOR_EACH(m, M, chains[0][m] = chains[1][m] = _mm512_setzero_ps());
    for (const uint8_t* end = panel + steps * 64; panel < end; panel += 4 * 64, rows.move(4 * D::STEP)) {
        FOR_EACH(s, 4, {
            prefetch_line<P, P == Prefetch::FAR ? FAR_BYTES : CHUNK_STEPS<D> * 64>(panel + s * 64, s);
            const __m512i weights = _mm512_loadu_si512(panel + s * 64);
            FOR_EACH(m, M, chains[s % 2][m] = D::dot(chains[s % 2][m], weights, rows.at[m] + s * D::STEP));
        });
    }
    FOR_EACH(m, M, total[m] = _mm512_add_ps(total[m], _mm512_add_ps(chains[0][m], chains[1][m])));
}

// M rows times `steps` of one panel, from the start of a chunk. The total starts from `start`: at the start of the
// panel the bias (16 columns, the same for all rows: start_stride 0), or null for zero; later the contents of `out`.
template <class D, int M, Prefetch P>
HOT_LOOP void float_tile(const typename D::Row* from, int64_t row_stride, const uint8_t* panel, int64_t steps,
                         const float* start, int64_t start_stride, float* out, int64_t stride) {
    RowPointers<typename D::Row, M> rows(from, row_stride);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = start ? _mm512_loadu_ps(start + m * start_stride) : _mm512_setzero_ps());
    for (int64_t s = 0; s < steps; s += CHUNK_STEPS<D>) {
        const int64_t part = s + CHUNK_STEPS<D> < steps ? CHUNK_STEPS<D> : steps - s;
        add_chunk<D, M, P>(rows, panel + s * 64, part, total);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

// `count` rows (1 to 8) times one panel.
template <class D, class P = Near>
inline void float_rows(int64_t count, const typename D::Row* rows, int64_t row_stride, const uint8_t* panel,
                       int64_t steps, const float* start, int64_t start_stride, float* out, int64_t stride) {
#define CALL(M) float_tile<D, M, P::of(M)>(rows, row_stride, panel, steps, start, start_stride, out, stride)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

// 9 to 16 rows times one panel: two tiles of half of them take turns at its chunks.
template <class D>
void float_pair(const Linear& w, const typename D::Row* rows, int64_t count, int64_t b, float* out, int64_t stride) {
    const uint8_t* panel = w.weights + b * panel_bytes(w.precision, 0, w.depth);
    const int64_t half = even_tile(count, TILE_ROWS);
    for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
        const int64_t steps = (k + DEPTH_CHUNK < w.depth ? DEPTH_CHUNK : w.depth - k) / D::STEP;
        const auto start = [&](float* to) { return k > 0 ? to : w.bias ? w.bias + b * LANES : nullptr; };
        const int64_t start_stride = k > 0 ? stride : 0;
        const uint8_t* lines = panel + k / D::STEP * 64;
        float* lower = out + half * stride;
        float_rows<D, FarEven>(half, rows + k, w.depth, lines, steps, start(out), start_stride, out, stride);
        float_rows<D, FarOdd>(count - half, rows + half * w.depth + k, w.depth, lines, steps, start(lower),
                              start_stride, lower, stride);
    }
}

// Decode: panel after panel, so that the weights are read from memory in one stream.
template <class D>
void float_few(const Linear& w, const typename D::Row* rows, int64_t count, int64_t first, int64_t last, float* out,
               int64_t stride) {
    const int64_t bytes = panel_bytes(w.precision, 0, w.depth);
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

constexpr int PAIR = 2;  // panels
// Rows of a tile of two panels, whose 24 chains and their operands are all the registers of AVX-512.
constexpr int64_t PAIR_ROWS = 6;
constexpr bool IN_PAIRS = REGISTERS == 32;

// M rows times a chunk of two panels: a value of a row is loaded once for both. With one panel each multiplication has
// a load of its own, and processors that multiply two vectors a cycle load no more than two.
template <class D, int M>
HOT_LOOP void float_pair_tile(const typename D::Row* from, int64_t row_stride, const uint8_t* panel, int64_t bytes,
                              int64_t steps, Ahead ahead, const float* start, int64_t start_stride, float* out,
                              int64_t stride) {
    RowPointers<typename D::Row, M> rows(from, row_stride);
    __m512 chains[PAIR][2][M];  // of each panel, of even steps and of odd ones
    FOR_EACH(n, PAIR, FOR_EACH(m, M, chains[n][0][m] = chains[n][1][m] = _mm512_setzero_ps()));
    for (const uint8_t* end = panel + steps * 64; panel < end; panel += 4 * 64, rows.move(4 * D::STEP)) {
        ahead.go_on(bytes);
        FOR_EACH(s, 4, {
            const __m512i weights = _mm512_loadu_si512(panel + s * 64);
            const __m512i more = _mm512_loadu_si512(panel + bytes + s * 64);
            FOR_EACH(m, M, {
                const typename D::Value value = D::value(rows.at[m] + s * D::STEP);
                chains[0][s % 2][m] = D::dot(chains[0][s % 2][m], weights, value);
                chains[1][s % 2][m] = D::dot(chains[1][s % 2][m], more, value);
            });
        });
    }
    FOR_EACH(n, PAIR, FOR_EACH(m, M, {
                 const __m512 before =
                     start ? _mm512_loadu_ps(start + m * start_stride + n * LANES) : _mm512_setzero_ps();
                 const __m512 sum = _mm512_add_ps(chains[n][0][m], chains[n][1][m]);
                 _mm512_storeu_ps(out + m * stride + n * LANES, _mm512_add_ps(before, sum));
             }));
}

// A chunk of some panels, and where the next one is.
struct FloatChunk {
    const uint8_t* lines;  // of the first panel
    int64_t panels, bytes, steps;
    int64_t distance;  // to the next chunk's lines
};

// `count` rows (1 to PAIR_ROWS where there are pairs, else to 8) times a chunk. They are the `part`th of `parts` tiles
// that prefetch the next. `start` and `out` are the first panel's.
template <class D>
void float_panels(int64_t count, const typename D::Row* rows, int64_t row_stride, const FloatChunk& c, int64_t part,
                  int64_t parts, const float* start, int64_t start_stride, float* out, int64_t stride) {
    for (int64_t b = 0, some; b < c.panels; b += some, out += some * LANES) {
        const uint8_t* panel = c.lines + b * c.bytes;
        some = IN_PAIRS && b + 1 < c.panels ? PAIR : 1;
        if (some == PAIR) {
            const Ahead ahead = Ahead::of(panel, part < parts ? c.distance : 0, c.steps / 4, 4, part, parts);
#define CALL(M)                                                                                                       \
    float_pair_tile<D, M <= PAIR_ROWS ? M : 1>(rows, row_stride, panel, c.bytes, c.steps, ahead, start, start_stride, \
                                               out, stride)
            IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
        } else {
            float_rows<D>(count, rows, row_stride, panel, c.steps, start, start_stride, out, stride);
        }
        if (start) start += some * LANES;
    }
}

// Prefill: chunk after chunk of 8 panels, so that the rows and weights that are used again are still in cache.
template <class D>
void float_many(const Linear& w, const typename D::Row* rows, int64_t count, int64_t first, int64_t last, float* out,
                int64_t stride) {
    constexpr int64_t GROUP = 8, PREFETCHING = 4;  // tiles
    const int64_t bytes = panel_bytes(w.precision, 0, w.depth);
    const int64_t tile = even_tile(count, IN_PAIRS ? PAIR_ROWS : TILE_ROWS), tiles = (count + tile - 1) / tile;
    for (int64_t group = first; group < last; group += GROUP) {
        const int64_t panels = group + GROUP < last ? GROUP : last - group;
        for (int64_t k = 0; k < w.depth; k += DEPTH_CHUNK) {
            const bool ends = k + DEPTH_CHUNK >= w.depth;
            const int64_t steps = (ends ? w.depth - k : DEPTH_CHUNK) / D::STEP, line = k / D::STEP * 64;
            const int64_t distance = ends ? panels * bytes - line : steps * 64;
            const FloatChunk chunk{w.weights + group * bytes + line, panels, bytes, steps, distance};
            for (int64_t r = 0; r < count; r += tile) {
                float* to = out + r * stride + (group - first) * LANES;
                const float* start = k > 0 ? to : w.bias ? w.bias + group * LANES : nullptr;
                float_panels<D>(count - r < tile ? count - r : tile, rows + r * w.depth + k, w.depth, chunk, r / tile,
                                tiles < PREFETCHING ? tiles : PREFETCHING, start, k > 0 ? stride : 0, to, stride);
            }
        }
    }
}

template <class D>
void float_linear(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
                  int64_t stride) {
    const auto* values = reinterpret_cast<const typename D::Row*>(in.values);
    rows <= STREAMED_ROWS ? float_few<D>(w, values, rows, first, last, out, stride)
                          : float_many<D>(w, values, rows, first, last, out, stride);
}

}  // namespace
}  // namespace ipex_assist
