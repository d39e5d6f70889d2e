// The kernels' interface: plain structures and one table of functions for each instruction set.
//
// A matrix is packed in blocks of 16 output columns. Within a block the order is that of the input columns: of each 64
// bytes, lane j holds the next 4 bytes of output column j. These are 1 fp32, 2 bf16, 4 int8, or 8 int4 values, which
// is what vfmadd, vdpbf16ps and vpdpbusd multiply with a broadcast piece of a row, and also what a tile of AMX holds
// as its B operand. So one copy of the weights serves single rows and long prompts.
//
//   fp32   [depth][16]                      depth padded to 32
//   bf16   [depth/2][16][2]                 depth padded to 32
//   int8   [depth/4][16][4]                 depth padded to 128; unsigned, value + 128; one scale a column, beside it
//   int4   [depth/group] of                 depth padded to 128; group 32, 64 or 128
//            [16] scale, zero in its lowest 5 bits (32 bits: a float with 19 significant bits, and an integer 0…31)
//            [group/32][4][16][4] bytes     low nibble: quads 0…3 of the 32 columns, high nibble: quads 4…7
//          value = scale · (nibble - zero)
//   mxfp4  [depth/128] of                   depth padded to 128
//            [16][4] bytes                  exponents of 2, + 127, of a column's groups of 32; 0 is a scale of 0
//            [4][4][16][4] bytes            as those of int4
//          value = 2^(exponent - 127) · E2M1(nibble): 0, 0.5, 1, 1.5, 2, 3, 4, 6, and from 8 on their negatives
//
// Input columns may lie in another order than the checkpoint's (Linear.order): then rows are put into that order too.
#pragma once
#include <cstdint>

#include "memory/round_up.h"

namespace ipex_assist {

enum Precision : int32_t { FP32, BF16, INT8, INT4, MXFP4 };
enum Activation : int32_t { SILU, RELU, GELU, GELU_TANH, CLAMPED_SWIGLU };  // the last only where there is a gate
enum SourceType : int32_t { SOURCE_F32, SOURCE_F16, SOURCE_BF16 };

constexpr int LANES = 16;             // output columns of a block
constexpr int SCALE_COLUMNS = 128;    // input columns that share one scale of an int8 row
constexpr int BLOCK_POSITIONS = 256;  // positions of a block of the KV cache
constexpr int ATTENTION_GROUP = 32;   // elements of a query, or softmax weights, that share a scale where keys are int8
// Blocks of a KV split. Splits start at multiples of 8 blocks of a sequence; the blocks of a split are merged first,
// and then the splits.
constexpr int SPLIT_BLOCKS = 8;
// A pass of up to 16 rows takes the decode path: threads share its attention by blocks, not by rows. Changes no bits.
constexpr int DECODE_ROWS = 16;
constexpr int ZERO_BITS = 31;

// Blocks of a linear on one memory node, from `first` on: block b lies at weights + b · block_bytes.
struct NodeBlocks {
    int64_t first;
    const uint8_t* weights;
};

struct Linear {
    Precision precision;
    int32_t group;           // input columns that share an int4 scale; of mxfp4 always 32
    int64_t depth;           // input columns, padded
    int64_t blocks;          // of 16 output columns
    const uint8_t* weights;  // blocks · block_bytes(precision, group, depth)
    const float* scales;     // int8: (blocks · 16)
    const float* bias;       // (blocks · 16), or null
    const int32_t* order;    // (depth) which column of a row goes with input column i; null where that is i
    int64_t unit = 1;        // blocks that stay with one thread: 2 where those of gate and up take turns
    // Of each memory node, and {blocks, null}; null where all blocks lie side by side, as kernels take them (model.h:
    // each_part).
    const NodeBlocks* nodes = nullptr;
};

inline int64_t block_bytes(Precision precision, int64_t group, int64_t depth) {
    switch (precision) {
        case FP32: return depth * LANES * 4;
        case BF16: return depth * LANES * 2;
        case INT8: return depth * LANES;
        case MXFP4: return depth * LANES / 2 + depth / SCALE_COLUMNS * LANES * 4;
        default: return depth * LANES / 2 + depth / group * LANES * 4;
    }
}

inline int64_t padded_depth(Precision precision, int64_t width) {
    return round_up(width, precision == FP32 || precision == BF16 ? 32 : SCALE_COLUMNS);
}

// Inputs of a linear, in the form its precision multiplies: values (rows, depth), and for integers a scale for every
// 128 columns and the negated sum of every `group` columns (128 for int8, 32 for mxfp4).
struct Rows {
    uint8_t* values;
    float* scales;
    int32_t* negated_sums;
    int64_t depth;
    // Integers once more as tiles of 16 rows, (rows / 16, depth / 64, 16, 64), for linears of more than 16 rows; null
    // where the kernels use none, and where they are to make them themselves. Room for rows up to a multiple of 32.
    uint8_t* tiles = nullptr;
};

// One block of 256 positions of one KV head. Keys are packed like weights whose output columns are positions, values
// like weights whose input columns are positions. int8 has a scale a position; keys are stored + 128, values are
// signed.
struct KeyValueBlock {
    uint8_t* keys;        // BLOCK_POSITIONS / 16 blocks of depth `key_depth`
    uint8_t* values;      // value_blocks blocks of depth BLOCK_POSITIONS
    float* key_scales;    // int8: (BLOCK_POSITIONS), null in other precisions
    float* value_scales;  // likewise
};

// Queries of one KV head against one block of keys; all arrays are the calling thread's own.
struct AttentionTile {
    Precision precision;  // of queries and probabilities: FP32 or BF16
    int32_t queries;      // rows of `query`
    int32_t head_dim;
    int64_t key_depth;  // head_dim padded to 32
    float scale;
    const uint8_t* query;  // (queries, key_depth), as Rows.values; of int8 blocks in BF16 by store_query, 2 bytes each
    const float* query_scales;     // (queries, key_depth / 32), of store_query …
    const int32_t* query_offsets;  // … likewise
    const int32_t* first;          // per query: the first position of the block it sees …
    const int32_t* end;            // … and the one after the last; first >= end where it sees none
    float* scores;                 // (queries, BLOCK_POSITIONS)
    uint8_t* probabilities;  // (queries, BLOCK_POSITIONS), as Rows.values; of int8 blocks in BF16 weights of values, 2
                             // bytes each
    float* weight_scales;    // (queries, BLOCK_POSITIONS / 32), of these
    uint8_t*
        widened;  // widened_bytes(key_depth); where int8 is widened to fp32, 16 columns at a time, or for sums of tiles
    float cap;    // scores x become cap · tanh(x / cap); 0: they stay
    const float* slopes;     // per query, ALiBi: what scores gain a position, ÷ scale; null where there is none
    const float* distances;  // per query: from its own position to the first of the block
};

inline int64_t widened_bytes(int64_t key_depth) {
    return (key_depth > BLOCK_POSITIONS ? key_depth : BLOCK_POSITIONS) * LANES * 4;
}

// Softmax-weighted values of one block: sum of exp(scale · (score - maximum)), and the values weighted with these.
// `output` has room for head_dim rounded up to 16.
struct AttentionPartial {
    float maximum;
    float sum;
    float* output;
};

struct ArgMax {
    float value;
    int32_t index;
    float sum;  // of exp(x - value)
};

struct Kernels {
    const char* name;
    int32_t bf16_row_bytes;  // bytes of a value in rows of bf16: 2, or 4 where they are kept widened
    bool tiled;              // whether Rows.tiles are used

