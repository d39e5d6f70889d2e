// Per-layer embeddings (Gemma 3n and 4): each layer has a narrow embedding of each token, a row of a table of its own
// beside a projection of the usual one. After the layer's MLP it says how much of each feature of the residual stream,
// of which there are as many, is added to it.
#include <x86intrin.h>

#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
void prepare_stream(Pass& pass, int thread, int64_t column, const Linear& next) {
    const PassPlan& plan = pass.plan();
    const ThreadBuffers& own = pass.activations.own(thread);
    const int64_t size = pass.model.spec.hidden_size;
    if (plan.each_thread_prepares) {
        const LinearRows to = own.inputs.with_depth(next.depth);
        for (int64_t r = 0; r < plan.rows(); r++)
            prepare_row(pass, thread, own.x.row(r) + column, size, 0, next.depth, r, next, to);
        return;
    }
    const Array<float>& x = pass.activations.shared.x;
    for (int64_t r = share(plan.rows(), thread, plan.threads); r < share(plan.rows(), thread + 1, plan.threads); r++)
        prepare_row(pass, thread, x.row(r) + column, size, 0, next.depth, r, next, &NodeBuffers::inputs);
    pass.wait(thread);
}

// (norm(projection · hidden^-½) + row of the table · size^½) · 2^-½. A norm of rows of which all are multiplied with
// the same is that of the rows with an epsilon that is divided by its square.
void embed_per_layer(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const PassPlan& plan = pass.plan();
    const Array<float>& inputs = pass.activations.shared.per_layer;
    const int64_t size = model.spec.per_layer_size, layers = model.spec.layers, items = plan.rows() * layers;
    prepare_stream(pass, thread, 0, model.per_layer_in);
    linear(pass, thread, pass.inputs(thread, model.per_layer_in.depth), model.per_layer_in, plan.rows(), inputs.data,
           inputs.columns);
    const float epsilon = model.spec.norm_eps * float(model.spec.hidden_size);
    const float factor = std::sqrt(float(size)), half = std::sqrt(0.5f);
    float* own = pass.activations.own(thread).row.data;
    for (int64_t u = share(items, thread, plan.threads); u < share(items, thread + 1, plan.threads); u++) {
        const int64_t row = u / layers, layer = u % layers;
        float* to = inputs.row(row) + layer * size;
        pass.kernels.normalize(true, to, model.per_layer_norm, nullptr, epsilon, size, to);
        model.embed_for_layer(plan.tokens[size_t(row)], layer, own);
        for (int64_t i = 0; i < size; i++) to[i] = (to[i] + own[i] * factor) * half;
    }
}

void prepare_per_layer(Pass& pass, const LayerStep& step, int thread) {
    const PerLayerWeights& own = pass.layer(step).per_layer;
    residual_norm(pass, thread, own.into_gate, nullptr, own.gate);
}

void per_layer(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const Linear &gate = layer.per_layer.gate, &out = layer.per_layer.out;
    const int64_t size = pass.model.spec.per_layer_size, stride = round_up(size, LANES), rows = pass.plan().rows();
    const auto [first, last] = slice(pass, gate, thread);
    const LinearRows in = pass.inputs(thread, gate.depth);
    float* active = pass.activations.shared.active.data;
    MlpSpec plain = layer.mlp;
    plain.gated = 0;
    for (const LinearBlock& block : blocks_of(pass, gate, in, rows, thread)) {
        activate_block(pass, thread, plain, gate, in, block, active, stride);
        const int64_t end = std::min(block.last * LANES, size);
        for (int64_t r = block.row; r < block.end_row; r++) {
            const float* input = pass.activations.shared.per_layer.row(r) + step.index * size;
            for (int64_t i = block.first * LANES; i < end; i++) active[r * stride + i] *= input[i];
        }
    }
    prepare_active(pass, thread, {active, rows, stride, size, gate.panels, first, last}, out, started);
    const Array<float>& delta = pass.delta(thread);
    linear(pass, thread, active_inputs(pass, thread, out), out, rows, delta.data, delta.columns, &pass.reader(step));
}

}  // namespace ipex_assist
