// Factors that even out the channels of int8 keys.
#pragma once
#include <vector>

#include "packing/model.h"

namespace ipex_assist {

// Returns powers of two, (kv_heads, head_dim) of each layer. The channels of keys may differ in magnitude a
// hundredfold, always the same ones (large biases): with one scale for all of them the small ones would be lost in
// rounding. So keys are divided by these factors before they are rounded, and queries are multiplied by them, which is
// exact. A factor is near the square root of its channel's root mean square, which halves the differences on a
// logarithmic scale, as in SmoothQuant (Xiao et al. 2022, arXiv:2211.10438); factors as large as the channels would
// give the largest ones the rounding errors of all others. The two channels that rotary embedding combines share a
// factor (paired_dim).
//
// Magnitudes are measured on 16 rows of +1 and -1, weighted by the norm before the keys: they depend on the weights
// alone. Throws std::invalid_argument for a model whose weights are not loaded.
std::vector<std::vector<float>> key_factors(const PackedModel& model);

}  // namespace ipex_assist
