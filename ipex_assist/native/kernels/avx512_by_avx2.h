// Vectors of 16 lanes where the processor's have 8: AVX-512's names with AVX2's instructions.
//
// The kernels are written once, in AVX-512's intrinsics. Compiled for AVX-512 this file is <immintrin.h> and nothing
// else. Compiled for AVX2 it gives those types and functions that the kernels use, and no others, a second meaning
// inside this namespace, where they hide the global ones: a vector is two halves of 256 bits (lanes 0 to 7 and 8 to
// 15), a mask is a vector whose lanes are all ones or all zeros. What it must hold: every function gives in every lane
// the bits that Intel's guide says of the intrinsic, NaN, infinity and rounding included (where less is kept, its
// comment says so), and adds up the lanes of a vector in the order of gcc's AVX-512 header. Then an int8 or int4
// linear, a packed image, a norm or a softmax has the same bits on both, and a kernel that uses one more intrinsic does
// not compile before that is written here.
//
// 64 bytes of weights are still one load to the kernels, so the layout in memory is one, too. There are 16 registers of
// half the width, a quarter of what AVX-512 has: kernels that choose by that how much they do at once ask REGISTERS.
#pragma once
#include <immintrin.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define IPEX_ASSIST_VNNI
#endif

namespace ipex_assist {
namespace {

#ifdef __AVX512F__
constexpr int REGISTERS = 32;  // of 16 lanes
#else
constexpr int REGISTERS = 8;
#endif

}  // namespace
}  // namespace ipex_assist

#ifndef __AVX512F__

// Macros of gcc's headers where it does not optimise, which no namespace hides.
#undef _mm512_slli_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32
#undef _mm512_srai_epi16
#undef _mm512_srai_epi32
#undef _mm512_roundscale_ps
#undef _mm512_shuffle_epi32
#undef _mm512_shuffle_i32x4
#undef _mm512_cmp_ps_mask
#undef _mm512_mask_cmp_ps_mask
#undef _mm512_i32gather_epi32

#define LANEWISE inline __attribute__((always_inline, unused))

namespace ipex_assist {
namespace {

struct V16f {
    __m256 low, high;
};

struct V16i {
    __m256i low, high;
};

struct V16m {
    __m256i low, high;

    V16m(__m256i low_, __m256i high_) : low(low_), high(high_) {}
    V16m(int lanes) {  // bit i for lane i
        const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), all = _mm256_set1_epi32(lanes);
        low = _mm256_cmpeq_epi32(_mm256_and_si256(all, bits), bits);
        high = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_srli_epi32(all, 8), bits), bits);
    }
    int lanes() const {
        return _mm256_movemask_ps(_mm256_castsi256_ps(low)) | _mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
    }
    explicit operator bool() const { return lanes() != 0; }
};

