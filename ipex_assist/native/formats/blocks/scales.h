// Scales, minima and factors of units, as they are multiplied: floats, and integers of 16 or 32 bits.
#pragma once
#include <cstring>

#include "formats/blocks/format.h"
#include "kernels/multiply_add.h"

namespace ipex_assist {
namespace {

constexpr int64_t BLOCK_CHUNK = 512;  // columns that are unpacked at once

struct alignas(64) BlockScales {
    float scales[BLOCK_CHUNK / 16][LANES], minima[BLOCK_CHUNK / 32][LANES];  // of blocks, or of superblocks
    int32_t factors[BLOCK_CHUNK / 16][LANES];                                // of groups
    // Of superblocks and blocks of 128 columns, for each 32 of them: two 16-bit numbers, which sums of 16 columns are
    // multiplied with. Whole minima, or ZERO times the factors, which are 1 where there are none.
    int32_t pairs[BLOCK_CHUNK / 32][LANES];
};

// To the right, or to the left where it is negative; bits of a byte may come into its neighbour.
template <int BITS>
inline __attribute__((always_inline)) __m512i shifted(__m512i x) {
    if constexpr (BITS > 0) return _mm512_srli_epi16(x, BITS);
    else if constexpr (BITS < 0) return _mm512_slli_epi16(x, -BITS);
    else return x;
}

inline __m512i line_at(const uint8_t* lines, int line) { return _mm512_loadu_si512(lines + line * 64); }

// A table for vpshufb.
inline __m512i table_of(const uint8_t (&values)[16]) {
    __m512i table;
    for (int i = 0; i < 4; i++) std::memcpy(reinterpret_cast<uint8_t*>(&table) + i * 16, values, 16);
    return table;
}

inline __m512 halves_at(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline __m512i bytes_at(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_and_si512(_mm512_cvtepi8_epi32(bytes), _mm512_set1_epi32(255));
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
    FOR_EACH_CONSTANT(j, 256 / F::GROUP / 4, found.factors[j] = line_at(lines, j));
    return found;
}

inline FactorBytes factor_bytes(const Q2KFormat&, const uint8_t* lines) {
    FactorBytes found{};
    FOR_EACH_CONSTANT(j, 4, {
        const __m512i both = line_at(lines, j);
        found.factors[j] = bytes_of(both, 15), found.minima[j] = bytes_of(shifted<4>(both), 15);
    });
    return found;
}

inline FactorBytes factor_bytes(const Q3KFormat&, const uint8_t* lines) {
    const __m512i a = line_at(lines, 0), b = line_at(lines, 1), high = line_at(lines, 2), less = _mm512_set1_epi8(-32);
    return {
        {_mm512_add_epi8(six_bits(a, shifted<-4>(high)), less), _mm512_add_epi8(six_bits(b, shifted<-2>(high)), less),
         _mm512_add_epi8(six_bits(shifted<4>(a), high), less),
         _mm512_add_epi8(six_bits(shifted<4>(b), shifted<2>(high)), less)},
        {}};
}

inline FactorBytes four_or_six_bits(const uint8_t* lines) {
    const __m512i a = line_at(lines, 0), b = line_at(lines, 1), rest = line_at(lines, 2);
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

// Bytes of each lane in other places: the hexadecimal digits of PLACES say which of the four, the lowest first, and 8
// stands for zero.
template <int PLACES>
inline __attribute__((always_inline)) __m512i moved_bytes(__m512i x) {
    constexpr auto byte = [](int i) { return (PLACES >> 4 * i & 8) ? 0x80 : PLACES >> 4 * i & 3; };
    constexpr int first = int(unsigned(byte(3)) << 24 | unsigned(byte(2)) << 16 | unsigned(byte(1)) << 8 | byte(0));
    constexpr int next = 0x04040404;
    constexpr int a = first, b = int(unsigned(first) + next), c = int(unsigned(first) + 2u * next),
                  d = int(unsigned(first) + 3u * next);
    return _mm512_shuffle_epi8(x, _mm512_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d));
}

constexpr int log2_of(int x) { return x < 2 ? 0 : 1 + log2_of(x / 2); }

// Of 32 columns, bytes `J` and `NEXT` of each lane: as whole minima, or ZERO times them with their signs.
template <int J, int NEXT>
inline __m512i minima_pair(__m512i x) {
    return moved_bytes<0x8080 | NEXT << 8 | J>(x);
}
template <int J, int NEXT, int ZERO>
inline __m512i zeros_pair(__m512i x) {
    return _mm512_srai_epi16(moved_bytes<0x0808 | NEXT << 12 | J << 4>(x), 8 - log2_of(ZERO));
}

template <class F>
inline __attribute__((always_inline)) void unpack_factors(const uint8_t* unit, int32_t (*factors)[LANES],
                                                          int32_t (*pairs)[LANES]) {
    constexpr int EACH = 32 / F::GROUP;  // groups of a pair
    const FactorBytes bytes = factor_bytes(F(), unit + F::FACTORS_AT);
    if constexpr (!F::WEIGHED)
        FOR_EACH_CONSTANT(g, 8 * EACH, { _mm512_store_si512(factors[g], byte_of<g % 4>(bytes.factors[g / 4])); });
    FOR_EACH_CONSTANT(k, 8, {
        constexpr int first = k * EACH, next = first + EACH - 1;
        __m512i pair;
        if constexpr (F::MINIMA) pair = minima_pair<first % 4, next % 4>(bytes.minima[first / 4]);
        else pair = zeros_pair<first % 4, next % 4, F::ZERO>(bytes.factors[first / 4]);
        _mm512_store_si512(pairs[k], pair);
    });
}

// Scales of a unit, its minima, factors and pairs.
template <int COLUMNS, int BYTES, int GROUP, int FACTORS, int LOW, int HIGH, bool MINIMA, int ZERO, int DEPTH, int HEAD,
          class F>
inline __attribute__((always_inline)) void unpack_scales(
    const BitsFormat<COLUMNS, BYTES, GROUP, FACTORS, LOW, HIGH, MINIMA, ZERO, DEPTH, HEAD>&, const F&,
    const uint8_t* unit, int64_t number, BlockScales& to) {
    constexpr int FLOATS = COLUMNS < 128 ? 4 : 1, PAIRS = int(F::DEPTH) / 32;  // vectors in a unit
    FOR_EACH_CONSTANT(f, FLOATS, {
        _mm512_store_ps(to.scales[number * FLOATS + f], halves_at(unit + f * 32));
        if constexpr (MINIMA) _mm512_store_ps(to.minima[number * FLOATS + f], halves_at(unit + (FLOATS + f) * 32));
    });
    if constexpr (FACTORS > 0) unpack_factors<F>(unit, to.factors + number * (256 / GROUP), to.pairs + number * 8);
    else if constexpr (COLUMNS >= 128)
        FOR_EACH_CONSTANT(k, PAIRS,
                          _mm512_store_si512(to.pairs[number * PAIRS + k], _mm512_set1_epi32(ZERO << 16 | ZERO)));
}

// Half of 2^(byte - 127), also where that is denormal.
inline __attribute__((always_inline)) void unpack_scales(const GgufMxfp4Format&, const GgufMxfp4Format&,
                                                         const uint8_t* unit, int64_t number, BlockScales& to) {
    FOR_EACH_CONSTANT(f, 4, {
        const __m512i e = bytes_at(unit + f * LANES);
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23),
                      denormal = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(1)), 21);
        _mm512_store_ps(to.scales[number * 4 + f], _mm512_castsi512_ps(_mm512_max_epi32(normal, denormal)));
    });
}

