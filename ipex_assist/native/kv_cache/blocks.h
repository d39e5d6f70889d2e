// Keys and values of a model's sequences, in blocks of 256 positions: one pool of them, of which pages are taken when
// they are first written. A block holds all layers and KV heads of its positions, int8 with its scales; a KV head's
// part of it is contiguous, as one thread writes it and so has it on its own node.
#pragma once
#include "kv_cache/key_factors.h"

namespace ipex_assist {

class Blocks {
public:
    // In BF16, INT8, or, of a model that computes in it, FP32. Throws std::invalid_argument for another precision, for
    // INT8 where the model's weights are not there, and for a number of blocks that cannot be; std::bad_alloc where
    // there is no address space.
    Blocks(const Model& model, int64_t count, Precision precision);
    static int64_t bytes_each(const Model& model, Precision precision);
    bool fits(const Model& model) const;  // whether they were made for this model, or one of its shape
    int64_t count() const { return count_; }
    Precision precision() const { return precision_; }
    Precision attention_precision() const { return attention_precision_; }  // of queries and probabilities
    KeyValueBlock at(int32_t id, int32_t layer, int32_t kv_head) const {
        uint8_t* keys = data_.data() + ((id * kv_heads_ + kv_head) * layers_ + layer) * part_bytes();
        uint8_t* values = keys + key_bytes_;
        if (precision_ != INT8) return {keys, values, nullptr, nullptr};
        float* scales = reinterpret_cast<float*>(values + value_bytes_);
        return {keys, values, scales, scales + BLOCK_POSITIONS};
    }
    // What keys are divided by, and queries multiplied with: (head_dim) powers of two, or null for 1.
    const float* key_factors(int32_t layer, int32_t kv_head) const {
        return key_factors_.empty() ? nullptr : key_factors_.data() + (layer * kv_heads_ + kv_head) * head_dim_;
    }
    // Which of some threads on several memory nodes writes a KV head's part of a block, and so has it on its own.
    int owner(int32_t id, int32_t kv_head, int threads) const;
    // By all threads, or by the owners. Refuses blocks that there are not.
    void copy(Pool& pool, int32_t from, int32_t to) const;
    // Gives the memory of some blocks back; they hold zeros then, or what they held.
    void discard(const int32_t* ids, int64_t number) const;

private:
    int64_t part_bytes() const { return key_bytes_ + value_bytes_ + scale_bytes_; }
    int64_t bytes() const { return layers_ * kv_heads_ * part_bytes(); }
    void check(int64_t id) const;

    const Model* const model_;
    Precision precision_, attention_precision_;
    int64_t count_, layers_, kv_heads_, head_dim_, key_bytes_, value_bytes_, scale_bytes_;
    std::vector<float> key_factors_;
    Memory data_;
};

}  // namespace ipex_assist
