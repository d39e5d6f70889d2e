// Latent attention as a mixer: what it is made of (LatentSpec).
#include "mixers/mixer.h"

#include <algorithm>

#include "mixers/attention/check.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {
namespace {

void check_indexer(const AttentionSpec& a) {
    const IndexerSpec& index = a.latent.indexer;
    check_range("index_topk", index.top_k, 0, LARGEST);
    check_range("index_n_heads", index.heads, 0, index.top_k ? 4096 : 0);
    check_range("index_head_dim", index.dim, index.heads ? std::max(1, a.rotary_dim) : 0, index.heads ? 4096 : 0);
    check_range("index_kpool", index.pool, 0, index.top_k ? LANES : 0);
    if (LANES % index.each() || index.top_k % index.each())
        refuse("pools of %d positions, and %d that are chosen", index.pool, index.top_k);
    if (index.dim % LANES) refuse("an indexer of index_head_dim %d: multiples of %d are computed", index.dim, LANES);
    if (index.heads && !(index.norm_eps > 0)) refuse("the epsilon of an indexer's norm is %g", double(index.norm_eps));
    check_range("whether an indexer reads a layer's input", index.reads_input, 0, index.heads > 0);
    if (index.heads && !index.reads_input && !a.latent.query_rank)
        refuse("an indexer without a row of queries, whose q_lora_rank is 0");
    if (index.top_k && (a.window || a.chunk)) refuse("positions that are chosen of a window or a chunk");
}

void check(const ModelSpec& spec, const LayerSpec& layer) {
    const AttentionSpec& a = layer.attention;
    const LatentSpec& l = a.latent;
    check_attention(spec, a);
    check_range("kv_lora_rank", l.rank, 1, LARGEST);
    check_range("qk_rope_head_dim", l.rope_dim, 0, LARGEST);
    check_range("qk_nope_head_dim", l.nope_dim, 1, LARGEST);
    check_range("v_head_dim", l.value_dim, 1, LARGEST);
    check_range("q_lora_rank", l.query_rank, 0, LARGEST);
    check_range("whether queries read a row before its norm", l.reads_unnormed, 0, l.query_rank > 0);
    check_range("num_attention_heads x v_head_dim", a.output_width(), 1, LARGEST);
    check_range("num_attention_heads x qk_head_dim", a.latent_query_width(), 1, LARGEST);
    if (l.rank % LANES || l.rope_dim % LANES || l.value_dim % LANES) {
        refuse(
            "latent attention with kv_lora_rank %d, qk_rope_head_dim %d and v_head_dim %d: multiples of %d are "
            "computed",
            l.rank, l.rope_dim, l.value_dim, LANES);
    }
    if (a.kv_heads != 1 || a.head_dim != l.rank + l.rope_dim || a.rotary_dim > l.rope_dim || a.qk_norm ||
        a.gate_activation || a.alibi_slopes) {
        refuse("latent attention has one key/value head of its own width, no norms or slopes, and a sigmoid's gates");
    }
    check_indexer(a);
    if (!(l.norm_eps > 0)) refuse("the epsilon of a latent's norm is %g", double(l.norm_eps));
}

// What an indexer has beside its parts of the first linears.
void list_indexer(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const IndexerSpec& index = layer.attention.latent.indexer;
    LatentWeights& w = layer.latent;
    const int64_t columns = int64_t(index.heads) * index.dim, hidden = layer.input_width;
    list.vector(w.index_norm.weight, {"index_k_norm", index.dim});
    list.vector(w.index_norm.bias, {"index_k_norm", index.dim}, true);
    if (index.pools()) list.vector(w.index_places, {"index_places", int64_t(index.pool) * index.dim});
    if (!index.reads_input) return;
    list.vector(w.index_query_norm.weight, {"index_q_norm", hidden});
    list.vector(w.index_query_norm.bias, {"index_q_norm", hidden}, true);
    list.linear(w.index_query, {columns, hidden, false, spec.precision}, {{"index_q_proj", 0, columns}});
    if (!layer.attention.log_growth) return;
    list.vector(w.index_growth.scale, {"index_q_log_scale", index.heads});
    list.vector(w.index_growth.base, {"index_q_log_base", index.heads});
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const LatentSpec& l = a.latent;
    const IndexerSpec& index = l.indexer;
    LatentWeights& w = layer.latent;
    const auto part = [](const char* name, int64_t panel, int64_t columns, bool here) {
        return here ? LinearPart{name, panel, columns} : LinearPart{};
    };
    const auto index_part = [&](const char* name, int64_t column, int64_t columns) {
        return index.heads ? LinearPart{name, column / LANES, columns, 1, false} : LinearPart{};
    };
    const int64_t row = l.query_rank ? l.query_width() : layer.input_width;  // that queries are made of
    const LinearPart none{},
        of_queries{"g_proj", (a.latent_query_width() - a.gate_width()) / LANES, a.gate_width(), 1, false},
        of_inputs{"g_proj", (a.gate_column() - a.key_column()) / LANES, a.gate_width(), 1, false};
    LinearPart index_query = index_part("index_q_proj", a.index_query_column(), int64_t(index.heads) * index.dim);
    const LinearPart index_gate =
        index_part("index_gate_proj", a.index_key_column() + index.dim - a.key_column(), index.dim);
    index_query.width = l.query_rank;
    list.linear(layer.qkv, {a.latent_width(), layer.input_width, a.qkv_bias != 0, spec.precision},
                {part("k_rope_proj", 0, l.rope_dim, l.rope_dim && !a.shares_kv),
                 part("kv_a_proj", l.rope_dim / LANES, l.rank, !a.shares_kv),
                 part("q_a_proj", (row_column(a) - a.key_column()) / LANES, l.query_rank, l.query_rank),
                 index_part("index_k_proj", a.index_key_column() - a.key_column(), index.dim),
                 index.pools() ? index_gate : none,
                 index_part("index_weights_proj", a.index_weight_column() - a.key_column(), index.heads),
                 a.output_gate && !l.reads_unnormed ? of_inputs : none});
    if (a.sinks) list.vector(layer.sinks, {"sinks", a.heads});
    if (a.log_growth) {
        list.vector(layer.growth.scale, {"q_log_scale", a.heads});
        list.vector(layer.growth.base, {"q_log_base", a.heads});
    }
    if (!a.shares_kv) list.vector(w.norm, {"kv_a_norm", l.rank});
    if (l.query_rank) list.vector(w.query_norm, {"q_a_norm", l.query_rank});
    list.linear(w.query, {a.latent_query_width(), row, false, spec.precision},
                {{"q_nope_proj", 0, int64_t(a.heads) * l.nope_dim},
                 part("q_rope_proj", a.rotated_column() / LANES, int64_t(a.heads) * l.rope_dim, l.rope_dim),
                 index.reads_input ? none : index_query,
                 a.output_gate && l.reads_unnormed ? of_queries : none});
    if (index.heads) list_indexer(list, spec, layer);
    list.linear(w.keys, {a.attended_width(), l.nope_dim, false, spec.precision}, {{"k_b_proj", 0, a.attended_width()}});
    list.linear(w.values, {a.output_width(), l.rank, false, spec.precision}, {{"v_b_proj", 0, a.output_width()}});
    list_output(list, spec, layer, "o_proj", a.output_width(), a.output_bias != 0);
}

void size(const PackedLayer& layer, int64_t last, ActivationSizes& s) {
    const AttentionSpec& a = layer.attention;
    const IndexerSpec& index = a.latent.indexer;
    s.key_depth = std::max({s.key_depth, a.key_depth(), a.index_depth()});
    s.value_width = std::max({s.value_width, a.value_width(), round_up(a.head_dim, LANES), int64_t(index.dim)});
    s.queries = std::max<int64_t>(s.queries, index.heads);
    size_chosen(a, last, s);
    s.attended = std::max(s.attended, a.attended_width());
    s.heads = std::max({s.heads, a.latent_query_width(), a.output_width()});
    s.head_depth = std::max({s.head_depth, layer.latent.keys.depth, layer.latent.values.depth});
    s.heads = std::max(s.heads, a.latent.reads_unnormed ? a.latent.query_width() : 0);
    s.between = std::max(s.between, a.latent.query_width());
}

constexpr Operation LATENT_LINEAR{"latent_linear", latent_linear, PROJECTED};
constexpr Operation NORMALIZE_LATENTS{"normalize_latents", normalize_latents, PROJECTED};
constexpr Operation QUERY_LINEAR{"query_linear", query_linear, QUERIES};
constexpr Operation QUERIES_ALONE{"query_linear", query_linear};
constexpr Operation INDEX_QUERIES{"index_queries", index_queries, QUERIES};
constexpr Operation ABSORB_QUERIES{"absorb_queries", absorb_queries, PROJECTED};
constexpr Operation CHOOSE_POSITIONS{"choose_positions", choose_positions};
constexpr Operation ATTENTION{"attention", attention, ATTENDED};
constexpr Operation EXPAND_VALUES{"expand_values", expand_values, VALUES};

void list_operations(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    const AttentionSpec& a = layer.attention;
    add(step.append_operations, {prepare});
    if (a.latent_width()) add(step.append_operations, {LATENT_LINEAR, NORMALIZE_LATENTS});
    if (a.latent.indexer.reads_input) add(step.append_operations, {QUERIES_ALONE, INDEX_QUERIES});
    else add(step.append_operations, {QUERY_LINEAR});
    add(step.append_operations, {ABSORB_QUERIES});
    if (a.latent.indexer.heads) add(step.append_operations, {CHOOSE_POSITIONS});
    if (a.latent.indexer.heads) step.hooks.append = append_index_keys;
    step.hooks.gather = gather_block;
    add(step.attend_operations, {ATTENTION, EXPAND_VALUES, OUTPUT_LINEAR});
}

}  // namespace

MixerColumns latent_columns(const LayerSpec& layer) {
    const AttentionSpec& a = layer.attention;
    MixerColumns made;
    made.width = a.qkv_width(), made.input_width = a.latent_width();
    made.out_width = a.output_width();
    return made;
}

void check_chosen(const LayerSpec* layers, int32_t number) {
    const IndexerSpec& indexer = layers[number].attention.latent.indexer;
    bool known = indexer.heads > 0;
    for (int32_t i = 0; i < number && indexer.top_k; i++) {
        const IndexerSpec& other = layers[i].attention.latent.indexer;
        known |= other.heads > 0;
        if (other.top_k && (other.top_k != indexer.top_k || other.each() != indexer.each()))
            refuse("layers %d and %d attend to %d and %d positions", i, number, other.top_k, indexer.top_k);
    }
    if (indexer.top_k && !known) refuse("layer %d attends to what no layer before it has chosen", number);
}

void shape_chosen(const AttentionSpec& a, AttentionShape& shape) {
    if (sight_of(a).rows()) shape.gathering = Gathering(sight_of(a));
}

extern const Mixer LATENT_MIXER{check,           latent_columns, list_weights, size,
                                list_operations, check_chosen,   shape_chosen, keep};

}  // namespace ipex_assist
