// Packing into FP8: a scale for each span of 128 input columns of a panel.
#pragma once
#include "formats/fp8/format.h"
#include "kernels/pack_rows.h"

namespace ipex_assist {
namespace {

constexpr float FP8_LARGEST = 448.0f;
constexpr float FP8_NOTHING = 1e-30f;  // a span whose values are all smaller is zero: its scale would be denormal

// E4M3 of x times `inverse`, whose size is at most 448; to nearest, ties to even.
inline __m512i to_fp8(__m512 x, __m512 inverse) {
    const __m512 size = _mm512_min_ps(_mm512_mul_ps(_mm512_abs_ps(x), inverse), _mm512_set1_ps(FP8_LARGEST));
    const __m512i bits = _mm512_castps_si512(size);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
    const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32((127 - 7) << 3));
    const __m512i denormal = _mm512_cvtps_epi32(_mm512_mul_ps(size, _mm512_set1_ps(512.0f)));
    const __mmask16 small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(1.0f / 64), _CMP_LT_OQ);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 24), _mm512_set1_epi32(0x80));
    return _mm512_or_si512(_mm512_mask_mov_epi32(normal, small, denormal), sign);
}

// A span of 16 columns, x (128, 16), as 32 lines; returns its scale.
inline float pack_fp8_span(const float* x, uint8_t* to) {
    __m512 sizes = _mm512_setzero_ps();
    for (int64_t k = 0; k < SCALE_COLUMNS; k++) {
        sizes = _mm512_max_ps(sizes, _mm512_abs_ps(_mm512_loadu_ps(x + k * LANES)));
    }
    const float most = _mm512_reduce_max_ps(sizes);
    const bool some = most > FP8_NOTHING;
    const __m512 inverse = _mm512_set1_ps(some ? FP8_LARGEST / most : 0.0f);
    for (int64_t k = 0; k < SCALE_COLUMNS; k += 4, to += 64) {
        const auto pair = [&](int64_t first) {
            const __m512i low = to_fp8(_mm512_loadu_ps(x + first * LANES), inverse),
                          high = to_fp8(_mm512_loadu_ps(x + (first + 1) * LANES), inverse);
            return _mm512_or_si512(low, _mm512_slli_epi32(high, 8));
        };
        _mm512_storeu_si512(to, _mm512_packus_epi32(pair(k), pair(k + 2)));
    }
    return some ? most / FP8_LARGEST : 0.0f;
}

inline bool format_pack(Fp8Format, const PackRequest& p) {
    std::memset(p.panel, 0, size_t(fp8_head_bytes(p.depth)));
    for (int i = 0; i < LANES; i++) p.scales[i] = 1.0f;
    uint8_t* lines = p.panel + fp8_head_bytes(p.depth);
    return pack_groups(p, SCALE_COLUMNS, [&](int64_t k, const float* x) {
        reinterpret_cast<float*>(p.panel)[k / SCALE_COLUMNS] = pack_fp8_span(x, lines + k * LANES);
    });
}

}  // namespace
}  // namespace ipex_assist
