// The peak rate of multiply-adds of a core: the instructions of a precision and nothing else, in enough independent
// chains to hide their latency.
#pragma once
#include "kernels/integer_linear.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/bf16_amx.h"
#endif

namespace ipex_assist {
namespace {

constexpr int CHAINS = 12;

// Keeps the compiler from removing sums that nobody reads; by a copy, so that the sums themselves stay in registers.
template <class Vector, int COUNT>
inline __attribute__((always_inline)) void want(const Vector (&sums)[COUNT]) {
    Vector wanted[COUNT];
    FOR_EACH(c, COUNT, wanted[c] = sums[c]);
    __asm__ volatile("" : : "r"(wanted) : "memory");
}

template <class D>
int64_t multiply_floats(int64_t steps) {
    const typename D::Row row[D::STEP] = {};
    __m512i weights = _mm512_setzero_si512();
    __m512 sums[CHAINS];
    FOR_EACH(c, CHAINS, sums[c] = _mm512_setzero_ps());
    for (int64_t s = 0; s < steps; s++) {
        KEEP_VECTOR(weights);
        FOR_EACH(c, CHAINS, {
            sums[c] = D::dot(sums[c], weights, row);
            KEEP_VECTOR(sums[c]);
        });
    }
    want(sums);
    return steps * CHAINS * LANES * D::STEP;
}

#ifdef IPEX_ASSIST_VNNI
int64_t multiply_bytes(int64_t steps) {
    const int8_t row[4] = {};
    __m512i weights = _mm512_setzero_si512(), sums[CHAINS];
    FOR_EACH(c, CHAINS, sums[c] = _mm512_setzero_si512());
    for (int64_t s = 0; s < steps; s++) {
        KEEP_VECTOR(weights);
        FOR_EACH(c, CHAINS, {
            sums[c] = dot_bytes(sums[c], weights, row);
            KEEP_VECTOR(sums[c]);
        });
    }
    want(sums);
    return steps * CHAINS * LANES * 4;
}
#else
int64_t multiply_bytes(int64_t steps) {
    constexpr int M = 4;
    int8_t values[M * INT16_LINES * 4] = {};
    uint8_t lines[INT16_LINES * 64] = {};
    const RowPointers<int8_t, M> rows(values, INT16_LINES * 4);
    __m512i sums[M];
    FOR_EACH(m, M, sums[m] = _mm512_setzero_si512());
    for (int64_t s = 0; s < steps; s++) {
        __asm__ volatile("" : : "r"(values), "r"(lines) : "memory");  // as if they were others each time
        add_bytes<M, Prefetch::NEAR>(lines, rows, sums);
        FOR_EACH(m, M, KEEP_VECTOR(sums[m]));
    }
    want(sums);
    return steps * M * INT16_LINES * LANES * 4;
}
#endif

#ifdef IPEX_ASSIST_HAS_AMX
// Four tiles of sums.
int64_t multiply_tiles(RowType rows, int64_t steps) {
    tiles_begin(TILE);
    alignas(64) const uint8_t zeros[TILE_BYTES] = {};
    TILE_LOAD(4, zeros, 64);
    TILE_LOAD(6, zeros, 64);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t s = 0; s < steps; s++) {
        if (rows == BF16_ROWS) {
            TILE_DOT_BF16(0, 4, 6);
            TILE_DOT_BF16(1, 4, 6);
            TILE_DOT_BF16(2, 4, 6);
            TILE_DOT_BF16(3, 4, 6);
        } else {
            TILE_DOT_SIGNED(0, 4, 6);
            TILE_DOT_SIGNED(1, 4, 6);
            TILE_DOT_SIGNED(2, 4, 6);
            TILE_DOT_SIGNED(3, 4, 6);
        }
    }
    tiles_end();
    return steps * 4 * TILE * TILE_BYTES / (rows == BF16_ROWS ? 2 : 1);
}
#endif

// `steps` times some multiply-adds; returns their number.
int64_t multiply(Precision precision, int64_t steps) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (row_type(precision) != FP32_ROWS) return multiply_tiles(row_type(precision), steps);
#endif
    switch (row_type(precision)) {
        case FP32_ROWS: return multiply_floats<Fp32>(steps);
        case BF16_ROWS: return multiply_floats<Bf16>(steps);
        case INT8_ROWS:
        case BLOCK_ROWS: return multiply_bytes(steps);
    }
    __builtin_unreachable();
}

}  // namespace
}  // namespace ipex_assist
