// The weights of each mixer (packing/weight_list.h).
#pragma once
#include "packing/weight_list.h"

namespace ipex_assist {

using ListMixerWeights = void(WeightList& list, const ModelSpec& spec, PackedLayer& layer);

ListMixerWeights list_attention_weights, list_latent_weights, list_scan_weights, list_short_conv_weights;

// The linear by which a mixer's `width` columns come back to the residual stream.
inline void list_output(WeightList& list, const ModelSpec& spec, PackedLayer& layer, const char* name, int64_t width,
                        bool bias) {
    list.linear(layer.output, {packed(spec.hidden_size), width, bias, spec.precision}, {{name, 0, spec.hidden_size}});
}

// A causal convolution of `columns` channels, which a checkpoint has with a channel's taps side by side.
inline void list_conv(WeightList& list, const RecurrentSpec& r, const char* name, const float*& weight,
                      int64_t columns) {
    list.vector(weight, {name, columns * r.conv_kernel, {columns, r.conv_kernel}});
}

}  // namespace ipex_assist