    // out[r * stride + (b - first) * 16 …] for blocks first <= b < last.
    void (*linear)(const Linear&, const Rows&, int64_t rows, int64_t first, int64_t last, float* out, int64_t stride);
    // Columns first … last of row `row`, from x (width); beyond width they are zero. Both are multiples of
    // SCALE_COLUMNS or the end.
    void (*quantize)(Precision, int32_t group, const float* x, int64_t width, int64_t first, int64_t last, int64_t row,
                     const Rows&);
    void (*normalize)(bool rms, const float* x, const float* weight, const float* bias, float epsilon, int64_t size,
                      float* out);
    void (*add)(float* x, const float* y, int64_t size);
    // Gated: in holds blocks of gate and up by turns. out gets blocks · 16 columns.
    void (*activate)(Activation, bool gated, const float* in, int64_t blocks, float* out);
    // The first rotary_dim values of a head.
    void (*apply_rotary)(float* x, int32_t rotary_dim, const float* cosine, const float* sine);
    // x = outer · tanh(inner · x), to about 3e-7 · outer.
    void (*soft_cap)(float* x, int64_t size, float inner, float outer);
    // Values (size) in the row form of a precision without scales.
    void (*convert)(Precision, const float* x, int64_t size, int64_t padded, uint8_t* out);
    // A query of an int8 block, where attention computes in BF16: 2 bytes an element, scales and offsets.
    void (*store_query)(const float* x, int32_t head_dim, int64_t key_depth, uint8_t* to, float* scales,
                        int32_t* offsets);
    // At a position of a block, in the block's precision: FP32, BF16, or INT8 by the largest of the row's values / 127,
    // which is NaN where one of them is no number.
    void (*store_key)(Precision, const float* key, int32_t head_dim, int64_t key_depth, int32_t position,
                      const KeyValueBlock&);
    void (*store_value)(Precision, const float* value, int32_t head_dim, int32_t position, const KeyValueBlock&);
    void (*attend)(const AttentionTile&, const KeyValueBlock&, AttentionPartial* partials);
    void (*merge)(AttentionPartial& into, const AttentionPartial& next, float scale, int32_t head_dim);
    ArgMax (*argmax)(const float* x, int64_t size);
    // Packs 16 output columns (fewer at the end of a matrix: `columns`) of `width` inputs, `stride` elements apart.
    // False where NaN or infinity was among them: what is packed then means nothing.
    bool (*pack)(Precision, int32_t group, SourceType, const void* source, int64_t stride, int64_t columns,
                 int64_t width, int64_t depth, uint8_t* block, float* scales, float* scratch);
    // False where NaN or infinity is among the values.
    bool (*widen)(SourceType, const void* source, int64_t size, float* out);
    // Every byte once, as fast as memory gives them; `ahead` bytes prefetched, or none.
    uint64_t (*read)(const uint8_t* data, int64_t size, int64_t ahead);
    void (*narrow)(SourceType, const float* source, int64_t size, void* out);  // to fp32 or bf16
    // Nothing but the products of a precision, some for each step; returns how many there were.
    int64_t (*multiply)(Precision, int64_t steps);
};

// Null where this library was built without the instruction set.
const Kernels* kernels_avx2();
const Kernels* kernels_avx2_vnni();
const Kernels* kernels_avx512();
const Kernels* kernels_avx512_vnni();
const Kernels* kernels_avx512_bf16();
const Kernels* kernels_amx();

}  // namespace ipex_assist
