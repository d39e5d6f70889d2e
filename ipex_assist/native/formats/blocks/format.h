// Formats of GGUF files whose numbers are kept as they are: codes, whole numbers of a few bits, and their scales.
//
// A block is 32 columns with a scale and perhaps a minimum: value = scale · (code - ZERO) + minimum. A superblock is
// 256 columns, of which 16 or 32 may share a whole factor, and perhaps a whole minimum; an fp16 scale is of all factors
// and another of all minima: value = scale · factor · (code - ZERO) - scale of minima · minimum. A code has low bits and
// perhaps high ones, which lie apart, or is looked up in a table of 16. Of a lattice, 4 or 8 columns are looked up
// together, and have signs.
//
// A panel is a row of units, each 128 columns of blocks or a superblock deep. A unit is HEAD bytes and lines of 64:
//   scales      fp16: [4][16], and minima likewise; of a superblock [16], and those of minima, or padding; of blocks of
//               128 columns [16]
//   factors     of a superblock, and all that follows: lane j of a line has the next 4 bytes of column j as the file has
//   high bits   them, but for the high bits of blocks (byte b, bit i: column 4 i + b), the sign bits of Q8_0,
//   low bits    IQ4_XS's factors, which are bytes here, and NF4's and FP4's nibbles
#pragma once
#include <type_traits>

#include "formats/precision.h"

namespace ipex_assist {

struct AnyBlocks {
    static constexpr RowType ROWS = BLOCK_ROWS;
    static constexpr bool COLUMN_SCALES = false;  // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = true;       // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = false;         // whether a checkpoint's numbers can be placed by stored.h
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return 32; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) { return true; }
};

// COLUMNS, BYTES: of a block in the file. GROUP: columns that share a factor, or the scale of a block. UNIT: bytes.
template <int COLUMNS_, int BYTES_, int GROUP_, int ZERO_, int UNIT_>
struct FileBlocks : AnyBlocks {
    static constexpr int64_t COLUMNS = COLUMNS_, BYTES = BYTES_, UNIT = UNIT_;
    static constexpr int GROUP = GROUP_, ZERO = ZERO_;
    static constexpr bool SUPER = COLUMNS == 256;
    static constexpr bool MINIMA = false;
    static constexpr bool WIDE = false;                  // codes above 63 are among them
    static constexpr bool WORDS = false;                 // values of 16 bits
    static constexpr bool PLAIN = false;                 // codes lie as they are multiplied
    static constexpr bool BY_ITSELF = true;              // each code has bits of its own
    static constexpr bool WEIGHED = false;               // times its factor a code is a byte still, and is unpacked so
    static constexpr int64_t DEPTH = SUPER ? 256 : 128;  // of a unit, which input columns are padded to a multiple of
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) { return depth / DEPTH * UNIT; }
};

// Where something lies: in which line of its part of a unit, and from which bit of each byte on.
struct BitPlace {
    int line, shift;
};

// First bytes of the parts of a block in the file; -1: it has none.
struct BlockPlaces {
    int64_t scale, minimum, factors, high, low;
};

// Bytes of a unit before its lines: scales, and minima.
constexpr int head_bytes(bool super, int factor_lines, bool minima) {
    if (!super) return minima ? 256 : 128;
    return factor_lines ? 64 : 32;
}

// LOW, HIGH: bits of a code.
template <int COLUMNS_, int BYTES_, int GROUP_, int FACTOR_LINES, int LOW_, int HIGH_, bool MINIMA_, int ZERO_,
          int DEPTH_ = COLUMNS_ == 256 ? 256 : 128, int HEAD = head_bytes(COLUMNS_ == 256, FACTOR_LINES, MINIMA_)>
struct BitsFormat
    : FileBlocks<COLUMNS_, BYTES_, GROUP_, ZERO_, HEAD + FACTOR_LINES * 64 + DEPTH_*(LOW_ + HIGH_) / 32 * 64> {
    static constexpr int LOW = LOW_, HIGH = HIGH_;
    static constexpr bool MINIMA = MINIMA_, TABLE = false, WIDE = LOW == 8, PLAIN = LOW == 8;
    // Where the parts of a unit begin.
    static constexpr int FACTORS_AT = HEAD, HIGH_AT = HEAD + FACTOR_LINES * 64, LOW_AT = HIGH_AT + DEPTH_ * HIGH * 2;

    // Of columns 32 k + 4 i to 32 k + 4 i + 3 of a unit, k < PERIOD; then again in the lines after these.
    static constexpr int PERIOD = 1;
    static constexpr bool HIGH_ACROSS = false;  // or high bits of both halves lie in the same lines, four bits apart
    static constexpr BitPlace low(int k, int i) { return {4 * k + i % 4, i / 4 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {k, i}; }
};

struct Q8_0Format : BitsFormat<32, 34, 32, 0, 8, 0, false, 128> {
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
    static constexpr BitPlace low(int k, int i) { return {8 * k + i, 0}; }
};
struct Q4_0Format : BitsFormat<32, 18, 32, 0, 4, 0, false, 8> {
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
};
struct Q4_1Format : BitsFormat<32, 20, 32, 0, 4, 0, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, -1, -1, 4};
};
struct Q5_0Format : BitsFormat<32, 22, 32, 0, 4, 1, false, 16> {
    static constexpr BlockPlaces FILE{0, -1, -1, 2, 6};
};
struct Q5_1Format : BitsFormat<32, 24, 32, 0, 4, 1, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, -1, 4, 8};
};

