// Merging what threads found for different blocks of keys and values (pass_plan.h has the picture).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "operations/attention.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

AttentionPartial partial_at(float* row, int64_t width) { return {row[width - LANES], row[width - LANES + 1], row}; }

}  // namespace

void merge_head(const AttentionView& v, int64_t row, int32_t head) {
    const int32_t kv_head = head / v.group();
    const int64_t end = v.plan.last_seen_block(int32_t(row), v.splits.shape) + 1;
    const auto at = [&](int64_t block) {
        return partial_at(v.partial(block, kv_head, row) + head % v.group() * v.partial_width(), v.partial_width());
    };
    AttentionPartial sum{};
    for (int64_t b = v.plan.first_block(int32_t(row), v.splits.shape), run_end; b < end; b = run_end) {
        run_end = std::min(end, split_end(b, SPLIT_BLOCKS));
        AttentionPartial run = at(b);
        while ((b = split_end(b, v.splits.split_blocks)) < run_end) merge_partial(v, run, at(b), nullptr);
        merge_partial(v, sum, run, run.output);
    }
    add_sink(v, head, sum);
    finish_head(v, sum, row, head);
}

void merge_partial(const AttentionView& v, AttentionPartial& sum, const AttentionPartial& next, float* to) {
    if (sum.output) return v.k.merge(sum, next, v.spec.scale, v.spec.value_dim());
    sum = {next.maximum, next.sum, to};
    if (next.output != to) std::memcpy(to, next.output, size_t(v.spec.value_width()) * 4);
}

void keep_partial(const AttentionPartial& partial, float* row, int64_t width) {
    row[width - LANES] = partial.maximum;
    row[width - LANES + 1] = partial.sum;
}

// The sink of a head, after all blocks: one more score, whose value is zero (Xiao et al. 2023, arXiv:2309.17453).
void add_sink(const AttentionView& v, int32_t head, AttentionPartial& sum) {
    const float* sinks = v.layer.sinks;
    if (!sinks) return;
    float* zeros = v.own.head.data;
    std::fill_n(zeros, v.spec.value_width(), 0.0f);
    v.k.merge(sum, {sinks[head] / v.spec.scale, 1, zeros}, v.spec.scale, v.spec.value_dim());
}

namespace {

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The attended values of a head times the sigmoid of their gates, or what the spec has in its place.
void gate_head(const AttentionView& v, int64_t row, int32_t head, float* out) {
    const AttentionSpec& a = v.spec;
    const int64_t dim = a.value_dim();
    const float* gates = v.qkv(row) + a.gate_column() + (a.gate_per_head ? head : head * dim);
    if (!a.gate_per_head && !a.gate_activation) return v.k.multiply_sigmoid(out, gates, dim);
    float gate = 0;
    for (int64_t d = 0; d < dim; d++) {
        if (d == 0 || !a.gate_per_head)
            gate = a.gate_activation == SOFTPLUS_GATE ? softplus(gates[d]) : sigmoid(gates[d]);
        out[d] *= gate;
    }
}

}  // namespace

void finish_head(const AttentionView& v, const AttentionPartial& sum, int64_t row, int32_t head) {
    float* out = v.attended(row, head);
    const int64_t dim = v.spec.value_dim();
    for (int64_t d = 0; d < dim; d++) out[d] = sum.output[d] / sum.sum;
    for (int64_t d = 0; v.spec.value_scale != 0 && d < dim; d++) out[d] *= v.spec.value_scale;
    if (v.hooks.finish) v.hooks.finish(v, row, out);
    if (v.spec.output_gate && !v.spec.is_latent()) gate_head(v, row, head, out);  // of latents: latent.cpp
}

void merge_span(const AttentionView& v, int64_t row, int64_t span) {
    const Linear& next = v.layer.output;
    const int64_t dim = v.spec.value_dim(), columns = v.spec.attended_width(), width = v.splits.shape.span_columns;
    const int64_t first = span * width, end = v.spec.is_latent() ? first + width : std::min(first + width, next.depth);
    for (int64_t h = first / dim; h < std::min(end, columns) / dim; h++) merge_head(v, row, int32_t(h));
    if (v.spec.is_latent()) return;
    prepare_row(v.pass, v.thread, v.attended(row, 0), columns, first, end, row, next, &NodeBuffers::inputs);
}

void finish_blocks(const AttentionView& v, int32_t kv_head, size_t segment, int64_t blocks) {
    const AttentionShape& shape = v.splits.shape;
    const int64_t columns = v.spec.attended_width(), width = int64_t(v.group()) * v.spec.value_dim();
    for (int64_t u = kv_head * width / shape.span_columns; blocks && u * shape.span_columns < (kv_head + 1) * width;
         u++) {
        const int64_t first = u * shape.span_columns, end = std::min(first + shape.span_columns, columns);
        const int64_t kv_heads = (end - 1) / width - first / width + 1;  // that share the span
        const size_t counter = segment * size_t(shape.spans) + size_t(u);
        if (!v.pass.completes(counter, blocks, kv_heads * v.splits.blocks[segment])) continue;
        const int32_t row = v.plan.first_row[segment];
        for (int32_t r = row; r < row + v.plan.segments[segment].rows; r++) merge_span(v, r, u);
    }
}

}  // namespace ipex_assist
