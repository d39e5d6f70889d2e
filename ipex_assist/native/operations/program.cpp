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

constexpr Operation LATENT_LINEAR{"latent_linear", latent_linear, PROJECTED};
constexpr Operation NORMALIZE_LATENTS{"normalize_latents", normalize_latents, PROJECTED};
constexpr Operation QUERY_LINEAR{"query_linear", query_linear, QUERIES};
constexpr Operation ABSORB_QUERIES{"absorb_queries", absorb_queries, PROJECTED};
constexpr Operation ATTENTION{"attention", attention, ATTENDED};
constexpr Operation EXPAND_VALUES{"expand_values", expand_values, VALUES};
constexpr Operation OUTPUT_LINEAR{"output_linear", output_linear, DELTA};
constexpr Operation PREPARE_TOKEN_AND_HIDDEN{"prepare_token_and_hidden", prepare_token_and_hidden, MIXER_INPUTS};
constexpr Operation PREPARE_ATTENTION{"prepare_attention", prepare_attention, RESIDUAL_STREAM | MIXER_INPUTS};
constexpr Operation CONVOLVE_ATTENTION{"convolve_attention", convolve_attention};
constexpr Operation BEGIN_TILES{"begin_tiles", begin_tiles};
constexpr Operation QKV_LINEAR{"qkv_linear", qkv_linear, PROJECTED};
constexpr Operation NORMALIZE_QUERIES_AND_KEYS{"normalize_queries_and_keys", normalize_queries_and_keys, PROJECTED};
constexpr Operation APPEND_KEYS_VALUES{"append_keys_values", append_keys_values};
constexpr Operation CONVOLVE_ROWS{"short_conv", short_conv, ATTENDED};
constexpr Operation PREPARE_CONVOLVED{"prepare_convolved", prepare_convolved};
constexpr Operation CONVOLVE_VALUES{"convolve_values", convolve_values, ATTENDED};
constexpr Operation LOW_LINEAR{"low_linear", low_linear, PROJECTED};
constexpr Operation NORMALIZE_LOW{"normalize_low", normalize_low, PROJECTED};
constexpr Operation GATES_LINEAR{"gates_linear", gates_linear, PROJECTED};
constexpr Operation PREPARE_CHANNELS{"prepare_channels", prepare_channels, SCANNED};
constexpr Operation PREPARE_SCAN{"prepare_scan", prepare_scan, SCANNED};
constexpr Operation SCAN{"scan", scan, ATTENDED};
constexpr Operation GATE_SCANNED{"gate_scanned", gate_scanned, ATTENDED};
constexpr Operation PREPARE_MLP{"prepare_mlp", prepare_mlp, RESIDUAL_STREAM | MLP_INPUTS};
constexpr Operation CONVOLVE_MLP{"convolve_mlp", convolve_mlp};
constexpr Operation MLP{"mlp", mlp, ACTIVE | DELTA};
constexpr Operation ROUTE{"route", route, ROUTER_LOGITS};
constexpr Operation FILL_SLOTS{"fill_slots", fill_slots};
constexpr Operation UP_EXPERTS{"up_experts", up_experts, ACTIVE};
constexpr Operation PREPARE_SLOTS{"prepare_slots", prepare_slots};
constexpr Operation DOWN_EXPERTS{"down_experts", down_experts, EXPERT_OUTPUTS};
constexpr Operation ADD_EXPERTS{"add_experts", add_experts, DELTA};
constexpr Operation PREPARE_PER_LAYER{"prepare_per_layer", prepare_per_layer, RESIDUAL_STREAM};
constexpr Operation PER_LAYER{"per_layer", per_layer, DELTA};

// Appends operations to a list.
void add(std::vector<Operation>& to, std::initializer_list<Operation> more) { to.insert(to.end(), more); }

void list_latent_attention(LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, LATENT_LINEAR, NORMALIZE_LATENTS, QUERY_LINEAR, ABSORB_QUERIES});
    add(step.attend_operations, {ATTENTION, EXPAND_VALUES, OUTPUT_LINEAR});
}

void list_attention(const PackedLayer& layer, LayerStep& step, bool token_and_hidden) {
    const Operation& prepare = token_and_hidden ? PREPARE_TOKEN_AND_HIDDEN : PREPARE_ATTENTION;
    if (layer.attention.is_latent()) return list_latent_attention(step, prepare);
    add(step.append_operations, {prepare});
    if (layer.attention_conv.base) add(step.append_operations, {CONVOLVE_ATTENTION});
    if (layer.attention.shares_kv) add(step.append_operations, {BEGIN_TILES});
    add(step.append_operations, {QKV_LINEAR});
    if (layer.attention.qk_norm == ALL_HEADS) add(step.append_operations, {NORMALIZE_QUERIES_AND_KEYS});
    if (!layer.attention.shares_kv) add(step.append_operations, {APPEND_KEYS_VALUES});
    add(step.attend_operations, {ATTENTION, OUTPUT_LINEAR});
}

// All rows change the state, so that rows which end with this layer are dropped after the scan.
void list_recurrent(const PackedLayer& layer, LayerStep& step) {
    add(step.append_operations, {PREPARE_ATTENTION, QKV_LINEAR});
    if (layer.recurrent.kind == SHORT_CONV) {
        add(step.append_operations, {CONVOLVE_ROWS});
        add(step.attend_operations, {PREPARE_CONVOLVED, OUTPUT_LINEAR});
        return;
    }
    const bool selects = layer.recurrent.kind == MAMBA1;
    if (selects) add(step.append_operations, {CONVOLVE_VALUES, LOW_LINEAR});
    if (layer.recurrent.selection_norm != NOT_NORMED) add(step.append_operations, {NORMALIZE_LOW});
    if (layer.recurrent.gate_rank) add(step.append_operations, {GATES_LINEAR});
    if (selects) add(step.append_operations, {PREPARE_CHANNELS});
    else add(step.append_operations, {PREPARE_SCAN});
    add(step.append_operations, {SCAN});
    add(step.attend_operations, {GATE_SCANNED, OUTPUT_LINEAR});
}

void list_mlp(const PackedLayer& layer, LayerStep& step) {
    if (!layer.has_mlp()) return;
    add(step.attend_operations, {PREPARE_MLP});
    if (layer.mlp_conv.base) add(step.attend_operations, {CONVOLVE_MLP});
    if (!layer.mlp.experts) return add(step.attend_operations, {MLP});
    add(step.attend_operations, {ROUTE, FILL_SLOTS, UP_EXPERTS, PREPARE_SLOTS, DOWN_EXPERTS, ADD_EXPERTS});
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
        if (model.spec.per_layer_size) add(step.attend_operations, {PREPARE_PER_LAYER, PER_LAYER});
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
int32_t Program::pruning_layer(const PassPlan& plan, const Taps& taps) const {
    if (plan.decode || plan.logit_rows.size() == plan.tokens.size()) return -1;
    if (plan.whole_segments || plan.reads_before) return -1;
    int32_t layer = last_filled;
    for (int32_t i = 0; i < taps.count && !taps.of_logit_rows; i++) layer = std::max(layer, taps.layers[i]);
    return layer < int32_t(layers.size()) ? layer : -1;
}

}  // namespace ipex_assist