// Sixteen bytes that low bits are looked up in: values + ZERO.
struct Iq4Values {
    static constexpr bool TABLE = true, WIDE = true;
    static constexpr uint8_t VALUES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
};
struct Iq4NlFormat : BitsFormat<32, 18, 32, 0, 4, 0, false, 128>, Iq4Values {
    using Iq4Values::TABLE, Iq4Values::WIDE;
    static constexpr BlockPlaces FILE{0, -1, -1, -1, 2};
};
struct Iq4XsFormat : BitsFormat<256, 136, 32, 2, 4, 0, false, 128>, Iq4Values {
    using Iq4Values::TABLE, Iq4Values::WIDE;
    static constexpr BlockPlaces FILE{0, -1, 2, -1, 8};
};

struct Q2KFormat : BitsFormat<256, 84, 16, 4, 2, 0, true, 0> {
    static constexpr bool WEIGHED = true;  // at most 15 · 3
    static constexpr BlockPlaces FILE{80, 82, 0, -1, 16};
    static constexpr int PERIOD = 4;
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
};
struct Q3KFormat : BitsFormat<256, 110, 16, 3, 2, 1, false, 4> {
    static constexpr BlockPlaces FILE{108, -1, 96, 0, 32};
    static constexpr int PERIOD = 4;
    static constexpr bool HIGH_ACROSS = true;
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
    static constexpr BitPlace high(int k, int i) { return {i, k}; }
};
struct Q4KFormat : BitsFormat<256, 144, 32, 3, 4, 0, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, 4, -1, 16};
    static constexpr int PERIOD = 2;
    static constexpr BitPlace low(int k, int i) { return {k / 2 * 8 + i, k % 2 * 4}; }
};
struct Q5KFormat : BitsFormat<256, 176, 32, 3, 4, 1, true, 0> {
    static constexpr BlockPlaces FILE{0, 2, 4, 16, 48};
    static constexpr int PERIOD = 4;
    static constexpr bool HIGH_ACROSS = true;
    static constexpr BitPlace low(int k, int i) { return {k / 2 * 8 + i, k % 2 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {i, k}; }
};
struct Q6KFormat : BitsFormat<256, 210, 16, 4, 4, 2, false, 32> {
    static constexpr BlockPlaces FILE{208, -1, 192, 128, 0};
    static constexpr int PERIOD = 4;
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 16 + k % 2 * 8 + i, k % 4 / 2 * 4}; }
    static constexpr BitPlace high(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
};
// Integers of GPTQ: an fp16 scale for 32 or 128 columns, their third bits if any, and their lower two bits, those of 32
// columns in 8 bytes: bits 2 i and 2 i + 1 of byte b are those of column 8 i + b.
template <int BITS, int COLUMNS_>
struct IntegerFormat : BitsFormat<COLUMNS_, 2 + COLUMNS_ * BITS / 8, COLUMNS_, 0, 2, BITS - 2, false, 1 << (BITS - 1),
                                  128, 128 / COLUMNS_ * 32> {
    static constexpr BlockPlaces FILE{0, -1, -1, 2, 2 + COLUMNS_ * (BITS - 2) / 8};
    static constexpr BitPlace low(int k, int i) { return {2 * k + i % 2, i / 2 * 2}; }
};

// Trits, two bits each. BitNet's have a scale of the whole matrix.
struct Tq2_0Format : BitsFormat<256, 66, 128, 0, 2, 0, false, 1> {
    static constexpr bool COLUMN_SCALES = true;
    static constexpr BlockPlaces FILE{64, -1, -1, -1, 0};
    static constexpr int PERIOD = 4;
    static constexpr BitPlace low(int k, int i) { return {k / 4 * 8 + i, k % 4 * 2}; }
};

// Five trits in a byte, the first of which are thirds of 256.
struct Tq1_0Format : FileBlocks<256, 54, 128, 1, 32 + 13 * 64> {
    static constexpr bool BY_ITSELF = false;
    static constexpr int SCALE_AT = 52, REST_AT = 0, HEAD = 32;
    static constexpr float PART = 1;
};

