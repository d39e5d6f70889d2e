// How large each channel of a model's keys is: what their int8 form is divided by.
#pragma once
#include <vector>

#include "packing/model.h"

namespace ipex_assist {

// Of each layer, (kv_heads, head_dim) powers of two. Channels of a key may lie a hundredfold apart, and always the same
// ones do (large biases): by one scale for all of them the small ones would be nothing but rounding. So keys are
// divided by these factors before they are rounded, and queries multiplied with them, which is exact. A factor is near
// the square root of its channel's size (root mean square): that halves the distance, as in SmoothQuant (Xiao et al.
// 2022, arXiv:2211.10438); factors as large as the channels would leave those that matter most with the error of all
// others. The two channels that are rotated against each other have one factor (paired_dim).
//
// What the keys are is seen on 16 rows of +1 and -1, weighted as the norm before them weights its rows: a matter of the
// weights alone. Throws std::invalid_argument for a model whose weights are not there.
std::vector<std::vector<float>> key_factors(const Model& model);

}  // namespace ipex_assist
