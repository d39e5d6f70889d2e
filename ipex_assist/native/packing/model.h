// A model's packed weights: where each of them lies in one image, and how they get there.
#pragma once
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "packing/spec.h"
#include "threads/pool.h"

namespace ipex_assist {

enum Slot : int32_t {
    EMBED_TOKENS,
    EMBED_POSITIONS,
    PROJECT_IN,
    PROJECT_OUT,
    LM_HEAD,
    FINAL_NORM,
    EMBED_NORM,
    ATTENTION_NORM,
    ATTENTION_OUT_NORM,
    MLP_NORM,
    MLP_OUT_NORM,
    Q_NORM,
    K_NORM,
    SINKS,
    Q_PROJ,
    K_PROJ,
    V_PROJ,
    O_PROJ,
    GATE_PROJ,
    UP_PROJ,
    DOWN_PROJ,
    ROUTER,
    SHARED_GATE,
    SLOTS
};

struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;
};

// What happens to a row x between two linears: it gets what the first gave (delta), times `multiplier`, and the second
// gets x; with the norms that there are.
struct ResidualNorm {
    bool add = true;                      // not before the first layer
    bool late = false;                    // the second gets what x was before delta came: in parallel layers
    float multiplier = 1;                 // of delta
    const Norm* post = nullptr;           // of delta
    const Norm* post_residual = nullptr;  // of x and delta, which becomes x
    const Norm* pre = nullptr;            // of what the second gets
};

struct Mlp {
    Linear up, down;
};

// Its steps are into_attention, qkv, attention, output, into_mlp, up, down; or router and experts in place of the last
// two.
struct PackedLayer : LayerSpec {
    Linear qkv, output, up, down;
    Linear router;             // fp32; where there is a shared gate, it has the first column of the last block
    std::vector<Mlp> experts;  // the shared one is the last
    ResidualNorm into_attention, into_mlp;
    Norm attention_norm, attention_out_norm, mlp_norm, mlp_out_norm;  // the latter of each is a post norm
    const float *q_norm = nullptr, *k_norm = nullptr;
    const float* sinks = nullptr;  // (heads), or null
};

// Where the rows of a checkpoint's matrix go: to every `step`-th block of a linear from `first` on.
struct PackTarget {
    const Linear* linear;
    int64_t first, step, columns, width;
};

// Weights or logits that hold NaN or infinity; says where.
struct NotFinite : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class PackedModel {
public:
    // layers: (spec.layers). Throws std::invalid_argument for specs that no model can have.
    PackedModel(const ModelSpec& spec, const LayerSpec* layers, const KernelTable* kernels);

    // Bytes of the image; it is the same on every machine and for any number of threads.
    int64_t image_bytes() const { return image_bytes_; }
    // Bytes of the image from `offset` on: where they are, or copied to `buffer` where memory has them elsewhere.
    const uint8_t* image(int64_t offset, int64_t bytes, uint8_t* buffer) const;
    uint64_t checksum(Pool& pool) const;  // of the image
    bool has_memory() const { return image_.data() != nullptr; }
    // Whether every weight is there, so that passes may run.
    bool ready() const;
    int64_t missing() const {
        return missing_count_;
    }  // weights that are not packed yet, of an image that is allocated
    // Empty memory to pack into; or a file's part, mapped, or copied. A mapped file must keep its length as long as the
    // model lives, or until `settle` is done with it. SETTLE maps where all threads are on one memory node, and copies
    // where not. True where all is in memory of our own, or stays mapped.
    // Memory of our own follows the nodes of this pool, if it has several (layout.cpp). Another pool computes the same
    // with it, and reads more of other nodes.
    void allocate(const Pool& pool);
    bool follows(
        const Pool& pool) const;  // whether the blocks of its slices lie on each thread's node, where there are several
    enum Adoption : int32_t { MAP, COPY, SETTLE };
    bool adopt(Pool& pool, int file, int64_t offset, Adoption how);
    // Copies the next `bytes` or so of a mapped image and puts the copy in its place, between two passes. True where
    // there is nothing left to copy.
    bool settle(Pool& pool, int64_t bytes);
    // Look tokens up in another model's table, which stays as long as this model does. Before `pack`, which then leaves
    // ours empty, or when the image is there: its own table's memory is given back. False where the tables differ in
    // shape.
    bool share_table(std::shared_ptr<const PackedModel> other);

    // Where weights go is said by a slot and, of a layer's, an index: its number, or of its expert e (the shared one is
    // the last) number + layers · (e + 1). Packs a contiguous tensor of the checkpoint (rows, columns). False where no
    // such weight of that shape exists. Throws NotFinite where the tensor holds NaN or infinity.
    bool pack(Pool& pool, Slot slot, int32_t index, bool bias, SourceType type, const void* data, int64_t rows,
              int64_t columns);
    // Packs a matrix that is quantized already: values (columns, width) from 0 to 15, and for each group of input
    // columns a scale and a zero from 0 to 31 (columns, groups); the last group may be short. Exact for scales of up to
    // 19 significant bits, as those of fp16 and bf16. False where there is no such int4 weight; NotFinite as above.
    bool pack_int4(Pool& pool, Slot slot, int32_t index, const uint8_t* values, const float* scales,
                   const uint8_t* zeros, int64_t columns, int64_t width);
    // The order of a linear's input columns (width), in which matrices are packed into it. False where it has none.
    bool set_order(Slot slot, int32_t index, const int32_t* order, int64_t width);
    // Columns [first, last) of a row (width) in the order of `linear`: in `buffer`, or where they are if it has none.
    static const float* arrange(const Linear& linear, const float* row, int64_t width, int64_t first, int64_t last,
                                float* buffer);

