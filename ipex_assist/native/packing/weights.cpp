#include "packing/weights.h"

#include "memory/round_up.h"

namespace ipex_assist {
namespace {

PackTarget attention_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (size_t(index) >= w.layers.size()) return {};
    const PackedLayer& layer = w.layers[size_t(index)];
    const AttentionSpec& a = layer.attention;
    const int64_t hidden = w.spec.hidden_size;
    switch (slot) {
        case Q_PROJ: return {&layer.qkv, 0, 1, a.query_width(), hidden};
        case K_PROJ: return {&layer.qkv, a.key_column() / LANES, 1, a.kv_width(), hidden};
        case V_PROJ: return {&layer.qkv, a.value_column() / LANES, 1, a.kv_width(), hidden};
        case O_PROJ: return {&layer.output, 0, 1, hidden, a.query_width()};
        default: return {};
    }
}

PackTarget mlp_target(const ModelWeights& w, Slot slot, int32_t index) {
    if (index < 0) return {};
    const PackedLayer& layer = w.layers[size_t(index % w.spec.layers)];
    const MlpSpec& mlp = layer.mlp;
    const int32_t expert = index / w.spec.layers - 1;
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
        default: return {};
    }
}

}  // namespace

PackTarget ModelWeights::target(Slot slot, int32_t index) const {
    if (slot >= GATE_PROJ) return mlp_target(*this, slot, index);
    if (slot >= Q_PROJ) return attention_target(*this, slot, index);
    const int64_t hidden = spec.hidden_size;
    switch (slot) {
        case EMBED_TOKENS: return {spec.tied_head ? &head : nullptr, 0, 1, spec.vocab_size, spec.embedding_size};
        case LM_HEAD: return {&head, 0, 1, spec.vocab_size, spec.embedding_size};
        case PROJECT_IN: return {&project_in, 0, 1, hidden, spec.embedding_size};
        case PROJECT_OUT: return {&project_out, 0, 1, spec.embedding_size, hidden};
        default: return {};
    }
}

const float* ModelWeights::vector(Slot slot, int32_t index, bool bias) const {
    if (slot == FINAL_NORM) return bias ? final_norm.bias : final_norm.weight;
    if (slot == EMBED_NORM) return bias ? embedding_norm.bias : embedding_norm.weight;
    if (slot == EMBED_POSITIONS) return bias ? nullptr : positions;
    if (size_t(index) >= layers.size()) return nullptr;
    const PackedLayer& layer = layers[size_t(index)];
    switch (slot) {
        case ATTENTION_NORM: return bias ? layer.attention_norm.bias : layer.attention_norm.weight;
        case ATTENTION_OUT_NORM: return bias ? layer.attention_out_norm.bias : layer.attention_out_norm.weight;
        case MLP_NORM: return bias ? layer.mlp_norm.bias : layer.mlp_norm.weight;
        case MLP_OUT_NORM: return bias ? layer.mlp_out_norm.bias : layer.mlp_out_norm.weight;
        case Q_NORM: return bias ? nullptr : layer.q_norm;
        case K_NORM: return bias ? nullptr : layer.k_norm;
        case SINKS: return bias ? nullptr : layer.sinks;
        default: return nullptr;
    }
}

bool ModelWeights::exists(Slot slot, int32_t index, bool bias) const {
    if (slot == EMBED_TOKENS) return !bias;
    if (slot == SHARED_GATE && bias) return false;  // the router's
    if (slot == LM_HEAD && spec.tied_head) return false;
    if (vector(slot, index, bias)) return true;
    const PackTarget where = target(slot, index);
    return where.linear && where.linear->weights && (!bias || where.linear->bias);
}

int64_t ModelWeights::vector_size(Slot slot, int32_t index) const {
    if (slot == EMBED_POSITIONS) return int64_t(spec.positions) * spec.hidden_size;
    if (slot != Q_NORM && slot != K_NORM && slot != SINKS) return spec.hidden_size;
    const AttentionSpec& a = layers[size_t(index)].attention;
    if (slot == SINKS) return a.heads;
    return a.qk_norm == ONE_FOR_HEADS ? a.head_dim : slot == Q_NORM ? a.query_width() : a.kv_width();
}

std::vector<const Linear*> ModelWeights::linears() const {
    std::vector<const Linear*> all;
    for (const PackedLayer& layer : layers) {
        all.insert(all.end(), {&layer.qkv, &layer.output});
        if (layer.mlp.experts) all.push_back(&layer.router);
        else all.insert(all.end(), {&layer.up, &layer.down});
        for (const Mlp& expert : layer.experts) all.insert(all.end(), {&expert.up, &expert.down});
    }
    if (spec.projected_embedding) all.insert(all.end(), {&project_in, &project_out});
    all.push_back(&head);
    return all;
}

}  // namespace ipex_assist
