// What an adapter adds to 16 columns of some rows: scale · B · (A · x).
#pragma once
#include "kernels/multiply_add.h"

namespace ipex_assist {
namespace {

template <RowType P>
inline __m512 widened(const uint8_t* values, int64_t k) {
    if constexpr (P == FP32_ROWS) return _mm512_loadu_ps(reinterpret_cast<const float*>(values) + k * LANES);
    if constexpr (P == BF16_ROWS) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values) + k);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    if constexpr (P == INT8_ROWS) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values) + k);
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
}

// N panels for M rows: B is read and widened once for the rows, and A · x once for the panels, in M · N chains of sums.
template <RowType P, int M, int N>
inline void expand_tile(const LowRankPanel& b, int64_t first, const LowRankRow* rows, const float* low,
                        int64_t low_stride, float* out, int64_t stride) {
    const uint8_t* values[N];
    const float* of[M];
    __m512 sums[M * N];
    FOR_EACH(n, N, values[n] = b.values + (first + n) * low_rank_bytes(P, b.rank));
    FOR_EACH(m, M, of[m] = low + rows[m].low * low_stride);
    FOR_EACH(i, M * N, sums[i] = _mm512_setzero_ps());
    for (int64_t k = 0; k < b.rank; k++) {
        __m512 columns[N];
        FOR_EACH(n, N, columns[n] = widened<P>(values[n], k));
        FOR_EACH(m, M, {
            const __m512 x = _mm512_set1_ps(of[m][k]);
            FOR_EACH(n, N, sums[m * N + n] = _mm512_fmadd_ps(columns[n], x, sums[m * N + n]));
        });
    }
    FOR_EACH(n, N, {
        __m512 factors = _mm512_set1_ps(1);
        if (P == INT8_ROWS) factors = _mm512_loadu_ps(b.scales + (first + n) * LANES);
        FOR_EACH(m, M, {
            float* to = out + rows[m].row * stride + (first + n) * b.step * LANES;
            __m512 scale = _mm512_set1_ps(rows[m].scale);
            if (P == INT8_ROWS) scale = _mm512_mul_ps(scale, factors);
            _mm512_storeu_ps(to, _mm512_fmadd_ps(sums[m * N + n], scale, _mm512_loadu_ps(to)));
        });
    });
}

template <RowType P, int M>
inline void expand_rows(const LowRankPanel& b, const LowRankRow* rows, const float* low, int64_t low_stride, float* out,
                        int64_t stride) {
    int64_t i = 0;
    for (; i + 2 <= b.count; i += 2) expand_tile<P, M, 2>(b, i, rows, low, low_stride, out, stride);
    if (i < b.count) expand_tile<P, M, 1>(b, i, rows, low, low_stride, out, stride);
}

template <RowType P>
inline void expand_all(const LowRankPanel& b, const LowRankRow* rows, int64_t count, const float* low,
                       int64_t low_stride, float* out, int64_t stride) {
    for (; count > 4; rows += 4, count -= 4) expand_rows<P, 4>(b, rows, low, low_stride, out, stride);
    switch (count) {
        case 4: return expand_rows<P, 4>(b, rows, low, low_stride, out, stride);
        case 3: return expand_rows<P, 3>(b, rows, low, low_stride, out, stride);
        case 2: return expand_rows<P, 2>(b, rows, low, low_stride, out, stride);
        case 1: return expand_rows<P, 1>(b, rows, low, low_stride, out, stride);
    }
}

void expand(const LowRankPanel& b, const LowRankRow* rows, int64_t count, const float* low, int64_t low_stride,
            float* out, int64_t stride) {
    switch (b.rows) {
        case FP32_ROWS: return expand_all<FP32_ROWS>(b, rows, count, low, low_stride, out, stride);
        case BF16_ROWS: return expand_all<BF16_ROWS>(b, rows, count, low, low_stride, out, stride);
        case INT8_ROWS:
        case BLOCK_ROWS: return expand_all<INT8_ROWS>(b, rows, count, low, low_stride, out, stride);
    }
}

}  // namespace
}  // namespace ipex_assist
