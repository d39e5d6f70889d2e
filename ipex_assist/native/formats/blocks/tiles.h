// Block formats on AMX, of more than 16 rows (kernels/amx_prefill.h), with the bits of linear.h.
//
// Factor · (code - ZERO) of a superblock is a whole number of up to 14 bits: 256 · upper + lower, both signed bytes. So
// the sum of a half's products is 256 times that of the upper bytes and that of the lower ones, two planes of whole
// tiles, and factors cost nothing. Where all such products fit a byte there is one plane. Minima are a plane of their
// own. Blocks have a scale for 32 or 16 columns, which fill a half or a quarter of a tile.
#pragma once
#include "formats/blocks/unpack.h"
#include "kernels/amx_prefill.h"

namespace ipex_assist {
namespace {

// GROUP: columns that a float scale is of. PRODUCTS: planes without that of minima. SIGN: of these products.
template <int GROUP, int PRODUCTS, bool MINIMA, int SIGN>
struct BlockSquares {
    using Other = void;
    static constexpr int COLUMNS = GROUP, PLANES = PRODUCTS + MINIMA, VALUE_BYTES = 1, AHEAD = 4096;
    static constexpr int GROUPS = SCALE_COLUMNS / GROUP, SCALES = GROUPS * PLANES;
    static constexpr int LAST = SCALES - GROUPS;  // the first of the last plane's sums, which are minima's if any are
    static int64_t head(int64_t) { return 0; }
    static __m512 begin(const Linear& w, int64_t b) {
        return w.bias && !has_column_scales(w.precision) ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }

    template <class S>
    static __attribute__((always_inline)) __m512 add(const S& sums, __m512 row_scale, const __m512* scales,
                                                     __m512 total) {
        const auto scaled = [&](__m512i sum, int g) __attribute__((always_inline)) {
            total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scales[g], row_scale), total);
        };
        FOR_EACH(g, GROUPS, {
            if (MINIMA) scaled(_mm512_load_si512(sums(LAST + g)), LAST + g);
            __m512i sum = _mm512_load_si512(sums(g));
            if (PRODUCTS > 1) sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_load_si512(sums(GROUPS + g)), 8));
            if (SIGN < 0) sum = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
            scaled(sum, g);
        });
        return total;
    }
};

// Those of a format: one plane where a product is at most 15 · 3 (Q2_K), 128 as -4 · -32 (Q3_K, whose sign is turned:
// then it is -128) or 2 (trits, whose sign is turned as well). PAYS: not where scaling eight sums a span takes longer than
// vectors take for all.
template <class F>
struct SquaresOf {
    static constexpr bool NEGATED = std::is_same_v<F, Q3KFormat> || (F::SUPER && F::GROUP == 128);
    static constexpr int PRODUCTS = !F::SUPER || F::WEIGHED || NEGATED ? 1 : 2;
    using Squares = BlockSquares<F::SUPER ? 128 : F::GROUP, PRODUCTS, F::MINIMA, NEGATED ? -1 : 1>;
    static constexpr bool PAYS = !F::WORDS && Squares::SCALES < 8;
};

// The same byte of each lane in all its four.
template <int J>
inline __m512i byte_in_all(__m512i x) {
    return moved_bytes<J * 0x1111>(x);
}

