// Softmax attention as a mixer: what it is made of.
#include "mixers/mixer.h"

#include <algorithm>

#include "mixers/attention/block_choice.h"
#include "mixers/attention/check.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {
namespace {

void check(const ModelSpec& spec, const LayerSpec& layer) { check_attention(spec, layer.attention); }

MixerColumns columns(const LayerSpec& layer) {
    const AttentionSpec& a = layer.attention;
    MixerColumns made;
    made.low = a.qkv_width();
    made.width = made.input_width = made.low + round_up(layer.laurel_rank, LANES);
    made.out_width = a.output_width();
    return made;
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const bool values = !a.shares_kv && !a.values_are_keys;
    const auto part = [](const char* name, int64_t column, int64_t columns, bool there) {
        return there ? LinearPart{name, column / LANES, columns} : LinearPart{};
    };
    // That blocks, or pools, are chosen by.
    const bool chosen = a.choice.blocks || a.has_means();
    const int64_t index_dim = a.has_means() ? a.latent.indexer.dim : a.choice.dim,
                  index_columns = (a.has_means() ? a.latent.indexer.heads : a.kv_heads) * index_dim,
                  index_query = a.qkv_width() - index_dim - index_columns;
    const auto index_part = [&](const char* name, int64_t column, int64_t columns) {
        return chosen ? LinearPart{name, column / LANES, columns, 1, false} : LinearPart{};
    };
    const LinearPart left = layer.laurel_rank
                                ? LinearPart{"laurel_left_proj", layer.columns.low / LANES, layer.laurel_rank, 1, false}
                                : LinearPart{};
    list.linear(layer.qkv, {layer.columns.input_width, layer.input_width, a.qkv_bias != 0, spec.precision},
                {{"q_proj", 0, a.query_width()},
                 part("k_proj", a.key_column(), a.key_width(), !a.shares_kv),
                 part("v_proj", a.value_column(), a.values_width(), values),
                 part("g_proj", a.gate_column(), a.gate_width(), a.output_gate != 0),
                 index_part("index_q_proj", index_query, index_columns),
                 index_part("index_k_proj", index_query + index_columns, index_dim),
                 left});
    if (chosen) {
        ChoiceWeights& w = own_weights<ChoiceWeights>(layer);
        list.vector(w.query_norm, {"index_q_norm", index_dim});
        list.vector(w.key_norm, {"index_k_norm", index_dim});
    }
    const bool one = a.qk_norm == ONE_FOR_HEADS;
    if (a.has_norm_weights()) list.vector(layer.q_norm, {"q_norm", one ? a.head_dim : a.query_width()});
    if (a.has_norm_weights() && !a.shares_kv) list.vector(layer.k_norm, {"k_norm", one ? a.head_dim : a.key_width()});
    if (a.sinks) list.vector(layer.sinks, {"sinks", a.heads});
    list_output(list, spec, layer, "o_proj", a.output_width(), a.output_bias != 0);
}

void size(const PackedLayer& layer, int64_t last, ActivationSizes& s) {
    const AttentionSpec& a = layer.attention;
    s.key_depth = std::max({s.key_depth, a.key_depth(), a.index_depth()});
    s.value_width = std::max({s.value_width, a.value_width(), round_up(a.head_dim, LANES), int64_t(a.choice.dim)});
    const IndexerSpec& index = a.latent.indexer;
    if (!a.choice.blocks && !a.has_means()) return;
    s.value_width = std::max<int64_t>(s.value_width, index.dim);
    s.queries = std::max<int64_t>(s.queries, index.heads);
    if (a.has_means()) size_chosen(a, last, s);
    if (!a.choice.blocks) return;
    s.queries = std::max<int64_t>(s.queries, 2 * a.kv_heads);
    if (!sight_of(a.choice).chooses(last)) return;
    size_gathered(a, s);
    const int64_t heads = a.kv_heads, scores = round_up(last / a.choice.size + 1, BLOCK_POSITIONS);
    size_choice(heads * scores, heads * a.choice.blocks, s);
}

// Layers that choose blocks choose as many positions.
void check_among(const LayerSpec* layers, int32_t number) {
    check_chosen(layers, number);
    const BlockChoiceSpec& choice = layers[number].attention.choice;
    for (int32_t i = 0; i < number && choice.blocks; i++) {
        const AttentionSpec& other = layers[i].attention;
        if (other.latent.indexer.top_k || (other.choice.blocks && other.choice.positions() != choice.positions()))
            refuse("layers %d and %d do not choose as many positions", i, number);
    }
}

void shape(const AttentionSpec& a, AttentionShape& shape) {
    shape_chosen(a, shape);
    if (a.choice.blocks) shape.gathering = Gathering(sight_of(a.choice));
}

constexpr Operation CONVOLVE_ATTENTION{"convolve_attention", convolve_attention};
constexpr Operation BEGIN_TILES{"begin_tiles", begin_tiles};
constexpr Operation NORMALIZE_QUERIES_AND_KEYS{"normalize_queries_and_keys", normalize_queries_and_keys, PROJECTED};
constexpr Operation APPEND_KEYS_VALUES{"append_keys_values", append_keys_values};
constexpr Operation CHOOSE_BLOCKS{"choose_blocks", choose_blocks};
constexpr Operation CHOOSE_POSITIONS{"choose_positions", choose_positions};
constexpr Operation ATTENTION{"attention", attention, ATTENDED};

void list_operations(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare});
    if (layer.attention_conv.base) add(step.append_operations, {CONVOLVE_ATTENTION});
    if (layer.attention.shares_kv) add(step.append_operations, {BEGIN_TILES});
    add(step.append_operations, {QKV_LINEAR});
    if (layer.attention.qk_norm == ALL_HEADS) add(step.append_operations, {NORMALIZE_QUERIES_AND_KEYS});
    if (!layer.attention.shares_kv) add(step.append_operations, {APPEND_KEYS_VALUES});
    if (layer.attention.choice.blocks) {
        add(step.append_operations, {CHOOSE_BLOCKS});
        step.hooks.append = append_choice_keys, step.hooks.gather = gather_choice;
    }
    if (layer.attention.has_means()) {
        add(step.append_operations, {CHOOSE_POSITIONS});
        step.hooks.append = append_index_keys, step.hooks.gather = gather_block;
    }
    add(step.attend_operations, {ATTENTION, OUTPUT_LINEAR});
}

}  // namespace

extern const Mixer ATTENTION_MIXER{check, columns, list_weights, size, list_operations, check_among, shape, keep};

}  // namespace ipex_assist
