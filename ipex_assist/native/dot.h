// Multiply-add steps of each number format, for the instruction set this file is compiled for.
#pragma once
#include <cstring>

#include "kernels.h"
#include "vectors.h"

namespace ipex_assist {
namespace {

inline __m512i broadcast4(const void* four_bytes) {
    int32_t value;
    std::memcpy(&value, four_bytes, 4);
    return _mm512_set1_epi32(value);
}

inline __m512 low_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 high_half(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))));
}

// Round to nearest even, as hardware does; NaN stays NaN.
inline __m256i to_bf16(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#endif
}

// acc + Σ of four products of unsigned bytes `u` with signed bytes `s`, in each lane.
inline __m512i dot_bytes(__m512i acc, __m512i u, __m512i s) {
#ifdef IPEX_ASSIST_VNNI
    return _mm512_dpbusd_epi32(acc, u, s);
#else
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(u, _mm512_set1_epi16(255)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(u, 8), _mm512_srai_epi16(s, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}

struct Fp32 {
    using Row = float;
    static constexpr int STEP = 1;  // input columns of 64 bytes
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_set1_ps(*row), acc);
    }
};

struct Bf16 {
    static constexpr int STEP = 2;
#ifdef __AVX512BF16__
    using Row = uint16_t;
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
        return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)broadcast4(row));
    }
#else
    using Row = float;  // values of bf16, widened
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
        acc = _mm512_fmadd_ps(low_half(weights), _mm512_set1_ps(row[0]), acc);
        return _mm512_fmadd_ps(high_half(weights), _mm512_set1_ps(row[1]), acc);
    }
#endif
};

// Compile a function for each number of rows from 1 to 8.
#define IPEX_ASSIST_BY_ROWS(rows, CALL) \
    switch (rows) {                     \
        case 1: CALL(1); break;         \
        case 2: CALL(2); break;         \
        case 3: CALL(3); break;         \
        case 4: CALL(4); break;         \
        case 5: CALL(5); break;         \
        case 6: CALL(6); break;         \
        case 7: CALL(7); break;         \
        default: CALL(8); break;        \
    }
constexpr int64_t TILE_ROWS = 8;

}  // namespace
}  // namespace ipex_assist
