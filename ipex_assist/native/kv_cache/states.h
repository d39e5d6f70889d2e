// The states of sequences in a model's layers: one pool, whose pages are taken when first written.
//
// A sequence's state is, for each recurrent layer, what its mixer keeps after the sequence's first `settled` tokens,
// and the *inputs* of its last rows: what the layer's input linear gave, before the output gates. A pass first applies
// the rows after the state that have stayed (they were accepted), then computes its own. So a row is forgotten by
// applying it no more, and no state is ever copied for that.
//
//     tokens    0 … settled - 1 | settled … start - 1 | start … end - 1
//               in the state      applied again         the rows of this pass
//     inputs kept       [settled - (conv_kernel - 1), end), at most PENDING_ROWS + conv_kernel - 1 of them
//
// In a layer of attention a state is what its mixer keeps of the last positions (KeptByMixer), of so many that rows
// which are forgotten, PENDING_ROWS at most, leave those that the next ones read. So nothing is applied again.
#pragma once
#include <memory>
#include <vector>

#include "packing/model.h"

namespace ipex_assist {

constexpr int32_t PENDING_ROWS = 16;  // rows after a state: those of the longest draft, and the token before it

class States {
public:
    // precision: of keys and values. Throws std::invalid_argument for a model whose layers have none and a number of
    // states that cannot be; std::bad_alloc where there is no address space.
    States(std::shared_ptr<const PackedModel> model, int64_t count, Precision precision);
    static int64_t bytes_each(const PackedModel& model, Precision precision);  // of a sequence; 0: there are none
    bool fits(const PackedModel& model, Precision precision) const {
        return model_.get() == &model && precision_ == precision;
    }
    int64_t count() const { return count_; }
    // 16 columns of a head's state, (key_depth, 16).
    float* tile(int32_t state, int32_t layer, int64_t number) const {
        return floats(state, layer) + number * model_->layers[size_t(layer)].columns.tile_floats;
    }
    // The inputs (kept_width) of the row at a position.
    float* inputs(int32_t state, int32_t layer, int64_t position) const {
        const PackedLayer& of = model_->layers[size_t(layer)];
        const int64_t rows = PENDING_ROWS + of.recurrent.conv_kernel - 1;
        return floats(state, layer) + of.columns.tiles * of.columns.tile_floats +
               position % rows * of.columns.kept_width;
    }
    // What a layer of attention has of a state.
    uint8_t* kept(int32_t state, int32_t layer) const {
        return data_.data() + state * bytes_ + offsets_[size_t(layer)];
    }
    // By all threads. Refuses numbers of states that there are not.
    void copy(Pool& pool, int32_t from, int32_t to) const;
    // A state's bytes, bytes_each of them, as `write` takes them. Both refuse a state that there is not.
    void read(int32_t state, uint8_t* bytes) const;
    void write(Pool& pool, int32_t state, const uint8_t* bytes) const;
    // Gives the memory of some states back; they hold zeros then.
    void discard(const int32_t* states, int64_t number) const;

private:
    float* floats(int32_t state, int32_t layer) const { return reinterpret_cast<float*>(kept(state, layer)); }
    void check(int64_t state) const;
    void fill(Pool& pool, int32_t to, const uint8_t* state) const;

    const std::shared_ptr<const PackedModel> model_;
    Precision precision_;
    int64_t count_, bytes_;         // states, and of each
    std::vector<int64_t> offsets_;  // of each layer within a state, and its end
    Memory data_;
};

}  // namespace ipex_assist