LANEWISE V16m operator&(V16m a, V16m b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
LANEWISE V16m operator~(V16m a) {
    const __m256i ones = _mm256_set1_epi32(-1);
    return {_mm256_xor_si256(a.low, ones), _mm256_xor_si256(a.high, ones)};
}

using __m512 = V16f;
using __m512i = V16i;
using __mmask16 = V16m;

// ---- lane by lane, as AVX2 has them for 8

#define UNARY(NAME, RESULT, A, HALF) \
    LANEWISE RESULT NAME(A a) { return {HALF(a.low), HALF(a.high)}; }
#define BINARY(NAME, V, HALF) \
    LANEWISE V NAME(V a, V b) { return {HALF(a.low, b.low), HALF(a.high, b.high)}; }
#define TERNARY(NAME, V, HALF) \
    LANEWISE V NAME(V a, V b, V c) { return {HALF(a.low, b.low, c.low), HALF(a.high, b.high, c.high)}; }
#define SHIFT(NAME, HALF) \
    LANEWISE V16i NAME(V16i a, int bits) { return {HALF(a.low, bits), HALF(a.high, bits)}; }

UNARY(_mm512_castps_si512, V16i, V16f, _mm256_castps_si256)
UNARY(_mm512_castsi512_ps, V16f, V16i, _mm256_castsi256_ps)
UNARY(_mm512_cvtepi32_ps, V16f, V16i, _mm256_cvtepi32_ps)
UNARY(_mm512_cvtps_epi32, V16i, V16f, _mm256_cvtps_epi32)
BINARY(_mm512_add_ps, V16f, _mm256_add_ps)
BINARY(_mm512_sub_ps, V16f, _mm256_sub_ps)
BINARY(_mm512_mul_ps, V16f, _mm256_mul_ps)
BINARY(_mm512_div_ps, V16f, _mm256_div_ps)
BINARY(_mm512_min_ps, V16f, _mm256_min_ps)
BINARY(_mm512_max_ps, V16f, _mm256_max_ps)
TERNARY(_mm512_fmadd_ps, V16f, _mm256_fmadd_ps)
TERNARY(_mm512_fnmadd_ps, V16f, _mm256_fnmadd_ps)
BINARY(_mm512_and_si512, V16i, _mm256_and_si256)
BINARY(_mm512_andnot_si512, V16i, _mm256_andnot_si256)
BINARY(_mm512_or_si512, V16i, _mm256_or_si256)
BINARY(_mm512_xor_si512, V16i, _mm256_xor_si256)
BINARY(_mm512_add_epi8, V16i, _mm256_add_epi8)
BINARY(_mm512_add_epi16, V16i, _mm256_add_epi16)
BINARY(_mm512_add_epi32, V16i, _mm256_add_epi32)
BINARY(_mm512_sub_epi32, V16i, _mm256_sub_epi32)
BINARY(_mm512_mullo_epi16, V16i, _mm256_mullo_epi16)
BINARY(_mm512_mullo_epi32, V16i, _mm256_mullo_epi32)
BINARY(_mm512_min_epi32, V16i, _mm256_min_epi32)
BINARY(_mm512_max_epi32, V16i, _mm256_max_epi32)
BINARY(_mm512_max_epu32, V16i, _mm256_max_epu32)
BINARY(_mm512_min_epu8, V16i, _mm256_min_epu8)
BINARY(_mm512_madd_epi16, V16i, _mm256_madd_epi16)
BINARY(_mm512_maddubs_epi16, V16i, _mm256_maddubs_epi16)
BINARY(_mm512_shuffle_epi8, V16i, _mm256_shuffle_epi8)
BINARY(_mm512_unpacklo_epi8, V16i, _mm256_unpacklo_epi8)  // each quarter by itself, as are the next two
BINARY(_mm512_unpackhi_epi8, V16i, _mm256_unpackhi_epi8)
BINARY(_mm512_packus_epi32, V16i, _mm256_packus_epi32)
BINARY(_mm512_unpacklo_epi32, V16i, _mm256_unpacklo_epi32)
BINARY(_mm512_unpackhi_epi32, V16i, _mm256_unpackhi_epi32)
BINARY(_mm512_unpacklo_epi64, V16i, _mm256_unpacklo_epi64)
BINARY(_mm512_unpackhi_epi64, V16i, _mm256_unpackhi_epi64)
SHIFT(_mm512_slli_epi16, _mm256_slli_epi16)
SHIFT(_mm512_slli_epi32, _mm256_slli_epi32)
SHIFT(_mm512_srli_epi16, _mm256_srli_epi16)
SHIFT(_mm512_srli_epi32, _mm256_srli_epi32)
SHIFT(_mm512_srai_epi16, _mm256_srai_epi16)
SHIFT(_mm512_srai_epi32, _mm256_srai_epi32)
#ifdef __AVXVNNI__
TERNARY(_mm512_dpbusd_epi32, V16i, _mm256_dpbusd_avx_epi32)
TERNARY(_mm512_dpwssd_epi32, V16i, _mm256_dpwssd_avx_epi32)
#endif

#undef UNARY
#undef BINARY
#undef TERNARY
#undef SHIFT

LANEWISE V16f _mm512_set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANEWISE V16f _mm512_setzero_ps() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANEWISE V16i _mm512_set1_epi8(int8_t x) { return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }
LANEWISE V16i _mm512_set1_epi16(int16_t x) { return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }
LANEWISE V16i _mm512_set1_epi32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANEWISE V16i _mm512_setzero_si512() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
LANEWISE V16i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                                int m, int n, int o, int p) {
    return {_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}

LANEWISE V16f _mm512_abs_ps(V16f x) {
    const __m256 size = _mm256_castsi256_ps(_mm256_set1_epi32(INT_MAX));
    return {_mm256_and_ps(x.low, size), _mm256_and_ps(x.high, size)};
}

template <int ORDER>
LANEWISE V16i shuffled(V16i x) {  // each quarter by itself
    return {_mm256_shuffle_epi32(x.low, ORDER), _mm256_shuffle_epi32(x.high, ORDER)};
}
#define _mm512_shuffle_epi32(X, ORDER) shuffled<ORDER>(X)

// Two quarters of a, then two of b.
template <int LINEAR_ROLES>
LANEWISE V16i quarters(V16i a, V16i b) {
    constexpr int FIRST = LINEAR_ROLES & 3, SECOND = LINEAR_ROLES >> 2 & 3, THIRD = LINEAR_ROLES >> 4 & 3,
                  FOURTH = LINEAR_ROLES >> 6 & 3;
    return {_mm256_permute2x128_si256(FIRST < 2 ? a.low : a.high, SECOND < 2 ? a.low : a.high,
                                      (FIRST & 1) | (2 | (SECOND & 1)) << 4),
            _mm256_permute2x128_si256(THIRD < 2 ? b.low : b.high, FOURTH < 2 ? b.low : b.high,
                                      (THIRD & 1) | (2 | (FOURTH & 1)) << 4)};
}
#define _mm512_shuffle_i32x4(A, B, LINEAR_ROLES) quarters<LINEAR_ROLES>(A, B)

template <int WAY>
LANEWISE V16f rounded(V16f x) {
    return {_mm256_round_ps(x.low, WAY), _mm256_round_ps(x.high, WAY)};
}
#define _mm512_roundscale_ps(X, WAY) rounded<WAY>(X)

// ---- memory

LANEWISE V16f _mm512_loadu_ps(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
LANEWISE V16f _mm512_load_ps(const float* from) { return {_mm256_load_ps(from), _mm256_load_ps(from + 8)}; }
LANEWISE void _mm512_storeu_ps(float* to, V16f x) { _mm256_storeu_ps(to, x.low), _mm256_storeu_ps(to + 8, x.high); }
LANEWISE void _mm512_store_ps(float* to, V16f x) { _mm256_store_ps(to, x.low), _mm256_store_ps(to + 8, x.high); }

LANEWISE V16i _mm512_loadu_si512(const void* from) {
    const auto* half = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
LANEWISE V16i _mm512_load_si512(const void* from) {
    const auto* half = static_cast<const __m256i*>(from);
    return {_mm256_load_si256(half), _mm256_load_si256(half + 1)};
}
LANEWISE void _mm512_storeu_si512(void* to, V16i x) {
    auto* half = static_cast<__m256i*>(to);
    _mm256_storeu_si256(half, x.low), _mm256_storeu_si256(half + 1, x.high);
}
LANEWISE void _mm512_store_si512(void* to, V16i x) {
    auto* half = static_cast<__m256i*>(to);
    _mm256_store_si256(half, x.low), _mm256_store_si256(half + 1, x.high);
}

// Lanes that the mask leaves out are neither read nor written.
LANEWISE V16f _mm512_maskz_loadu_ps(V16m mask, const float* from) {
    return {_mm256_maskload_ps(from, mask.low), _mm256_maskload_ps(from + 8, mask.high)};
}
LANEWISE void _mm512_mask_storeu_ps(float* to, V16m mask, V16f x) {
    if (mask.lanes() == 0xffff) return _mm512_storeu_ps(to, x);  // AMD's masked stores take tens of cycles
    _mm256_maskstore_ps(to, mask.low, x.low);
    _mm256_maskstore_ps(to + 8, mask.high, x.high);
}
LANEWISE __m256i _mm256_maskz_loadu_epi16(V16m mask, const uint16_t* from) {
    const int lanes = mask.lanes();
    if (lanes == 0xffff) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    alignas(32) uint16_t values[16] = {};
    for (int i = 0; i < 16; i++) {
        if (lanes >> i & 1) values[i] = from[i];
    }
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(values));
}
LANEWISE void _mm256_mask_storeu_epi16(uint16_t* to, V16m mask, __m256i x) {
    const int lanes = mask.lanes();
    if (lanes == 0xffff) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
    alignas(32) uint16_t values[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(values), x);
    for (int i = 0; i < 16; i++) {
        if (lanes >> i & 1) to[i] = values[i];
    }
}

template <int SCALE>
LANEWISE V16i gathered(V16i index, const void* from) {
    const int* base = static_cast<const int*>(from);
    return {_mm256_i32gather_epi32(base, index.low, SCALE), _mm256_i32gather_epi32(base, index.high, SCALE)};
}
#define _mm512_i32gather_epi32(INDEX, FROM, SCALE) gathered<SCALE>(INDEX, FROM)

// ---- other widths

LANEWISE V16i _mm512_cvtepi8_epi32(__m128i x) {
    return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
LANEWISE V16i _mm512_cvtepu16_epi32(__m256i x) {
    return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
LANEWISE V16f _mm512_cvtph_ps(__m256i x) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

// Packing works on each 128 bits by itself: the middle two quarters change places afterwards.
LANEWISE __m256i in_order(__m256i packed) { return _mm256_permute4x64_epi64(packed, 0xd8); }

LANEWISE __m256i _mm512_cvtepi32_epi16(V16i x) {  // the lower halves
    const __m256i half = _mm256_set1_epi32(0xffff);
    return in_order(_mm256_packus_epi32(_mm256_and_si256(x.low, half), _mm256_and_si256(x.high, half)));
}
LANEWISE __m128i _mm512_cvtepi32_epi8(V16i x) {  // the lowest bytes
    const __m256i byte = _mm256_set1_epi32(0xff);
    const __m256i pairs = in_order(_mm256_packus_epi32(_mm256_and_si256(x.low, byte), _mm256_and_si256(x.high, byte)));
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}
LANEWISE __m128i _mm512_cvtsepi32_epi8(V16i x) {  // the nearest of -128 … 127
    const __m256i pairs = in_order(_mm256_packs_epi32(x.low, x.high));
    return _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

// ---- masks

template <int HOW>
LANEWISE V16m compared(V16f a, V16f b) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, HOW)),
            _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, HOW))};
}
#define _mm512_cmp_ps_mask(A, B, HOW) compared<HOW>(A, B)
#define _mm512_mask_cmp_ps_mask(MASK, A, B, HOW) (MASK & compared<HOW>(A, B))

