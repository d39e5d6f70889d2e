// Linears of fp32 and bf16. The sums of an output have a fixed order, whatever rows and columns are computed beside it:
// that is what makes a row's result independent of its neighbours. Up to 16 rows: two chains of multiply-adds, of the
// even and of the odd steps, because the latency of one would be longer than reading its weights takes. More: one chain.
#pragma once
#include "dot.h"

namespace ipex_assist {
namespace {

constexpr int64_t PREFETCH = 2048;     // bytes ahead: covers the latency of memory at the speed one core reads
constexpr int64_t DEPTH_CHUNK = 1024;  // of many rows: 8 rows and 2 blocks of this depth stay in the first two caches

// M rows times one block of an even number of steps; `start` (16 columns) or zero is added at the end.
template <class D, int M>
inline void float_tile(const typename D::Row* rows, int64_t row_stride, const uint8_t* block, int64_t steps,
                       const float* start, float* out, int64_t stride) {
    __m512 even[M], odd[M];
    for (int m = 0; m < M; m++) even[m] = odd[m] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s += 2) {
        _mm_prefetch(reinterpret_cast<const char*>(block + s * 64 + PREFETCH), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(block + s * 64 + 64 + PREFETCH), _MM_HINT_T0);
        const __m512i first = _mm512_loadu_si512(block + s * 64), second = _mm512_loadu_si512(block + s * 64 + 64);
        for (int m = 0; m < M; m++) {
            even[m] = D::dot(even[m], first, rows + m * row_stride + s * D::STEP);
            odd[m] = D::dot(odd[m], second, rows + m * row_stride + (s + 1) * D::STEP);
        }
    }
    const __m512 offset = start ? _mm512_loadu_ps(start) : _mm512_setzero_ps();
    for (int m = 0; m < M; m++) {
        _mm512_storeu_ps(out + m * stride, _mm512_add_ps(_mm512_add_ps(even[m], odd[m]), offset));
    }
}

// M rows times a part of one block, in one chain that starts from `start` or continues what is in `out`.
template <class D, int M>
inline void float_chunk(const typename D::Row* rows, int64_t row_stride, const uint8_t* block, int64_t steps,
                        const float* start, bool resume, float* out, int64_t stride) {
    __m512 acc[M];
    for (int m = 0; m < M; m++) {
        acc[m] = resume ? _mm512_loadu_ps(out + m * stride) : start ? _mm512_loadu_ps(start) : _mm512_setzero_ps();
    }
    for (int64_t s = 0; s < steps; s++) {
        const __m512i weights = _mm512_loadu_si512(block + s * 64);
        for (int m = 0; m < M; m++) acc[m] = D::dot(acc[m], weights, rows + m * row_stride + s * D::STEP);
    }
    for (int m = 0; m < M; m++) _mm512_storeu_ps(out + m * stride, acc[m]);
}

// 8 rows times two blocks: each piece of a row is broadcast once for both.
template <class D>
inline void float_tile_pair(const typename D::Row* rows, int64_t row_stride, const uint8_t* block, int64_t next,
                            int64_t steps, const float* start, bool resume, float* out, int64_t stride) {
    constexpr int M = TILE_ROWS;
    __m512 left[M], right[M];
    for (int m = 0; m < M; m++) {
        const float* from = resume ? out + m * stride : start;
        left[m] = from ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
        right[m] = from ? _mm512_loadu_ps(from + LANES) : _mm512_setzero_ps();
    }
    for (int64_t s = 0; s < steps; s++) {
        const __m512i a = _mm512_loadu_si512(block + s * 64), b = _mm512_loadu_si512(block + next + s * 64);
        for (int m = 0; m < M; m++) {
            left[m] = D::dot(left[m], a, rows + m * row_stride + s * D::STEP);
            right[m] = D::dot(right[m], b, rows + m * row_stride + s * D::STEP);
        }
    }
    for (int m = 0; m < M; m++) {
        _mm512_storeu_ps(out + m * stride, left[m]);
        _mm512_storeu_ps(out + m * stride + LANES, right[m]);
    }
}

// `count` rows (1 to 8) times one block.
template <class D>
inline void float_rows(int64_t count, const typename D::Row* rows, int64_t row_stride, const uint8_t* block,
                       int64_t steps, const float* start, float* out, int64_t stride) {
#define CALL(M) float_tile<D, M>(rows, row_stride, block, steps, start, out, stride)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

// Likewise a part of a block.
template <class D>
inline void float_rows_chunk(int64_t count, const typename D::Row* rows, int64_t row_stride, const uint8_t* block,
                             int64_t steps, const float* start, bool resume, float* out, int64_t stride) {
#define CALL(M) float_chunk<D, M>(rows, row_stride, block, steps, start, resume, out, stride)
    IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
}

template <class D>
void float_few(const Linear& w, const typename D::Row* rows, int64_t count, int64_t first, int64_t last, float* out,
               int64_t stride) {
    const int64_t bytes = block_bytes(w.precision, 0, w.depth);
    for (int64_t b = first; b < last; b++) {
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t part = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            float_rows<D>(part, rows + r * w.depth, w.depth, w.weights + b * bytes, w.depth / D::STEP,
                          w.bias ? w.bias + b * LANES : nullptr, out + r * stride + (b - first) * LANES, stride);
        }
    }
}

// Many rows: the depth in chunks, so that what is used again is still in a cache. The order of sums stays the same.
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
                    const float* start = w.bias ? w.bias + b * LANES : nullptr;
                    float* to = out + r * stride + (b - first) * LANES;
                    if (part == TILE_ROWS && b + 1 < group_end) {
                        float_tile_pair<D>(from, w.depth, block, bytes, steps, start, k > 0, to, stride);
                        b++;
                    } else {
                        float_rows_chunk<D>(part, from, w.depth, block, steps, start, k > 0, to, stride);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace ipex_assist
