// Keys and values of a model's sequences, in blocks of 256 positions: one pool of them, of which pages are taken when
// they are first written. A block holds all layers and KV heads of its positions, int8 with its scales.
#pragma once
#include <memory>
#include <vector>

#include "kv_cache/key_factors.h"
#include "threads/team_nodes.h"

namespace ipex_assist {

// What the mixer of a layer keeps (Mixer::keep): bytes of a block beside keys and values; whether the key and the value
// of a position are kept as rows, as who attends to chosen positions reads them one by one: else in panels, as attention
// multiplies them; and bytes of a sequence's state, in layers of attention.
struct KeptByMixer {
    int64_t beside = 0;
    bool rows = false;
    int64_t state = 0;
};
// mixers/table.cpp: with keys and values in a precision, for attention in another one.
KeptByMixer kept_by_mixer(const LayerSpec& layer, Precision precision, Precision attention);
inline int64_t key_row(const AttentionSpec& a) { return round_up(a.head_dim, LANES); }  // elements of a key's row

// Where a block has what. It is made of one part for each KV head of each layer: head 0 of all layers, head 1 of all
// layers that have one, and so on, so that a head's parts lie side by side, as the threads of one memory node write
// them (TeamNodes::home). A layer that reads another one's keys and values has none, and one whose keys are in the states
// of sequences has what its mixer keeps alone. A part is its keys, its values, but where these are columns of keys, in
// int8 their scales; that of head 0 has, too, what its layer's mixer keeps beside them.
struct BlockLayout {
    BlockLayout(const PackedModel& model, Precision precision);

    struct HeadPart {
        int64_t offset, key_bytes, value_bytes, beside_bytes, bytes;
        bool rows;
        bool operator==(const HeadPart& other) const {
            return offset == other.offset && key_bytes == other.key_bytes && value_bytes == other.value_bytes &&
                   beside_bytes == other.beside_bytes && rows == other.rows;
        }
    };
    const HeadPart& part(int32_t layer, int32_t kv_head) const { return parts[size_t(first[size_t(layer)] + kv_head)]; }
    int32_t layers() const { return int32_t(first.size()) - 1; }
    int32_t kv_heads(int32_t layer) const { return first[size_t(layer) + 1] - first[size_t(layer)]; }
    bool operator==(const BlockLayout& other) const { return first == other.first && parts == other.parts; }

    std::vector<HeadPart> parts;  // layer by layer
    std::vector<int32_t> first;   // of each layer, the number of its first part; and how many parts there are
    std::vector<int64_t> heads;   // of each, where its parts begin
    int64_t bytes = 0;            // of a block
};

// Where blocks lie where several memory nodes have them: each node has a region of whole huge pages, and in it, block
// after block, the parts of the heads whose home it is (TeamNodes::home). So no huge page is of two nodes, whoever
// writes first. Without regions blocks lie one after the other: on one node, where nodes differ in threads, and where
// layers differ in heads.
struct NodeRegions {
    NodeRegions(const BlockLayout& layout, const TeamNodes& team, int64_t count);

    // Of the parts of a head, which lie side by side, from the start of all regions on.
    int64_t offset(int64_t id, int32_t head) const {
        const int64_t turn = id % nodes_each * heads_each + head % heads_each;
        const int64_t node = head / heads_each * nodes_each + turn % nodes_each;
        return node * bytes + (id / nodes_each * heads_each + turn / nodes_each) * head_bytes;
    }
    int64_t total() const { return regions * bytes; }