LANEWISE V16f _mm512_mask_mov_ps(V16f kept, V16m mask, V16f x) {
    return {_mm256_blendv_ps(kept.low, x.low, _mm256_castsi256_ps(mask.low)),
            _mm256_blendv_ps(kept.high, x.high, _mm256_castsi256_ps(mask.high))};
}
LANEWISE V16i _mm512_mask_mov_epi32(V16i kept, V16m mask, V16i x) {
    return {_mm256_blendv_epi8(kept.low, x.low, mask.low), _mm256_blendv_epi8(kept.high, x.high, mask.high)};
}
LANEWISE V16f _mm512_maskz_mov_ps(V16m mask, V16f x) {
    return {_mm256_and_ps(x.low, _mm256_castsi256_ps(mask.low)), _mm256_and_ps(x.high, _mm256_castsi256_ps(mask.high))};
}
LANEWISE V16f _mm512_maskz_sub_ps(V16m mask, V16f a, V16f b) { return _mm512_maskz_mov_ps(mask, _mm512_sub_ps(a, b)); }
LANEWISE V16f _mm512_maskz_mul_ps(V16m mask, V16f a, V16f b) { return _mm512_maskz_mov_ps(mask, _mm512_mul_ps(a, b)); }
LANEWISE V16f _mm512_mask_add_ps(V16f kept, V16m mask, V16f a, V16f b) {
    return _mm512_mask_mov_ps(kept, mask, _mm512_add_ps(a, b));
}
LANEWISE V16f _mm512_mask_max_ps(V16f kept, V16m mask, V16f a, V16f b) {
    return _mm512_mask_mov_ps(kept, mask, _mm512_max_ps(a, b));
}
LANEWISE V16i _mm512_mask_or_epi32(V16i kept, V16m mask, V16i a, V16i b) {
    return _mm512_mask_mov_epi32(kept, mask, _mm512_or_si512(a, b));
}

