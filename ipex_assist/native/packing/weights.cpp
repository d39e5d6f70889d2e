#include "packing/weights.h"

#include "memory/round_up.h"

namespace ipex_assist {
namespace {

PackTarget latent_target(const PackedLayer& layer, Slot slot) {
    const AttentionSpec& a = layer.attention;
    const int64_t hidden = layer.input_width;
    const LatentSpec& l = a.latent;
    const LatentWeights& w = layer.latent;
    const int64_t query = l.query_rank ? l.query_rank : hidden;
    switch (slot) {
        case K_ROPE_PROJ: return {&layer.qkv, 0, 1, l.rope_dim, hidden};
        case KV_A_PROJ: return {&layer.qkv, l.rope_dim / LANES, 1, l.rank, hidden};
        case Q_A_PROJ: return {l.query_rank ? &layer.qkv : nullptr, a.head_dim / LANES, 1, l.query_rank, hidden};
        case Q_NOPE_PROJ: return {&w.query, 0, 1, int64_t(a.heads) * l.nope_dim, query};
        case Q_ROPE_PROJ: return {&w.query, a.rotated_column() / LANES, 1, int64_t(a.heads) * l.rope_dim, query};
        case K_B_PROJ: return {&w.keys, 0, 1, a.attended_width(), l.nope_dim};
        case V_B_PROJ: return {&w.values, 0, 1, a.output_width(), l.rank};
        default: return {};
    }
}

// The projection of a layer's convolutions; no weights where it has none.
PackTarget conv_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (size_t(index) >= w.layers.size()) return {};
    const PackedLayer& layer = w.layers[size_t(index)];
    const ConvWeights& conv = slot == MLP_CONV_PROJ ? layer.mlp_conv : layer.attention_conv;
    if (!conv.base) return {};
    const int64_t hidden = w.spec.hidden_size;
    return {&conv.projection, 0, 1, 2 * w.spec.draft_head.conv_scales(hidden), hidden};
}

PackTarget attention_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (size_t(index) >= w.layers.size()) return {};
    const PackedLayer& layer = w.layers[size_t(index)];
    const AttentionSpec& a = layer.attention;
    if (layer.is_recurrent()) return {};
    const int64_t hidden = layer.input_width;
    if (slot == O_PROJ) return {&layer.output, 0, 1, w.spec.hidden_size, a.output_width()};
    if (a.is_latent()) return latent_target(layer, slot);
    switch (slot) {
        case Q_PROJ: return {&layer.qkv, 0, 1, a.query_width(), hidden};
        case K_PROJ: return {a.shares_kv ? nullptr : &layer.qkv, a.key_column() / LANES, 1, a.kv_width(), hidden};
        case V_PROJ:
            return {a.shares_kv || a.values_are_keys ? nullptr : &layer.qkv, a.value_column() / LANES, 1, a.kv_width(),
                    hidden};
        case G_PROJ: return {a.output_gate ? &layer.qkv : nullptr, a.gate_column() / LANES, 1, a.query_width(), hidden};
        default: return {};
    }
}

PackTarget recurrent_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (size_t(index) >= w.layers.size() || !w.layers[size_t(index)].is_recurrent()) return {};
    const PackedLayer& layer = w.layers[size_t(index)];
    const RecurrentSpec& r = layer.recurrent;
    const int64_t hidden = w.spec.hidden_size;
    const auto part = [&](int64_t column, int64_t columns, bool there = true) {
        return there ? PackTarget{&layer.qkv, column / LANES, 1, columns, hidden} : PackTarget{};
    };
    const bool low = r.gate_rank != 0, kimi = r.kind == KIMI_DELTA, mamba1 = r.kind == MAMBA1;
    const auto selected = [&](int64_t column, int64_t columns) {
        return PackTarget{&layer.recurrence.low, (column - r.low_column()) / LANES, 1, columns, r.value_width()};
    };
    const auto gates = [&](int64_t column, int64_t columns) {
        return PackTarget{&layer.recurrence.gates, (column - r.decay_column()) / LANES, 1, columns, r.gate_rank};
    };
    switch (slot) {
        case Q_IN: return mamba1 ? selected(r.query_column(), r.key_dim) : part(0, r.key_width());
        case K_IN: return mamba1 ? selected(r.key_column(), r.key_dim) : part(r.key_column(), r.key_width());
        case V_IN: return part(r.value_column(), r.value_width());
        case A_IN: return low ? gates(r.decay_column(), r.decay_inputs()) : part(r.decay_column(), r.heads, r.scans());
        case B_IN: return part(r.beta_column(), r.heads, r.is_delta());
        case Z_IN:
            return kimi ? gates(r.gate_column(), r.value_width()) : part(r.gate_column(), r.value_width(), r.scans());
        case A_LOW_IN: return mamba1 ? selected(r.low_column(), r.gate_rank) : part(r.low_column(), r.gate_rank, low);
        case Z_LOW_IN: return part(r.low_column() + r.low_width(), r.gate_rank, kimi);
        case MIXER_OUT: return {&layer.output, 0, 1, hidden, r.value_width()};
        default: return {};
    }
}

