// Units of a panel as they are multiplied: codes in bytes, scales in fp32, factors and minima in integers. That is done
// once for all rows of a linear, in the first-level cache.
#pragma once
#include "formats/blocks/format.h"
#include "kernels/multiply_add.h"

namespace ipex_assist {
namespace {

constexpr int64_t BLOCK_CHUNK = 512;  // columns that are unpacked at once

struct alignas(64) UnpackedBlocks {
    uint8_t codes[BLOCK_CHUNK * LANES];                                      // 8 lines for each 32 columns
    float scales[BLOCK_CHUNK / 32][LANES], minima[BLOCK_CHUNK / 32][LANES];  // of blocks, or of superblocks
    int32_t factors[BLOCK_CHUNK / 16][LANES];                                // of groups
    // Of superblocks, for each 32 columns: two 16-bit numbers, which sums of 16 columns are multiplied with. Whole
    // minima, or ZERO times the factors.
    int32_t pairs[BLOCK_CHUNK / 32][LANES];
};

// IQ4's values, + 128.
alignas(16) constexpr uint8_t IQ4_VALUES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};

// To the right, or to the left where it is negative; bits of a byte may come into its neighbour.
template <int BITS>
inline __attribute__((always_inline)) __m512i shifted(__m512i x) {
    if constexpr (BITS > 0) return _mm512_srli_epi16(x, BITS);
    else if constexpr (BITS < 0) return _mm512_slli_epi16(x, -BITS);
    else return x;
}

inline __m512i iq4_table() {
    __m512i table;
    for (int i = 0; i < 4; i++) std::memcpy(reinterpret_cast<uint8_t*>(&table) + i * 16, IQ4_VALUES, 16);
    return table;
}

// The codes of a unit.
template <class F>
HOT_LOOP void unpack_codes(const uint8_t* unit, uint8_t* to) {
    const uint8_t *high_lines = unit + F::HIGH_AT * 64, *low_lines = unit + F::LOW_AT * 64;
    const __m512i low_mask = _mm512_set1_epi8((1 << F::LOW) - 1);
    const __m512i high_mask = _mm512_set1_epi8(((1 << F::HIGH) - 1) << F::LOW);
    [[maybe_unused]] const __m512i table = F::TABLE ? iq4_table() : low_mask;
    FOR_EACH_CONSTANT(quad, F::DEPTH / 4, {
        constexpr BitPlace low = F::low(quad / 8, quad % 8), high = F::high(quad / 8, quad % 8);
        __m512i code = _mm512_loadu_si512(low_lines + low.line * 64);
        code = _mm512_and_si512(shifted<low.shift>(code), low_mask);
        if constexpr (F::HIGH > 0) {
            const __m512i bits = _mm512_loadu_si512(high_lines + high.line * 64);
            code = _mm512_or_si512(code, _mm512_and_si512(shifted<high.shift - F::LOW>(bits), high_mask));
        }
        if constexpr (F::TABLE) code = _mm512_shuffle_epi8(table, code);
        _mm512_store_si512(to + quad * 64, code);
    });
}

// Factors of a superblock, and minima where it has them: 4 groups' bytes in each lane of a vector.
struct FactorBytes {
    __m512i factors[4], minima[4];
};

inline __m512i bytes_of(__m512i x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi8(char(mask))); }

// Six bits each: the lower four, or all of them, of `low`, and two of `high`, at bits 4 and 5 of both.
inline __m512i six_bits(__m512i low, __m512i high) { return _mm512_or_si512(bytes_of(low, 15), bytes_of(high, 0x30)); }

template <class F>
inline FactorBytes factor_bytes(const F&, const uint8_t* lines) {  // Q6_K and IQ4_XS: signed
    FactorBytes found{};
    FOR_EACH_CONSTANT(j, 256 / F::GROUP / 4, found.factors[j] = _mm512_loadu_si512(lines + j * 64));
    return found;
}

inline FactorBytes factor_bytes(const Q2KFormat&, const uint8_t* lines) {
    FactorBytes found{};
    FOR_EACH_CONSTANT(j, 4, {
        const __m512i both = _mm512_loadu_si512(lines + j * 64);
        found.factors[j] = bytes_of(both, 15), found.minima[j] = bytes_of(shifted<4>(both), 15);
    });
    return found;
}

