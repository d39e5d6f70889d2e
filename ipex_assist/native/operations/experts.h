// Experts of a row, for the operations of a layer's experts.
#pragma once
#include "operations/pass.h"

namespace ipex_assist {

// Those that a router chose and the shared one.
inline int64_t experts_of_row(const MlpSpec& spec) { return spec.experts_per_token + (spec.shared_size ? 1 : 0); }

// What the router got of a row.
inline const float* routed_row(const Pass& pass, const PackedLayer& layer, int thread, int64_t row) {
    const uint8_t* routed = pass.inputs(thread, layer.router.depth).values;
    return reinterpret_cast<const float*>(routed) + row * layer.router.depth;
}

// Columns [first, end) of what a row's experts made of it: add_experts.cpp.
void add_span(const Pass& pass, const PackedLayer& layer, int thread, int64_t row, int64_t first, int64_t end);

}  // namespace ipex_assist
