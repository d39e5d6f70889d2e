// Latent attention around attention itself (DeepSeek-V2, arXiv:2405.04434): the norms of a row's latents, and the
// matrices of each head by which its query comes into the space of the latent and its values leave it.
#include "mixers/latent/latent.h"

#include <algorithm>
#include <cstring>

#include "operations/attention.h"
#include "operations/routing.h"

namespace ipex_assist {

// The key and the queries' row, where attention has keys.
void latent_linear(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Array<float>& qkv = pass.activations.shared.qkv;
    linear(pass, thread, pass.inputs(thread, layer.qkv.depth), layer.qkv, pass.plan().rows(),
           qkv.data + layer.attention.key_column(), qkv.columns, &layer.latent.query);
}

namespace {

// Whether each thread normalises the queries' rows for itself: that takes less time than a barrier. Who watches the
// pass sees them where all threads do.
bool each_normalizes(const Pass& pass, const LatentSpec& spec) {
    return pass.plan().each_thread_prepares && spec.query_width() <= pass.model.spec.hidden_size &&
           !pass.program.watch.call;
}

// The row that queries read, of one before its norm; to memory of the thread, or to where it lies.
void make_query_row(const Pass& pass, const LatentWeights& w, const LatentSpec& spec, const float* row, float* to) {
    if (spec.reads_unnormed) std::copy(row, row + spec.query_rank, to + spec.query_rank);
    pass.kernels.normalize(true, row, w.query_norm, nullptr, spec.norm_eps, spec.query_rank, to);
}

}  // namespace

// The queries' rows are the next linear's inputs; latents are read after that.
void normalize_latents(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const AttentionSpec& a = layer.attention;
    const LatentSpec& spec = a.latent;
    const Linear& query = layer.latent.query;
    const bool own = each_normalizes(pass, spec);
    const int64_t rows = pass.plan().rows(), end = share(rows, thread + 1, pass.plan().threads);
    for (int64_t r = share(rows, thread, pass.plan().threads); r < end; r++) {
        float* key = pass.activations.shared.qkv.row(r) + a.key_column();
        float *latent = key + a.head_dim - spec.rank, *row = pass.activations.shared.qkv.row(r) + row_column(a);
        if (!a.shares_kv)
            pass.kernels.normalize(true, latent, layer.latent.norm, nullptr, spec.norm_eps, spec.rank, latent);
        if (!spec.query_rank || own) continue;
        if (spec.reads_unnormed) row = pass.activations.shared.heads.row(r);  // which queries come to later
        make_query_row(pass, layer.latent, spec, pass.activations.shared.qkv.row(r) + row_column(a), row);
        prepare_row(pass, thread, row, spec.query_width(), 0, query.depth, r, query, &NodeBuffers::inputs);
    }
    if (spec.query_rank && !own) return pass.wait(thread);
    const ThreadBuffers& mine = pass.activations.own(thread);
    for (int64_t r = 0; spec.query_rank && r < rows; r++) {
        const float* row = pass.activations.shared.qkv.row(r) + row_column(a);
        make_query_row(pass, layer.latent, spec, row, mine.row.data);
        prepare_row(pass, thread, mine.row.data, spec.query_width(), 0, query.depth, r, query,
                    mine.inputs.with_depth(query.depth));
    }
}

// Of the normalised row, or of what latent_linear has read.
void query_linear(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& query = layer.latent.query;
    const Array<float>& heads = pass.activations.shared.heads;
    const LatentSpec& spec = layer.attention.latent;
    const LinearRows inputs = !spec.query_rank || each_normalizes(pass, spec)
                                  ? pass.inputs(thread, query.depth)
                                  : pass.activations.on(pass.node(thread)).inputs.with_depth(query.depth);
    linear(pass, thread, inputs, query, pass.plan().rows(), heads.data, heads.columns,
           layer.attention.latent.is_compressed() ? nullptr : &layer.latent.keys);
}

// Each head's query for the key: what is rotated, and the rest in the space of the latent. Keys and latents are stored
// meanwhile.
void absorb_queries(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const AttentionSpec& a = layer.attention;
    const LatentSpec& spec = a.latent;
    const Array<float>&heads = pass.activations.shared.heads, &qkv = pass.activations.shared.qkv;
    const int64_t rows = pass.plan().rows(), end = share(rows, thread + 1, pass.plan().threads);
    for (int64_t r = share(rows, thread, pass.plan().threads); r < end; r++) {
        const float* rotated = heads.row(r) + a.rotated_column();
        for (int32_t h = 0; h < a.heads; h++)
            std::memcpy(qkv.row(r) + int64_t(h) * a.head_dim, rotated + h * spec.rope_dim, size_t(spec.rope_dim) * 4);
        for (int32_t h = 0; h < spec.indexer.heads; h++) {
            const Segment& segment = pass.plan().segments[size_t(pass.plan().segment_of[size_t(r)])];
            const int32_t position = pass.plan().positions[size_t(r)];
            float* query = heads.row(r) + a.index_query_column() + h * int64_t(spec.indexer.dim);
            rotate_head(pass, layer, nullptr, segment, position, query);
            const float growth = layer.latent.index_growth.scale ? layer.latent.index_growth.at(h, position) : 1;
            for (int32_t d = 0; growth != 1 && d < spec.indexer.dim; d++) query[d] *= growth;
        }
        if (spec.reads_unnormed)
            std::memcpy(qkv.row(r) + a.gate_column(), heads.row(r) + a.latent_query_width() - a.gate_width(),
                        size_t(a.gate_width()) * 4);
    }
    per_head_linear(pass, thread, layer.latent.keys, spec.rank,
                    {heads.data, heads.columns, spec.nope_dim, spec.nope_dim, rows, qkv.data + spec.rope_dim,
                     qkv.columns, a.head_dim});
    append_share(AttentionView(pass, step, thread));
    if (thread == 0) pass.begin_tiles();
    pass.wait(thread);
}

namespace {

// Columns [first, end) of what heads attended to, times the sigmoid of their gates, or of their head's.
void gate_values(const Pass& pass, const AttentionSpec& a, int64_t row, int64_t first, int64_t end) {
    end = std::min(end, a.output_width());
    if (!a.output_gate || first >= end) return;
    const float* gates = pass.activations.shared.qkv.row(row) + a.gate_column();
    float* values = pass.activations.shared.heads.row(row);
    if (!a.gate_per_head) return pass.kernels.multiply_sigmoid(values + first, gates + first, end - first);
    for (int64_t i = first, next; i < end; i = next) {
        const int64_t head = i / a.latent.value_dim;
        next = std::min((head + 1) * a.latent.value_dim, end);
        const float gate = sigmoid(gates[head]);
        std::transform(values + i, values + next, values + i, [&](float value) { return value * gate; });
    }
}

}  // namespace

// What heads, or groups of them, attended to as their values, in the form of the output linear.
void expand_values(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const AttentionSpec& a = layer.attention;
    const Array<float>&heads = pass.activations.shared.heads, &attended = pass.activations.shared.attended;
    const int64_t rows = pass.plan().rows(), width = a.attended_width() / a.latent.value_parts(a.heads);
    per_head_linear(
        pass, thread, layer.latent.values, a.latent.value_dim,
        {attended.data, attended.columns, width, width, rows, heads.data, heads.columns, a.latent.value_dim});
    if (prepares_in_place(pass, layer.output)) {
        const auto [first, last] = slice(pass, layer.latent.values, thread);
        complete_spans(pass, 0, {first, last, layer.latent.values.panels, 1}, [&](int64_t column) {
            const int64_t end = std::min(column + SCALE_COLUMNS, layer.output.depth);
            for (int64_t r = 0; r < rows; r++) {
                gate_values(pass, a, r, column, end);
                prepare_row(pass, thread, heads.row(r), a.output_width(), column, end, r, layer.output,
                            &NodeBuffers::inputs);
            }
        });
    } else {
        pass.wait(thread);
        if (a.output_gate) {
            const int64_t last = share(rows, thread + 1, pass.plan().threads);
            for (int64_t r = share(rows, thread, pass.plan().threads); r < last; r++)
                gate_values(pass, a, r, 0, a.output_width());
            pass.wait(thread);
        }
        prepare_rows(pass, thread, heads.data, heads.columns, a.output_width(), rows, layer.output);
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
