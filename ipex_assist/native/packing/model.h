// A model's packed weights in memory, and how they get there.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "formats/stored_numbers.h"
#include "memory/memory.h"
#include "packing/expert_cache.h"
#include "packing/layout.h"
#include "packing/stored_matrix.h"
#include "packing/weights.h"

namespace ipex_assist {

// Weights or logits that hold NaN or infinity; says where.
struct NotFinite : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class PackedModel : public ModelWeights {
public:
    // layers: (spec.layers). most_bytes: of weights in memory, of routed experts as many as there is room for, or as a
    // token needs; 0: all. Throws std::invalid_argument for specs that no model can have.
    PackedModel(const ModelSpec& spec, const LayerSpec* layers, const KernelTable* kernels, WeightFormats formats = {},
                int64_t most_bytes = 0);

    // Bytes of the image; it is the same on every machine and for any number of threads. It is without the experts that
    // a cache has.
    int64_t image_bytes() const { return layout_.bytes(); }
    // Bytes of the image from `offset` on: where they are, or copied to `buffer` where memory has them elsewhere.
    const uint8_t* image(int64_t offset, int64_t bytes, uint8_t* buffer) const;
    uint64_t checksum(Pool& pool) const;  // of the image
    bool has_memory() const { return image_.data() != nullptr; }
    // Whether every weight is there, those of a target included that a draft head takes, so that passes may run.
    bool ready() const;
    // Weights that are not packed yet, of an image that is allocated.
    int64_t missing() const { return int64_t(missing_.size()); }
    // Empty memory to pack into; or a file's part, mapped, or copied. A mapped file must keep its length as long as the
    // model lives, or until `settle` is done with it. SETTLE maps where all threads are on one memory node, and copies
    // where not. True where all is in memory of our own, or stays mapped.
    // Memory of our own follows the nodes of this pool, if it has several (layout.cpp). Another pool computes the same
    // with it, and reads more of other nodes.
    void allocate(const Pool& pool);
    // Where everything lies, and which threads that follows.
    const ImageLayout& layout() const { return layout_; }
    enum Adoption : int32_t { MAP, COPY, SETTLE };
    bool adopt(Pool& pool, int file, int64_t offset, Adoption how);
    // Copies the next `bytes` or so of a mapped image and puts the copy in its place, between two passes. True where
    // there is nothing left to copy.
    bool settle(Pool& pool, int64_t bytes);
    // Small pages of memory of its own joined (memory/huge_pages.h): true where none is left.
    friend bool join_pages(const PackedModel& model, double seconds);
    // Look tokens up in another model's table, which stays as long as this model does. Before `pack`, which then leaves
    // ours empty, or when the image is there: its own table's memory is given back. False where the tables differ in
    // shape.
    bool share_table(std::shared_ptr<const PackedModel> other);
    // Take another model's head for this draft head's, likewise. False where the heads differ in shape.
    bool share_head(std::shared_ptr<const PackedModel> other);

    // Packs a contiguous tensor of the checkpoint. False where no such weight of that shape exists. Throws NotFinite
    // where the tensor holds NaN or infinity.
    bool pack(Pool& pool, std::string_view name, const StoredMatrix& matrix);
    // Packs rows [first, first + matrix.rows) of a matrix that comes in ranges, in ascending order: the last one counts
    // as its arrival. Ranges begin at multiples of 16 rows. False as above, or where a range does not; rows of what is
    // not finite are counted from the matrix's first.
    bool pack_rows(Pool& pool, std::string_view name, int64_t first, const StoredMatrix& matrix);
    // Packs a matrix that is quantized already, as its weight's format has its numbers: int4, int8 with a scale for each
    // column, or fp8 with one for each span of 128 input columns (formats/*/stored.h). False where there is no such
    // weight, or where within 16 columns of fp8 scales vary both by span and by column; NotFinite as above.
    bool pack_stored(Pool& pool, std::string_view name, const StoredNumbers& matrix);
    // Packs a matrix of rows in blocks, in the format that the weight has. False where there is no such weight in blocks;
    // NotFinite where a scale is NaN or infinite; throws where the format has no scales of rows and there are some.
    bool pack_blocks(Pool& pool, std::string_view name, const BlockMatrix& matrix);
    // The order of a linear's input columns (width), in which matrices are packed into it. False where it has none.
    bool set_order(std::string_view name, const int32_t* order, int64_t width);

    // Panels first <= b < last of a linear: see KernelTable::linear. Many rows go block by block, of ROW_BLOCK rows and
    // as many panels as stay in a core's cache meanwhile.
    void multiply(const Linear& linear, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
                  int64_t stride) const;
    void embed(int32_t token, float* out) const;
    // A token's values for one layer (per_layer_size) in the table of per-layer embeddings.
    void embed_for_layer(int32_t token, int64_t layer, float* out) const;

    const KernelTable* const kernels;
    bool nodes_refused = false;  // prefer_node, when memory was allocated

private:
    void require_memory() const;
    bool pack_matrix(Pool& pool, const Weight& weight, int64_t first, const StoredMatrix& matrix);
    // Whether a weight's table is not kept, as another model's serves.
    bool skips_table(const Weight& weight) const { return table_of_ && weight.table == table; }
    void arrived(std::string_view name) { missing_.erase(std::string(name)); }

    std::vector<std::vector<float>> slopes_;  // of each layer
    std::vector<std::vector<int64_t>> hash_numbers_;
    ImageLayout layout_;
    std::unordered_set<std::string> missing_;  // weights that are expected
    Memory image_;
    bool writable_ = false;  // image_ is memory of our own, not a file's
    int64_t settled_ = 0;    // of a mapped image, bytes that are memory of our own by now
    std::shared_ptr<const PackedModel> table_of_, head_of_;

public:
    // Of routed experts, where not all are in memory; else null. The last member: its threads use the others.
    std::unique_ptr<ExpertCache> expert_cache;
};

// Bytes of weights in memory.
inline int64_t resident_bytes(const PackedModel& model) {
    return model.image_bytes() + (model.expert_cache ? model.expert_cache->bytes() : 0);
}

// Whether a weight is an expert's that is not always in memory.
inline bool is_cached(const PackedModel& model, const Weight& weight) {
    return model.expert_cache && model.expert_cache->has(weight.layer, weight.part.linear);
}

// Of a model's queries and probabilities, and, unless fewer bits are asked for, of its keys and values.
inline Precision attention_precision(const PackedModel& model) { return model.spec.precision == FP32 ? FP32 : BF16; }

// Columns [first, last) of a row (width) in the order of `linear`: in `buffer`, or where they are if it has none.
const float* arrange(const Linear& linear, const float* row, int64_t width, int64_t first, int64_t last, float* buffer);

// Of bytes in memory, by all threads at the speed of reading it; a model's checksum is that of its image.
uint64_t checksum(Pool& pool, const uint8_t* data, int64_t size);

}  // namespace ipex_assist
