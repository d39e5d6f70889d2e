// What enters a draft head: tokens, and hidden states of its target or its own (ipex_assist/models/draft_head.py).
#include <algorithm>

#include "operations/attention.h"

namespace ipex_assist {
namespace {

struct RowShare {
    int64_t first, end;
};

RowShare share_of(const Pass& pass, int thread) {
    const int64_t rows = pass.plan().rows(), threads = pass.plan().threads;
    return {share(rows, thread, int(threads)), share(rows, thread + 1, int(threads))};
}

// A row of the target's hidden states after its norms, where it has any.
const float* normed_input(const Pass& pass, const float* hidden, float* room) {
    const ModelSpec& spec = pass.model.spec;
    const HeadSpec& head = spec.draft_head;
    if (!head.input_norm) return hidden;
    const Norm& norm = pass.model.input_norm;
    const int64_t size = head.input_size / head.input_norms();
    for (int64_t at = 0; at < head.input_size; at += size) {
        pass.kernels.normalize(spec.rms_norm, hidden + at, norm.weight ? norm.weight + at : nullptr,
                               norm.bias ? norm.bias + at : nullptr, spec.norm_eps, size, room + at);
    }
    return room;
}

// [norm(e), norm(h)], in this thread's own row.
const float* token_and_hidden(const Pass& pass, int64_t r, const float* hidden, int thread) {
    const int64_t size = pass.model.spec.hidden_size;
    float* row = pass.activations.own(thread).entering.data;
    embed_token(pass, pass.plan().tokens[size_t(r)], pass.plan().positions[size_t(r)], row);
    normalize(pass, pass.model.head_embedding_norm, row, row);
    normalize(pass, pass.model.head_hidden_norm, hidden, row + size);
    return row;
}

// [e, h] as the target has them, likewise.
const float* target_token_and_hidden(const Pass& pass, int64_t r, const float* hidden, int thread) {
    const int64_t size = pass.model.spec.draft_head.input_size;
    const float factor = pass.model.spec.embedding_multiplier;
    float* row = pass.activations.own(thread).entering.data;
    pass.model.embed(pass.plan().tokens[size_t(r)], row);
    for (int64_t i = 0; factor != 1 && i < size; i++) row[i] *= factor;
    std::copy(hidden, hidden + size, row + size);
    return row;
}

const float* entering_row(const Pass& pass, int64_t r, int thread) {
    const float* hidden = pass.hidden[size_t(r)];
    switch (pass.model.spec.draft_head.kind) {
        case MTP: return token_and_hidden(pass, r, hidden, thread);
        case SHARED_KV: return target_token_and_hidden(pass, r, hidden, thread);
        default: return normed_input(pass, hidden, pass.activations.own(thread).entering.data);
    }
}

// What fc makes of tokens and hidden states, or of the latter alone, to the residual stream.
void through_fc(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const int64_t width = model.spec.fc_width();
    const Array<float>& x = pass.activations.shared.x;
    const auto [first, end] = share_of(pass, thread);
    for (int64_t r = first; r < end; r++) {
        const float* row = entering_row(pass, r, thread);
        prepare_row(pass, thread, row, width, 0, model.fc.depth, r, model.fc, &NodeBuffers::inputs);
    }
    pass.wait(thread);
    linear(pass, thread, pass.inputs(thread, model.fc.depth), model.fc, pass.plan().rows(), x.data, x.columns);
}

// Of the target's residual stream, streams as they pass norms: each the same one, or of gated residuals all together.
void normalize_entering(const Pass& pass, const float* hidden, float* to) {
    const ModelSpec& spec = pass.model.spec;
    const int64_t width = spec.norm_width();
    for (int64_t at = 0; at < spec.streams.columns(spec.hidden_size); at += width)
        normalize(pass, pass.model.head_hidden_norm, hidden + at, to + at, width);
}

// Likewise each stream of the target's residual stream, beside what is made of the token: fc(norm(h)_s) + fc_token(norm(e))
// is stream s, in whose place norm(h)_s is until then.
void streams_through_fc(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const Array<float>&x = pass.activations.shared.x, &of_token = pass.delta(thread);
    const int64_t size = model.spec.hidden_size;
    const auto [first, end] = share_of(pass, thread);
    float* row = pass.activations.own(thread).entering.data;
    const auto run = [&](const Linear& linear_of_rows, float* to, int64_t stride) {
        pass.wait(thread);
        linear(pass, thread, pass.inputs(thread, linear_of_rows.depth), linear_of_rows, pass.plan().rows(), to, stride);
    };
    for (int64_t r = first; r < end; r++) {
        embed_token(pass, pass.plan().tokens[size_t(r)], pass.plan().positions[size_t(r)], row);
        normalize(pass, model.head_embedding_norm, row, row);
        prepare_row(pass, thread, row, size, 0, model.fc_token.depth, r, model.fc_token, &NodeBuffers::inputs);
        normalize_entering(pass, pass.hidden[size_t(r)], x.row(r));
    }
    run(model.fc_token, of_token.data, of_token.columns);
    for (int64_t at = 0; at < model.spec.streams.columns(size); at += size) {
        for (int64_t r = first; r < end; r++)
            prepare_row(pass, thread, x.row(r) + at, size, 0, model.fc.depth, r, model.fc, &NodeBuffers::inputs);
        run(model.fc, x.data + at, x.columns);
        for (int64_t r = first; r < end; r++) pass.kernels.add(x.row(r) + at, of_token.row(r), size);
    }
    pass.wait(thread);
}

}  // namespace

void enter_draft_head(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const HeadSpec& head = model.spec.draft_head;
    const Array<float>& x = pass.activations.shared.x;
    if (model.spec.enters_by_streams()) return streams_through_fc(pass, thread);
    if (head.kind != EAGLE3 || !pass.own_hidden) return through_fc(pass, thread);
    const auto [first, end] = share_of(pass, thread);  // of its own states g is what they are
    for (int64_t r = first; r < end; r++)
        std::copy(pass.hidden[size_t(r)], pass.hidden[size_t(r)] + model.spec.hidden_size, x.row(r));
    pass.wait(thread);
}

void append_context(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const Array<float>&x = pass.activations.shared.x, &qkv = pass.activations.shared.qkv;
    const auto [first, end] = share_of(pass, thread);
    through_fc(pass, thread);
    for (int64_t r = first; r < end; r++) normalize(pass, model.head_hidden_norm, x.row(r), x.row(r));
    for (const LayerStep& step : pass.program.layers) {
        const PackedLayer& layer = pass.layer(step);
        for (int64_t r = first; r < end; r++) {
            prepare_row(pass, thread, x.row(r), model.spec.hidden_size, 0, layer.qkv.depth, r, layer.qkv,
                        &NodeBuffers::inputs);
        }
        pass.wait(thread);
        // Keys and values among the columns of `qkv`; of latents the first ones of what is made.
        const AttentionSpec& a = layer.attention;
        const bool latent = a.is_latent();
        const int64_t column = a.key_column(), before = latent ? 0 : column / LANES,
                      panels = latent ? a.head_dim / LANES : a.gate_column() / LANES - before;
        const int64_t from = before + share(panels, thread, pass.plan().threads),
                      to = before + share(panels, thread + 1, pass.plan().threads);
        model.multiply(layer.qkv, pass.activations.on(pass.node(thread)).inputs.with_depth(layer.qkv.depth),
                       pass.plan().rows(), from, to, qkv.data + column + (from - before) * LANES, qkv.columns);
        pass.wait(thread);
        for (int64_t r = first; latent && r < end; r++) {
            float* key = qkv.row(r) + column;
            pass.kernels.normalize(true, key, layer.latent.norm, nullptr, a.latent.norm_eps, a.head_dim, key);
        }
        if (latent) pass.wait(thread);
        append_share(AttentionView(pass, step, thread));
        pass.wait(thread);  // the next layer's come to the same place
        if (step.hooks.keep) step.hooks.keep(AttentionView(pass, step, thread));
    }
}

void prepare_token_and_hidden(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const int64_t size = pass.model.spec.hidden_size;
    const auto [first, end] = share_of(pass, thread);
    for (int64_t r = first; r < end; r++) {
        float* x = pass.activations.shared.x.row(r);
        const float* row = token_and_hidden(pass, r, x, thread);
        if (pass.model.spec.draft_head.norm_before_residual) std::copy(row + size, row + 2 * size, x);
        prepare_row(pass, thread, row, layer.input_width, 0, layer.qkv.depth, r, layer.qkv, &NodeBuffers::inputs);
    }
    if (pass.batch.taps.count) tap_layer(pass, step.index, thread);
    pass.wait(thread);
}

void feed_back(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const int64_t count = int64_t(pass.plan().logit_rows.size()), size = model.spec.hidden_size;
    const int64_t width = model.spec.streams.columns(size);
    const bool normed = model.spec.draft_head.fed_back_normed && model.into_head.pre;
    const bool projected = model.spec.reads_target();
    for (int64_t i = share(count, thread, pass.plan().threads); i < share(count, thread + 1, pass.plan().threads);
         i++) {
        const float* x = pass.activations.shared.x.row(pass.plan().logit_rows[size_t(i)]);
        float* to = projected ? pass.activations.own(thread).row.data : pass.activations.shared.fed_back.row(i);
        if (normed) normalize(pass, *model.into_head.pre, x, to);
        else std::copy(x, x + width, to);
        if (projected)
            prepare_row(pass, thread, to, size, 0, model.fc_out.depth, i, model.fc_out, &NodeBuffers::inputs);
    }
    if (!projected) return;
    const Array<float>& fed_back = pass.activations.shared.fed_back;
    pass.wait(thread);
    linear(pass, thread, pass.inputs(thread, model.fc_out.depth), model.fc_out, count, fed_back.data, fed_back.columns);
}

}  // namespace ipex_assist
