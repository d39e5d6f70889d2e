#include "packing/checks.h"

#include <cmath>
#include <initializer_list>

namespace ipex_assist {

void check_multiplier(float factor) {
    if (!std::isfinite(factor) || factor == 0) refuse("a multiplier is %g and must be a number but 0", double(factor));
}

void check_cap(float cap) {
    if (!std::isfinite(cap) || cap < 0) refuse("a soft cap is %g and must be a number from 0 on", double(cap));
}

namespace {

void check_precision(const ModelSpec& s, const char* name, Precision precision) {
    if (!is_precision(precision)) refuse("%s is %d, which is no number format", name, precision);
    if (!takes_group(precision, s.group)) refuse("groups of %d columns in int4: they have 32, 64 or 128", s.group);
}

void check_routing(const MlpSpec& m) {
    check_range("scores of experts", m.scores, SOFTMAX, SQRT_SOFTPLUS);
    const bool chosen = m.correction_bias || m.groups > 1 || m.identity || m.scores == SPARSEMIXER;
    check_range("whether tokens name their experts", m.by_token, 0, chosen ? 0 : 1);
    check_range("experts that a group is judged by", m.best_of_group, 1, 2);
    check_range("groups of experts", m.groups, 1, m.experts);
    check_range("groups of a token", m.groups_per_token, 1, m.groups);
    const int32_t each = m.experts / m.groups;
    if (m.groups > 1 && (m.experts % m.groups || each < m.best_of_group))
        refuse("%d experts in %d groups, which are judged by %d of theirs", m.experts, m.groups, m.best_of_group);
    if (m.experts_per_token > each * m.groups_per_token)
        refuse("%d experts of a token in %d groups of %d", m.experts_per_token, m.groups_per_token, each);
    check_range("whether inputs of experts are scaled", m.scales_inputs, 0, 1);
    const bool plain = m.shared_size && !m.scales_inputs && !m.own_norms && !m.expert_scales && m.groups == 1;
    check_range("experts that give what they read", m.identity, 0, plain && m.scores != SPARSEMIXER ? 1024 : 0);
    if (m.scores == SPARSEMIXER && m.experts_per_token != 2)
        refuse("%d experts of a token, and sparsemixer chooses 2", m.experts_per_token);
    check_multiplier(m.scaling);
    for (const float number : {m.added_to_sum, m.least_sum, m.jitter}) {
        if (!std::isfinite(number) || number < 0)
            refuse("a number of the routing is %g and must be from 0 on", double(number));
    }
}

void check_mlp(const ModelSpec& s, const MlpSpec& m) {
    check_range("intermediate_size", m.intermediate_size, m.experts ? 1 : 0, LARGEST);  // 0: no MLP
    check_precision(s, m.experts ? "precision of experts" : "precision", m.precision);
    check_range("activation", m.activation, SILU, m.gated ? CLAMPED_SWIGLU : XIELU);
    if (m.activation == XIELU && m.gated) refuse("xIELU is of MLPs without a gate");
    check_range("experts of a layer", m.experts, 0, 1024);
    check_range("experts of a token", m.experts_per_token, m.experts ? 1 : 0, m.experts);
    check_range("the shared expert's intermediate_size", m.shared_size, 0, m.experts ? LARGEST : 0);
    if (m.shared_gate && !m.shared_size) refuse("a gate of a shared expert that is not there");
    for (const float limit : {m.limit, m.shared_limit}) {
        if (!std::isfinite(limit) || limit < 0)
            refuse("a limit of activations is %g and must be from 0 on", double(limit));
        const bool alone = m.gated && m.activation != CLAMPED_SWIGLU && m.activation != XIELU;
        if (limit > 0 && !alone) refuse("a limit of activations without gates, or that have their own");
    }
    check_range("whether gates are sparse", m.sparsity != 0, 0, m.gated && !m.experts && m.limit == 0);
    if (m.sparsity != 0 && (!std::isfinite(m.deviations) || m.activation == CLAMPED_SWIGLU))
        refuse("gates above %g standard deviations, or whose activation is of gate and up", double(m.deviations));
    if (m.own_norms && (!m.shared_size || m.shared_gate)) refuse("norms of experts, and no shared one without a gate");
    if (m.expert_scales && !m.experts) refuse("scales of experts that are not there");
    if (m.experts) check_routing(m);
}

void check_streams(const ModelSpec& s, const LayerSpec* layers) {
    const StreamSpec& streams = s.streams;
    check_range("hc_mult", streams.count, 0, MOST_STREAMS);
    if (!streams.several()) return;
    check_range("hc_sinkhorn_iters", streams.sinkhorn_steps, 0, 1000);
    check_range("whether the final norm reads the mean of streams", streams.averaged, 0, 1);
    check_range("hc_lowrank", streams.gate_rank, 0, streams.averaged || streams.sinkhorn_steps ? 0 : s.hidden_size);
    if (streams.gated() && !s.final_norm) refuse("gated residuals without a norm before the head");
    for (const float number : {streams.eps, streams.gain, streams.gain_eps}) {
        if (!std::isfinite(number)) refuse("a number of hyper-connections is %g", double(number));
    }
    if (s.hidden_size % LANES) refuse("streams of %d columns: multiples of %d are computed", s.hidden_size, LANES);
    if (s.projected_embedding || s.per_layer_size) refuse("several streams with projected or per-layer embeddings");
    for (int32_t i = 0; i < s.layers; i++) {
        const LayerSpec& layer = layers[i];
        const bool plain = !layer.parallel && !layer.beside && !layer.scaled && !layer.defers && !layer.mlp.own_norms;
        if (layer.norm_place == POST_RESIDUAL || !plain)
            refuse("layer %d has a form of its own, which several streams have not", i);
        const int32_t rank = streams.gate_rank;
        if (layer.recurrent.reads_streams()) continue;
        if (layer.mixer_gate_rank != rank || layer.mlp_gate_rank != (layer.has_mlp() ? rank : 0))
            refuse("layer %d of gated residuals has gates of its own", i);
    }
}

void check_altup(const ModelSpec& s, const LayerSpec* layers) {
    check_range("altup_num_inputs", s.altup.count, 0, MOST_STREAMS);
    if (!s.altup.several()) return;
    check_range("altup_active_idx", s.altup.active, 0, s.altup.count - 1);
    if (s.hidden_size % LANES) refuse("streams of %d columns: multiples of %d are computed", s.hidden_size, LANES);
    if (s.is_draft_head() || s.projected_embedding || s.streams.several() || !s.per_layer_size)
        refuse("AltUp's streams in a draft head, or with projected embeddings, or without those of each layer");
    for (int32_t i = 0; i < s.layers; i++) {
        const LayerSpec& layer = layers[i];
        if (layer.parallel || layer.beside || layer.scaled || layer.defers || layer.mlp.own_norms)
            refuse("layer %d has a form of its own, which AltUp's streams have not", i);
    }
}

void check_laurel(const LayerSpec& layer) {
    const bool plain = !layer.is_recurrent() && !layer.attention.is_latent() && layer.has_mlp() && !layer.parallel;
    check_range("laurel_rank", layer.laurel_rank, 0, plain && layer.has_pre_norms() ? LARGEST : 0);
}

void check_layer(const ModelSpec& s, const LayerSpec& layer) {
    check_mixer(s, layer);
    if (layer.is_recurrent() && layer.attention.kv_heads)
        refuse("a layer with a recurrent mixer and %d key/value heads", layer.attention.kv_heads);
    check_mlp(s, layer.mlp);
    check_range("norm_place", layer.norm_place, PRE, PRE_AND_MLP_OUT);
    check_multiplier(layer.residual_multiplier);
    check_laurel(layer);
    if (layer.parallel && layer.norm_place != PRE) refuse("norms of parallel layers are before them");
    if (layer.shared_norm && !layer.parallel) refuse("attention and MLP share a norm in parallel layers only");
    if (!layer.has_mlp() && layer.parallel) refuse("nothing parallel to attention");
    const bool gated =
        layer.has_pre_norms() && !layer.parallel && !layer.beside && !layer.mlp.own_norms &&
        (s.streams.gated() || (!s.streams.several() && (!s.is_draft_head() || s.draft_head.kind == MTP)));
    check_range("the rank of a norm's gate", layer.mixer_gate_rank, 0, gated ? s.hidden_size : 0);
    check_range("the rank of a norm's gate", layer.mlp_gate_rank, 0, gated && layer.has_mlp() ? s.hidden_size : 0);
    if (layer.mlp.own_norms && layer.norm_place != SANDWICH) refuse("norms of experts are within those around them");
    const bool plain = layer.mlp.activation != XIELU && layer.mlp.activation != CLAMPED_SWIGLU && layer.mlp.limit == 0;
    if (s.per_layer_size && (!layer.has_mlp() || layer.parallel || !plain))
        refuse("per-layer embeddings follow an MLP that is not parallel, and have its activation of one number");
}

// A layer that reads the keys and values of an earlier one, which has some as wide; or, of a draft head, the target's.
void check_kv_layer(const ModelSpec& s, const LayerSpec* layers, int32_t number) {
    const AttentionSpec& a = layers[number].attention;
    if (s.reads_target()) {
        if (layers[number].is_recurrent() || !a.shares_kv || a.is_latent() || a.qk_norm == ALL_HEADS || a.chunk)
            refuse("layer %d of a draft head does not read keys and values of its target alone", number);
        return check_range("the target's layer whose keys and values are read", a.kv_layer, 0, MOST_LAYERS - 1);
    }
    if (layers[number].is_recurrent() || !a.shares_kv) return;
    check_range("the layer whose keys and values are read", a.kv_layer, 0, int64_t(number) - 1);
    const LayerSpec& other = layers[a.kv_layer];
    if (other.is_recurrent() || other.attention.shares_kv || other.attention.is_latent() != a.is_latent())
        refuse("layer %d reads the keys and values of layer %d, which has none of its own", number, a.kv_layer);
    if (other.attention.kv_heads != a.kv_heads || other.attention.head_dim != a.head_dim ||
        other.attention.value_dim() != a.value_dim()) {
        refuse("layer %d reads %d key/value heads of %d, and layer %d has %d of %d", number, a.kv_heads, a.head_dim,
               a.kv_layer, other.attention.kv_heads, other.attention.head_dim);
    }
}

// What routed experts give is added after the next layer's MLP, which nothing else is done to.
void check_deferred(const ModelSpec& s, const LayerSpec* layers, int32_t number) {
    const LayerSpec& layer = layers[number];
    check_range("whether experts are deferred", layer.defers, 0, layer.mlp.shared_size && !layer.mlp.own_norms);
    if (!layer.defers) return;
    if (number + 1 == s.layers || s.is_draft_head() || s.per_layer_size) refuse("layer %d defers to none", number);
    for (const LayerSpec* each : {&layer, &layer + 1}) {
        if (!each->has_mlp() || each->norm_place != PRE || each->parallel || each->scaled ||
            each->residual_multiplier != 1)
            refuse("layer %d defers what its experts give, and layers have more than norms before their parts", number);
    }
    if (layers[number + 1].defers) refuse("layers %d and %d defer what their experts give", number, number + 1);
}

// A mixer beside that of the layer before, which ends with it.
void check_beside(const LayerSpec* layers, int32_t number) {
    if (!layers[number].beside) return;
    const bool alone = number == 0 || layers[number - 1].has_mlp() || layers[number - 1].norm_place != PRE;
    if (alone || layers[number].norm_place != PRE)
        refuse("the mixer of layer %d beside that of one before it, which ends with an MLP or a norm", number);
}

// One whose attention reads the embedding, too: what it gives is added before the mixer of the next layer alone.
void check_aside(const ModelSpec& s, const LayerSpec* layers, int32_t number) {
    const LayerSpec& layer = layers[number];
    check_range("the block of a layer aside", layer.aside, 0, s.keeps_embedding ? MOST_LAYERS : 0);
    if (!layer.aside) return;
    const bool plain = !layer.is_recurrent() && !layer.attention.is_latent() && layer.has_mlp() && !layer.mlp.experts &&
                       layer.norm_place == PRE && layer.residual_multiplier == 1;
    const bool more = layer.parallel || layer.scaled || layer.beside || layer.laurel_rank || layer.mixer_gate_rank ||
                      layer.mlp_gate_rank || attends_sparsely(layer.attention);
    if (!plain || more) refuse("layer %d is aside and is no more than attention, an MLP and norms before them", number);
    const LayerSpec* next = number + 1 < s.layers ? &layers[number + 1] : nullptr;
    if (!next || next->aside || next->beside || !next->has_pre_norms() || next->mixer_gate_rank)
        refuse("layer %d is aside, and no mixer after a norm alone follows it", number);
    if (s.is_draft_head() || s.streams.several() || s.altup.several() || s.per_layer_size || s.hidden_size % LANES)
        refuse("a layer aside in a draft head, in rows of %d columns, or with streams or per-layer embeddings",
               s.hidden_size);
}

void check_model(const ModelSpec& s) {
    check_range("num_hidden_layers", s.layers, 1, MOST_LAYERS);
    check_range("vocab_size", s.vocab_size, 1, LARGEST);
    check_range("hidden_size", s.hidden_size, 1, LARGEST);
    check_range("embedding_size", s.embedding_size, 1, LARGEST);
    check_range("rows of the position table", s.positions, 0, LARGEST);
    check_range("position_offset", s.position_offset, 0, LARGEST);
    check_range("rotary_width", s.rotary_width, 0, LARGEST);
    check_precision(s, "precision", s.precision);
    check_precision(s, "outer_precision", s.outer_precision);
    const bool head_is_table = s.tied_head && is_looked_up(s.precision);
    if (head_is_table && s.outer_precision != s.precision)
        refuse("a head that is the embedding has its precision, too");
    if (!std::isfinite(s.norm_eps) || s.norm_eps < 0)
        refuse("the norms' epsilon is %g and must be a number from 0 on", double(s.norm_eps));
    check_multiplier(s.embedding_multiplier);
    check_cap(s.logit_cap);
    check_draft_head(s);
    check_range("the size of per-layer embeddings", s.per_layer_size, 0, 1 << 14);
    check_range("rows of per-layer embeddings", s.per_layer_tokens, s.per_layer_size ? 1 : 0, s.vocab_size);
    check_range("layers x the size of per-layer embeddings", s.per_layer_width(), 0, LARGEST);
    if (!s.projected_embedding && s.embedding_size != s.hidden_size) {
        refuse("an embedding of %d for a hidden size of %d needs projections", s.embedding_size, s.hidden_size);
    }
}

}  // namespace

const ModelSpec& checked(const ModelSpec& s, const LayerSpec* layers) {
    check_model(s);
    for (int32_t i = 0; i < s.layers; i++) {
        check_layer(s, layers[i]);
        check_kv_layer(s, layers, i);
        check_mixer_among(layers, i);
        check_beside(layers, i);
        check_deferred(s, layers, i);
        check_aside(s, layers, i);
    }
    check_draft_head_layers(s, layers);
    check_streams(s, layers);
    check_altup(s, layers);
    return s;
}

}  // namespace ipex_assist