// Half of an unsigned E4M3.
inline __attribute__((always_inline)) void unpack_scales(const Nvfp4Format&, const Nvfp4Format&, const uint8_t* unit,
                                                         int64_t number, BlockScales& to) {
    FOR_EACH_CONSTANT(f, 8, {
        const __m512i bits = _mm512_and_si512(bytes_at(unit + f * LANES), _mm512_set1_epi32(0x7f));
        const __m512 normal =
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(bits, 20), _mm512_set1_epi32(119 << 23)));
        const __m512 whole = _mm512_cvtepi32_ps(bits), subnormal = _mm512_mul_ps(whole, _mm512_set1_ps(0x1p-10f));
        const __mmask16 below = _mm512_cmp_ps_mask(whole, _mm512_set1_ps(8), _CMP_LT_OQ);
        _mm512_store_ps(to.scales[number * 8 + f], _mm512_mask_mov_ps(normal, below, subnormal));
    });
}

template <int STEPS, class F>
inline __attribute__((always_inline)) void unpack_scales(const WordsFormat<STEPS>&, const F&, const uint8_t* unit,
                                                         int64_t number, BlockScales& to) {
    FOR_EACH_CONSTANT(f, 4, {
        const __m512 scale = _mm512_loadu_ps(reinterpret_cast<const float*>(unit + f / 2 * 64));
        _mm512_store_ps(to.scales[number * 4 + f], _mm512_div_ps(scale, _mm512_set1_ps(STEPS)));
    });
}

}  // namespace
}  // namespace ipex_assist
