// The MLP of a layer, plain or gated: up (gate and up together), activation, down.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// What its kernel takes, of the numbers that a checkpoint has: softplus of both alphas, and beta added to the second.
Xielu xielu_of(const PackedLayer& layer) {
    const auto softplus = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
    const XieluWeights& w = layer.xielu;
    return {float(softplus(*w.alpha_p)), float(*w.beta + softplus(*w.alpha_n)), *w.beta, *w.eps};
}

void up_linear(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const int64_t rows = pass.plan().rows(), inner = round_up(layer.mlp.intermediate_size, LANES);
    const int64_t parts = layer.mlp.gated ? 2 : 1;
    float* active = pass.activations.shared.active.data;
    const auto [first, last] = slice(pass, layer.up, thread);
    const LinearRows in = pass.inputs(thread, layer.up.depth);
    const Xielu xielu = layer.mlp.activation == XIELU ? xielu_of(layer) : Xielu{};
    const AdapterTerm term = adapter_term(pass, step, UP);
    shrink(pass, thread, term, layer.up, in);
    if (term.rows) pass.wait(thread);
    for (const LinearBlock& block : blocks_of(pass, layer.up, in, rows, thread))
        activate_block(pass, thread, layer.mlp, layer.up, in, block, active, inner, &xielu, term);
    prepare_active(
        pass, thread,
        {active, rows, inner, layer.mlp.intermediate_size, layer.up.panels / parts, first / parts, last / parts},
        layer.down, started);
}

// Of panels of gates and up, which alternate. NaN stays.
void activate_limited(const Pass& pass, const MlpSpec& spec, const float* in, int64_t panels, float* out) {
    const auto most = [&](float x) { return x > spec.limit ? spec.limit : x; };
    for (int64_t b = 0; b < panels; b++, in += 2 * LANES, out += LANES) {
        float gates[LANES];
        std::transform(in, in + LANES, gates, [&](float x) { return spec.limits_gates ? most(x) : x; });
        pass.kernels.activate(spec.activation, false, gates, 1, out);
        for (int64_t i = 0; i < LANES; i++) {
            const float active = spec.limits_gates ? out[i] : most(out[i]);
            const float up = in[LANES + i];
            out[i] = active * (up > spec.limit ? spec.limit : up < -spec.limit ? -spec.limit : up);
        }
    }
}

// Mean + deviations · standard deviation of a row's gates, which alternate with up by panels.
float gate_cutoff(const MlpSpec& spec, const float* in) {
    const int64_t width = spec.intermediate_size;
    const auto mean = [&](auto&& value) {
        float sums[LANES] = {}, sum = 0;
        for (int64_t c = 0; c < width; c += LANES) {
            for (int64_t i = 0; i < LANES && c + i < width; i++) sums[i] += value(in[2 * c + i]);
        }
        for (const float each : sums) sum += each;
        return sum / float(width);
    };
    const float middle = mean([](float x) { return x; });
    const float variance = mean([&](float x) { return (x - middle) * (x - middle); });
    return middle + spec.deviations * std::sqrt(variance);
}

// Panels first <= b < end of a row's active columns, of those of gate and up. NaN stays.
void activate_sparse(const Pass& pass, const MlpSpec& spec, const float* in, float cutoff, int64_t first, int64_t end,
                     float* out) {
    for (int64_t b = first; b < end; b++) {
        const float *gate = in + 2 * b * LANES, *up = gate + LANES;
        float above[LANES];
        std::transform(gate, gate + LANES, above, [&](float x) { return x - cutoff < 0 ? 0.0f : x - cutoff; });
        pass.kernels.activate(spec.activation, false, above, 1, out + b * LANES);
        for (int64_t i = 0; i < LANES; i++) out[b * LANES + i] *= up[i];
    }
}

// Sparse gates depend on all of a row's, so that nothing is activated before all are there.
void up_sparse(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const int64_t rows = pass.plan().rows(), stride = sparse_stride(layer.mlp), threads = pass.plan().threads;
    const auto [first, last] = slice(pass, layer.up, thread);
    const LinearRows in = pass.inputs(thread, layer.up.depth);
    float* data = pass.activations.shared.active.data;
    const AdapterTerm term = adapter_term(pass, step, UP);
    shrink(pass, thread, term, layer.up, in);
    if (term.rows) pass.wait(thread);
    for (const LinearBlock& block : blocks_of(pass, layer.up, in, rows, thread)) {
        float* to = data + block.row * stride + block.first * LANES;
        multiply_before_expand(pass, term, layer.up, in, block, to, stride);
        expand(pass, term, block, to, stride);
    }
    pass.wait(thread);
    for (int64_t r = share(rows, thread, threads); r < share(rows, thread + 1, threads); r++)
        data[(r + 1) * stride - LANES] = gate_cutoff(layer.mlp, data + r * stride);
    pass.wait(thread);
    float* active = data + sparse_active(layer.mlp);
    for (int64_t r = 0; r < rows; r++) {
        const float* row = data + r * stride;
        activate_sparse(pass, layer.mlp, row, row[stride - LANES], first / 2, last / 2, active + r * stride);
    }
    prepare_active(pass, thread,
                   {active, rows, stride, layer.mlp.intermediate_size, layer.up.panels / 2, first / 2, last / 2},
                   layer.down, started);
}