    // The blocks of a linear that `thread` computes, and packed: [first, second).
    std::pair<int64_t, int64_t> slice(const Linear& linear, int thread, int threads) const;

    // Blocks first <= b < last of a linear: see KernelTable::linear.
    void multiply(const Linear& linear, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
                  int64_t stride) const;
    void embed(int32_t token, float* out) const;
    const float* position_row(int32_t position) const;

    // Of queries and probabilities, and, unless fewer bits are asked for, of keys and values.
    Precision attention_precision() const { return spec.precision == FP32 ? FP32 : BF16; }

    const ModelSpec spec;
    const KernelTable* const kernels;
    std::vector<PackedLayer> layers;
    Linear head{}, project_in{}, project_out{};
    Norm final_norm, embedding_norm;
    ResidualNorm into_head;

private:
    static int64_t part_width(int64_t columns) { return round_up(columns, LANES); }
    bool shared_table() const { return spec.tied_head && (spec.precision == FP32 || spec.precision == BF16); }
    // Bytes of the image that lie side by side in memory, too.
    struct Piece {
        int64_t start, bytes;
        uint8_t* at;
        int node;  // -1: all read it
    };

    // layout.cpp
    void place(const Pool& pool);
    void divide(const Pool* pool);
    const uint8_t* take(int64_t bytes, int64_t alignment);
    void end_piece();
    void place_on_nodes(Linear& linear);
    void lay_out();
    Linear make_linear(int64_t columns_padded, int64_t width, bool bias, Precision precision, int64_t unit = 1);
    const float* make_vector(int64_t size);
    Norm make_norm();
    void lay_out_layer(PackedLayer& layer);
    void lay_out_mlp(PackedLayer& layer);
    Mlp make_mlp(const MlpSpec& mlp, int64_t size);
    void list_linears();
    void make_residual_norms();
    PackTarget target(Slot slot, int32_t index) const;
    PackTarget attention_target(Slot slot, int32_t index) const;
    PackTarget mlp_target(Slot slot, int32_t index) const;
    const float* vector(Slot slot, int32_t index, bool bias) const;
    int64_t vector_size(Slot slot, int32_t index) const;
    bool exists(Slot slot, int32_t index, bool bias) const;
    size_t flag(Slot slot, int32_t index, bool bias) const;
    void expect_weights();
    void expect_none() { missing_.clear(), missing_count_ = 0; }
    void arrived(Slot slot, int32_t index, bool bias);
    void require_memory() const;
    [[noreturn]] void refuse_values(SourceType type, const void* data, int64_t rows, int64_t columns) const;
    bool pack_linear(Pool& pool, const PackTarget& target, bool bias, SourceType type, const void* data);
    bool pack_table(Pool& pool, SourceType type, const void* data, int64_t rows, int64_t columns);

    std::vector<std::vector<float>> slopes_;  // of each layer
    std::vector<LayerSpec> layer_specs_;
    std::vector<const Linear*> linears_;
    int64_t image_bytes_ = 0, elsewhere_ = 0;  // and of these, blocks on nodes
    uintptr_t base_ = 0;                       // of the image while it is laid out
    std::vector<int> node_threads_;  // each node's first thread, and how many there are of all; empty: one node
    std::vector<uintptr_t> node_starts_, node_at_;  // of each node's blocks, and while it is laid out of the next ones
    std::vector<std::vector<NodeBlocks>> parts_;    // Linear::nodes
    std::vector<Piece> pieces_;                     // all of the image, in its order
    Memory image_;
    bool writable_ = false;      // image_ is memory of our own, not a file's
    int64_t settled_ = 0;        // of a mapped image, bytes that are memory of our own by now
    std::vector<bool> missing_;  // by flag(): weights that this model has and nobody packed
    int64_t missing_count_ = 0;
    std::shared_ptr<const PackedModel> table_of_;
    const uint8_t* table_ = nullptr;    // (vocab, embedding) bf16 or fp32, unless the head serves
    const float* positions_ = nullptr;  // (positions, hidden)
};

// Where a block of a linear lies.
inline const uint8_t* weights_of(const Linear& linear, int64_t block) {
    const NodeBlocks* node = linear.nodes;
    while (node && node[1].first <= block) node++;
    return (node ? node->weights : linear.weights) + block * block_bytes(linear.precision, linear.group, linear.depth);
}

// f(part, from, end) for blocks first <= b < last of a linear: for those of each memory node, as `part` has them.
template <class F>
void each_part(const Linear& linear, int64_t first, int64_t last, F&& f) {
    if (!linear.nodes) {
        if (first < last) f(linear, first, last);
        return;
    }
    Linear part = linear;
    part.nodes = nullptr;
    for (const NodeBlocks* node = linear.nodes; node->first < last; node++) {
        const int64_t from = first > node->first ? first : node->first,
                      end = last < node[1].first ? last : node[1].first;
        part.weights = node->weights;
        if (from < end) f(part, from, end);
    }
}

// Of bytes in memory, by all threads at the speed of reading it; a model's checksum is that of its image.
uint64_t checksum(Pool& pool, const uint8_t* data, int64_t size);

}  // namespace ipex_assist
