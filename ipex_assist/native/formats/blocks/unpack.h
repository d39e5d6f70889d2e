// Units of a panel as they are multiplied: codes in bytes, beside scales. Of few rows each line of codes is made where it
// is multiplied, else all once for all rows of a linear, in the first-level cache.
#pragma once
#include "formats/blocks/lattice.h"

namespace ipex_assist {
namespace {

struct alignas(64) UnpackedBlocks : BlockScales {
    uint8_t codes[BLOCK_CHUNK * LANES];  // 8 lines for each 32 columns
    uint8_t upper[BLOCK_CHUNK * LANES];  // those of values of 16 bits
};

// The codes of a unit as they are packed: `at` makes those of 4 columns. PERIOD: of 32 columns, which `next` moves by.
template <class F>
class PackedCodes {
public:
    static constexpr int PERIOD = F::PERIOD;

    explicit PackedCodes(const uint8_t* unit)
        : low_(unit + F::LOW_AT),
          high_(unit + F::HIGH_AT),
          factors_(unit),
          low_mask_(_mm512_set1_epi8((1 << F::LOW) - 1)),
          high_mask_(_mm512_set1_epi8(((1 << F::HIGH) - 1) << F::LOW)),
          table_(low_mask_) {
        if constexpr (F::TABLE) table_ = table_of(F::VALUES);
        if constexpr (F::WEIGHED) factors_ += F::FACTORS_AT;
        if constexpr (F::HIGH_ACROSS)
            FOR_EACH_CONSTANT(i, 8, _mm512_store_si512(upper_ + i * 64, shifted<4>(line_at(high_, i))));
    }

    __attribute__((always_inline)) void next() {
        low_ += F::LOW * PERIOD * 64;
        if constexpr (F::HIGH_ACROSS) high_ = upper_;
        else high_ += F::HIGH * PERIOD * 64;
        if constexpr (F::WEIGHED) factors_ += 2 * 64;
    }

    // Of columns 4 · QUAD to 4 · QUAD + 3 from here.
    template <int QUAD>
    __attribute__((always_inline)) __m512i at(int = 0) const {
        constexpr BitPlace low = F::low(QUAD / 8, QUAD % 8), high = F::high(QUAD / 8, QUAD % 8);
        __m512i code = line_at(low_, low.line);
        if constexpr (F::LOW < 8) code = _mm512_and_si512(shifted<low.shift>(code), low_mask_);
        if constexpr (F::HIGH > 0) {
            const __m512i bits = line_at(high_, high.line);
            code = _mm512_or_si512(code, _mm512_and_si512(shifted<high.shift - F::LOW>(bits), high_mask_));
        }
        if constexpr (F::TABLE) code = _mm512_shuffle_epi8(table_, code);
        if constexpr (F::WEIGHED) {  // two bytes at once: the product of the lower one is a byte
            constexpr int group = QUAD * 4 / F::GROUP, byte = group % 4;
            const __m512i factors = factor_bytes(F(), factors_).factors[group / 4];
            code = _mm512_mullo_epi16(code, moved_bytes<0x8080 | byte << 8 | byte>(factors));
        }
        return code;
    }

private:
    const uint8_t *low_, *high_, *factors_;
    __m512i low_mask_, high_mask_, table_;
    alignas(64) uint8_t upper_[F::HIGH_ACROSS ? 8 * 64 : 64];  // high bits of the second half
};

// The codes of a unit.
template <class F>
HOT_LOOP void unpack_codes(const uint8_t* unit, uint8_t* __restrict to) {
    constexpr int QUADS = F::PERIOD * 8;
    PackedCodes<F> codes(unit);
    for (uint8_t* const end = to + F::DEPTH * LANES; to < end; to += QUADS * 64, codes.next())
        FOR_EACH_CONSTANT(quad, QUADS, _mm512_store_si512(to + quad * 64, codes.template at<quad>()));
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