// The spans of columns that this thread has activated, or of which it has activated the last columns.
void prepare_spans(Pass& pass, int thread, const ActiveRows& x, const Linear& down) {
    complete_spans(pass, 0, {x.first, x.end, x.panels, 1}, [&](int64_t column) {
        for (int64_t r = 0; r < x.rows; r++) {
            prepare_row(pass, thread, x.data + r * x.stride, x.width, column,
                        std::min(column + SCALE_COLUMNS, down.depth), r, down, &NodeBuffers::down_inputs);
        }
    });
}

}  // namespace

bool prepares_in_place(const Pass& pass, const Linear& next) { return pass.plan().decode && !next.order; }

void prepare_active(Pass& pass, int thread, const ActiveRows& x, const Linear& down, uint64_t started) {
    const bool in_place = prepares_in_place(pass, down);
    if (in_place) prepare_spans(pass, thread, x, down);
    prefetch(pass, thread, down);
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
    if (in_place) return;
    prepare_rows(pass, thread, x.data, x.stride, x.width, x.rows, down);
    pass.wait(thread);
}

LinearRows active_inputs(const Pass& pass, int thread, const Linear& down) {
    const NodeBuffers& on_node = pass.activations.on(pass.node(thread));
    const PreparedRows& rows = prepares_in_place(pass, down) ? on_node.down_inputs : on_node.inputs;
    return rows.with_depth(down.depth);
}

void activate_block(const Pass& pass, int thread, const MlpSpec& spec, const Linear& up, const LinearRows& in,
                    const LinearBlock& block, float* out, int64_t stride, const Xielu* xielu, const AdapterTerm& term) {
    const Array<float>& temporary = pass.activations.own(thread).up;
    const int64_t parts = spec.gated ? 2 : 1;
    for (int64_t b = block.first; b < block.last; b += UP_PANELS) {
        for (int64_t row = block.row; row < block.end_row; row += ROW_BLOCK) {
            const LinearBlock some{row, std::min(row + ROW_BLOCK, block.end_row), b,
                                   std::min(b + UP_PANELS, block.last)};
            const int64_t panels = some.last - b;
            multiply_before_expand(pass, term, up, in, some, temporary.data, temporary.columns);
            expand(pass, term, some, temporary.data, temporary.columns);
            for (int64_t r = 0; r < some.rows(); r++) {
                float* to = out + (row + r) * stride + b / parts * LANES;
                if (spec.activation == XIELU) pass.kernels.xielu(*xielu, temporary.row(r), panels, to);
                else if (spec.limit > 0) activate_limited(pass, spec, temporary.row(r), panels / parts, to);
                else pass.kernels.activate(spec.activation, spec.gated, temporary.row(r), panels / parts, to);
            }
        }
    }
}

void mlp(Pass& pass, const LayerStep& step, int thread) {
    if (pass.layer(step).mlp.sparsity > 0) up_sparse(pass, step, thread);
    else up_linear(pass, step, thread);
    const Linear& down = pass.layer(step).down;
    const Array<float>& delta = pass.delta(thread);
    linear(pass, thread, active_inputs(pass, thread, down), down, pass.plan().rows(), delta.data, delta.columns,
           &pass.after_mlp(step), adapter_term(pass, step, DOWN));
}

void aside_linear(Pass& pass, const LayerStep& step, int thread) {
    const Linear& aside = pass.layer(step).aside_linear;
    const Array<float>& delta = pass.delta(thread);
    prepare_made(pass, thread, pass.model.spec.hidden_size, pass.plan().rows(), aside,
                 [&](int64_t r) { return delta.row(r); });
    if (pass.plan().each_thread_prepares) pass.wait(thread);  // before others write where this one reads
    linear(pass, thread, pass.inputs(thread, aside.depth), aside, pass.plan().rows(), delta.data, delta.columns,
           &pass.reader(step));
}

}  // namespace ipex_assist
