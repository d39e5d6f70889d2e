// The table of mixers and MLPs, and the lists of operations that models get from it.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Of the attended values: whole heads and whole scales, or whole rows where the output linear takes their columns in an
// order of its own.
void set_units(AttentionShape& shape, const Linear& output) {
    const int64_t dim = shape.value_dim;
    const bool aligned = (SCALE_COLUMNS % dim == 0 || dim % SCALE_COLUMNS == 0) && !output.order;
    shape.unit_columns = aligned ? std::max<int64_t>(SCALE_COLUMNS, dim) : output.depth;
    shape.units = (output.depth + shape.unit_columns - 1) / shape.unit_columns;
}

AttentionShape attention_shape(const PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    AttentionShape shape{a.heads, a.kv_heads, a.value_dim(), a.window, a.value_dim(), a.heads, a.is_latent()};
    shape.chunk = a.chunk;
    if (!a.is_latent()) set_units(shape, layer.output);
    return shape;
}

void list_attention(const PackedLayer& layer, LayerStep& step, bool token_and_hidden) {
    const Operation prepare = token_and_hidden ? prepare_token_and_hidden : prepare_attention;
    if (layer.attention.is_latent()) {
        step.fill = {prepare, latent_linear, normalize_latents, query_linear, absorb_queries};
        step.proceed = {attention, expand_values, output_linear};
        return;
    }
    step.proceed = {attention, output_linear};
    if (layer.attention_conv.base) {
        step.fill = {prepare, convolve_attention, qkv_linear, append_keys_values};
        return;
    }
    if (layer.attention.shares_kv) {
        step.fill = {prepare, begin_tiles, qkv_linear};
        return;
    }
    step.fill = {prepare, qkv_linear};
    if (layer.attention.qk_norm == ALL_HEADS) step.fill.push_back(normalize_queries_and_keys);
    step.fill.push_back(append_keys_values);
}

// All rows change the state, so that rows which end with this layer are dropped after the scan.
void list_recurrent(const PackedLayer& layer, LayerStep& step) {
    step.fill = {prepare_attention, qkv_linear};
    if (layer.recurrent.kind == SHORT_CONV) {
        step.fill.push_back(short_conv);
        step.proceed = {prepare_convolved, output_linear};
    } else {
        if (layer.recurrent.kind == MAMBA1)
            for (const Operation each : {convolve_values, low_linear}) step.fill.push_back(each);
        if (layer.recurrent.selection_norm != NOT_NORMED) step.fill.push_back(normalize_low);
        if (layer.recurrent.gate_rank) step.fill.push_back(gates_linear);
        step.fill.push_back(layer.recurrent.kind == MAMBA1 ? prepare_channels : prepare_scan);
        step.fill.push_back(scan);
        step.proceed = {gate_scanned, output_linear};
    }
}

void list_mlp(const PackedLayer& layer, LayerStep& step) {
    if (!layer.has_mlp()) return;
    step.proceed.push_back(prepare_mlp);
    if (layer.mlp_conv.base) step.proceed.push_back(convolve_mlp);
    if (!layer.mlp.experts) return step.proceed.push_back(mlp);
    for (const Operation each : {route, fill_slots, up_experts, prepare_slots, down_experts, add_experts}) {
        step.proceed.push_back(each);
    }
}

bool same_kind(const MlpSpec& a, const MlpSpec& b) {
    return a.intermediate_size == b.intermediate_size && a.experts == b.experts && a.shared_size == b.shared_size &&
           a.scales_inputs == b.scales_inputs && a.experts_per_token == b.experts_per_token &&
           a.precision == b.precision;
}

}  // namespace

Program::Program(const PackedModel& model_) : model(model_) {
    shape.hidden_size = model.spec.hidden_size;
    shape.whole_segments = model.spec.draft_head.kind == DFLASH;
    shape.reads_before = model.spec.reads_target();
    shape.begins_with_linear = model.spec.projected_embedding || model.spec.is_draft_head();
    for (size_t i = 0; i < model.layers.size(); i++) {
        const PackedLayer& layer = model.layers[i];
        LayerStep step{int32_t(i), i + 1 == model.layers.size(), {}, {}};
        if (layer.is_recurrent()) list_recurrent(layer, step);
        else list_attention(layer, step, model.spec.draft_head.kind == EAGLE3 && i == 0);
        list_mlp(layer, step);
        if (model.spec.per_layer_size) step.proceed.insert(step.proceed.end(), {prepare_per_layer, per_layer});
        if (layer.is_recurrent() || !layer.attention.shares_kv) last_filled = int32_t(i);
        layers.push_back(step);
        const auto alike = [&](int32_t other) { return same_kind(model.layers[size_t(other)].mlp, layer.mlp); };
        if (layer.has_mlp() && std::none_of(mlp_kinds.begin(), mlp_kinds.end(), alike)) mlp_kinds.push_back(int32_t(i));
        shape.recurrent |= layer.is_recurrent();
        if (layer.is_recurrent()) {
            shape.attention_of_layer.push_back(-1);
            continue;
        }
        const AttentionShape each = attention_shape(layer);
        const auto known = std::find(shape.attention.begin(), shape.attention.end(), each);
        shape.attention_of_layer.push_back(int32_t(known - shape.attention.begin()));
        if (known == shape.attention.end()) shape.attention.push_back(each);
    }
}

// Not where a row sees rows of its segment after it, or is told by its segment what it sees.
int32_t Program::narrowing_layer(const PassPlan& plan, const Taps& taps) const {
    if (plan.decode || plan.logit_rows.size() == plan.tokens.size()) return -1;
    if (plan.whole_segments || plan.reads_before) return -1;
    int32_t layer = last_filled;
    for (int32_t i = 0; i < taps.count && !taps.of_logit_rows; i++) layer = std::max(layer, taps.layers[i]);
    return layer < int32_t(layers.size()) ? layer : -1;
}

}  // namespace ipex_assist
