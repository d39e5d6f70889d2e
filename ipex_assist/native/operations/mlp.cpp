// The MLP of a layer, plain or gated: up (gate and up together), activation, down.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Where the down linear takes activated columns in the order that they are computed in, they are prepared for it at
// once.
bool prepares_in_place(const Pass& pass, const Linear& down) { return pass.plan.decode && !down.order; }

// The spans of 128 columns that this thread has activated, or of which it has activated the last columns.
void prepare_active(Pass& pass, int thread, const PackedLayer& layer, int64_t inner) {
    const int64_t parts = layer.mlp.gated ? 2 : 1, blocks = layer.up.blocks / parts, each = SCALE_COLUMNS / LANES;
    const auto [up_first, up_last] = slice(pass, layer.up, thread);
    const int64_t first = up_first / parts, end = up_last / parts;
    for (int64_t s = first / each; s * each < end; s++) {
        const int64_t done = std::min(end, (s + 1) * each) - std::max(first, s * each);
        if (!pass.completes(size_t(s), done, std::min(blocks, (s + 1) * each) - s * each)) continue;
        for (int64_t r = 0; r < pass.plan.rows(); r++) {
            const float* row = pass.activations.shared.active.data + r * inner;
            prepare_row(pass, thread, row, layer.mlp.intermediate_size, s * SCALE_COLUMNS,
                        std::min((s + 1) * SCALE_COLUMNS, layer.down.depth), r, layer.down, &NodeBuffers::down_inputs);
        }
    }
}

// What its kernel takes, of the numbers that a checkpoint has: softplus of both alphas, and beta added to the second.
Xielu xielu_of(const PackedLayer& layer) {
    const auto softplus = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
    const float beta = *layer.xielu[XIELU_BETA - ALPHA_P];
    return {float(softplus(*layer.xielu[0])), float(beta + softplus(*layer.xielu[ALPHA_N - ALPHA_P])), beta,
            *layer.xielu[XIELU_EPS - ALPHA_P]};
}

void up_linear(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const int64_t rows = pass.rows_kept(step), inner = round_up(layer.mlp.intermediate_size, LANES);
    float* active = pass.activations.shared.active.data;
    const auto [first, last] = slice(pass, layer.up, thread);
    const LinearRows in = pass.inputs(thread, layer.up.depth);
    const Xielu xielu = layer.mlp.activation == XIELU ? xielu_of(layer) : Xielu{};
    activate_blocks(pass, thread, layer.mlp, layer.up, in, rows, first, last, active, inner, &xielu);
    const bool in_place = prepares_in_place(pass, layer.down);
    if (in_place) prepare_active(pass, thread, layer, inner);
    prefetch(pass, thread, layer.down);
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
    if (in_place) return;
    prepare_rows(pass, thread, active, inner, layer.mlp.intermediate_size, rows, nullptr, layer.down);
    pass.wait(thread);
}

}  // namespace

void activate_blocks(const Pass& pass, int thread, const MlpSpec& spec, const Linear& up, const LinearRows& in,
                     int64_t rows, int64_t first, int64_t last, float* out, int64_t stride, const Xielu* xielu) {
    const Array<float>& temporary = pass.activations.own(thread).up;
    const int64_t parts = spec.gated ? 2 : 1;
    for (int64_t b = first; b < last; b += UP_BLOCKS) {
        const int64_t end = std::min(b + UP_BLOCKS, last);
        pass.model.multiply(up, in, rows, b, end, temporary.data, temporary.columns);
        for (int64_t r = 0; r < rows; r++) {
            float* to = out + r * stride + b / parts * LANES;
            if (spec.activation == XIELU) pass.kernels.xielu(*xielu, temporary.row(r), end - b, to);
            else pass.kernels.activate(spec.activation, spec.gated, temporary.row(r), (end - b) / parts, to);
        }
    }
}

void mlp(Pass& pass, const LayerStep& step, int thread) {
    up_linear(pass, step, thread);
    const Linear& down = pass.layer(step).down;
    const NodeBuffers& on_node = pass.activations.on(pass.node(thread));
    const PreparedRows& active = prepares_in_place(pass, down) ? on_node.down_inputs : on_node.inputs;
    const Array<float>& delta = pass.delta(thread);
    linear(pass, thread, active.with_depth(down.depth), down, pass.rows_kept(step), delta.data, delta.columns,
           &pass.reader(step));
}

}  // namespace ipex_assist