// A vector of a recurrent mixer, null where it has none, and its size.
std::pair<const float*, int64_t> recurrent_vector(const PackedLayer& layer, Slot slot, bool bias) {
    const RecurrentSpec& r = layer.recurrent;
    const RecurrentWeights& w = layer.recurrence;
    const int64_t taps = bias ? 1 : r.conv_kernel;
    switch (slot) {
        case Q_CONV: return {bias ? w.q_conv_bias : w.q_conv, taps * r.key_width()};
        case K_CONV: return {bias ? w.k_conv_bias : w.k_conv, taps * r.key_width()};
        case V_CONV: return {bias ? w.v_conv_bias : w.v_conv, taps * r.value_width()};
        case A_LOG: return {bias ? nullptr : w.decay_rate, decay_rates(r)};
        case DT_BIAS: return {bias ? nullptr : w.dt_bias, r.decay_inputs()};
        case SKIP: return {bias ? nullptr : w.skip, skips(r)};
        case A_LOW_NORM: return {bias ? nullptr : w.low_norm, r.gate_rank};
        case K_IN_NORM: return {bias ? nullptr : w.key_norm, r.key_dim};
        case Q_IN_NORM: return {bias ? nullptr : w.query_norm, r.key_dim};
        default: return {bias ? nullptr : w.norm, r.norm_weights()};
    }
}

PackTarget mlp_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (index < 0) return {};
    const PackedLayer& layer = w.layers[size_t(index % w.spec.layers)];
    const MlpSpec& mlp = layer.mlp;
    const int32_t expert = index / w.spec.layers - 1;
    if (!layer.has_mlp()) return {};
    if (expert >= int32_t(layer.experts.size())) return {};
    const int64_t hidden = w.spec.hidden_size,
                  size = mlp.experts && expert == mlp.experts ? mlp.shared_size : mlp.intermediate_size;
    const Linear& up = expert < 0 ? layer.up : layer.experts[size_t(expert)].up;
    const Linear& down = expert < 0 ? layer.down : layer.experts[size_t(expert)].down;
    switch (slot) {
        case GATE_PROJ: return {mlp.gated ? &up : nullptr, 0, 2, size, hidden};
        case UP_PROJ: return {&up, mlp.gated ? 1 : 0, mlp.gated ? 2 : 1, size, hidden};
        case DOWN_PROJ: return {&down, 0, 1, hidden, size};
        case ROUTER: return {expert < 0 ? &layer.router : nullptr, 0, 1, mlp.experts, hidden};
        case SHARED_GATE:
            return {expert < 0 && mlp.shared_gate ? &layer.router : nullptr, round_up(mlp.experts, LANES) / LANES, 1, 1,
                    hidden};
        case PER_LAYER_GATE_PROJ:
            return {expert < 0 ? &layer.per_layer.gate : nullptr, 0, 1, w.spec.per_layer_size, hidden};
        case PER_LAYER_OUT_PROJ:
            return {expert < 0 ? &layer.per_layer.out : nullptr, 0, 1, hidden, w.spec.per_layer_size};
        default: return {};
    }
}

// Of a tap, or of all of them together, side by side.
const float* input_norm_part(const ModelWeights& w, int32_t index, bool bias) {
    const HeadSpec& head = w.spec.draft_head;
    const float* all = bias ? w.input_norm.bias : w.input_norm.weight;
    if (!all || index < 0 || index >= head.input_norms()) return nullptr;
    return all + int64_t(index) * (head.input_size / head.input_norms());
}