    int32_t regions = 0;                     // 0: there are none
    int32_t heads = 0;                       // of each layer that keeps any
    int32_t heads_each = 1, nodes_each = 1;  // of a group of heads, and of the nodes that share them in turns
    int64_t head_bytes = 0, bytes = 0;       // of any head in a block, and of a region
};

// The key and the value of a position, and in int8 their scales.
struct PositionRow {
    uint8_t *key, *value;
    float *key_scale, *value_scale;
};

inline int64_t element_bytes(SourceType type) { return type == SOURCE_F32 ? 4 : 2; }

class Blocks {
public:
    // In BF16, INT8, or, of a model that computes in it, FP32. Throws std::invalid_argument for another precision, for
    // INT8 where the model's weights are not there, and for a number of blocks that cannot be; std::bad_alloc where
    // there is no address space.
    Blocks(std::shared_ptr<const PackedModel> model, int64_t count, Precision precision);
    static int64_t bytes_each(const PackedModel& model, Precision precision);
    // Whether they were made for this model or one of its shape, or its target.
    bool fits(const PackedModel& model) const;
    int64_t count() const { return count_; }
    Precision precision() const { return precision_; }
    Precision attention_precision() const { return attention_precision_; }  // of queries and probabilities
    KeyValueBlock at(int32_t id, int32_t layer, int32_t kv_head) const {
        const BlockLayout::HeadPart& part = layout_.part(layer, kv_head);
        uint8_t* keys = place(id, part, kv_head);
        uint8_t* values = keys + part.key_bytes;
        if (precision_ != INT8) return {keys, values, nullptr, nullptr};
        float* scales = reinterpret_cast<float*>(values + part.value_bytes);
        return {keys, values, scales, scales + BLOCK_POSITIONS};
    }
    bool keeps_rows(int32_t layer) const { return layout_.part(layer, 0).rows; }
    // A position of a layer that keeps rows. Where it keeps no value, that is the last columns of the key, as it is of
    // latents; but not in int8, where the two have scales of their own.
    PositionRow row(int32_t id, int32_t layer, int32_t kv_head, int64_t position) const {
        const BlockLayout::HeadPart& part = layout_.part(layer, kv_head);
        const KeyValueBlock block = at(id, layer, kv_head);
        uint8_t* key = block.keys + position * (part.key_bytes / BLOCK_POSITIONS);
        if (!part.value_bytes) return {key, nullptr, nullptr, nullptr};
        uint8_t* value = block.values + position * (part.value_bytes / BLOCK_POSITIONS);
        if (precision_ != INT8) return {key, value, nullptr, nullptr};
        return {key, value, block.key_scales + position, block.value_scales + position};
    }
    // What a layer's mixer keeps beside keys and values, in a part of its own making.
    uint8_t* beside(int32_t id, int32_t layer) const {
        const BlockLayout::HeadPart& part = layout_.part(layer, 0);
        return place(id, part, 0) + part.bytes - part.beside_bytes;
    }
    // What keys are divided by, and queries multiplied with: (head_dim) powers of two, or null for 1.
    const float* key_factors(int32_t layer, int32_t kv_head) const {
        if (key_factors_.empty()) return nullptr;
        return key_factors_[size_t(layer)].data() + kv_head * int64_t(model_->layers[size_t(layer)].attention.head_dim);
    }
    // By all threads; of several memory nodes each copies what it has. Refuses blocks that there are not.
    void copy(Pool& pool, int32_t from, int32_t to) const;
    int64_t bytes() const { return layout_.bytes; }  // of a block
    // A block's bytes, as `write` takes them: they are the same on every machine. Both refuse a block that there is
    // not.
    void read(int32_t id, uint8_t* bytes) const;
    void write(Pool& pool, int32_t id, const uint8_t* bytes) const;
    // Gives the memory of some blocks back; they hold zeros then, or what they held.
    void discard(const int32_t* ids, int64_t number) const;

    // Of several nodes, from one border of huge pages to the next: the regions of each.
    const NodeRegions& regions() const { return regions_; }

private:
    uint8_t* place(int64_t id, const BlockLayout::HeadPart& part, int32_t head) const {
        if (!regions_.regions) return start_ + id * layout_.bytes + part.offset;
        return start_ + regions_.offset(id, head) + part.offset - layout_.heads[size_t(head)];
    }
    // f(part, head) for each part of a block.
    template <class F>
    void for_parts(F&& f) const {
        for (int32_t layer = 0; layer < layout_.layers(); layer++) {
            for (int32_t h = 0; h < layout_.kv_heads(layer); h++) f(layout_.part(layer, h), layer, h);
        }
    }
    void check(int64_t id) const;
    bool has_layers_of(const PackedModel& head) const;
    // source(part, head): where a part comes from.
    template <class F>
    void fill(Pool& pool, int32_t to, F&& source) const;

    const std::shared_ptr<const PackedModel> model_;
    Precision precision_, attention_precision_;
    int64_t count_;
    BlockLayout layout_;
    NodeRegions regions_;
    std::vector<std::vector<float>> key_factors_;  // of each layer, (kv_heads, head_dim)
    Memory data_;
    uint8_t* start_;  // of the first huge page
};

}  // namespace ipex_assist
