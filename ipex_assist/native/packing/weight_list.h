// The list of a model's weights: what each is called, its shape and format, and where it goes. Each mixer (mixers/) and
// MLP lists its own once, in the order of the image; visitors place them, find them by name, and say which are
// expected.
#pragma once
#include <initializer_list>

#include "packing/weights.h"

namespace ipex_assist {

// A matrix of the checkpoint as the columns of a linear: its rows go to every `step`-th panel from `first` on.
struct LinearPart {
    const char* name;
    int64_t first, columns;
    int64_t step = 1;
    bool biased = true;  // whether the linear's bias, where it has one, has a part for it
    int64_t width = 0;   // where it reads the first columns of what the linear does alone; 0: all of them
};

struct LinearShape {
    int64_t columns, width;  // the former as packed: a multiple of 16
    bool bias;
    Precision precision;
    int64_t granularity = 1;  // panels that stay with one thread
};

struct VectorShape {
    const char* name;
    int64_t size;
    VectorForm form{};
    int32_t parts = 0;  // of equal size, which are weights each: name_0, name_1 …; 0: it is one weight
};

class WeightList {
public:
    WeightList() = default;
    virtual ~WeightList() = default;
    WeightList(const WeightList&) = delete;
    WeightList& operator=(const WeightList&) = delete;

    virtual void linear(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts) = 0;
    // bias: whether the checkpoint has it as a bias.
    virtual void vector(const float*& to, const VectorShape& shape, bool bias = false) = 0;
    // A table of a row for each token, in fp32 or bf16.
    virtual void table(const uint8_t*& to, const char* name, int64_t rows, int64_t columns) = 0;
    // What `list` lists has names that begin with place.number. or, of number -1, with place.
    template <class F>
    void within(const char* place, int32_t number, F&& list) {
        if (!enter(place, number)) return;
        list();
        leave();
    }
    // A norm's weight and bias, as far as norms of the model have them.
    void norm(Norm& to, const ModelSpec& spec, const VectorShape& shape) {
        if (spec.norm_affine) vector(to.weight, shape);
        if (spec.norms_biased) vector(to.bias, shape, true);
    }

private:
    // False where the visitor does not want what is there.
    virtual bool enter(const char* /*place*/, int32_t /*number*/) { return true; }
    virtual void leave() {}
};

// All of a model's weights.
void list_weights(WeightList& list, ModelWeights& weights);
// Those of a layer's mixer: its linears `qkv` and `output`, and what is between them. In mixers/table.cpp, as the next.
void list_mixer_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer);
MixerColumns mixer_columns(const LayerSpec& layer);

// Columns of a linear as packed.
inline int64_t packed(int64_t columns) { return round_up(columns, LANES); }

}  // namespace ipex_assist