// A vector of a layer with one for each expert, or of one number.
const float* layer_vector(const PackedLayer& layer, Slot slot) {
    switch (slot) {
        case Q_NORM: return layer.q_norm;
        case K_NORM: return layer.k_norm;
        case SINKS: return layer.sinks;
        case Q_A_NORM: return layer.latent.query_norm;
        case KV_A_NORM: return layer.latent.norm;
        case CORRECTION_BIAS: return layer.correction_bias;
        case EXPERT_SCALES: return layer.expert_scales;
        case LAYER_SCALAR: return layer.scalar;
        case ALPHA_P:
        case ALPHA_N:
        case XIELU_BETA:
        case XIELU_EPS: return layer.xielu[slot - ALPHA_P];
        case ATTENTION_CONV_BASE: return layer.attention_conv.base;
        case MLP_CONV_BASE: return layer.mlp_conv.base;
        default: return nullptr;
    }
}

// A norm of whole rows in a layer; null for what is none.
const Norm* layer_norm(const PackedLayer& layer, Slot slot) {
    switch (slot) {
        case ATTENTION_NORM: return &layer.attention_norm;
        case ATTENTION_OUT_NORM: return &layer.attention_out_norm;
        case MLP_NORM: return &layer.mlp_norm;
        case MLP_OUT_NORM: return &layer.mlp_out_norm;
        case PER_LAYER_OUT_NORM: return &layer.per_layer.norm;
        case ROUTER_NORM: return &layer.expert_norms.router;
        case EXPERTS_NORM: return &layer.expert_norms.experts;
        case EXPERTS_OUT_NORM: return &layer.expert_norms.experts_out;
        case SHARED_OUT_NORM: return &layer.expert_norms.shared_out;
        default: return nullptr;
    }
}

}  // namespace

PackTarget ModelWeights::target(Slot slot, int32_t index) const {
    if (slot >= GATE_PROJ) return mlp_target(*this, slot, index);
    if (slot >= Q_IN) return recurrent_target(*this, slot, index);
    if (slot >= ATTENTION_CONV_PROJ) return conv_target(*this, slot, index);
    if (slot >= Q_PROJ) return attention_target(*this, slot, index);
    const int64_t hidden = spec.hidden_size;
    switch (slot) {
        case EMBED_TOKENS: return {spec.tied_head ? &head : nullptr, 0, 1, spec.vocab_size, spec.embedding_size};
        case LM_HEAD: return {&head, 0, 1, spec.lm_head_rows(), spec.embedding_size};
        case FC: return {&fc, 0, 1, hidden, spec.draft_head.fc_width(hidden)};
        case FC_OUT: return {&fc_out, 0, 1, spec.draft_head.input_size, hidden};
        case CLUSTERS: return {&clusters, 0, 1, spec.draft_head.clusters, hidden};
        case SELECTOR_PROJ: return {&selector.projection, 0, 1, spec.draft_head.selector_rank, hidden};
        case SELECTOR_BEFORE:
        case SELECTOR_AFTER: return {nullptr, 0, 1, spec.vocab_size, spec.draft_head.selector_rank};
        case PROJECT_IN: return {&project_in, 0, 1, hidden, spec.embedding_size};
        case PROJECT_OUT: return {&project_out, 0, 1, spec.embedding_size, hidden};
        case PER_LAYER_EMBED: return {nullptr, 0, 1, spec.vocab_size, spec.per_layer_width()};
        case PER_LAYER_IN_PROJ: return {&per_layer_in, 0, 1, spec.per_layer_width(), hidden};
        default: return {};
    }
}

const float* ModelWeights::vector(Slot slot, int32_t index, bool bias) const {
    if (slot == FINAL_NORM) return bias ? final_norm.bias : final_norm.weight;
    if (slot == EMBED_NORM) return bias ? embedding_norm.bias : embedding_norm.weight;
    if (slot == INPUT_NORM) return input_norm_part(*this, index, bias);
    if (slot == HEAD_EMBED_NORM) return bias ? head_embedding_norm.bias : head_embedding_norm.weight;
    if (slot == HEAD_HIDDEN_NORM) return bias ? head_hidden_norm.bias : head_hidden_norm.weight;
    if (slot == EMBED_POSITIONS) return bias ? nullptr : positions;
    if (slot == PER_LAYER_NORM) return bias ? nullptr : per_layer_norm;
    if (size_t(index) >= layers.size()) return nullptr;
    const PackedLayer& layer = layers[size_t(index)];
    if (slot >= Q_CONV && slot < Q_PROJ) return recurrent_vector(layer, slot, bias).first;
    if (const Norm* norm = layer_norm(layer, slot)) return bias ? norm->bias : norm->weight;
    return bias ? nullptr : layer_vector(layer, slot);
}

