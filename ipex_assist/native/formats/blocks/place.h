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

// What Q5_0 and Q5_1 have as bit c of column c: bit i of byte b of column 4 i + b.
inline uint32_t by_quads(uint32_t bits) {
    uint32_t found = 0;
    for (int i = 0; i < 8; i++) found |= (((bits >> 4 * i & 15) * 0x00204081) & 0x01010101) << i;
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
template <class F>
bool place_block(const uint8_t* block, int64_t number, int64_t lane, uint8_t* unit) {
    bool numbers = true;
    const auto half = [&](int64_t from, int64_t to) {
        numbers &= (block[from + 1] & 0x7c) != 0x7c;
        std::memcpy(unit + to * 32 + lane * 2, block + from, 2);
    };
    const auto put = [&](int64_t line, uint32_t bits) { std::memcpy(unit + line * 64 + lane * 4, &bits, 4); };
    half(F::FILE.scale, number);
    if constexpr (F::MINIMA) half(F::FILE.minimum, (F::SUPER ? 1 : 4) + number);
    if constexpr (std::is_same_v<F, Iq4XsFormat>) {
        uint32_t factors[2] = {};
        iq4_factors(block, factors);
        for (int i = 0; i < 2; i++) put(F::FACTORS_AT + i, factors[i]);
    } else {
        for (int i = 0; i < F::HIGH_AT - F::FACTORS_AT; i++)
            put(F::FACTORS_AT + i, dword_at(block + F::FILE.factors + i * 4));
    }
    constexpr int64_t HIGH = F::COLUMNS * F::HIGH / 32, LOW = F::COLUMNS * F::LOW / 32;  // lines
    for (int64_t i = 0; i < HIGH; i++) {
        const uint32_t bits = dword_at(block + F::FILE.high + i * 4);
        put(F::HIGH_AT + number * HIGH + i, F::SUPER ? bits : by_quads(bits));
    }
    for (int64_t i = 0; i < LOW; i++) {
        const uint32_t bits = dword_at(block + F::FILE.low + i * 4);
        put(F::LOW_AT + number * LOW + i, F::LOW == 8 ? bits ^ 0x80808080 : bits);
    }
    return numbers;
}

// A panel of this depth from up to 16 rows. Returns the first lane whose row has a scale that is NaN or infinite, or
// LANES.
template <class F>
int64_t place_rows(const FileRows& rows, int64_t depth, uint8_t* panel) {
    constexpr int64_t EACH = F::DEPTH / F::COLUMNS;  // blocks of a unit
    std::memset(panel, 0, size_t(F::panel_bytes(0, depth)));
    int64_t first = LANES;
    for (int64_t i = 0; i < rows.width / F::COLUMNS; i++) {
        uint8_t* unit = panel + i / EACH * F::LINES * 64;
        for (int64_t lane = 0; lane < LANES; lane++) {
            if (!rows.at[lane] || place_block<F>(rows.at[lane] + i * F::BYTES, i % EACH, lane, unit)) continue;
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
