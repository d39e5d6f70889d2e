// Linears that have some columns for each of several parts of a row: each head's matrices of latent attention, and the
// gates of Kimi Delta Attention.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {

namespace {

// A block of up to ROW_BLOCK rows. each: panels of a head. inputs: memory for them.
void some_rows(const Pass& pass, int thread, const Linear& linear, int64_t each, const PerHeadRows& x,
               const LinearRows& inputs, const LinearBlock& block) {
    for (int64_t panel = block.first, end; panel < block.last; panel = end) {
        const int64_t head = panel / each;
        end = std::min(block.last, (head + 1) * each);
        for (int64_t r = 0; r < block.rows(); r++) {
            const float* row = x.from + (block.row + r) * x.from_stride + head * x.step;
            prepare_row(pass, thread, row, x.width, 0, linear.depth, r, linear, inputs);
        }
        float* out = x.out + block.row * x.stride + head * x.out_width + (panel - head * each) * LANES;
        pass.model.multiply(linear, inputs, block.rows(), panel, end, out, x.stride);
    }
}

}  // namespace

void per_head_linear(const Pass& pass, int thread, const Linear& linear, int64_t columns, const PerHeadRows& x) {
    const LinearRows inputs = pass.activations.own(thread).head_inputs.with_depth(linear.depth);
    for (const LinearBlock& block : blocks_of(pass, linear, inputs, x.rows, thread)) {
        for (int64_t row = block.row; row < block.end_row; row += ROW_BLOCK)
            some_rows(pass, thread, linear, columns / LANES, x, inputs,
                      {row, std::min(row + ROW_BLOCK, block.end_row), block.first, block.last});
    }
}

}  // namespace ipex_assist
