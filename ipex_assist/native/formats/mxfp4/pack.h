// Packing into MXFP4.
#pragma once
#include "formats/mxfp4/linear.h"
#include "kernels/pack_rows.h"

namespace ipex_assist {
namespace {

// Packs a group of 16 columns, x (32, 16), as 4 lines; returns its exponents + 127. The largest value is 4 to 8 times
// the scale (Open Compute Project, Microscaling Formats 1.0, 6.3): so values that are MXFP4 already stay exact, except
// below 2^-126, because half a scale must not be denormal. Others are rounded to nearest, ties to the even nibble, and
// saturate at 6.
inline __m512i pack_mxfp4_group(const float* x, uint8_t* to) {
    __m512 most = _mm512_setzero_ps();
    for (int64_t k = 0; k < MX_GROUP; k++) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + k * LANES)));
    const __m512i exponent = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(most), 23), _mm512_set1_epi32(2));
    const __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512i stored = _mm512_max_epi32(exponent, _mm512_set1_epi32(2));
    // 2 ÷ the scale: values are counted in halves.
    const __m512i inverse = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(255), stored), 23);
    store_nibbles(
        0,
        [&](int64_t k) {
            const __m512 v = _mm512_loadu_ps(x + k * LANES),
                         size = _mm512_mul_ps(_mm512_abs_ps(v), _mm512_castsi512_ps(inverse));
            const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(v), 28), _mm512_set1_epi32(8));
            __m512i number = _mm512_setzero_si512();
            const auto above = [&](__mmask16 mask, int value) {
                number = _mm512_mask_mov_epi32(number, mask, _mm512_set1_epi32(value));
            };
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.5f), _CMP_GT_OQ), 1);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(1.5f), _CMP_GE_OQ), 2);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(2.5f), _CMP_GT_OQ), 3);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(3.5f), _CMP_GE_OQ), 4);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(5.0f), _CMP_GT_OQ), 5);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(7.0f), _CMP_GE_OQ), 6);
            above(_mm512_cmp_ps_mask(size, _mm512_set1_ps(10.0f), _CMP_GT_OQ), 7);
            return _mm512_or_si512(number, sign);
        },
        to);
    return _mm512_mask_mov_epi32(_mm512_setzero_si512(), some, stored);
}

inline bool format_pack(Mxfp4Format, const PackRequest& p) {
    __m512i head = _mm512_setzero_si512();
    return pack_groups(p, MX_GROUP, [&](int64_t g, const float* x) {
        const int64_t number = g % SCALE_COLUMNS / MX_GROUP;
        uint8_t* span = p.panel + g / SCALE_COLUMNS * MX_BYTES;
        const __m512i exponent = pack_mxfp4_group(x, span + 64 + number * 256);
        // The byte of each group is shifted in from the top.
        head = _mm512_or_si512(_mm512_srli_epi32(head, 8), _mm512_slli_epi32(exponent, 24));
        if (number + 1 == MX_GROUPS) _mm512_storeu_si512(span, head);
    });
}

}  // namespace
}  // namespace ipex_assist
