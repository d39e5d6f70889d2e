// AltUp (Baykal et al. 2023, arXiv:2301.13310), as Gemma 3n has it: a row has several streams, of which layers change
// one. Before a layer each stream is predicted, as itself and a sum of all; the layer sees the prediction of the active
// one, and after it each stream is corrected by a share of what the layer changed of that. The numbers of both are made
// of a small projection of the stream that is known then, in fp32, of the row alone.
//
// The row that layers see lies before the streams (ModelSpec::stream_width).
#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

constexpr float LEAST_SQUARE = 1e-5f;  // mean square of a projected stream, by whose root it is divided, at least

// The numbers that a projection of x makes of it, before they become those of streams; scratch: (hidden).
void route_row(const Pass& pass, const AltUpWeights& w, const float* x, float* scratch, float* out) {
    const ModelSpec& spec = pass.model.spec;
    normalize(pass, w.router_norm, x, scratch);
    for (int32_t s = 0; s < spec.altup.count; s++)
        out[s] = std::tanh(pass.kernels.dot(scratch, w.router + s * spec.hidden_size, spec.hidden_size));
}

// matrix (…, count) · x, its row `i`.
float product(const float* matrix, int32_t i, const float* x, int32_t count) {
    float sum = 0;
    for (int32_t k = 0; k < count; k++) sum += matrix[i * count + k] * x[k];
    return sum;
}

// The rows of the residual stream that this thread makes: its share, or, of its own stream, all.
WorkRange own_rows(const PassPlan& plan, int thread) {
    if (plan.each_thread_prepares) return {0, plan.rows()};
    return {share(plan.rows(), thread, plan.threads), share(plan.rows(), thread + 1, plan.threads)};
}

// What makes a projected stream as large as `like`, by their mean squares.
float factor_like(const Pass& pass, const float* like, const float* projected) {
    const int64_t size = pass.model.spec.hidden_size;
    const auto mean_square = [&](const float* x) { return pass.kernels.dot(x, x, size) / float(size); };
    return std::sqrt(mean_square(like)) / std::sqrt(std::max(mean_square(projected), LEAST_SQUARE));
}

}  // namespace

float* predict_streams(const Pass& pass, const AltUpWeights& w, float* x, float* scratch) {
    const int32_t count = pass.model.spec.altup.count, active = pass.model.spec.altup.active;
    const int64_t size = pass.model.spec.hidden_size;
    float routed[MOST_STREAMS], numbers[MOST_STREAMS * MOST_STREAMS];
    float* streams = x + size;
    route_row(pass, w, streams + active * size, scratch, routed);
    for (int32_t i = 0; i < count * count; i++) numbers[i] = product(w.predict, i, routed, count);
    for (int64_t k = 0; k < size; k += LANES) {
        float before[MOST_STREAMS][LANES];
        for (int32_t j = 0; j < count; j++) std::copy_n(streams + j * size + k, LANES, before[j]);
        for (int32_t to = 0; to < count; to++) {
            float* out = streams + to * size + k;
            for (int32_t j = 0; j < count; j++) {
                for (int64_t i = 0; i < LANES; i++) out[i] += numbers[to * count + j] * before[j][i];
            }
        }
        std::copy_n(streams + active * size + k, LANES, x + k);
    }
    return x;
}

float* correct_streams(const Pass& pass, const AltUpWeights& w, float* x, float* read) {
    const int32_t count = pass.model.spec.altup.count;
    const int64_t size = pass.model.spec.hidden_size;
    float routed[MOST_STREAMS], numbers[MOST_STREAMS];
    float *streams = x + size, *active = streams + pass.model.spec.altup.active * size;
    route_row(pass, w, x, read, routed);
    for (int32_t s = 0; s < count; s++) numbers[s] = 1 + product(w.correct, s, routed, count);
    for (int64_t k = 0; k < size; k++) {
        const float change = x[k] - active[k];
        for (int32_t s = 0; s < count; s++) streams[s * size + k] += numbers[s] * change;
        read[k] = w.scale ? active[k] * w.scale[k] : active[k];
    }
    return read;
}

void add_to_streams(const ModelSpec& spec, const float* delta, float* x) {
    const int64_t size = spec.hidden_size;
    for (int32_t s = 1; s < spec.altup.count; s++) {
        float* stream = x + (1 + s) * size;
        for (int64_t k = 0; k < size; k++) stream[k] += delta[k];
    }
}

void enter_streams(Pass& pass, int thread) {
    const std::vector<StreamProjections>& projections = pass.model.stream_projections;
    const Array<float>&x = pass.stream(thread), &projected = pass.activations.shared.projected;
    const int64_t size = pass.model.spec.hidden_size;
    prepare_stream(pass, thread, 0, projections[0].in);
    for (size_t s = 0; s < projections.size(); s++) {
        const Linear& in = projections[s].in;
        linear(pass, thread, pass.inputs(thread, in.depth), in, pass.plan().rows(), projected.data + int64_t(s) * size,
               projected.columns);
    }
    const auto [first, end] = own_rows(pass.plan(), thread);
    for (int64_t r = first; r < end; r++) {
        float* row = x.row(r);
        std::copy_n(row, size, row + size);
        for (size_t s = 0; s < projections.size(); s++) {
            const float* from = projected.row(r) + int64_t(s) * size;
            const float factor = factor_like(pass, row, from);
            for (int64_t k = 0; k < size; k++) row[int64_t(s + 2) * size + k] = from[k] * factor;
        }
    }
}

void leave_streams(Pass& pass, int thread) {
    const std::vector<StreamProjections>& projections = pass.model.stream_projections;
    const Array<float>&x = pass.stream(thread), &projected = pass.activations.shared.projected;
    const int64_t size = pass.model.spec.hidden_size;
    const auto [first, end] = own_rows(pass.plan(), thread);
    for (int64_t r = first; r < end; r++) {
        add_delta(pass, pass.model.after_layers, r, x.row(r), pass.delta(thread).row(r),
                  pass.activations.own(thread).row.data, 0);
    }
    for (size_t s = 0; s < projections.size(); s++) {
        const Linear& out = projections[s].out;
        prepare_stream(pass, thread, int64_t(s + 2) * size, out);
        linear(pass, thread, pass.inputs(thread, out.depth), out, pass.plan().rows(),
               projected.data + int64_t(s) * size, projected.columns);
    }
    for (int64_t r = first; r < end; r++) {
        float *row = x.row(r), *stream = row + size;
        std::copy_n(stream, size, row);
        for (size_t s = 0; s < projections.size(); s++) {
            const float* from = projected.row(r) + int64_t(s) * size;
            const float factor = factor_like(pass, stream, from);
            for (int64_t k = 0; k < size; k++) row[k] += from[k] * factor;
        }
        for (int64_t k = 0; k < size; k++) row[k] /= float(projections.size() + 1);
    }
    if (!pass.plan().each_thread_prepares) pass.wait(thread);
}

}  // namespace ipex_assist