// Nibbles that are E2M1, and scales that are not fp16. Twice a value is whole.
template <int COLUMNS_, int BYTES_, int GROUP_, int SCALE_BYTES>
struct E2m1Format : FileBlocks<COLUMNS_, BYTES_, GROUP_, 12, SCALE_BYTES * 128 * 16 / GROUP_ + 16 * 64> {
    static constexpr int LOW = 4, HIGH = 0, PERIOD = 1;
    static constexpr bool TABLE = true, HIGH_ACROSS = false;
    static constexpr int HIGH_AT = 0, LOW_AT = SCALE_BYTES * 128 * 16 / GROUP_;
    static constexpr uint8_t VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    static constexpr BitPlace high(int k, int i) { return {k, i}; }
};
// A power of two for 32 columns. Units: [4][16] of these, and lines of nibbles.
struct GgufMxfp4Format : E2m1Format<32, 17, 32, 1> {
    static constexpr BitPlace low(int k, int i) { return {4 * k + i % 4, i / 4 * 4}; }
};
// An unsigned E4M3 for 16 columns, and a float of the whole matrix. Units: [8][16] of these, and lines of nibbles.
struct Nvfp4Format : E2m1Format<64, 36, 16, 1> {
    static constexpr bool COLUMN_SCALES = true;
    static constexpr BitPlace low(int k, int i) { return {4 * k + i / 4 * 2 + i % 2, i % 4 / 2 * 4}; }
};

// Of bitsandbytes, 64 columns: an fp32 scale, and nibbles, of which the upper one is the first. Their floats become
// whole numbers of 16 bits, value = scale · number / STEPS: as numbers + 2^15, in two bytes.
template <int STEPS_>
struct WordsFormat : FileBlocks<64, 36, 32, 128, 2 * 64 + 16 * 64> {
    static constexpr int STEPS = STEPS_, LOW = 4, HIGH = 0, HIGH_AT = 0, LOW_AT = 128;
    static constexpr bool WORDS = true, WIDE = true;
    static constexpr BitPlace low(int k, int i) { return {4 * k + i / 2, i % 2 * 4}; }
};
struct Nf4Format : WordsFormat<32767> {
    static constexpr int NUMBERS[16] = {-32767, -22812, -17205, -12940, -9320, -6054, -2983, 0,
                                        2608,   5273,   8064,   11072,  14441, 18435, 23689, 32767};
};
struct Fp4Format : WordsFormat<192> {
    static constexpr int NUMBERS[16] = {0, 1, 128, 192, 64, 96, 32, 48, 0, -1, -128, -192, -64, -96, -32, -48};
};

// Superblocks of which a point of a grid is POINT columns, 4 or 8. PARTS: what a whole value is divided by, and ZERO as
// above. The file has a scale from byte SCALE_AT on (-1: bits of it lie elsewhere) and LINES · 4 bytes from REST_AT on.
template <int BYTES_, int GROUP_, int LINES, int SCALE_AT_, int ZERO_, int POINT_, int PARTS>
struct LatticeFormat : FileBlocks<256, BYTES_, GROUP_, ZERO_, (SCALE_AT_ < 0 ? 0 : 32) + LINES * 64> {
    static constexpr bool BY_ITSELF = false;
    static constexpr int SCALE_AT = SCALE_AT_, REST_AT = SCALE_AT < 0 ? 0 : 2, HEAD = SCALE_AT < 0 ? 0 : 32;
    static constexpr int POINT = POINT_;
    static constexpr float PART = 1.0f / PARTS;
    static constexpr bool WIDE = ZERO_ == 64;
};
// What the numbers of a grid's points stand for, + ZERO, and from 8 on that of columns with a sign.
struct Iq2Values {
    static constexpr uint8_t VALUES[16] = {72, 89, 107, 64, 64, 64, 64, 64, 56, 39, 21, 64, 64, 64, 64, 64};
};
struct Iq1Values {  // 8 times -1, 0 or 1, and 1 more or less
    static constexpr uint8_t VALUES[16] = {9, 17, 25, 16, 16, 16, 16, 16, 7, 15, 23, 16, 16, 16, 16, 16};
};
struct Iq2XxsFormat : LatticeFormat<66, 32, 16, 0, 64, 8, 8>, Iq2Values {};
struct Iq2XsFormat : LatticeFormat<74, 16, 18, 0, 64, 8, 8>, Iq2Values {};
struct Iq2SFormat : LatticeFormat<82, 16, 20, 0, 64, 8, 8>, Iq2Values {};
struct Iq3XxsFormat : LatticeFormat<98, 32, 24, 0, 64, 4, 4> {
    static constexpr uint8_t VALUES[16] = {68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2};
};
struct Iq3SFormat : LatticeFormat<110, 32, 27, 0, 16, 4, 1> {
    static constexpr uint8_t VALUES[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};
};
struct Iq1SFormat : LatticeFormat<50, 32, 12, 0, 16, 8, 8>, Iq1Values {};
struct Iq1MFormat : LatticeFormat<56, 16, 14, -1, 16, 8, 8>, Iq1Values {};

template <class F>
constexpr bool IS_BLOCKS = std::is_base_of_v<AnyBlocks, F>;

}  // namespace ipex_assist
