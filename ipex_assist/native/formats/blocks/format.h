// Formats of GGUF files whose numbers are kept as they are: codes, whole numbers of a few bits, and their scales.
//
// A block is 32 columns with an fp16 scale and perhaps a minimum: value = scale · (code - ZERO) + minimum. A superblock
// is 256 columns, of which 16 or 32 share a whole factor, and perhaps a whole minimum; an fp16 scale is of all factors
// and another of all minima: value = scale · factor · (code - ZERO) - scale of minima · minimum. A code has low bits and
// perhaps high ones, which lie apart; IQ4's are looked up in a table.
//
// A panel is a row of units, each 4 blocks or a superblock deep. A unit is lines of 64 bytes:
//   scales      fp16: [4][16], and minima likewise; of a superblock [16], and those of minima, or 32 bytes of padding
//   factors     of a superblock, and all that follows: lane j of a line has the next 4 bytes of column j as the file has
//   high bits   them, but for the high bits of Q5_0 and Q5_1 (byte b, bit i: column 4 i + b), the sign bits of Q8_0, and
//   low bits    IQ4_XS's factors, which are bytes here
#pragma once
#include <type_traits>

#include "formats/precision.h"

namespace ipex_assist {

struct AnyBlocks {};

// Where something lies: in which line of its part of a unit, and from which bit of each byte on.
struct BitPlace {
    int line, shift;
};

// First bytes of the parts of a block in the file; -1: it has none.
struct BlockPlaces {
    int64_t scale, minimum, factors, high, low;
};

// COLUMNS, BYTES: of a block in the file. GROUP: columns that share a factor. LOW, HIGH: bits of a code.
template <int COLUMNS_, int BYTES_, int GROUP_, int FACTOR_LINES, int LOW_, int HIGH_, bool MINIMA_, int ZERO_>
struct BlockFormat : AnyBlocks {
    static constexpr int64_t COLUMNS = COLUMNS_, BYTES = BYTES_;
    static constexpr int GROUP = GROUP_, LOW = LOW_, HIGH = HIGH_, ZERO = ZERO_;
    static constexpr bool SUPER = COLUMNS == 256, MINIMA = MINIMA_, TABLE = false;
    static constexpr int64_t DEPTH = SUPER ? 256 : 128;  // of a unit, which input columns are padded to a multiple of
    // Where the parts of a unit begin, and its end, in lines.
    static constexpr int FACTORS_AT = SUPER    ? 1
                                      : MINIMA ? 4
                                               : 2,
                         HIGH_AT = FACTORS_AT + FACTOR_LINES, LOW_AT = HIGH_AT + DEPTH * HIGH / 32,
                         LINES = LOW_AT + DEPTH * LOW / 32;

    static constexpr RowType ROWS = BLOCK_ROWS;
    static constexpr bool COLUMN_SCALES = false;  // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = true;       // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = false;         // whether a checkpoint's numbers can be placed by stored.h
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return 32; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) { return true; }
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) {
        return depth / DEPTH * LINES * 64;
    }

    // Of columns 32 k + 4 i to 32 k + 4 i + 3 of a unit.
    static constexpr BitPlace low(int k, int i) { return {4 * k + i % 4, i / 4 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {k, i}; }
};

struct Q8_0Format : BlockFormat<32, 34, 32, 0, 8, 0, false, 128> {
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
    static constexpr BitPlace low(int k, int i) { return {8 * k + i, 0}; }
};
struct Q4_0Format : BlockFormat<32, 18, 32, 0, 4, 0, false, 8> {
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
};
struct Q4_1Format : BlockFormat<32, 20, 32, 0, 4, 0, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, -1, -1, 4};
};
struct Q5_0Format : BlockFormat<32, 22, 32, 0, 4, 1, false, 16> {
    static constexpr BlockPlaces FILE{0, -1, -1, 2, 6};
};
struct Q5_1Format : BlockFormat<32, 24, 32, 0, 4, 1, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, -1, 4, 8};
};
struct Iq4NlFormat : BlockFormat<32, 18, 32, 0, 4, 0, false, 128> {
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
    static constexpr bool TABLE = true;
};

struct Iq4XsFormat : BlockFormat<256, 136, 32, 2, 4, 0, false, 128> {
    static constexpr BlockPlaces FILE{0, -1, 2, -1, 8};
    static constexpr bool TABLE = true;
};
struct Q2KFormat : BlockFormat<256, 84, 16, 4, 2, 0, true, 0> {
    static constexpr BlockPlaces FILE{80, 82, 0, -1, 16};
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
};
struct Q3KFormat : BlockFormat<256, 110, 16, 3, 2, 1, false, 4> {
    static constexpr BlockPlaces FILE{108, -1, 96, 0, 32};
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
    static constexpr BitPlace high(int k, int i) { return {i, k}; }
};
struct Q4KFormat : BlockFormat<256, 144, 32, 3, 4, 0, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, 4, -1, 16};
    static constexpr BitPlace low(int k, int i) { return {k / 2 * 8 + i, k % 2 * 4}; }
};
struct Q5KFormat : BlockFormat<256, 176, 32, 3, 4, 1, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, 4, 16, 48};
    static constexpr BitPlace low(int k, int i) { return {k / 2 * 8 + i, k % 2 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {i, k}; }
};
struct Q6KFormat : BlockFormat<256, 210, 16, 4, 4, 2, false, 32> {
    static constexpr BlockPlaces FILE{208, -1, 192, 128, 0};
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 16 + k % 2 * 8 + i, k % 4 / 2 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
};

template <class F>
constexpr bool IS_BLOCKS = std::is_base_of_v<AnyBlocks, F>;

}  // namespace ipex_assist
