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

// Read what run_linears reads of the weights, by the same threads and with nothing to multiply, and return its bytes: how
// fast that could be. ahead: bytes that are prefetched, or 0.
int64_t read_linears(const PackedModel& model, Pool& pool, LinearRole role, int64_t ahead);

}  // namespace ipex_assist
