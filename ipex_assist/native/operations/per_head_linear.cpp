// Linears that have some columns for each of several parts of a row: each head's matrices of latent attention, and the
// gates of Kimi Delta Attention.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {

void per_head_linear(const Pass& pass, int thread, const Linear& linear, int64_t columns, const PerHeadRows& x) {
    const auto [first, last] = slice(pass, linear, thread);
    const int64_t each = columns / LANES;
    const LinearRows inputs = pass.activations.own(thread).head_inputs.with_depth(linear.depth);
    for (int64_t panel = first, end; panel < last; panel = end) {
        const int64_t head = panel / each;
        end = std::min(last, (head + 1) * each);
        for (int64_t r = 0; r < x.rows; r++) {
            const float* row = x.from + r * x.from_stride + head * x.step;
            prepare_row(pass, thread, row, x.width, 0, linear.depth, r, linear, inputs);
        }
        float* out = x.out + head * x.out_width + (panel - head * each) * LANES;
        pass.model.multiply(linear, inputs, x.rows, panel, end, out, x.stride);
    }
}

}  // namespace ipex_assist
