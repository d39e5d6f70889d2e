// One linear of every layer by itself, outside a pass: for benchmarks and tests.
#pragma once
#include "packing/model.h"

namespace ipex_assist {

// Rows in a linear's form; they grow with the most rows.
struct LinearBuffers {
    Memory values, scales, sums, tiles;
};

// out (rows, stride) = linear(x (rows, width)) of each layer in turn, so that weights come from memory and not from a
// cache; the last layer's result stays. Rows are put into the linear's form each time.
void run_linears(const PackedModel& model, Pool& pool, LinearBuffers& buffers, LinearRole role, const float* x,
                 int64_t rows, float* out, int64_t stride);

}  // namespace ipex_assist