inline FactorBytes factor_bytes(const Q3KFormat&, const uint8_t* lines) {
    const __m512i a = _mm512_loadu_si512(lines), b = _mm512_loadu_si512(lines + 64),
                  high = _mm512_loadu_si512(lines + 128), less = _mm512_set1_epi8(-32);
    return {
        {_mm512_add_epi8(six_bits(a, shifted<-4>(high)), less), _mm512_add_epi8(six_bits(b, shifted<-2>(high)), less),
         _mm512_add_epi8(six_bits(shifted<4>(a), high), less),
         _mm512_add_epi8(six_bits(shifted<4>(b), shifted<2>(high)), less)},
        {}};
}

inline FactorBytes four_or_six_bits(const uint8_t* lines) {
    const __m512i a = _mm512_loadu_si512(lines), b = _mm512_loadu_si512(lines + 64),
                  rest = _mm512_loadu_si512(lines + 128);
    return {{bytes_of(a, 63), six_bits(rest, shifted<2>(a))},
            {bytes_of(b, 63), six_bits(shifted<4>(rest), shifted<2>(b))}};
}

inline FactorBytes factor_bytes(const Q4KFormat&, const uint8_t* lines) { return four_or_six_bits(lines); }
inline FactorBytes factor_bytes(const Q5KFormat&, const uint8_t* lines) { return four_or_six_bits(lines); }

// Byte `J` of each lane, with its sign.
template <int J>
inline __m512i byte_of(__m512i x) {
    return _mm512_srai_epi32(_mm512_slli_epi32(x, 24 - 8 * J), 24);
}

// A pair for 32 columns: of one number, or of those of 16 columns each.
inline __m512i pair_of(__m512i first, __m512i second) {
    return _mm512_or_si512(_mm512_and_si512(first, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(second, 16));
}

template <class F>
inline __attribute__((always_inline)) void unpack_factors(const uint8_t* unit, int32_t (*factors)[LANES],
                                                          int32_t (*pairs)[LANES]) {
    constexpr int EACH = 32 / F::GROUP;  // groups of a pair
    const FactorBytes bytes = factor_bytes(F(), unit + F::FACTORS_AT * 64);
    __m512i before{};
    FOR_EACH_CONSTANT(g, 8 * EACH, {
        const __m512i factor = byte_of<g % 4>(bytes.factors[g / 4]);
        _mm512_store_si512(factors[g], factor);
        __m512i whole = _mm512_mullo_epi32(factor, _mm512_set1_epi32(F::ZERO));
        if constexpr (F::MINIMA) whole = byte_of<g % 4>(bytes.minima[g / 4]);
        if constexpr (g % EACH == 0) before = whole;
        if constexpr (g % EACH == EACH - 1) _mm512_store_si512(pairs[g / EACH], pair_of(before, whole));
    });
}

inline __m512 halves_at(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Units of BLOCK_CHUNK columns or fewer, but for the codes of a format that has them in bytes.
template <class F>
inline void unpack_blocks(const uint8_t* unit, int64_t columns, UnpackedBlocks& to) {
    constexpr int FLOATS = F::SUPER ? 1 : 4;  // vectors of scales in a unit
    for (int64_t u = 0; u < columns / F::DEPTH; u++, unit += F::LINES * 64) {
        FOR_EACH_CONSTANT(f, FLOATS, {
            _mm512_store_ps(to.scales[u * FLOATS + f], halves_at(unit + f * 32));
            if constexpr (F::MINIMA) _mm512_store_ps(to.minima[u * FLOATS + f], halves_at(unit + (FLOATS + f) * 32));
        });
        if constexpr (F::SUPER) unpack_factors<F>(unit, to.factors + u * (256 / F::GROUP), to.pairs + u * 8);
        if constexpr (F::LOW < 8) unpack_codes<F>(unit, to.codes + u * F::DEPTH * LANES);
    }
}

}  // namespace
}  // namespace ipex_assist