// x · 2^n for whole n from -126 on; less counts as that, as results that nobody sees must not be denormal, which takes
// a hundred cycles. In two factors, as 2^n alone may be out of range; what 2^254 leaves finite is smaller than any x of
// the kernels but 0. Where n is infinite NaN becomes infinity, as Intel says.
LANEWISE __m256 scaled(__m256 x, __m256 n) {
    const __m256 kept = _mm256_max_ps(_mm256_min_ps(n, _mm256_set1_ps(254.0f)), _mm256_set1_ps(-126.0f));
    const __m256i power = _mm256_cvtps_epi32(kept), bias = _mm256_set1_epi32(127);
    const __m256i part = _mm256_srai_epi32(power, 1), rest = _mm256_sub_epi32(power, part);
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(part, bias), 23));
    const __m256 other = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    const __m256 most = _mm256_set1_ps(INFINITY);
    return _mm256_blendv_ps(_mm256_mul_ps(_mm256_mul_ps(x, factor), other), most, _mm256_cmp_ps(n, most, _CMP_EQ_OQ));
}
LANEWISE V16f _mm512_maskz_scalef_ps(V16m mask, V16f x, V16f n) {
    return _mm512_maskz_mov_ps(mask, {scaled(x.low, n.low), scaled(x.high, n.high)});
}

