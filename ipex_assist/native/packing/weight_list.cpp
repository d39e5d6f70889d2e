// The weights of a model but those of its mixers.
#include "packing/weight_list.h"

namespace ipex_assist {
namespace {

// Of a plain MLP, or of an expert.
void list_mlp(WeightList& list, const ModelSpec& spec, const MlpSpec& mlp, int64_t size, Linear& up, Linear& down) {
    const int64_t hidden = spec.hidden_size;
    const bool bias = mlp.bias;
    if (mlp.gated) {
        list.linear(up, {2 * packed(size), hidden, bias, mlp.precision, 2},
                    {{"gate_proj", 0, size, 2}, {"up_proj", 1, size, 2}});
    } else {
        list.linear(up, {packed(size), hidden, bias, mlp.precision}, {{"up_proj", 0, size}});
    }
    list.linear(down, {packed(hidden), size, bias, mlp.precision}, {{"down_proj", 0, hidden}});
}

void list_experts(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const MlpSpec& mlp = layer.mlp;
    const int64_t hidden = spec.hidden_size, routed = packed(mlp.routed());
    const LinearPart router{"router", 0, mlp.routed()};
    const LinearShape shape{routed + (mlp.shared_gate ? LANES : 0), hidden, mlp.router_bias != 0, FP32};
    if (mlp.shared_gate) list.linear(layer.router, shape, {router, {"shared_gate", routed / LANES, 1, 1, false}});
    else list.linear(layer.router, shape, {router});
    if (mlp.correction_bias) list.vector(layer.correction_bias, {"correction_bias", mlp.routed()});
    if (mlp.by_token)
        list.vector(layer.expert_table, {"expert_table", int64_t(spec.vocab_size) * mlp.experts_per_token});
    if (mlp.expert_scales) list.vector(layer.expert_scales, {"expert_scales", mlp.experts});
    if (mlp.own_norms) {
        list.norm(layer.expert_norms.router, spec, {"router_norm", hidden});
        list.norm(layer.expert_norms.experts, spec, {"experts_norm", hidden});
        list.norm(layer.expert_norms.experts_out, spec, {"experts_out_norm", hidden});
        list.norm(layer.expert_norms.shared_out, spec, {"shared_out_norm", hidden});
    }
    for (int32_t e = 0; e < mlp.count(); e++) {
        const bool shared = e == mlp.experts;
        list.within(shared ? "shared" : "experts", shared ? -1 : e, [&] {
            Mlp& expert = layer.experts[size_t(e)];
            list_mlp(list, spec, mlp, shared ? mlp.shared_size : mlp.intermediate_size, expert.up, expert.down);
        });
    }
}

void list_mlp_or_experts(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    if (layer.mlp.experts) return list_experts(list, spec, layer);
    list_mlp(list, spec, layer.mlp, layer.mlp.intermediate_size, layer.up, layer.down);
    if (layer.mlp.activation != XIELU) return;
    list.vector(layer.xielu.alpha_p, {"alpha_p", 1});
    list.vector(layer.xielu.alpha_n, {"alpha_n", 1});
    list.vector(layer.xielu.beta, {"xielu_beta", 1});
    list.vector(layer.xielu.eps, {"xielu_eps", 1});
}

void list_dynamic_conv(WeightList& list, const ModelSpec& spec, ConvWeights& conv, const char* base,
                       const char* projection) {
    const int64_t hidden = spec.hidden_size, scales = 2 * spec.draft_head.conv_scales(hidden);
    list.vector(conv.base, {base, 2 * spec.draft_head.conv_kernel * hidden});
    list.linear(conv.projection, {packed(scales), hidden, false, spec.precision}, {{projection, 0, scales}});
}

// name: of the projection; kinds: of numbers, with a scale each.
void list_streams(WeightList& list, const ModelSpec& spec, StreamWeights& w, const char* name, const char* base,
                  const char* scale, int64_t numbers, int64_t kinds) {
    if (!spec.streams.several()) return;
    const int64_t columns = spec.streams.columns(spec.hidden_size);
    list.linear(w.projection, {packed(numbers), columns, false, FP32}, {{name, 0, numbers}});
    if (spec.streams.gated()) return;
    list.vector(w.base, {base, numbers});
    list.vector(w.scale, {scale, kinds});
}

void list_norm_gate(WeightList& list, const ModelSpec& spec, NormGate& gate, const char* down, const char* up,
                    int64_t rank) {
    if (!rank) return;
    const int64_t width = spec.norm_width();
    list.linear(gate.down, {packed(rank), width, false, spec.precision}, {{down, 0, rank}});
    list.linear(gate.up, {packed(width), rank, false, spec.precision}, {{up, 0, width}});
}

void list_altup(WeightList& list, const ModelSpec& spec, AltUpWeights& w) {
    const int64_t count = spec.altup.count;
    if (!spec.altup.several()) return;
    list.norm(w.router_norm, spec, {"altup_router_norm", spec.hidden_size});
    list.vector(w.router, {"altup_router", count * spec.hidden_size});
    list.vector(w.predict, {"altup_predict", count * count * count});
    list.vector(w.correct, {"altup_correct", count * count});
    if (spec.altup.scaled) list.vector(w.scale, {"altup_scale", spec.hidden_size});
}

void list_layer(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const int64_t hidden = spec.hidden_size, own = spec.per_layer_size, width = spec.norm_width();
    if (layer.recurrent.reads_streams()) return list_mixer_weights(list, spec, layer);
    const int64_t numbers = spec.streams.numbers(), kinds = spec.streams.sinkhorn_steps ? 3 : 2;
    list_streams(list, spec, layer.attention_streams, "attention_hc", "attention_hc_base", "attention_hc_scale",
                 numbers, kinds);
    list_altup(list, spec, layer.altup);
    const bool first_norms = layer.norm_place != POST;
    // That of a token beside a hidden state is the draft head's.
    if (first_norms && (layer.input_width == hidden || layer.aside))
        list.norm(layer.attention_norm, spec, {"attention_norm", layer.aside ? layer.input_width : width});
    list_norm_gate(list, spec, layer.mixer_gate, "mixer_gate_down_proj", "mixer_gate_up_proj", layer.mixer_gate_rank);
    list_mixer_weights(list, spec, layer);
    if (layer.laurel_rank) {
        const LinearShape shape{packed(hidden), layer.laurel_rank, false, spec.precision};
        list.linear(layer.laurel.right, shape, {{"laurel_right_proj", 0, hidden}});
        list.norm(layer.laurel.norm, spec, {"laurel_out_norm", hidden});
    }
    if (layer.has_attention_out_norm()) list.norm(layer.attention_out_norm, spec, {"attention_out_norm", hidden});
    if (layer.has_mlp()) {
        list_streams(list, spec, layer.mlp_streams, "mlp_hc", "mlp_hc_base", "mlp_hc_scale", numbers, kinds);
        if (first_norms && !layer.shared_norm) list.norm(layer.mlp_norm, spec, {"mlp_norm", width});
        list_norm_gate(list, spec, layer.mlp_gate, "mlp_gate_down_proj", "mlp_gate_up_proj", layer.mlp_gate_rank);
        list_mlp_or_experts(list, spec, layer);
        if (layer.has_mlp_out_norm()) list.norm(layer.mlp_out_norm, spec, {"mlp_out_norm", hidden});
        if (layer.aside)
            list.linear(layer.aside_linear, {packed(hidden), hidden, false, spec.precision},
                        {{"aside_proj", 0, hidden}});
    }
    if (own) {
        PerLayerWeights& w = layer.per_layer;
        list.linear(w.gate, {packed(own), hidden, false, spec.precision}, {{"per_layer_gate_proj", 0, own}});
        list.linear(w.out, {packed(hidden), own, false, spec.precision}, {{"per_layer_out_proj", 0, hidden}});
        list.norm(w.norm, spec, {"per_layer_out_norm", hidden});
    }
    if (layer.scaled) list.vector(layer.scalar, {"layer_scalar", 1});
    if (!spec.draft_head.conv_kernel) return;
    list_dynamic_conv(list, spec, layer.attention_conv, "attention_conv_base", "attention_conv_proj");
    list_dynamic_conv(list, spec, layer.mlp_conv, "mlp_conv_base", "mlp_conv_proj");
}

void list_selector(WeightList& list, const ModelSpec& spec, SelectorWeights& w) {
    const HeadSpec& head = spec.draft_head;
    const int64_t hidden = spec.hidden_size, rank = head.selector_rank, rows = spec.lm_head_rows();
    if (head.candidates)
        list.linear(w.projection, {packed(rank), hidden, false, spec.precision}, {{"selector_proj", 0, rank}});
    if (rank) list.table(w.before, "selector_before", spec.vocab_size, rank);
    if (head.candidates) list.table(w.after, "selector_after", spec.vocab_size, rank);
    else if (rank) list.linear(w.markov, {packed(rows), rank, false, spec.precision}, {{"selector_after", 0, rows}});
    if (!head.confidence_size) return;
    list.vector(w.confidence, {"confidence", head.confidence_size});
    if (!spec.streams.several()) list.vector(w.confidence_bias, {"confidence", 1}, true);
}

// What a draft head has beside a decoder.
void list_draft_head(WeightList& list, ModelWeights& w) {
    const ModelSpec& spec = w.spec;
    const HeadSpec& head = spec.draft_head;
    const int64_t hidden = spec.hidden_size;
    list.linear(w.fc, {packed(hidden), spec.fc_width(), false, spec.precision},
                {{spec.reads_target() ? "fc_in" : "fc", 0, hidden}});
    if (spec.enters_by_streams())
        list.linear(w.fc_token, {packed(hidden), hidden, false, spec.precision}, {{"fc_token", 0, hidden}});
    if (head.input_norm) {
        const bool each = head.input_norm == NORM_OF_EACH;
        list.norm(w.input_norm, spec,
                  {each ? "fc_norm" : "input_norm", head.input_size, {}, each ? head.input_norms() : 0});
    }
    if (spec.reads_target()) {
        list.linear(w.fc_out, {packed(head.input_size), hidden, false, spec.precision},
                    {{"fc_out", 0, head.input_size}});
        if (head.clusters)
            list.linear(w.clusters, {packed(head.clusters), hidden, false, spec.precision == FP32 ? FP32 : BF16},
                        {{"clusters", 0, head.clusters}});
        return;
    }
    list_selector(list, spec, w.selector);
    if (head.feeds_back()) list.norm(w.head_embedding_norm, spec, {"head_embed_norm", hidden});
    list.norm(w.head_hidden_norm, spec, {"head_hidden_norm", spec.norm_width()});
}

void list_outside(WeightList& list, ModelWeights& w) {
    const ModelSpec& spec = w.spec;
    const int64_t hidden = spec.hidden_size, embedding = spec.embedding_size, own = spec.per_layer_width();
    list_norm_gate(list, spec, w.head_gate, "head_gate_down_proj", "head_gate_up_proj", spec.streams.gate_rank);
    if (!spec.streams.averaged && !spec.streams.gated())
        list_streams(list, spec, w.head_streams, "head_hc", "head_hc_base", "head_hc_scale", spec.streams.count, 1);
    if (spec.final_norm) list.norm(w.final_norm, spec, {"final_norm", spec.norm_width()});
    if (spec.embedding_norm) list.norm(w.embedding_norm, spec, {"embed_norm", hidden});
    if (spec.projected_embedding) {
        list.linear(w.project_in, {packed(hidden), embedding, false, spec.outer_precision},
                    {{"project_in", 0, hidden}});
        list.linear(w.project_out, {packed(embedding), hidden, false, spec.outer_precision},
                    {{"project_out", 0, embedding}});
    }
    if (spec.is_draft_head()) list_draft_head(list, w);
    if (own) {
        list.linear(w.per_layer_in, {packed(own), hidden, false, spec.outer_precision},
                    {{"per_layer_in_proj", 0, own}});
        list.vector(w.per_layer_norm, {"per_layer_norm", spec.per_layer_size});
    }
    for (size_t s = 0; s < w.stream_projections.size(); s++) {
        list.within("altup", int32_t(s), [&] {
            const LinearShape shape{packed(hidden), hidden, false, spec.outer_precision};
            list.linear(w.stream_projections[s].in, shape, {{"altup_in_proj", 0, hidden}});
            list.linear(w.stream_projections[s].out, shape, {{"altup_out_proj", 0, hidden}});
        });
    }
    if (!spec.draft_head.shared_head) {
        const int64_t rows = spec.lm_head_rows();
        const bool bias = spec.head_bias, tied = spec.tied_head;
        list.linear(w.head, {packed(rows), embedding, bias, spec.outer_precision},
                    {{tied ? "embed_tokens" : "lm_head", 0, rows, 1, !tied}});
    }
    if (spec.positions) list.vector(w.positions, {"embed_positions", int64_t(spec.positions) * hidden});
    if (own) list.table(w.per_layer_table, "per_layer_embed", spec.per_layer_tokens, own);
    if (w.table_is_linear()) {
        list.linear(w.table_linear, {packed(spec.vocab_size), embedding, false, spec.precision},
                    {{"embed_tokens", 0, spec.vocab_size}});
        return;
    }
    // The last, as a model that shares another one's gives its memory back.
    if (!w.head_is_table() && !spec.draft_head.shared_embedding)
        list.table(w.table, "embed_tokens", spec.vocab_size, embedding);
}

}  // namespace

void list_weights(WeightList& list, ModelWeights& weights) {
    for (size_t i = 0; i < weights.layers.size(); i++) {
        list.within("layers", int32_t(i), [&] { list_layer(list, weights.spec, weights.layers[i]); });
    }
    list_outside(list, weights);
}

}  // namespace ipex_assist
