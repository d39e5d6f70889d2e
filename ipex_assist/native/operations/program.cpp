// The lists of operations that models get: those of their mixers (mixers/table.cpp) and MLPs.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Of the attended values: whole heads and whole scales, or whole rows where the output linear takes their columns in an
// order of its own.
void set_units(AttentionShape& shape, const Linear& output) {
    const int64_t dim = shape.value_dim;
    const bool aligned = (SCALE_COLUMNS % dim == 0 || dim % SCALE_COLUMNS == 0) && !output.order;
    shape.span_columns = aligned ? std::max<int64_t>(SCALE_COLUMNS, dim) : output.depth;
    shape.spans = (output.depth + shape.span_columns - 1) / shape.span_columns;
}

AttentionShape attention_shape(const PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    AttentionShape shape{a.heads, a.kv_heads, a.value_dim(), a.window, a.value_dim(), a.heads, a.is_latent()};
    shape.chunk = a.chunk;
    shape_mixer(layer, shape);
    if (!a.is_latent()) set_units(shape, layer.output);
    return shape;
}

constexpr Operation PREPARE_TOKEN_AND_HIDDEN{"prepare_token_and_hidden", prepare_token_and_hidden, MIXER_INPUTS};
constexpr Operation PREPARE_ATTENTION{"prepare_attention", prepare_attention, RESIDUAL_STREAM | MIXER_INPUTS};
constexpr Operation LAUREL{"laurel", laurel};
constexpr Operation PREPARE_MLP{"prepare_mlp", prepare_mlp, RESIDUAL_STREAM | MLP_INPUTS};
constexpr Operation CONVOLVE_MLP{"convolve_mlp", convolve_mlp};
constexpr Operation MLP{"mlp", mlp, ACTIVE | DELTA};
constexpr Operation ASIDE_LINEAR{"aside_linear", aside_linear, DELTA};
constexpr Operation ROUTE{"route", route, ROUTER_LOGITS};
constexpr Operation FILL_SLOTS{"fill_slots", fill_slots};
constexpr Operation UP_EXPERTS{"up_experts", up_experts, ACTIVE};
constexpr Operation PREPARE_SLOTS{"prepare_slots", prepare_slots};
constexpr Operation DOWN_EXPERTS{"down_experts", down_experts, EXPERT_OUTPUTS};
constexpr Operation CACHED_EXPERTS{"cached_experts", cached_experts, ACTIVE | EXPERT_OUTPUTS};
constexpr Operation ADD_EXPERTS{"add_experts", add_experts, DELTA};
constexpr Operation PREPARE_PER_LAYER{"prepare_per_layer", prepare_per_layer, RESIDUAL_STREAM};
constexpr Operation PER_LAYER{"per_layer", per_layer, DELTA};

// Appends operations to a list.
void add(std::vector<Operation>& to, std::initializer_list<Operation> more) { to.insert(to.end(), more); }

void list_mlp(const PackedLayer& layer, LayerStep& step, bool cached) {
    if (!layer.has_mlp()) return;
    add(step.attend_operations, {PREPARE_MLP});
    if (layer.mlp_conv.base) add(step.attend_operations, {CONVOLVE_MLP});
    if (!layer.mlp.experts) return add(step.attend_operations, {MLP});
    add(step.attend_operations, {ROUTE, FILL_SLOTS});
    if (cached) add(step.attend_operations, {CACHED_EXPERTS});
    else add(step.attend_operations, {UP_EXPERTS, PREPARE_SLOTS, DOWN_EXPERTS});
    add(step.attend_operations, {ADD_EXPERTS});
}

bool same_kind(const PackedLayer& one, const PackedLayer& other) {
    const MlpSpec &a = one.mlp, &b = other.mlp;
    if (row_type(one.down.precision) != row_type(other.down.precision)) return false;
    return a.intermediate_size == b.intermediate_size && a.experts == b.experts && a.shared_size == b.shared_size &&
           a.sparsity == b.sparsity && a.scales_inputs == b.scales_inputs &&
           a.experts_per_token == b.experts_per_token && a.precision == b.precision && one.defers == other.defers;
}

}  // namespace

Program::Program(const PackedModel& model_) : model(model_) {
    shape.hidden_size = int32_t(model.spec.stream_width());
    shape.whole_segments = model.spec.draft_head.kind == DFLASH;
    shape.reads_before = model.spec.reads_target();
    shape.begins_with_linear = model.spec.projected_embedding || model.spec.is_draft_head();
    for (size_t i = 0; i < model.layers.size(); i++) {
        const PackedLayer& layer = model.layers[i];
        LayerStep step{int32_t(i), i + 1 == model.layers.size(), {}, {}, {}};
        const bool token_and_hidden = model.spec.draft_head.kind == EAGLE3 && i == 0;
        list_mixer_operations(layer, step, token_and_hidden ? PREPARE_TOKEN_AND_HIDDEN : PREPARE_ATTENTION);
        if (layer.laurel_rank) step.attend_operations.insert(step.attend_operations.begin(), LAUREL);
        list_mlp(layer, step, model.expert_cache != nullptr);
        if (layer.aside) add(step.attend_operations, {ASIDE_LINEAR});
        if (model.spec.per_layer_size) add(step.attend_operations, {PREPARE_PER_LAYER, PER_LAYER});
        if (layer.is_recurrent() || layer.attention.kept_heads()) last_filled = int32_t(i);
        layers.push_back(step);
        const auto alike = [&](int32_t other) { return same_kind(model.layers[size_t(other)], layer); };
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
int32_t Program::pruning_layer(const PassPlan& plan, const Batch& batch) const {
    if (plan.decode || plan.logit_rows.size() == plan.tokens.size()) return -1;
    if (plan.whole_segments || plan.reads_before) return -1;
    const Taps& taps = batch.taps;
    int32_t layer = std::max(last_filled, batch.embedding_layers);
    for (int32_t i = 0; i < taps.count && !taps.of_logit_rows; i++) layer = std::max(layer, taps.layers[i]);
    return layer < int32_t(layers.size()) ? layer : -1;
}

}  // namespace ipex_assist
