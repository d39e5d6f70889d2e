// The kernels' interface: plain structures, and one table of functions for each instruction set.
//
// A matrix is packed in panels of 16 output columns. A panel is a sequence of lines of 64 bytes in the order of its
// input columns; of each line, lane j holds the next 4 bytes of output column j: 1 fp32, 2 bf16, 4 int8 or 8 int4
// values. That is what vfmadd, vdpbf16ps and vpdpbusd multiply with 4 bytes of a row that are broadcast to all lanes,
// and 16 lines are the B operand of an AMX tile product. So one copy of the weights serves decode steps and long
// prompts.
//
// formats/NAME/format.h says how a panel of each number format looks.
//
// Input columns may be in another order than the checkpoint's (Linear.order): then rows are put into that order, too.
#pragma once
#include <cstdint>

#include "formats/formats.h"
#include "memory/round_up.h"

namespace ipex_assist {

// RELU2 is ReLU's square; XIELU has numbers of its own, and is of MLPs without a gate; CLAMPED_SWIGLU of those with
// one.
enum Activation : int32_t { SILU, RELU, GELU, GELU_TANH, RELU2, XIELU, CLAMPED_SWIGLU };
enum SourceType : int32_t { SOURCE_F32, SOURCE_F16, SOURCE_BF16 };

constexpr int BLOCK_POSITIONS = 256;  // positions of a block of the KV cache
constexpr int ATTENTION_GROUP = 32;   // elements of a query, or softmax weights, that share a scale where keys are int8
// Blocks of a KV split. Splits start at multiples of 8 blocks of a sequence; the blocks of a split are merged first,
// and then the splits.
constexpr int SPLIT_BLOCKS = 8;
// A pass of up to 16 rows takes the decode path: threads share its attention by blocks, not by rows. Changes no bits.
constexpr int DECODE_ROWS = 16;

// Panels of a linear on one memory node, from `first` on: panel b lies at weights + panel_offset(b).
struct NodePanels {
    int64_t first;
    const uint8_t* weights;
};

// Of each panel of a linear whose parts differ in format, such as a query's and a value's.
struct MixedPanels {
    const Precision* formats;  // (panels)
    const int64_t* offsets;    // (panels + 1) bytes of the panels before
};

struct Linear {
    Precision precision;
    int32_t group;            // input columns that share an int4 scale; of mxfp4 always 32
    int64_t depth;            // input columns, padded
    int64_t panels;           // of 16 output columns
    const uint8_t* weights;   // panels · panel_bytes(precision, group, depth)
    const float* scales;      // int8, fp8: (panels · 16)
    const float* bias;        // (panels · 16), or null
    const int32_t* order;     // (depth) the column of a row that input column i is; null where that is i
    int64_t granularity = 1;  // consecutive panels that one thread must have: 2 where gate and up alternate
    // The panels of each memory node, then {panels, null}. Null where all panels are contiguous: kernels take only such
    // linears (model.h splits the others).
    const NodePanels* nodes = nullptr;
    const MixedPanels* mixed = nullptr;  // null where all have one format, likewise; `precision` is the first one's
};

// The input rows of a linear, in the form that its precision multiplies: fp32, bf16, or int8 for integer weights.
struct LinearRows {
    uint8_t* values;  // (rows, depth)
    float* scales;    // int8: (rows, depth / 128)
    // int8: (rows, depth / group), minus the sum of each group (128 columns for int8, 32 for mxfp4). BLOCK_ROWS: (rows,
    // depth / 32), two 16-bit numbers each, minus the sums of 16 columns and, in the upper half, of the next 16.
    int32_t* negated_sums;
    int64_t depth;
    // The same int8 or bf16 values as AMX tiles, (rows / 16, bytes of a row / 64, 16, 64), for linears of more than 16
    // rows; there is room for a multiple of 32 rows. Null where kernels use no tiles, or are not to use them.
    uint8_t* tiles = nullptr;
};

// One block of 256 positions of one KV head. Keys are packed like weights whose output columns are positions, values
// like weights whose input columns are positions. In int8 each position has a scale; keys are stored + 128, values are
// signed.
struct KeyValueBlock {
    uint8_t* keys;        // BLOCK_POSITIONS / 16 panels of depth `key_depth`
    uint8_t* values;      // value_dim / 16 panels, rounded up, of depth BLOCK_POSITIONS
    float* key_scales;    // int8: (BLOCK_POSITIONS); null in other precisions
    float* value_scales;  // likewise
};

// Keys and values of positions as rows: keys of `key_width` elements, a multiple of 16, and values of `value_width`, of
// `bytes` each as KeyValueBlock has them.
struct PositionRows {
    const uint8_t* keys[BLOCK_POSITIONS];
    const uint8_t* values[BLOCK_POSITIONS];
    int64_t count, bytes, key_width, key_depth, value_width;
};

// A query tile: queries of one KV head that attend to one block together. All arrays are the calling thread's own.
// Where the block is int8 and `precision` is BF16, queries and softmax weights are quantized to 8 bits.
struct AttentionTile {
    Precision precision;           // of queries and probabilities: FP32 or BF16
    int32_t queries;               // rows of `query`
    int32_t value_dim;             // of the values, and of what is attended to
    int64_t key_depth;             // of keys and queries, padded to 32
    float scale;                   // of scores
    const uint8_t* query;          // (queries, key_depth), as LinearRows.values; quantized by store_query, 2 bytes each
    const float* query_scales;     // quantized: (queries, key_depth / 32), of store_query
    const int32_t* query_offsets;  // likewise
    const int32_t* first;          // (queries) the first position of the block that a query sees …
    const int32_t* end;            // … and the one after the last; first >= end where it sees none
    float* scores;                 // (queries, BLOCK_POSITIONS)
    uint8_t* probabilities;        // (queries, BLOCK_POSITIONS), as LinearRows.values; quantized, 2 bytes each
    float* weight_scales;          // quantized: (queries, BLOCK_POSITIONS / 32)
    uint8_t* widened;              // widened_bytes(key_depth): 16 columns of int8 as fp32, or sums of AMX tiles
    float cap;                     // scores x become cap · tanh(x / cap); 0: they stay
    const float* slopes;           // (queries) ALiBi's slope ÷ scale; null where there is none
    const float* distances;        // (queries) the block's first position minus the query's
};

inline int64_t widened_bytes(int64_t key_depth) {
    return (key_depth > BLOCK_POSITIONS ? key_depth : BLOCK_POSITIONS) * LANES * 4;
}

// Attention of one query to some positions, before it is divided by `sum` (a split-KV partial). Two of them can be
// merged.
struct AttentionPartial {
    float maximum;  // of the scores
    float sum;      // of the weights exp(scale · (score - maximum))
    float* output;  // (value_dim) the sum of the values times these weights, with room up to a multiple of 16
};

struct ArgMax {
    float value;
    int32_t index;
    float sum;  // of exp(x - value) over all x: the probability of `index` is 1 / sum
};

constexpr int64_t NOISE_GROUP = 128;  // columns of logits whose maximum is found together

// exp((logit - largest) ÷ temperature), summed over tokens.
struct WeightSums {
    double all, likelier;
};

// Which tokens of a row may be the arg-max of logit ÷ temperature + noise.
struct NoiseSearch {
    float largest;  // of the row
    float temperature;
    float least;  // tokens with a smaller logit are none of them
    float bound;  // of (logit - largest) ÷ temperature + noise
};

// xIELU (Huang and Schlag 2024, arXiv:2411.13010): positive · x² + beta · x above 0, and below
// negative · (e^min(x, eps) - 1 - x) + beta · x.
struct Xielu {
    float positive, negative, beta, eps;
};

// A row of a linear with an adapter: the row of A · x that is its own, and the factor of what is added to it.
struct LowRankRow {
    int64_t low, row;
    float scale;
};

// What an adapter adds to 16 columns of a linear: B's rows of these, (rank, 16) in the type of the linear's rows.
struct LowRankPanel {
    RowType rows;
    const uint8_t* values;
    const float* scales;  // INT8_ROWS: (16)
    int64_t rank;
    int64_t count = 1, step = 1;  // panels that follow each other, of every step-th panel of the linear
};

// Of a value that is kept in the type of rows.
inline int64_t row_type_bytes(RowType rows) {
    switch (rows) {
        case FP32_ROWS: return 4;
        case BF16_ROWS: return 2;
        case INT8_ROWS:
        case BLOCK_ROWS: return 1;
    }
    __builtin_unreachable();
}

inline int64_t low_rank_bytes(RowType rows, int64_t rank) { return rank * LANES * row_type_bytes(rows); }

// A row of a convolution whose weights are scaled by groups of neighbouring columns; the row before is `stride` before
// it.
struct GroupedConv {
    const float* x;
    int64_t stride;
    int32_t kernel_size;  // rows that there are, this one included
    const float* base;    // (kernel_size, groups · group)
    const float* scales;  // (kernel_size, groups)
    int64_t groups, group;
};

struct MixerKernels;

struct KernelTable {
    const char* name;
    int32_t bf16_row_bytes;      // of a value in bf16 rows: 2, or 4 where the instruction set multiplies them as fp32
    bool tiled;                  // whether LinearRows.tiles are used
    const MixerKernels* mixers;  // mixers/kernels.h

