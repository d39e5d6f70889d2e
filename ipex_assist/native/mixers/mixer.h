// What a layer has in the place of attention, or attention itself: what a mixer's folder has to say of it. table.cpp
// has them all.
#pragma once
#include <initializer_list>
#include <vector>

#include "operations/operations.h"
#include "packing/checks.h"
#include "packing/weight_list.h"

namespace ipex_assist {

struct Mixer {
    // Refuses numbers that no such layer can have.
    void (*check)(const ModelSpec& spec, const LayerSpec& layer);
    MixerColumns (*columns)(const LayerSpec& layer);
    void (*list_weights)(WeightList& list, const ModelSpec& spec, PackedLayer& layer);
    // Buffers that it needs beside those of its columns, for rows up to position `last`; may be null.
    void (*size)(const PackedLayer& layer, int64_t last, ActivationSizes& sizes);
    // prepare: what makes the rows that its first linear reads.
    void (*list_operations)(const PackedLayer& layer, LayerStep& step, const Operation& prepare);
    // Of attention that chooses what it reads; of others null. Refuses what does not go with the layers before it; and
    // says what a row sees.
    void (*check_among)(const LayerSpec* layers, int32_t number) = nullptr;
    void (*shape)(const AttentionSpec& spec, AttentionShape& shape) = nullptr;
    // What it keeps, with keys and values in a precision, for attention in another one.
    KeptByMixer (*keep)(const AttentionSpec& spec, Precision precision, Precision attention) = nullptr;
};

// Appends operations to a list.
inline void add(std::vector<Operation>& to, std::initializer_list<Operation> more) { to.insert(to.end(), more); }

constexpr Operation QKV_LINEAR{"qkv_linear", qkv_linear, PROJECTED};
constexpr Operation OUTPUT_LINEAR{"output_linear", output_linear, DELTA};

// The linear by which a mixer's `width` columns come back to the residual stream.
inline void list_output(WeightList& list, const ModelSpec& spec, PackedLayer& layer, const char* name, int64_t width,
                        bool bias) {
    list.linear(layer.output, {packed(spec.hidden_size), width, bias, spec.precision}, {{name, 0, spec.hidden_size}});
}

// A causal convolution of `columns` channels, which a checkpoint has with a channel's weights side by side.
inline void list_conv(WeightList& list, const RecurrentSpec& r, const char* name, const float*& weight,
                      int64_t columns) {
    list.vector(weight, {name, columns * r.conv_kernel, {columns, r.conv_kernel}});
}

// What all recurrent mixers have in common.
void check_recurrent(const RecurrentSpec& recurrent);

}  // namespace ipex_assist
