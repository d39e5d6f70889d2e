// A residual stream of several rows side by side, "hyper-connections" (Zhu et al. 2024, arXiv:2409.19606). What
// attention or an MLP reads is a weighted sum of a row's streams; what it gives is added to each of them times a number
// of its own; and the streams may be mixed by a small matrix, whose rows and columns Sinkhorn steps make sum to 1
// (DeepSeek-V4). All these numbers are of the row itself: sigmoids of a projection of all its streams ÷ their root mean
// square. They stay behind the row until what was computed is added.
//
// With gated residuals (Qwen4) each stream passes a norm of its own, and what is read is made of these by gates
// (norm_gate.cpp); numbers are of the normalised streams, and of what is added alone.
//
// The projection has two or three panels as deep as the streams are wide, too few to be shared by panels. So the sum of a
// row is one of slices of the depth, in their order: where each thread prepares all rows, threads share the slices, and
// add up what all have found; else who prepares a row goes through them.
#include <algorithm>
#include <cmath>

#include "operations/operations.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

constexpr int64_t SLICE = 256;  // columns
constexpr int64_t MOST_PARTS = round_up(MOST_STREAMS * (2 + MOST_STREAMS), LANES) + LANES;

int64_t slices_of(const ModelSpec& spec) { return (spec.streams.columns(spec.hidden_size) + SLICE - 1) / SLICE; }

// Of a slice: a sum of each panel's columns, and the squares in 16 sums.
int64_t parts_of(const Linear& projection) { return (projection.panels + 1) * LANES; }

void weigh_slice(const Pass& pass, const Linear& projection, const float* x, int64_t slice, float* to) {
    const int64_t first = slice * SLICE, depth = std::min(SLICE, projection.depth - first);
    float values[SLICE] = {};  // zeros where the projection is deeper than the streams are wide
    const ModelSpec& spec = pass.model.spec;
    std::copy(x + first, x + std::min(first + depth, spec.streams.columns(spec.hidden_size)), values);
    Linear part = projection;
    part.nodes = nullptr, part.panels = 1, part.depth = depth;
    const LinearRows row{reinterpret_cast<uint8_t*>(values), nullptr, nullptr, depth};
    for (int64_t p = 0; p < projection.panels; p++, to += LANES) {
        part.weights = weights_of(projection, p) + first * LANES * 4;
        pass.kernels.linear(part, row, 1, 0, 1, to, LANES);
    }
    std::fill_n(to, LANES, 0.0f);
    for (int64_t i = 0; i < depth; i += LANES) {
        for (int64_t j = 0; j < LANES; j++) to[j] += values[i + j] * values[i + j];
    }
}

// Divides each row, or each column, of a matrix (n, n) by its sum.
void divide_by_sums(float* matrix, int32_t n, bool columns, float eps) {
    const int32_t each = columns ? 1 : n, step = columns ? n : 1;
    for (int32_t i = 0; i < n; i++) {
        float sum = 0;
        for (int32_t j = 0; j < n; j++) sum += matrix[i * each + j * step];
        for (int32_t j = 0; j < n; j++) matrix[i * each + j * step] /= sum + eps;
    }
}

// The matrix that mixes streams, of logits (n, n).
void normalize_mixture(const StreamSpec& s, float* matrix) {
    const int32_t n = s.count;
    for (int32_t i = 0; i < n; i++) {
        float *row = matrix + i * n, sum = 0;
        const float most = *std::max_element(row, row + n);
        for (int32_t j = 0; j < n; j++) sum += row[j] = std::exp(row[j] - most);
        for (int32_t j = 0; j < n; j++) row[j] = row[j] / sum + s.eps;
    }
    divide_by_sums(matrix, n, true, s.eps);
    for (int32_t step = 1; step < s.sinkhorn_steps; step++) {
        divide_by_sums(matrix, n, false, s.eps);
        divide_by_sums(matrix, n, true, s.eps);
    }
}

// A row's numbers, of sums over all slices. Those of what reads the last layer are of what is read alone.
void set_numbers(const ModelSpec& spec, const StreamWeights& w, bool last, const float* sums, float* to) {
    const StreamSpec& s = spec.streams;
    float squares = 0;
    for (int64_t j = 0; j < LANES; j++) squares += sums[w.projection.panels * LANES + j];
    const float factor = 1 / std::sqrt(squares / float(s.columns(spec.hidden_size)) + spec.norm_eps);
    if (s.gated()) {
        for (int64_t i = 0; i < s.numbers(); i++) to[i] = s.gain * sigmoid(sums[i] / float(s.count)) + s.gain_eps;
        return;
    }
    const auto logit = [&](int64_t i, int kind) { return sums[i] * factor * w.scale[kind] + w.base[i]; };
    for (int64_t i = 0; i < s.written(); i++) to[i] = sigmoid(logit(i, 0)) + s.eps;
    if (last) return;
    for (int64_t i = s.written(); i < s.mixed(); i++) to[i] = s.gain * sigmoid(logit(i, 1)) + s.gain_eps;
    if (!s.sinkhorn_steps) return;
    for (int64_t i = s.mixed(); i < s.numbers(); i++) to[i] = logit(i, 2);
    normalize_mixture(s, to + s.mixed());
}

