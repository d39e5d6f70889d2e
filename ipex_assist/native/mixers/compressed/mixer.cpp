// Attention over keys that are values, and entries, as a mixer: what it is made of (CompressedSpec). What it has in
// common with latent attention are operations of that.
#include "mixers/mixer.h"

#include <algorithm>

#include "mixers/attention/check.h"
#include "mixers/compressed/compressed.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {
namespace {

constexpr int32_t MOST_ROWS = 128;  // that an entry is made of

void check_entries(const AttentionSpec& a) {
    const CompressedSpec& c = a.latent.compressed;
    const IndexerSpec& index = a.latent.indexer;
    check_range("the window of keys that are values", a.window, 1, LARGEST);
    check_range("tokens of an entry", c.rate, 0, MOST_ROWS);
    check_range("whether entries overlap", c.overlap, 0, c.rate ? 1 : 0);
    check_range("index_topk", index.top_k, index.heads ? 1 : 0, index.heads ? LARGEST : 0);
    check_range("index_n_heads", index.heads, 0, c.rate ? 4096 : 0);
    check_range("index_head_dim", index.dim, index.heads ? std::max(1, a.rotary_dim) : 0, index.heads ? 4096 : 0);
    if (index.dim % LANES) refuse("an indexer of index_head_dim %d: multiples of %d are computed", index.dim, LANES);
    if (!c.rate) return;
    // What a row attends to is no more than there is before it in whole blocks.
    const bool fits = c.rate > 1 && BLOCK_POSITIONS % c.rate == 0 && a.window > 0 &&
                      BLOCK_POSITIONS / c.rate + a.window <= BLOCK_POSITIONS && c.rate * c.parts() <= MOST_ROWS;
    if (!fits) refuse("entries of %d tokens beside a window of %d", c.rate, a.window);
}

void check(const ModelSpec& spec, const LayerSpec& layer) {
    const AttentionSpec& a = layer.attention;
    const LatentSpec& l = a.latent;
    check_attention(spec, a);
    check_range("qk_rope_head_dim", l.rope_dim, LANES, LARGEST);
    check_range("o_lora_rank", l.value_dim, LANES, LARGEST);
    check_range("q_lora_rank", l.query_rank, 1, LARGEST);
    check_range("o_groups", l.compressed.groups, 1, a.heads);
    check_range("o_groups x o_lora_rank", a.output_width(), 1, LARGEST);
    check_range("num_attention_heads x head_dim", a.latent_query_width(), 1, LARGEST);
    if (a.heads % l.compressed.groups) refuse("%d heads in %d groups", a.heads, l.compressed.groups);
    if (l.rank % LANES || l.rope_dim % LANES || l.value_dim % LANES) {
        refuse("head_dim %d, qk_rope_head_dim %d and o_lora_rank %d: multiples of %d are computed", l.rank, l.rope_dim,
               l.value_dim, LANES);
    }
    if (a.kv_heads != 1 || a.head_dim != l.rank || l.nope_dim != l.rank - l.rope_dim || a.rotary_dim > l.rope_dim ||
        a.qk_norm || a.output_gate || a.alibi_slopes || a.qkv_bias || a.output_bias || a.chunk || a.shares_kv ||
        a.log_growth || a.growth != 0 || l.reads_unnormed || l.indexer.reads_input) {
        refuse("keys that are values have one key/value head, and no biases, gates or slopes");
    }
    if (!(l.norm_eps > 0)) refuse("the epsilon of a key's norm is %g", double(l.norm_eps));
    check_entries(a);
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const LatentSpec& l = a.latent;
    const IndexerSpec& index = l.indexer;
    LatentWeights& w = layer.latent;
    CompressedWeights& own = own_weights<CompressedWeights>(layer);
    int64_t column = 0;
    const auto part = [&](const char* name, int64_t columns) {
        const LinearPart made = columns ? LinearPart{name, column / LANES, columns} : LinearPart{};
        column = round_up(column + columns, LANES);
        return made;
    };
    const int64_t entry = l.compressed.rate ? int64_t(l.compressed.parts()) * l.rank : 0;
    const int64_t of_index = l.compressed.parts() * int64_t(index.dim);
    list.linear(layer.qkv, {a.latent_width(), layer.input_width, false, spec.precision},
                {part("kv_a_proj", l.rank), part("q_a_proj", l.query_rank), part("entry_kv_proj", entry),
                 part("entry_gate_proj", entry), part("index_entry_kv_proj", of_index),
                 part("index_entry_gate_proj", of_index), part("index_weights_proj", index.heads)});
    if (a.sinks) list.vector(layer.sinks, {"sinks", a.heads});
    list.vector(w.norm, {"kv_a_norm", l.rank});
    list.vector(w.query_norm, {"q_a_norm", l.query_rank});
    if (entry) {
        list.vector(own.entries.bias, {"entry_bias", l.compressed.rate * entry});
        list.vector(own.entries.norm, {"entry_norm", l.rank});
    }
    if (index.heads) {
        list.vector(own.index_entries.bias, {"index_bias", l.compressed.rate * of_index});
        list.vector(own.index_entries.norm, {"index_k_norm", index.dim});
    }
    list.linear(
        w.query, {a.latent_query_width(), l.query_rank, false, spec.precision},
        {{"q_b_proj", 0, int64_t(a.heads) * l.rank},
         index.heads ? LinearPart{"index_q_proj", a.index_query_column() / LANES, int64_t(index.heads) * index.dim}
                     : LinearPart{}});
    list.linear(w.values, {a.output_width(), a.attended_width() / l.compressed.groups, false, spec.precision},
                {{"o_a_proj", 0, a.output_width()}});
    list_output(list, spec, layer, "o_proj", a.output_width(), false);
}

void size(const PackedLayer& layer, int64_t last, ActivationSizes& s) {
    const AttentionSpec& a = layer.attention;
    const IndexerSpec& index = a.latent.indexer;
    s.key_depth = std::max({s.key_depth, a.key_depth(), a.index_depth()});
    s.value_width = std::max({s.value_width, a.value_width(), int64_t(index.dim)});
    s.queries = std::max<int64_t>(s.queries, index.heads);
    size_chosen(a, last, s), size_gathered(a, s);
    if (a.latent.has_entries()) {
        // What an entry is made of: values and gates of its rows, and three rows more.
        const int64_t widest = std::max<int64_t>(a.head_dim, index.dim);
        s.own_work = std::max(s.own_work, (2 * MOST_ROWS + 3) * widest * 4);
    }
    s.attended = std::max(s.attended, a.attended_width());
    s.heads = std::max({s.heads, a.latent_query_width(), a.output_width()});
    s.head_depth = std::max(s.head_depth, layer.latent.values.depth);
    s.between = std::max<int64_t>(s.between, a.latent.query_rank);
}

constexpr Operation LATENT_LINEAR{"latent_linear", latent_linear, PROJECTED};
constexpr Operation NORMALIZE_LATENTS{"normalize_latents", normalize_latents, PROJECTED};
constexpr Operation QUERY_LINEAR{"query_linear", query_linear, QUERIES};
constexpr Operation PLACE_QUERIES{"place_queries", place_queries, PROJECTED};
constexpr Operation CLOSE_ENTRIES{"close_entries", close_entries};
constexpr Operation CHOOSE_POSITIONS{"choose_positions", choose_positions};
constexpr Operation ATTEND_WINDOW{"attention", attend_window, ATTENDED};
constexpr Operation EXPAND_VALUES{"expand_values", expand_values, VALUES};

void list_operations(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, LATENT_LINEAR, NORMALIZE_LATENTS, QUERY_LINEAR, PLACE_QUERIES});
    if (layer.attention.latent.has_entries()) add(step.append_operations, {CLOSE_ENTRIES});
    if (layer.attention.latent.indexer.heads) add(step.append_operations, {CHOOSE_POSITIONS});
    add(step.append_operations, {ATTEND_WINDOW});
    step.hooks = {append_window, gather_block, keep_window, turn_back};
    add(step.attend_operations, {EXPAND_VALUES, OUTPUT_LINEAR});
}

void shape(const AttentionSpec& a, AttentionShape& made) {
    shape_chosen(a, made);
    made.window_of_first = true;
}

}  // namespace

extern const Mixer COMPRESSED_MIXER{check,           latent_columns, list_weights, size,
                                    list_operations, check_chosen,   shape,        keep};

}  // namespace ipex_assist
