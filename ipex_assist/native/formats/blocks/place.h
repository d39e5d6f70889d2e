// Blocks of a file as units of a panel.
#pragma once
#include <algorithm>
#include <cstring>

#include "formats/formats.h"

namespace ipex_assist {

// 16 rows of a matrix as a file has them; null: there is no such row, it is zero.
struct FileRows {
    const uint8_t* at[LANES];
    int64_t width;
};

// Bytes of a row in the file, 0 where a format is not one of blocks, or no row has this width.
inline int64_t file_row_bytes(Precision precision, int64_t width) {
    return with_format(precision, [&](auto format) -> int64_t {
        using F = decltype(format);
        if constexpr (IS_BLOCKS<F>) return width % F::COLUMNS ? 0 : width / F::COLUMNS * F::BYTES;
        else return 0;
    });
}

inline bool is_blocks(Precision precision) {
    return with_format(precision, [](auto format) { return IS_BLOCKS<decltype(format)>; });
}

inline uint32_t dword_at(const uint8_t* from) {
    uint32_t bits;
    std::memcpy(&bits, from, 4);
    return bits;
}

inline void put_dword(uint8_t* line, int64_t lane, uint32_t bits) { std::memcpy(line + lane * 4, &bits, 4); }

// The next dwords of a lane.
inline void put_dwords(uint8_t* lines, int64_t lane, const uint8_t* from, int64_t count) {
    for (int64_t i = 0; i < count; i++) put_dword(lines + i * 64, lane, dword_at(from + i * 4));
}

inline bool is_finite_half(uint32_t bits) { return (bits & 0x7c00) != 0x7c00; }

inline bool put_half(uint8_t* to, int64_t lane, const uint8_t* from) {
    std::memcpy(to + lane * 2, from, 2);
    return is_finite_half(from[0] | uint32_t(from[1]) << 8);
}

// What Q5_0 and Q5_1 have as bit c of column c: bit i of byte b of column 4 i + b.
inline uint32_t by_quads(uint32_t bits) {
    uint32_t found = 0;
    for (int i = 0; i < 8; i++) found |= (((bits >> 4 * i & 15) * 0x00204081) & 0x01010101) << i;
    return found;
}

// Nibbles of 8 columns of which upper ones are first: byte b has column b, and column 4 + b in its upper half.
inline uint32_t by_halves(uint32_t bits) {
    uint32_t found = 0;
    for (int p = 0; p < 8; p++) found |= (bits >> (p / 2 * 8 + (p % 2 ? 0 : 4)) & 15) << (p % 4 * 8 + p / 4 * 4);
    return found;
}

// IQ4_XS's factors, of which a block has the lower four bits and then the upper two of each, as 8 signed bytes.
inline void iq4_factors(const uint8_t* block, uint32_t (&to)[2]) {
    const uint32_t high = block[2] | block[3] << 8, low = dword_at(block + 4);
    for (int g = 0; g < 8; g++) {
        const int factor = int((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;
        to[g / 4] |= uint32_t(uint8_t(factor)) << g % 4 * 8;
    }
}

// Lane `lane` of a unit from one block, of blocks the `number`th of it. False where a scale is NaN or infinite.
template <int COLUMNS, int BYTES, int GROUP, int FACTORS, int LOW, int HIGH, bool MINIMA, int ZERO, int DEPTH, int HEAD,
          class F>
bool place_block(const BitsFormat<COLUMNS, BYTES, GROUP, FACTORS, LOW, HIGH, MINIMA, ZERO, DEPTH, HEAD>&, const F&,
                 const uint8_t* block, int64_t number, int64_t lane, uint8_t* unit) {
    bool numbers = put_half(unit + number * 32, lane, block + F::FILE.scale);
    if constexpr (MINIMA) numbers &= put_half(unit + ((F::SUPER ? 1 : 4) + number) * 32, lane, block + F::FILE.minimum);
    if constexpr (std::is_same_v<F, Iq4XsFormat>) {
        uint32_t factors[2] = {};
        iq4_factors(block, factors);
        for (int i = 0; i < 2; i++) put_dword(unit + F::FACTORS_AT + i * 64, lane, factors[i]);
    } else {
        put_dwords(unit + F::FACTORS_AT, lane, block + F::FILE.factors, FACTORS);
    }
    constexpr int64_t HIGH_LINES = COLUMNS * HIGH / 32, LOW_LINES = COLUMNS * LOW / 32;
    for (int64_t i = 0; i < HIGH_LINES; i++) {
        const uint32_t bits = dword_at(block + F::FILE.high + i * 4);
        put_dword(unit + F::HIGH_AT + (number * HIGH_LINES + i) * 64, lane, F::SUPER ? bits : by_quads(bits));
    }
    for (int64_t i = 0; i < LOW_LINES; i++) {
        const uint32_t bits = dword_at(block + F::FILE.low + i * 4);
        put_dword(unit + F::LOW_AT + (number * LOW_LINES + i) * 64, lane, LOW == 8 ? bits ^ 0x80808080 : bits);
    }
    return numbers;
}

template <int COLUMNS, int BYTES, int GROUP, int SCALE_BYTES, class F>
bool place_block(const E2m1Format<COLUMNS, BYTES, GROUP, SCALE_BYTES>&, const F&, const uint8_t* block, int64_t number,
                 int64_t lane, uint8_t* unit) {
    constexpr int SCALES = COLUMNS / GROUP;
    bool numbers = true;
    for (int64_t s = 0; s < SCALES; s++) {
        unit[(number * SCALES + s) * LANES + lane] = block[s];
        numbers &= GROUP == 16 ? (block[s] & 0x7f) != 0x7f : block[s] != 0xff;
    }
    put_dwords(unit + F::LOW_AT + number * (COLUMNS / 8) * 64, lane, block + SCALES, COLUMNS / 8);
    return numbers;
}

template <int STEPS, class F>
bool place_block(const WordsFormat<STEPS>&, const F&, const uint8_t* block, int64_t number, int64_t lane,
                 uint8_t* unit) {
    put_dwords(unit + number * 64, lane, block, 1);
    for (int64_t i = 0; i < 8; i++)
        put_dword(unit + F::LOW_AT + (number * 8 + i) * 64, lane, by_halves(dword_at(block + 4 + i * 4)));
    return (dword_at(block) & 0x7f800000) != 0x7f800000;
}

// IQ1_M's scale: the upper four bits of each of its factors' 16.
inline uint32_t iq1_m_scale(const uint8_t* block) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= uint32_t(block[49 + i * 2] >> 4) << 4 * i;
    return bits;
}

template <class F>
bool place_block(const AnyBlocks&, const F&, const uint8_t* block, int64_t, int64_t lane, uint8_t* unit) {
    put_dwords(unit + F::HEAD, lane, block + F::REST_AT, (F::UNIT - F::HEAD) / 64);
    if constexpr (F::SCALE_AT < 0) return is_finite_half(iq1_m_scale(block));
    else return put_half(unit, lane, block + F::SCALE_AT);
}

// A panel of this depth from up to 16 rows. Returns the first lane whose row has a scale that is NaN or infinite, or
// LANES.
template <class F>
int64_t place_rows(const FileRows& rows, int64_t depth, uint8_t* panel) {
    constexpr int64_t EACH = F::DEPTH / F::COLUMNS;  // blocks of a unit
    std::memset(panel, 0, size_t(F::panel_bytes(0, depth)));
    int64_t first = LANES;
    for (int64_t i = 0; i < rows.width / F::COLUMNS; i++) {
        uint8_t* unit = panel + i / EACH * F::UNIT;
        for (int64_t lane = 0; lane < LANES; lane++) {
            if (!rows.at[lane]) continue;
            if (!place_block(F(), F(), rows.at[lane] + i * F::BYTES, i % EACH, lane, unit))
                first = std::min(first, lane);
        }
    }
    return first;
}

inline int64_t place_blocks(Precision precision, const FileRows& rows, int64_t depth, uint8_t* panel) {
    return with_format(precision, [&](auto format) -> int64_t {
        using F = decltype(format);
        if constexpr (IS_BLOCKS<F>) return place_rows<F>(rows, depth, panel);
        else return 0;
    });
}

}  // namespace ipex_assist
