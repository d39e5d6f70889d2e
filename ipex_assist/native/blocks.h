// Keys and values of a model's sequences, in blocks of 256 positions: one pool of them, of which pages are taken when
// they are first written. A block holds all layers and KV heads of its positions; a KV head's part of it is contiguous,
// as one thread writes it and so has it on its own node.
#pragma once
#include "model.h"

namespace ipex_assist {

class Blocks {
public:
    // Throws std::invalid_argument for a number of blocks that cannot be, std::bad_alloc where there is no address space.
    Blocks(const Model& model, int64_t count);
    static int64_t bytes_each(const Model& model);
    bool fits(const Model& model) const;  // whether they were made for a model of this shape
    int64_t count() const { return count_; }
    KeyValueBlock at(int32_t id, int32_t layer, int32_t kv_head) const {
        uint8_t* keys = data_.data() + ((id * kv_heads_ + kv_head) * layers_ + layer) * (key_bytes_ + value_bytes_);
        return {keys, keys + key_bytes_};
    }
    // Which of some threads on several memory nodes writes a KV head's part of a block, and so has it on its own.
    int owner(int32_t id, int32_t kv_head, int threads) const;
    // By all threads, or by the owners. Refuses blocks that there are not.
    void copy(Pool& pool, int32_t from, int32_t to) const;
    // Gives the memory of some blocks back; they hold zeros then, or what they held.
    void discard(const int32_t* ids, int64_t number) const;

private:
    int64_t bytes() const { return layers_ * kv_heads_ * (key_bytes_ + value_bytes_); }
    void check(int64_t id) const;

    int64_t count_, layers_, kv_heads_, key_bytes_, value_bytes_;
    Memory data_;
};

}  // namespace ipex_assist
