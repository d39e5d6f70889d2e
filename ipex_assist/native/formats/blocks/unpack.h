// Units of a panel as they are multiplied: codes in bytes, beside scales. That is done once for all rows of a linear, in
// the first-level cache.
#pragma once
#include "formats/blocks/lattice.h"

namespace ipex_assist {
namespace {

struct alignas(64) UnpackedBlocks : BlockScales {
    uint8_t codes[BLOCK_CHUNK * LANES];  // 8 lines for each 32 columns
    uint8_t upper[BLOCK_CHUNK * LANES];  // those of values of 16 bits
};

// The codes of a unit.
template <class F>
HOT_LOOP void unpack_codes(const uint8_t* unit, uint8_t* to) {
    const __m512i low_mask = _mm512_set1_epi8((1 << F::LOW) - 1);
    const __m512i high_mask = _mm512_set1_epi8(((1 << F::HIGH) - 1) << F::LOW);
    __m512i table = low_mask;
    if constexpr (F::TABLE) table = table_of(F::VALUES);
    FOR_EACH_CONSTANT(quad, F::DEPTH / 4, {
        constexpr BitPlace low = F::low(quad / 8, quad % 8), high = F::high(quad / 8, quad % 8);
        __m512i code = _mm512_and_si512(shifted<low.shift>(line_at(unit + F::LOW_AT, low.line)), low_mask);
        if constexpr (F::HIGH > 0) {
            const __m512i bits = line_at(unit + F::HIGH_AT, high.line);
            code = _mm512_or_si512(code, _mm512_and_si512(shifted<high.shift - F::LOW>(bits), high_mask));
        }
        if constexpr (F::TABLE) code = _mm512_shuffle_epi8(table, code);
        _mm512_store_si512(to + quad * 64, code);
    });
}

// The two bytes of a value.
template <class F>
HOT_LOOP void unpack_words(const uint8_t* unit, uint8_t* lower, uint8_t* upper) {
    uint8_t bytes[2][16];
    for (int i = 0; i < 16; i++) {
        bytes[0][i] = uint8_t(F::NUMBERS[i] + (1 << 15)), bytes[1][i] = uint8_t((F::NUMBERS[i] + (1 << 15)) >> 8);
    }
    const __m512i low = table_of(bytes[0]), high = table_of(bytes[1]);
    FOR_EACH_CONSTANT(quad, F::DEPTH / 4, {
        constexpr BitPlace at = F::low(quad / 8, quad % 8);
        const __m512i code = bytes_of(shifted<at.shift>(line_at(unit + F::LOW_AT, at.line)), 15);
        _mm512_store_si512(lower + quad * 64, _mm512_shuffle_epi8(low, code));
        _mm512_store_si512(upper + quad * 64, _mm512_shuffle_epi8(high, code));
    });
}

// Units of BLOCK_CHUNK columns or fewer, but for the codes of a format that has them in bytes.
template <class F>
inline void unpack_blocks(const uint8_t* unit, int64_t columns, UnpackedBlocks& to) {
    for (int64_t u = 0; u < columns / F::DEPTH; u++, unit += F::UNIT) {
        uint8_t* codes = to.codes + u * F::DEPTH * LANES;
        if constexpr (F::BY_ITSELF) {
            unpack_scales(F(), F(), unit, u, to);
            if constexpr (F::WORDS) unpack_words<F>(unit, codes, to.upper + u * F::DEPTH * LANES);
            else if constexpr (!F::PLAIN) unpack_codes<F>(unit, codes);
        } else {
            _mm512_store_ps(to.scales[u], _mm512_mul_ps(lattice_scale(F(), unit), _mm512_set1_ps(F::PART)));
            int32_t (*const pairs)[LANES] = to.pairs + u * 8;
            if constexpr (std::is_same_v<F, Tq1_0Format>) {
                unpack_trits(unit + F::HEAD, codes);
                for (int k = 0; k < 8; k++) _mm512_store_si512(pairs[k], _mm512_set1_epi32(1 << 16 | 1));
            } else {
                unpack_lattice<F>(unit + F::HEAD, codes, to.factors + u * (256 / F::GROUP), pairs);
            }
        }
    }
}

}  // namespace
}  // namespace ipex_assist