// ---- over all lanes: halves, quarters, pairs, the upper one first, as in gcc's avx512fintrin.h

template <class Half, class Quarter>
LANEWISE float reduced(V16f x, Half half, Quarter quarter) {
    const __m256 eight = half(x.high, x.low);
    const __m128 four = quarter(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    const __m128 two = quarter(four, _mm_permute_ps(four, 0x4e));
    return _mm_cvtss_f32(quarter(two, _mm_permute_ps(two, 0x11)));
}
template <class Half, class Quarter>
LANEWISE int reduced(V16i x, Half half, Quarter quarter) {
    const __m256i eight = half(x.high, x.low);
    const __m128i four = quarter(_mm256_extracti128_si256(eight, 1), _mm256_castsi256_si128(eight));
    const __m128i two = quarter(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(quarter(two, _mm_shuffle_epi32(two, 0x11)));
}
#define REDUCED(X, NAME)                                                                      \
    reduced(                                                                                  \
        X, [](auto a, auto b) __attribute__((always_inline)) { return _mm256_##NAME(a, b); }, \
        [](auto a, auto b) __attribute__((always_inline)) { return _mm_##NAME(a, b); })

LANEWISE float _mm512_cvtss_f32(V16f x) { return _mm256_cvtss_f32(x.low); }  // the first lane
LANEWISE float _mm512_reduce_add_ps(V16f x) { return REDUCED(x, add_ps); }
LANEWISE float _mm512_reduce_max_ps(V16f x) { return REDUCED(x, max_ps); }
LANEWISE int _mm512_reduce_add_epi32(V16i x) { return REDUCED(x, add_epi32); }
LANEWISE unsigned _mm512_reduce_max_epu32(V16i x) { return unsigned(REDUCED(x, max_epu32)); }
LANEWISE int _mm512_mask_reduce_min_epi32(V16m mask, V16i x) {
    return REDUCED(_mm512_mask_mov_epi32(_mm512_set1_epi32(INT_MAX), mask, x), min_epi32);
}
LANEWISE int64_t _mm512_reduce_add_epi64(V16i x) {
    const __m256i four = _mm256_add_epi64(x.high, x.low);
    const __m128i two = _mm_add_epi64(_mm256_extracti128_si256(four, 1), _mm256_castsi256_si128(four));
    return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1);
}

#undef REDUCED

}  // namespace
}  // namespace ipex_assist

#undef LANEWISE

#endif
