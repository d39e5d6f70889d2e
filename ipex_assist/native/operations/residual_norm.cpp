// What happens to a row between two linears: the residual addition and the norms around it.
#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

void multiply(float* x, float factor, int64_t size) {
    for (int64_t i = 0; i < size; i++) x[i] *= factor;
}

}  // namespace

void normalize(const Pass& pass, const Norm& norm, const float* x, float* out, int64_t width) {
    const ModelSpec& spec = pass.model.spec;
    pass.kernels.normalize(spec.rms_norm, x, norm.weight, norm.bias, spec.norm_eps, width ? width : spec.hidden_size,
                           out);
}

namespace {

// What LAuReL adds beside attention: the input of both, and what its linears made of that, normalised.
void add_laurel(const Pass& pass, const ResidualNorm& residual, int64_t row, float* x, float* scratch) {
    const int64_t size = pass.model.spec.hidden_size;
    normalize(pass, *residual.laurel_input, x, scratch);
    pass.kernels.add(x, scratch, size);
    normalize(pass, *residual.laurel, pass.activations.shared.deferred.row(row), scratch);
    pass.kernels.add(x, scratch, size);
}

}  // namespace

const float* added_delta(const Pass& pass, const ResidualNorm& residual, const float* delta, float* changed) {
    const int64_t size = pass.model.spec.hidden_size;
    const float factor = residual.multiplier;
    if (residual.post) normalize(pass, *residual.post, delta, changed);
    else if (factor != 1) std::copy(delta, delta + size, changed);
    if (factor != 1) multiply(changed, factor, size);
    return residual.post || factor != 1 ? changed : delta;
}

// x += delta, with the norms and the multiplier of the layer. `delta` stays as it is, as other threads may read it,
// too; `changed` is room for a row that it becomes. Where all threads read the same row at the same time, just after
// others wrote it, each begins at `start`, a place of its own: no cache line has them all wait for it.
void add_delta(const Pass& pass, const ResidualNorm& residual, int64_t row, float* x, const float* delta,
               float* changed, int64_t start) {
    const int64_t size = pass.model.spec.hidden_size;
    if (residual.laurel) add_laurel(pass, residual, row, x, changed);
    const float* added = added_delta(pass, residual, delta, changed);
    if (pass.model.spec.streams.several()) return write_streams(pass.model.spec, added, start, x);
    if (residual.altup && !residual.corrects) return add_to_streams(pass.model.spec, added, x);
    const auto add = [&](const float* from) {
        pass.kernels.add(x + start, from + start, size - start);
        if (start > 0) pass.kernels.add(x, from, start);
    };
    add(added);
    if (residual.deferred) add(pass.activations.shared.deferred.row(row));
    if (residual.post_residual) normalize(pass, *residual.post_residual, x, x);
    if (residual.scalar) multiply(x, *residual.scalar, size);
    if (residual.laurel) multiply(x, std::sqrt(0.5f), size);
}

void residual_norm(Pass& pass, int thread, const ResidualNorm& residual, const std::vector<int32_t>* kept,
                   const Linear& next) {
    const PassPlan& plan = pass.plan();
    const ThreadBuffers& own = pass.activations.own(thread);
    const int64_t count = kept ? int64_t(kept->size()) : plan.rows(), size = pass.model.spec.hidden_size;
    const bool all = plan.each_thread_prepares, gated = residual.streams && pass.model.spec.streams.gated();
    const int64_t width = gated ? pass.model.spec.norm_width() : residual.with_embedding ? 2 * size : size;
    const Array<float>& stream = pass.stream(thread);
    const int64_t first = all ? 0 : share(count, thread, plan.threads);
    const int64_t end = all ? count : share(count, thread + 1, plan.threads);
    const int64_t start = all ? share(size / LANES, thread, plan.threads) * LANES : 0;
    const auto add = [&](int64_t i) {
        const int64_t row = kept ? (*kept)[size_t(i)] : i;
        const float* delta = pass.delta(thread).row(row);
        if (residual.left) delta = convolved_delta(pass, thread, *residual.left, row);
        if (residual.add) add_delta(pass, residual, row, stream.row(row), delta, own.row.data, start);
    };
    if (residual.streams) {
        for (int64_t i = first; i < end; i++) add(i);
        for (int64_t i = first; gated && i < end; i++)
            normalize_streams(pass, *residual.pre, stream.row(kept ? (*kept)[size_t(i)] : i),
                              pass.normed(thread).row(i));
        weigh_streams(pass, thread, *residual.streams, kept, {first, end});
    }
    for (int64_t i = first; i < end; i++) {
        if (!residual.streams && !residual.late) add(i);
        const int64_t r = kept ? (*kept)[size_t(i)] : i;
        float* row = stream.row(r);
        const float* x = residual.streams && !gated ? read_streams(pass.model.spec, row, own.row.data) : row;
        if (residual.instead) x = pass.delta(thread).row(r);
        if (residual.passing) {
            std::copy(row, row + size, own.row.data);
            pass.kernels.add(own.row.data, pass.delta(thread).row(r), size);
            x = own.row.data;
        }
        if (residual.altup)
            x = (residual.corrects ? correct_streams : predict_streams)(pass, *residual.altup, row, own.row.data);
        float* normed = residual.with_embedding ? own.entering.data
                        : residual.kept         ? pass.normed(thread).row(i)
                                                : own.row.data;
        if (residual.pre && !gated) normalize(pass, *residual.pre, x, normed, width);
        const float* from = residual.pre ? normed : x;
        if (all) prepare_row(pass, thread, from, width, 0, next.depth, i, next, own.inputs.with_depth(next.depth));
        else prepare_row(pass, thread, from, width, 0, next.depth, i, next, &NodeBuffers::inputs);
        if (residual.late) add(i);
    }
    if (!all) pass.wait(thread);
}

void prepare_attention(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    add_embeddings(pass, step.index, thread);
    residual_norm(pass, thread, layer.into_attention, nullptr, layer.first_linear());
    if (pass.batch.taps.count) tap_layer(pass, step.index, thread);
    if (layer.mixer_gate_rank)
        gate_rows(pass, thread, layer.mixer_gate, layer.mixer_gate_rank, pass.plan().rows(), layer.qkv);
}

void prepare_mlp(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    residual_norm(pass, thread, layer.into_mlp, nullptr, layer.first_of_mlp());
    if (layer.mlp_gate_rank)
        gate_rows(pass, thread, layer.mlp_gate, layer.mlp_gate_rank, pass.plan().rows(), layer.mlp_linear());
}

}  // namespace ipex_assist