    // Panels first <= b < last; row r of panel b goes to out[r * stride + (b - first) * 16 …].
    void (*linear)(const Linear&, const LinearRows&, int64_t rows, int64_t first, int64_t last, float* out,
                   int64_t stride);
    // Columns [first, last) of row `row`, from x (width); from `width` on they are zero. Both are multiples of
    // SCALE_COLUMNS, or `last` is the depth.
    void (*quantize)(Precision, int32_t group, const float* x, int64_t width, int64_t first, int64_t last, int64_t row,
                     const LinearRows&);
    void (*normalize)(bool rms, const float* x, const float* weight, const float* bias, float epsilon, int64_t size,
                      float* out);
    void (*add)(float* x, const float* y, int64_t size);
    // out (panels · 16). Gated: panels of gate and up alternate in `in`.
    void (*activate)(Activation, bool gated, const float* in, int64_t panels, float* out);
    void (*xielu)(const Xielu&, const float* in, int64_t panels, float* out);
    // Rotary embedding of a head's first rotary_dim values; the sine has rotate_half's sign.
    void (*apply_rotary)(float* x, int32_t rotary_dim, const float* cosine, const float* sine);
    // x (size) *= sigmoid(gate).
    void (*multiply_sigmoid)(float* x, const float* gate, int64_t size);
    // x = outer · tanh(inner · x), with an error of about 3e-7 · outer.
    void (*soft_cap)(float* x, int64_t size, float inner, float outer);
    // x (size) as LinearRows.values of FP32 or BF16, with zeros up to `padded`.
    void (*convert)(Precision, const float* x, int64_t size, int64_t padded, uint8_t* out);
    // Quantizes a query for int8 blocks, where attention computes in BF16: see AttentionTile.
    void (*store_query)(const float* x, int32_t head_dim, int64_t key_depth, uint8_t* to, float* scales,
                        int32_t* offsets);
    // Into a position of a block, in the block's precision: FP32, BF16, or INT8 with the scale max |x| / 127, which is
    // NaN where an element is NaN or infinite.
    void (*store_key)(Precision, const float* key, int32_t head_dim, int64_t key_depth, int32_t position,
                      const KeyValueBlock&);
    void (*store_value)(Precision, const float* value, int32_t head_dim, int32_t position, const KeyValueBlock&);
    // A row in int8, with zeros up to a multiple of 16; returns its scale, as above.
    float (*store_row)(const float* x, int32_t size, bool key, uint8_t* to);
    // Rows as the first positions of a block, with zeros up to a multiple of 16 positions and up to `key_depth`.
    void (*pack_positions)(const PositionRows&, const KeyValueBlock&);
    // A partial of each query of the tile; sum 0 where a query sees no position of the block. `next`, or null: the
    // block that the caller attends to next, which is read from memory meanwhile.
    void (*attend)(const AttentionTile&, const KeyValueBlock&, const KeyValueBlock* next, AttentionPartial* partials);
    void (*merge)(AttentionPartial& into, const AttentionPartial& next, float scale, int32_t head_dim);
    ArgMax (*argmax)(const float* x, int64_t size);
    // The largest of each NOISE_GROUP of x (size), NaN where one of them is.
    void (*group_maxima)(const float* x, int64_t size, float* maxima);
    // exp((x - largest) ÷ temperature) of x (size), x <= largest, with NumPy's bits.
    void (*sampling_weights)(const float* x, int64_t size, float largest, float temperature, float* out);
    // The sum of such weights, and of those above `limit`, and equal to it before column `before`.
    WeightSums (*sum_weights)(const float* x, int64_t size, float largest, float temperature, float limit,
                              int64_t before);
    // The columns of x (size), ascending, that may pass the search, and a few that do not; returns how many. start: of
    // the first column's random bits before they are finalized. found: (NOISE_GROUP) where size is at most that.
    int32_t (*find_noise)(const NoiseSearch&, const float* x, int64_t size, uint64_t start, int32_t* found);
    // Packs a panel: `columns` output columns (16, or fewer at the end of a matrix) of `width` inputs, which begin
    // `stride` elements apart. False where one is NaN or infinite: the panel is then invalid.
    bool (*pack)(Precision, int32_t group, SourceType, const void* source, int64_t stride, int64_t columns,
                 int64_t width, int64_t depth, uint8_t* panel, float* scales, float* scratch);
    // Output column `column` of a linear in blocks, as fp32 (depth): a row of a table.
    void (*look_up)(const Linear&, int64_t column, float* out);
    // To fp32. False where a value is NaN or infinite.
    bool (*widen)(SourceType, const void* source, int64_t size, float* out);
    // Reads every byte once, for measuring bandwidth; prefetches `ahead` bytes ahead, 0: not at all.
    uint64_t (*read)(const uint8_t* data, int64_t size, int64_t ahead);
    void (*narrow)(SourceType, const float* source, int64_t size, void* out);  // to fp32 or bf16
    // out[i] = bias[i] + sum over t < kernel_size of weights[t * stride + i] * rows[t][i], zero from `size` up to a
    // multiple of 16; then silu. A row that is null is zero. bias: (size), or null.
    void (*convolve)(const float* const* rows, int32_t kernel_size, const float* weights, int64_t stride,
                     const float* bias, bool silu, int64_t size, float* out);
    void (*unit_length)(float* x, int64_t size, float epsilon, float factor);  // x * factor / sqrt(sum x² + epsilon)
    void (*silu_gate)(float* x, const float* gate, int64_t size);              // x *= silu(gate)
    // out = softplus(in + bias), all (size); zero up to a multiple of 16.
    void (*steps)(const float* in, const float* bias, int64_t size, float* out);
    // out[row · stride …] += scale · (B · low[low · low_stride …]) of each of the rows, 16 columns of each; the
    // products of a row are added in the order of the rank, whatever rows are beside it.
    void (*expand)(const LowRankPanel&, const LowRankRow* rows, int64_t count, const float* low, int64_t low_stride,
                   float* out, int64_t stride);
    // out[c] = sum over t of x[c - t · stride] · (base[t, c] + scales[t, c / group]), in the order of t.
    void (*convolve_groups)(const GroupedConv&, float* out);
    float (*dot)(const float* x, const float* y, int64_t size);
    // Multiply-adds of a precision and nothing else, for measuring the peak; returns their number.
    int64_t (*multiply)(Precision, int64_t steps);
};

// Null where this library was built without the instruction set.
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx2_vnni();
const KernelTable* kernels_avx512();
const KernelTable* kernels_avx512_vnni();
const KernelTable* kernels_avx512_bf16();
const KernelTable* kernels_amx();

}  // namespace ipex_assist