bool ModelWeights::exists(Slot slot, int32_t index, bool bias) const {
    if (slot == EMBED_TOKENS) return !bias && !spec.draft_head.shared_embedding;
    if (slot == PER_LAYER_EMBED) return !bias && per_layer_table;
    if (slot == SELECTOR_BEFORE || slot == SELECTOR_AFTER) return !bias && selector.before;
    if (slot == SHARED_GATE && bias) return false;  // the router's
    if (slot == LM_HEAD && spec.tied_head) return false;
    if (vector(slot, index, bias)) return true;
    const PackTarget where = target(slot, index);
    return where.linear && where.linear->weights && (!bias || where.linear->bias);
}

int64_t ModelWeights::vector_size(Slot slot, int32_t index, bool bias) const {
    if (slot == EMBED_POSITIONS) return int64_t(spec.positions) * spec.hidden_size;
    if (slot == INPUT_NORM) return spec.draft_head.input_size / spec.draft_head.input_norms();
    if (slot == PER_LAYER_NORM) return spec.per_layer_size;
    if (slot == CORRECTION_BIAS || slot == EXPERT_SCALES) return layers[size_t(index)].mlp.experts;
    if (slot == LAYER_SCALAR) return 1;
    if (slot >= ALPHA_P && slot <= XIELU_EPS) return 1;
    if (slot == ATTENTION_CONV_BASE || slot == MLP_CONV_BASE)
        return 2 * int64_t(spec.draft_head.conv_taps) * spec.hidden_size;
    if (slot >= Q_CONV && slot < Q_PROJ) return recurrent_vector(layers[size_t(index)], slot, bias).second;
    if (slot == Q_A_NORM) return layers[size_t(index)].attention.latent.query_rank;
    if (slot == KV_A_NORM) return layers[size_t(index)].attention.latent.rank;
    if (slot != Q_NORM && slot != K_NORM && slot != SINKS) return spec.hidden_size;
    const AttentionSpec& a = layers[size_t(index)].attention;
    if (slot == SINKS) return a.heads;
    return a.qk_norm == ONE_FOR_HEADS ? a.head_dim : slot == Q_NORM ? a.query_width() : a.kv_width();
}

const float* ModelWeights::position_row(int32_t position) const {
    return positions ? positions + int64_t(position + spec.position_offset) * spec.hidden_size : nullptr;
}

bool ModelWeights::is_recurrent() const {
    for (const PackedLayer& layer : layers) {
        if (layer.is_recurrent()) return true;
    }
    return false;
}

std::vector<const Linear*> ModelWeights::linears() const {
    std::vector<const Linear*> all;
    for (const PackedLayer& layer : layers) {
        all.insert(all.end(), {&layer.qkv, &layer.output});
        if (layer.attention.is_latent())
            all.insert(all.end(), {&layer.latent.query, &layer.latent.keys, &layer.latent.values});
        if (layer.recurrent.kind == MAMBA1) all.push_back(&layer.recurrence.low);
        if (layer.recurrent.gate_rank) all.push_back(&layer.recurrence.gates);
        if (layer.mlp.experts) all.push_back(&layer.router);
        else if (layer.has_mlp()) all.insert(all.end(), {&layer.up, &layer.down});
        for (const ConvWeights* conv : {&layer.attention_conv, &layer.mlp_conv}) {
            if (conv->base) all.push_back(&conv->projection);
        }
        for (const Mlp& expert : layer.experts) all.insert(all.end(), {&expert.up, &expert.down});
        if (spec.per_layer_size) all.insert(all.end(), {&layer.per_layer.gate, &layer.per_layer.out});
    }
    if (spec.projected_embedding) all.insert(all.end(), {&project_in, &project_out});
    if (spec.per_layer_size) all.push_back(&per_layer_in);
    if (spec.is_draft_head()) all.push_back(&fc);
    if (spec.reads_target()) all.push_back(&fc_out);
    if (spec.draft_head.clusters) all.push_back(&clusters);
    if (spec.draft_head.candidates) all.push_back(&selector.projection);
    if (!spec.draft_head.shared_head) all.push_back(&head);
    return all;
}

}  // namespace ipex_assist