// 32 lines of a half of a superblock, to each plane's lines.
template <class F>
HOT_LOOP void superblock_tiles(const uint8_t* codes, const int32_t (*factors)[LANES], const int32_t (*pairs)[LANES],
                               uint8_t* to) {
    using Of = SquaresOf<F>;
    constexpr int64_t PLANE = 2 * SquareSizes<typename Of::Squares>::PANEL_GROUP;
    constexpr bool FACTORS = F::GROUP < 128 && !F::WEIGHED;
    const __m512i low = _mm512_set1_epi16(255), zero = _mm512_set1_epi16(F::ZERO), half = _mm512_set1_epi16(128);
    for (int s = 0; s < 32; s++, codes += 64, to += 64) {
        const __m512i code = _mm512_loadu_si512(codes);
        if constexpr (FACTORS) {
            const __m512i factor = _mm512_loadu_si512(factors[s * 4 / F::GROUP]);
            const __m512i words =
                _mm512_or_si512(_mm512_slli_epi32(factor, 16), _mm512_and_si512(factor, _mm512_set1_epi32(0xffff)));
            const auto product = [&](__m512i x) {
                const __m512i value = _mm512_sub_epi16(x, zero);
                return Of::NEGATED ? _mm512_mullo_epi16(_mm512_sub_epi16(zero, x), words)
                                   : _mm512_mullo_epi16(value, words);
            };
            const __m512i even = product(_mm512_and_si512(code, low)), odd = product(_mm512_srli_epi16(code, 8));
            _mm512_store_si512(to, _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16(odd, 8)));
            if constexpr (Of::PRODUCTS > 1) {
                const __m512i upper = _mm512_srli_epi16(_mm512_add_epi16(even, half), 8);
                const __m512i next = _mm512_andnot_si512(low, _mm512_add_epi16(odd, half));
                _mm512_store_si512(to + PLANE, _mm512_or_si512(upper, next));
            }
        } else {
            const __m512i zeros = _mm512_set1_epi8(F::ZERO);
            _mm512_store_si512(to, Of::NEGATED ? _mm512_sub_epi8(zeros, code) : _mm512_sub_epi8(code, zeros));
        }
        if constexpr (F::MINIMA) {
            const __m512i pair = _mm512_loadu_si512(pairs[s / 8]);
            const __m512i minimum = s % 8 < 4 ? byte_in_all<0>(pair) : byte_in_all<2>(pair);
            _mm512_store_si512(to + Of::PRODUCTS * PLANE, _mm512_sub_epi8(_mm512_setzero_si512(), minimum));
        }
    }
}

// As UnpackTiles, all groups at once, of both halves of a superblock.
template <class F>
bool block_tiles(const uint8_t* panel, int64_t span, const uint8_t*, int g, uint8_t* to, float* scale) {
    using Squares = typename SquaresOf<F>::Squares;
    using S = SquareSizes<Squares>;
    constexpr int SPANS = F::DEPTH / SCALE_COLUMNS;
    if (g || span % SPANS) return true;
    const uint8_t* unit = panel + span / SPANS * F::UNIT;
    UnpackedBlocks unpacked;
    unpack_blocks<F>(unit, F::DEPTH, unpacked);
    const uint8_t* codes = unpacked.codes;
    if constexpr (F::PLAIN) codes = unit + F::LOW_AT;
    if constexpr (F::SUPER) {
        for (int s = 0; s < SPANS; s++, to += S::SPAN, scale += 2 * S::GROUPS * LANES) {
            superblock_tiles<F>(codes + s * SCALE_COLUMNS * LANES, unpacked.factors + s * SCALE_COLUMNS / F::GROUP,
                                unpacked.pairs + s * 4, to);
            for (int plane = 0; plane < Squares::PLANES; plane++) {
                const bool products = plane < SquaresOf<F>::PRODUCTS;
                _mm512_store_ps(scale + plane * LANES,
                                _mm512_loadu_ps((products ? unpacked.scales : unpacked.minima)[0]));
            }
        }
    } else {
        for (int i = 0; i < Squares::GROUPS; i++) {
            _mm512_store_ps(scale + i * LANES, _mm512_loadu_ps(unpacked.scales[i]));
            if constexpr (F::MINIMA)
                _mm512_store_ps(scale + (Squares::LAST + i) * LANES, _mm512_loadu_ps(unpacked.minima[i]));
            for (int64_t at = 0; at < S::PANEL_GROUP; at += 64) {
                uint8_t* line = to + i * 2 * S::PANEL_GROUP + at;
                const __m512i code = _mm512_loadu_si512(codes + i * S::PANEL_GROUP + at);
                _mm512_store_si512(line, _mm512_sub_epi8(code, _mm512_set1_epi8(char(F::ZERO))));
                if constexpr (F::MINIMA)
                    _mm512_store_si512(line + Squares::LAST * 2 * S::PANEL_GROUP, _mm512_set1_epi8(1));
            }
        }
    }
    return true;
}

}  // namespace
}  // namespace ipex_assist