// The numbers of a row, of sums that threads have found of its slices, or (parts: null) of what is weighed here.
void number_row(const Pass& pass, const StreamWeights& weights, const float* parts, const float* weighed, float* to) {
    const ModelSpec& spec = pass.model.spec;
    const bool last = &weights == &pass.model.head_streams;
    if (last && spec.streams.averaged)
        return void(std::fill_n(to, spec.streams.count, 1.0f / float(spec.streams.count)));
    const int64_t count = parts_of(weights.projection);
    float sums[MOST_PARTS] = {}, found[MOST_PARTS];
    for (int64_t slice = 0; slice < slices_of(spec); slice++) {
        if (!parts) weigh_slice(pass, weights.projection, weighed, slice, found);
        const float* part = parts ? parts + slice * count : found;
        for (int64_t j = 0; j < count; j++) sums[j] += part[j];
    }
    set_numbers(spec, weights, last, sums, to);
}

// Columns at … at + LANES of each stream of a row x, with what was made of what was read of it.
void mix_columns(const ModelSpec& spec, const float* x, const float* delta, int64_t at, float (*made)[LANES]) {
    const StreamSpec& s = spec.streams;
    const int64_t size = spec.hidden_size;
    const float *written = x + s.columns(size) + s.written(), *mixed = x + s.columns(size) + s.mixed();
    float before[MOST_STREAMS][LANES];
    for (int32_t j = 0; j < s.count; j++) std::copy(x + j * size + at, x + j * size + at + LANES, before[j]);
    for (int32_t to = 0; to < s.count; to++) {
        for (int64_t i = 0; i < LANES; i++) {
            float sum = s.sinkhorn_steps ? 0.0f : before[to][i];
            for (int32_t j = 0; s.sinkhorn_steps && j < s.count; j++) sum += mixed[j * s.count + to] * before[j][i];
            made[to][i] = written[to] * delta[at + i] + sum;
        }
    }
}

}  // namespace

void normalize_streams(const Pass& pass, const Norm& norm, const float* x, float* out) {
    const int64_t size = pass.model.spec.hidden_size;
    for (int64_t at = 0; at < pass.model.spec.streams.columns(size); at += size)
        normalize(pass, {norm.weight ? norm.weight + at : nullptr, nullptr}, x + at, out + at);
}

int64_t stream_parts(const ModelSpec& spec) {
    return slices_of(spec) * (round_up(spec.streams.numbers(), LANES) + LANES);
}

void weigh_streams(Pass& pass, int thread, const StreamWeights& weights, const std::vector<int32_t>* kept,
                   const WorkRange& rows) {
    const ModelSpec& spec = pass.model.spec;
    const PassPlan& plan = pass.plan();
    const Array<float>&stream = pass.stream(thread), &shared = pass.activations.shared.stream_parts;
    const bool last = &weights == &pass.model.head_streams, gated = spec.streams.gated();
    if (last && gated) return;
    const bool shares = plan.each_thread_prepares && !(last && spec.streams.averaged);
    const int64_t slices = slices_of(spec), parts = parts_of(weights.projection);
    const auto row = [&](int64_t i) { return stream.row(kept ? (*kept)[size_t(i)] : i); };
    const auto weighed = [&](int64_t i) { return gated ? pass.normed(thread).row(i) : row(i); };
    if (shares) {
        const int64_t end = share(slices, thread + 1, plan.threads);
        for (int64_t slice = share(slices, thread, plan.threads); slice < end; slice++) {
            for (int64_t i = rows.first; i < rows.end; i++)
                weigh_slice(pass, weights.projection, weighed(i), slice, shared.row(i) + slice * parts);
        }
        pass.wait(thread);
    }
    for (int64_t i = rows.first; i < rows.end; i++) {
        float* numbers = row(i) + spec.streams.columns(spec.hidden_size);
        number_row(pass, weights, shares ? shared.row(i) : nullptr, weighed(i), numbers);
    }
}

const float* read_streams(const ModelSpec& spec, const float* x, float* out) {
    const int64_t size = spec.hidden_size;
    const float* numbers = x + spec.streams.columns(size);
    std::fill_n(out, size, 0.0f);
    for (int32_t s = 0; s < spec.streams.count; s++, x += size) {
        for (int64_t i = 0; i < size; i++) out[i] += numbers[s] * x[i];
    }
    return out;
}

const float* read_last_streams(const Pass& pass, const float* x, const float* delta, float* room, float* out) {
    const ModelSpec& spec = pass.model.spec;
    std::copy(x, x + spec.stream_width(), room);
    write_streams(spec, delta, 0, room);
    number_row(pass, pass.model.head_streams, nullptr, room, room + spec.streams.columns(spec.hidden_size));
    return read_streams(spec, room, out);
}

// `start`: as in add_delta.
void write_streams(const ModelSpec& spec, const float* delta, int64_t start, float* x) {
    const int64_t size = spec.hidden_size;
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t at = k + start < size ? k + start : k + start - size;
        float made[MOST_STREAMS][LANES];
        mix_columns(spec, x, delta, at, made);
        for (int32_t s = 0; s < spec.streams.count; s++) std::copy(made[s], made[s] + LANES, x + s * size + at);
    }
}

void give_streams(const ModelSpec& spec, StreamTaps given, const float* x, const float* delta, float* to) {
    const int64_t size = spec.hidden_size, count = spec.streams.count;
    for (int64_t at = 0; at < size; at += LANES) {
        float made[MOST_STREAMS][LANES], sums[LANES] = {};
        if (delta) mix_columns(spec, x, delta, at, made);
        for (int64_t s = 0; s < count; s++) {
            const float* columns = delta ? made[s] : x + s * size + at;
            if (given == ALL_STREAMS) std::copy(columns, columns + LANES, to + s * size + at);
            for (int64_t i = 0; i < LANES; i++) sums[i] += columns[i];
        }
        for (int64_t i = 0; given == MEAN_OF_STREAMS && i < LANES; i++) to[at + i] = sums[i] / float(count);
    }
}

}  // namespace ipex_assist
