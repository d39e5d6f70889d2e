// Small models with random weights, for tests of whole passes.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "check.h"
#include "operations/pass.h"

namespace check {
namespace {

constexpr int32_t VOCAB = 50, POSITIONS = 400;

// A model whose layers are alike but for what a Kind changes, said flat.
struct UniformSpec : ModelSpec {
    int32_t intermediate_size, heads, kv_heads, head_dim;
    NormPlace norm_place;
    Activation activation;
    int32_t gated, qkv_bias, output_bias, mlp_bias, parallel, shared_norm;
    HeadNorm qk_norm;
    float attention_scale, attention_cap, residual_multiplier;
    int32_t attention_sinks, output_gate, gate_per_head;
    int32_t rotary_dim, rotary_tables;  // the last layer is rotated by the last table
    int32_t experts, experts_per_token, experts_normalised, router_bias, shared_size, shared_gate;
    Scores scores;
    int32_t correction_bias, groups, groups_per_token, best_of_group;
    float scaling, added_to_sum, least_sum, jitter;
    Precision expert_precision;
    int32_t values_are_keys, value_norm, scaled, expert_scales, own_norms;

    std::vector<LayerSpec> layer_specs(int32_t window = 0, const float* slopes = nullptr) const {
        LayerSpec each{};
        AttentionSpec& a = each.attention;
        a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim, a.window = window;
        a.rotary_dim = a.paired_dim = rotary_dim;
        a.qk_norm = qk_norm, a.qkv_bias = qkv_bias, a.output_bias = output_bias, a.sinks = attention_sinks;
        a.output_gate = output_gate, a.gate_per_head = gate_per_head;
        a.values_are_keys = values_are_keys, a.value_norm = value_norm;
        a.scale = attention_scale, a.cap = attention_cap, a.alibi_slopes = slopes;
        MlpSpec& m = each.mlp;
        m.intermediate_size = intermediate_size, m.activation = activation, m.gated = gated, m.bias = mlp_bias;
        m.precision = experts ? expert_precision : precision;
        m.experts = experts, m.experts_per_token = experts_per_token, m.experts_normalised = experts_normalised;
        m.router_bias = router_bias, m.shared_size = shared_size, m.shared_gate = shared_gate;
        m.scores = scores, m.correction_bias = correction_bias, m.groups = groups;
        m.groups_per_token = groups_per_token, m.best_of_group = best_of_group;
        m.expert_scales = expert_scales, m.own_norms = own_norms;
        m.scaling = scaling, m.added_to_sum = added_to_sum, m.least_sum = least_sum, m.jitter = jitter;
        each.norm_place = norm_place, each.parallel = parallel, each.shared_norm = shared_norm;
        each.residual_multiplier = residual_multiplier, each.scaled = scaled;
        std::vector<LayerSpec> specs(size_t(std::max(0, layers)), each);
        if (keeps_embedding && !specs.empty()) specs.front().aside = 1;
        if (rotary_dim && !specs.empty()) specs.back().attention.rope_column = (rotary_tables - 1) * rotary_dim;
        return specs;
    }
    ModelSpec model() const {
        ModelSpec made = *this;
        made.rotary_width = rotary_dim * rotary_tables;
        if (per_layer_size && !per_layer_tokens) made.per_layer_tokens = vocab_size;
        return made;
    }
};

struct Kind {
    const char* name;
    int32_t window;
    void (*change)(UniformSpec&);
    bool sloped = false;                        // ALiBi's slopes
    void (*change_last)(LayerSpec&) = nullptr;  // what the last layer has otherwise
    int32_t sharers = 0;                        // last layers that read the keys and values of the one before them
};

// A kind of model in a format, as the core reads it.
struct KindSpec {
    KindSpec(const Format& f, const Kind& kind);
    ModelSpec model;
    std::vector<LayerSpec> layers;
};

constexpr float SLOPES[] = {0.5f, 0.25f, 0.125f, 0.0625f};

UniformSpec base_spec(const Format& f) {
    UniformSpec spec{};
    spec.precision = spec.outer_precision = spec.expert_precision = f.precision;
    spec.group = f.group;
    spec.vocab_size = VOCAB;
    spec.hidden_size = 40, spec.intermediate_size = 75, spec.layers = 2;
    spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 10, spec.embedding_size = 40;
    spec.rms_norm = spec.norm_affine = spec.final_norm = spec.gated = 1;
    spec.rotary_dim = 10, spec.rotary_tables = 1, spec.embedding_multiplier = spec.residual_multiplier = 1;
    spec.norm_eps = 1e-5f, spec.attention_scale = 0.316f;
    spec.groups = spec.groups_per_token = 1, spec.best_of_group = 2, spec.scaling = 1;
    return spec;
}

// The keys and values of the first layer, which has as many heads, as wide.
inline void share_first(LayerSpec& layer) {
    layer.attention.shares_kv = 1, layer.attention.kv_layer = 0;
    layer.attention.values_are_keys = layer.attention.value_norm = 0;
}

inline KindSpec::KindSpec(const Format& f, const Kind& kind) {
    UniformSpec spec = base_spec(f);
    kind.change(spec);
    model = spec.model(), layers = spec.layer_specs(kind.window, kind.sloped ? SLOPES : nullptr);
    for (LayerSpec& each : layers) {
        if (model.reads_target()) share_first(each);
        if (model.streams.gated()) each.mixer_gate_rank = each.mlp_gate_rank = model.streams.gate_rank;
    }
    if (kind.change_last) kind.change_last(layers.back());
    for (size_t i = layers.size() - size_t(kind.sharers); i < layers.size(); i++)
        layers[i].attention.shares_kv = 1, layers[i].attention.kv_layer = int32_t(layers.size()) - kind.sharers - 1;
    for (const LayerSpec& each : layers) {
        const AttentionSpec& a = each.attention;
        model.rotary_width = std::max(model.rotary_width, a.rope_column + a.rotary_dim);
    }
}

inline void make_latent(AttentionSpec& a, int32_t heads, const LatentSpec& latent) {
    a.latent = latent;
    a.heads = heads, a.kv_heads = 1, a.head_dim = latent.rank + latent.rope_dim;
    a.rotary_dim = a.paired_dim = latent.rope_dim, a.rope_column = 10;
}

// Keys that are values (CompressedSpec).
inline void make_compressed(AttentionSpec& a, int32_t heads, const LatentSpec& latent) {
    make_latent(a, heads, latent);
    a.head_dim = latent.rank;
}

const Kind KINDS[] = {
    {"grouped queries, gated, rotary, biases", 0, [](UniformSpec& s) { s.qkv_bias = s.output_bias = s.mlp_bias = 1; }},
    {"learned positions, projected, norm behind", 0,
     [](UniformSpec& s) {
         s.positions = POSITIONS + 2, s.position_offset = 2, s.rms_norm = 0, s.norms_biased = 1,
         s.norm_place = POST_RESIDUAL;
         s.rotary_dim = s.rotary_tables = 0, s.final_norm = 0, s.gated = 0, s.activation = RELU, s.tied_head = 1,
         s.projected_embedding = 1;
         s.embedding_size = 24, s.qkv_bias = 1, s.kv_heads = 4;
     }},
    {"one KV head, window, norms of heads, sinks, gated outputs", 30,
     [](UniformSpec& s) {
         s.attention_sinks = s.output_gate = 1, s.kv_heads = 1, s.head_dim = s.rotary_dim = 16,
         s.qk_norm = ONE_FOR_HEADS, s.tied_head = 1, s.activation = GELU;
     }},
    {"norms around, soft caps, two rotation tables, a norm of all heads, sinks, a clamped activation", 30,
     [](UniformSpec& s) {
         s.norm_place = SANDWICH, s.attention_cap = 2, s.logit_cap = 5, s.rotary_tables = 2, s.qk_norm = ALL_HEADS;
         s.attention_sinks = 1, s.activation = CLAMPED_SWIGLU;
         s.embedding_multiplier = 3, s.residual_multiplier = 0.5f, s.tied_head = 1;
     }},
    {"parallel behind one norm, slopes, a norm of each head, a norm of the embedding", 0,
     [](UniformSpec& s) {
         s.parallel = s.shared_norm = s.embedding_norm = s.head_bias = 1, s.rms_norm = 0, s.qk_norm = EACH_HEAD;
         s.rotary_dim = s.rotary_tables = 0;
     },
     true},
    {"norms behind, a part of each head turns", 0,
     [](UniformSpec& s) { s.norm_place = POST, s.rotary_dim = 6, s.gated = 0, s.norms_biased = 1, s.rms_norm = 0; }},
    {"experts, and one that all share", 0,
     [](UniformSpec& s) {
         s.experts = 7, s.experts_per_token = 3, s.shared_size = 45, s.shared_gate = s.router_bias = s.mlp_bias = 1;
     }},
    {"experts in groups, by sigmoid scores with a bias of the choice", 0,
     [](UniformSpec& s) {
         s.experts = 8, s.experts_per_token = 3, s.groups = 4, s.groups_per_token = 2, s.correction_bias = 1;
         s.scores = SIGMOID, s.experts_normalised = 1, s.scaling = 1.5f, s.added_to_sum = 1e-20f, s.shared_size = 20;
     }},
    {"two experts by sparsemixer", 0,
     [](UniformSpec& s) { s.experts = 6, s.experts_per_token = 2, s.scores = SPARSEMIXER, s.jitter = 0.2f; }},
    {"an MLP, then experts; other heads, another window and rope", 30, [](UniformSpec& s) { s.rotary_tables = 1; },
     false,
     [](LayerSpec& layer) {
         AttentionSpec& a = layer.attention;
         a.heads = 3, a.kv_heads = 3, a.head_dim = 17, a.window = 0, a.rotary_dim = a.paired_dim = 8;
         a.rope_column = 10, a.qk_norm = ONE_FOR_HEADS, a.sinks = a.output_bias = a.output_gate = 1, a.scale = 0.2f;
         a.gate_per_head = 1, a.gate_activation = SOFTPLUS_GATE;
         MlpSpec& m = layer.mlp;
         m.experts = 5, m.experts_per_token = 2, m.intermediate_size = 33, m.correction_bias = 1, m.shared_size = 20,
         m.router_bias = 1;
         layer.norm_place = SANDWICH, layer.residual_multiplier = 0.5f;
     }},
    {"experts, then a plain MLP parallel to attention; fewer heads", 0,
     [](UniformSpec& s) { s.experts = 4, s.experts_per_token = 3, s.norm_place = POST, s.rms_norm = 0; }, false,
     [](LayerSpec& layer) {
         AttentionSpec& a = layer.attention;
         a.heads = 2, a.kv_heads = 1, a.head_dim = 32, a.rotary_dim = 0, a.qkv_bias = 1;
         layer.mlp.experts = layer.mlp.experts_per_token = layer.mlp.gated = 0;
         layer.mlp.intermediate_size = 130, layer.mlp.bias = 1, layer.mlp.activation = GELU;
         layer.norm_place = PRE, layer.parallel = layer.shared_norm = 1;
     }},
    {"latents, with a row between input and queries", 0, [](UniformSpec& s) { s.rotary_tables = 1; }, false,
     [](LayerSpec& layer) { make_latent(layer.attention, 5, {48, 16, 24, 32, 20, 0, 1e-6f, {}, {}}); }},
    {"latents with direct queries, and biases", 30, [](UniformSpec& s) { s.qkv_bias = s.output_bias = 1; }, false,
     [](LayerSpec& layer) { make_latent(layer.attention, 20, {32, 16, 130, 16, 0, 0, 1e-6f, {}, {}}); }},
    {"norms with gates, gated values of latents whose queries read a row before its norm as well", 0,
     [](UniformSpec& s) { s.rotary_tables = 1; }, false,
     [](LayerSpec& layer) {
         make_latent(layer.attention, 5, {48, 16, 24, 32, 18, 1, 1e-6f, {}, {}});
         layer.attention.output_gate = 1, layer.mixer_gate_rank = 7, layer.mlp_gate_rank = 20;
     }},
    {"chunks, norms of rotated heads without weights, growing queries, experts whose inputs are scaled", 0,
     [](UniformSpec& s) { s.qk_norm = UNWEIGHTED; }, false,
     [](LayerSpec& layer) {
         AttentionSpec& a = layer.attention;
         a.chunk = 30, a.norm_after_rope = 1, a.growth = 0.3f, a.growth_step = 40, a.growth_shift = 1;
         MlpSpec& m = layer.mlp;
         m.experts = 5, m.experts_per_token = 2, m.intermediate_size = 33, m.shared_size = 20, m.scores = SIGMOID;
         m.scales_inputs = 1;
     }},
    {"plain experts with squares, then no MLP; norms around", 0,
     [](UniformSpec& s) {
         s.experts = 5, s.experts_per_token = 2, s.shared_size = 20, s.gated = 0, s.activation = RELU2;
         s.norm_place = SANDWICH;
     },
     false,
     [](LayerSpec& layer) {
         layer.mlp.intermediate_size = layer.mlp.experts = layer.mlp.experts_per_token = layer.mlp.shared_size = 0;
     }},
    {"keys and values of the first of three layers, per-layer embeddings, a scalar, normed values", 30,
     [](UniformSpec& s) {
         s.layers = 3, s.per_layer_size = 20, s.scaled = s.value_norm = 1, s.norm_place = SANDWICH;
         s.qk_norm = ONE_FOR_HEADS, s.tied_head = 1, s.activation = GELU_TANH;
     },
     false,
     [](LayerSpec& layer) {
         share_first(layer);
         layer.attention.window = 0, layer.mlp.intermediate_size = 150;
     }},
    {"AltUp's streams, LAuReL and sparse gates in the last layer, which reads keys and values of the first", 30,
     [](UniformSpec& s) {
         s.layers = 3, s.per_layer_size = 20, s.per_layer_tokens = VOCAB - 5, s.norm_place = SANDWICH;
         s.hidden_size = s.embedding_size = 48, s.altup = {3, 1, 1}, s.qk_norm = ONE_FOR_HEADS;
     },
     false,
     [](LayerSpec& layer) {
         share_first(layer);
         layer.laurel_rank = 7, layer.mlp.sparsity = 0.7f, layer.mlp.deviations = 0.5f;
     }},
    {"values that are keys, experts with norms of their own beside an MLP, wide per-layer embeddings", 0,
     [](UniformSpec& s) {
         s.values_are_keys = s.value_norm = s.output_gate = 1, s.norm_place = SANDWICH, s.qkv_bias = 1;
         s.experts = 6, s.experts_per_token = 2, s.shared_size = 45, s.experts_normalised = 1;
         s.own_norms = s.expert_scales = 1, s.per_layer_size = 140;
     },
     false, share_first},
    {"three residual streams that are mixed, norms behind as well, then experts", 0,
     [](UniformSpec& s) {
         s.hidden_size = s.embedding_size = 48, s.streams = {3, 2, 1e-6f, 2, 0.1f, 0, 0}, s.norm_place = SANDWICH;
     },
     false,
     [](LayerSpec& layer) {
         layer.mlp.experts = 5, layer.mlp.experts_per_token = 2, layer.norm_place = PRE;
         layer.residual_multiplier = 0.5f;
     }},
};

// A weight: its name as PackedModel::pack takes it, and its shape.
struct Shape {
    Shape(const std::string& leaf, bool bias, int64_t rows_, int64_t columns_, const std::string& place = "")
        : name(place + leaf + (bias ? ".bias" : ".weight")),
          rows(rows_),
          columns(columns_) {}

    bool is(const char* of) const { return name == of + std::string(".weight"); }
    bool in_layer() const { return name.compare(0, 7, "layers.") == 0; }

    std::string name;
    int64_t rows, columns;
};

// What makes the numbers by which a row's streams are weighed, before attention, an MLP or the head; or the head's gates.
template <typename Add>
void list_stream_shapes(const ModelSpec& model, const std::string& place, int64_t numbers, int64_t kinds,
                        const Add& add) {
    const int64_t columns = model.streams.columns(model.hidden_size), rank = model.streams.gate_rank;
    if (!model.streams.several()) return;
    if (rank && place == "head") {
        add("head_gate_down_proj", rank, columns), add("head_gate_up_proj", columns, rank);
        return;
    }
    add(place + "_hc", numbers, columns);
    if (rank) return;
    add(place + "_hc_base", numbers, 1), add(place + "_hc_scale", kinds, 1);
}

// What a recurrent mixer has in the place of attention's weights.
template <typename Add>
void list_rg_lru_shapes(const RecurrentSpec& r, int64_t hidden, const Add& add) {
    const int64_t width = r.value_width();
    for (const char* leaf : {"z_in", "v_in"}) {
        add(leaf, false, width, hidden);
        if (r.input_bias) add(leaf, true, width, 1);
    }
    for (const char* leaf : {"a_in", "b_in"}) add(leaf, false, width, r.gate_rank), add(leaf, true, width, 1);
    add("v_conv", false, width * r.conv_kernel, 1);
    if (r.conv_bias) add("v_conv", true, width, 1);
    add("a_param", false, width, 1);
    add("mixer_out", false, hidden, width);
}

template <typename Add>
void list_recurrent_shapes(const RecurrentSpec& r, int64_t hidden, const Add& add) {
    if (r.kind == RG_LRU) return list_rg_lru_shapes(r, hidden, add);
    const int64_t keys = r.key_width(), values = r.value_width(), kernel = r.conv_kernel;
    const bool selects = r.kind == MAMBA1, kimi = r.kind == KIMI_DELTA, scans = r.kind != SHORT_CONV;
    const bool delta = kimi || r.kind == GATED_DELTA, convolves_keys = scans && !selects;
    for (const bool bias : {false, true}) {
        if (bias && !r.conv_bias) continue;
        if (convolves_keys) add("q_conv", bias, keys * (bias ? 1 : kernel), 1);
        if (convolves_keys) add("k_conv", bias, keys * (bias ? 1 : kernel), 1);
        add("v_conv", bias, values * (bias ? 1 : kernel), 1);
    }
    const int64_t keys_from = selects ? values : hidden;  // of what keys and queries are made
    add("q_in", false, keys, keys_from), add("k_in", false, keys, keys_from), add("v_in", false, values, hidden);
    const int64_t from = r.gate_rank ? r.gate_rank : hidden;  // of what decay inputs and gates are made
    const int64_t decays = kimi ? keys : selects ? values : r.heads;
    if (scans) add("a_in", false, decays, from), add("z_in", false, values, selects ? hidden : from);
    if (selects) {
        add("a_low_in", false, r.gate_rank, values);
        if (r.selection_norm == NORMED_AND_WEIGHTED)
            add("a_low_norm", false, r.gate_rank, 1), add("k_in_norm", false, keys, 1),
                add("q_in_norm", false, keys, 1);
    }
    if (kimi && r.gate_rank) add("a_low_in", false, r.gate_rank, hidden), add("z_low_in", false, r.gate_rank, hidden);
    if (scans) add("a_log", false, selects ? keys * values : r.heads, 1), add("dt_bias", false, decays, 1);
    if (delta) add("b_in", false, r.heads, hidden);
    if (scans && !delta) add("skip", false, selects ? values : r.heads, 1);
    if (delta || r.norm_groups) add("gated_norm", false, delta ? r.value_dim : values, 1);
    add("mixer_out", false, hidden, values);
}

void list_layer_shapes(const ModelSpec& model, const LayerSpec& layer, int32_t number, std::vector<Shape>& all) {
    const AttentionSpec& a = layer.attention;
    const MlpSpec& m = layer.mlp;
    const int64_t hidden = model.hidden_size, input = model.mixer_input_width(layer, number);
    const auto add = [&](const char* leaf, bool bias, int64_t rows, int64_t columns, int32_t expert = -1) {
        std::string place = "layers." + std::to_string(number) + ".";
        if (expert >= 0) place += expert < m.experts ? "experts." + std::to_string(expert) + "." : "shared.";
        all.push_back({leaf, bias, rows, columns, place});
    };
    for (const char* place : {"attention", "mlp"}) {
        if (place == std::string("mlp") && !layer.has_mlp()) continue;
        list_stream_shapes(
            model, place, model.streams.numbers(), model.streams.sinkhorn_steps ? 3 : 2,
            [&](const std::string& leaf, int64_t rows, int64_t columns) { add(leaf.c_str(), false, rows, columns); });
    }
    const int64_t wide = model.norm_width();
    for (const bool bias : {false, true}) {
        if (bias && !model.norms_biased) continue;
        if (layer.norm_place != POST && (input == hidden || layer.aside))
            add("attention_norm", bias, layer.aside ? input : wide, 1);
        if (layer.norm_place != POST && !layer.shared_norm && layer.has_mlp()) add("mlp_norm", bias, wide, 1);
        if (layer.has_attention_out_norm()) add("attention_out_norm", bias, hidden, 1);
        if (layer.has_mlp_out_norm()) add("mlp_out_norm", bias, hidden, 1);
    }
    const bool one = a.qk_norm == ONE_FOR_HEADS;
    if (a.has_norm_weights()) add("q_norm", false, one ? a.head_dim : a.query_width(), 1);
    if (a.has_norm_weights() && !a.shares_kv) add("k_norm", false, one ? a.head_dim : a.key_width(), 1);
    if (a.sinks) add("sinks", false, a.heads, 1);
    const auto linear = [&](const char* leaf, int32_t bias, int64_t rows, int64_t columns, int32_t expert = -1) {
        add(leaf, false, rows, columns, expert);
        if (bias) add(leaf, true, rows, 1, expert);
    };
    if (layer.is_recurrent()) {
        const auto plain = [&](const char* leaf, bool bias, int64_t rows, int64_t columns) {
            add(leaf, bias, rows, columns);
        };
        list_recurrent_shapes(layer.recurrent, hidden, plain);
    } else if (const LatentSpec& l = a.latent; l.is_compressed()) {
        const int64_t parts = l.compressed.parts(), rate = l.compressed.rate, heads = a.heads;
        add("kv_a_norm", false, l.rank, 1), add("q_a_norm", false, l.query_rank, 1);
        linear("kv_a_proj", 0, l.rank, hidden), linear("q_a_proj", 0, l.query_rank, hidden);
        linear("q_b_proj", 0, heads * l.rank, l.query_rank);
        linear("o_a_proj", 0, a.output_width(), a.attended_width() / l.compressed.groups);
        const auto entries = [&](const char* values, const char* gates, const char* bias, const char* norm,
                                 int64_t dim) {
            linear(values, 0, parts * dim, hidden), linear(gates, 0, parts * dim, hidden);
            add(bias, false, rate * parts * dim, 1), add(norm, false, dim, 1);
        };
        if (rate) entries("entry_kv_proj", "entry_gate_proj", "entry_bias", "entry_norm", l.rank);
        if (const IndexerSpec& index = l.indexer; index.heads) {
            entries("index_entry_kv_proj", "index_entry_gate_proj", "index_bias", "index_k_norm", index.dim);
            linear("index_q_proj", 0, int64_t(index.heads) * index.dim, l.query_rank);
            linear("index_weights_proj", 0, index.heads, hidden);
        }
    } else if (l.rank) {
        const int64_t query = l.query_rank ? l.query_width() : hidden;
        add("kv_a_norm", false, l.rank, 1);
        if (l.query_rank) add("q_a_norm", false, l.query_rank, 1);
        if (l.query_rank) linear("q_a_proj", a.qkv_bias, l.query_rank, hidden);
        linear("k_rope_proj", a.qkv_bias, l.rope_dim, hidden);
        linear("kv_a_proj", a.qkv_bias, l.rank, hidden);
        linear("q_nope_proj", false, int64_t(a.heads) * l.nope_dim, query);
        linear("q_rope_proj", false, int64_t(a.heads) * l.rope_dim, query);
        linear("k_b_proj", false, a.attended_width(), l.nope_dim);
        linear("v_b_proj", false, a.output_width(), l.rank);
        if (const IndexerSpec& index = l.indexer; index.heads) {
            linear("index_q_proj", 0, int64_t(index.heads) * index.dim, l.query_rank);
            linear("index_k_proj", 0, index.dim, hidden), linear("index_weights_proj", 0, index.heads, hidden);
            add("index_k_norm", false, index.dim, 1), add("index_k_norm", true, index.dim, 1);
            if (index.pools()) linear("index_gate_proj", 0, index.dim, hidden);
            if (index.pools()) add("index_places", false, int64_t(index.pool) * index.dim, 1);
        }
    } else {
        linear("q_proj", a.qkv_bias, a.query_width(), input);
        if (!a.shares_kv) linear("k_proj", a.qkv_bias, a.key_width(), input);
        if (!a.shares_kv && !a.values_are_keys) linear("v_proj", a.qkv_bias, a.values_width(), input);
    }
    if (!layer.is_recurrent()) linear("o_proj", a.output_bias, hidden, a.output_width());
    const int64_t gated = a.latent.reads_unnormed ? a.latent.query_width() : hidden;
    if (a.output_gate) linear("g_proj", a.qkv_bias, a.gate_width(), gated);
    if (layer.mixer_gate_rank) linear("mixer_gate_down_proj", 0, layer.mixer_gate_rank, wide);
    if (layer.mixer_gate_rank) linear("mixer_gate_up_proj", 0, wide, layer.mixer_gate_rank);
    if (layer.mlp_gate_rank) linear("mlp_gate_down_proj", 0, layer.mlp_gate_rank, wide);
    if (layer.mlp_gate_rank) linear("mlp_gate_up_proj", 0, wide, layer.mlp_gate_rank);
    for (int32_t e = m.experts ? 0 : -1; layer.has_mlp() && e < m.count(); e++) {
        const int64_t size = m.experts && e == m.experts ? m.shared_size : m.intermediate_size;
        if (m.gated) linear("gate_proj", m.bias, size, hidden, e);
        linear("up_proj", m.bias, size, hidden, e);
        linear("down_proj", m.bias, hidden, size, e);
    }
    if (m.correction_bias) add("correction_bias", false, m.experts, 1);
    if (m.expert_scales) add("expert_scales", false, m.experts, 1);
    for (const char* norm : {"router_norm", "experts_norm", "experts_out_norm", "shared_out_norm"}) {
        if (m.own_norms) add(norm, false, hidden, 1);
    }
    if (model.per_layer_size) {
        linear("per_layer_gate_proj", 0, model.per_layer_size, hidden);
        linear("per_layer_out_proj", 0, hidden, model.per_layer_size);
        add("per_layer_out_norm", false, hidden, 1);
    }
    if (layer.scaled) add("layer_scalar", false, 1, 1);
    if (layer.aside) linear("aside_proj", 0, hidden, hidden);
    if (layer.laurel_rank) {
        linear("laurel_left_proj", 0, layer.laurel_rank, hidden);
        linear("laurel_right_proj", 0, hidden, layer.laurel_rank);
        add("laurel_out_norm", false, hidden, 1);
    }
    if (const int64_t streams = model.altup.count; model.altup.several()) {
        add("altup_router_norm", false, hidden, 1);
        add("altup_router", false, streams * hidden, 1);
        add("altup_predict", false, streams * streams * streams, 1);
        add("altup_correct", false, streams * streams, 1);
        if (model.altup.scaled) add("altup_scale", false, hidden, 1);
    }
    const HeadSpec& head = model.draft_head;
    for (const auto& [base, projection] :
         {std::pair("attention_conv_base", "attention_conv_proj"), std::pair("mlp_conv_base", "mlp_conv_proj")}) {
        if (!head.conv_kernel) continue;
        add(base, false, 2 * head.conv_kernel * hidden, 1);
        linear(projection, 0, 2 * head.conv_scales(hidden), hidden);
    }
    if (m.experts) linear("router", m.router_bias, m.experts, hidden);
    if (m.shared_gate) linear("shared_gate", 0, 1, hidden);
}

// What a draft head has beside a decoder.
void list_head_shapes(const ModelSpec& s, std::vector<Shape>& all) {
    const HeadSpec& head = s.draft_head;
    const int64_t hidden = s.hidden_size;
    if (!s.is_draft_head()) return;
    all.push_back({s.reads_target() ? "fc_in" : "fc", false, hidden, s.fc_width()});
    if (s.enters_by_streams()) all.push_back({"fc_token", false, hidden, hidden});
    if (s.reads_target()) {
        all.push_back({"fc_out", false, head.input_size, hidden});
        if (head.clusters) all.push_back({"clusters", false, head.clusters, hidden});
        return;
    }
    all.push_back({"head_hidden_norm", false, s.norm_width(), 1});
    if (head.candidates) all.push_back({"selector_proj", false, head.selector_rank, hidden});
    if (head.selector_rank) {
        all.push_back({"selector_before", false, s.vocab_size, head.selector_rank});
        all.push_back({"selector_after", false, s.lm_head_rows(), head.selector_rank});
    }
    if (head.confidence_size) {
        all.push_back({"confidence", false, head.confidence_size, 1});
        if (!s.streams.several()) all.push_back({"confidence", true, 1, 1});
    }
    if (head.feeds_back()) all.push_back({"head_embed_norm", false, hidden, 1});
    for (int32_t i = 0; i < head.input_norms(); i++)
        all.push_back({head.input_norm == NORM_OF_EACH ? "fc_norm_" + std::to_string(i) : "input_norm", false,
                       head.input_size / head.input_norms(), 1});
}

// Every weight that a model has.
std::vector<Shape> shapes(const ModelSpec& s, const std::vector<LayerSpec>& layers) {
    const int64_t hidden = s.hidden_size;
    std::vector<Shape> all;
    if (!s.draft_head.shared_embedding) all.push_back({"embed_tokens", false, s.vocab_size, s.embedding_size});
    if (!s.tied_head && !s.draft_head.shared_head)
        all.push_back({"lm_head", false, s.lm_head_rows(), s.embedding_size});
    list_head_shapes(s, all);
    list_stream_shapes(s, "head", s.streams.count, 1, [&](const std::string& leaf, int64_t rows, int64_t columns) {
        all.push_back({leaf, false, rows, columns});
    });
    if (s.positions) all.push_back({"embed_positions", false, s.positions, hidden});
    if (s.projected_embedding) all.push_back({"project_in", false, hidden, s.embedding_size});
    if (s.projected_embedding) all.push_back({"project_out", false, s.embedding_size, hidden});
    if (s.per_layer_size) {
        all.push_back({"per_layer_embed", false, s.per_layer_tokens, s.per_layer_width()});
        all.push_back({"per_layer_in_proj", false, s.per_layer_width(), hidden});
        all.push_back({"per_layer_norm", false, s.per_layer_size, 1});
    }
    for (int32_t i = 1; i < s.altup.count; i++) {
        const std::string place = "altup." + std::to_string(i - 1) + ".";
        all.push_back({"altup_in_proj", false, hidden, hidden, place});
        all.push_back({"altup_out_proj", false, hidden, hidden, place});
    }
    for (const bool bias : {false, true}) {
        if (bias && !s.norms_biased) continue;
        if (s.final_norm) all.push_back({"final_norm", bias, s.norm_width(), 1});
        if (s.embedding_norm) all.push_back({"embed_norm", bias, hidden, 1});
    }
    if (s.head_bias) all.push_back({"lm_head", true, s.vocab_size, 1});
    for (size_t i = 0; i < layers.size(); i++) list_layer_shapes(s, layers[i], int32_t(i), all);
    return all;
}

struct Fixture;

// A sequence: a table of blocks out of its model's pool, which has them in another order.
struct Table {
    Table(Fixture& x, int64_t positions);
    std::vector<int32_t> ids;
    int32_t state = 0;
};

// A pass and what its batch points to.
struct PassRequest {
    std::vector<Segment> segments;
    std::vector<int32_t> tokens, logit_rows;
    Batch batch{};
};

// The memory nodes of threads that so many nodes share evenly.
inline std::vector<int32_t> spread(int threads, int nodes) {
    std::vector<int32_t> each;
    for (int i = 0; i < threads && nodes > 1; i++) each.push_back(i * nodes / threads);
    return each;
}

// The image of a model, read in pieces of so many bytes.
inline std::vector<uint8_t> image_of(const PackedModel& model, int64_t piece = 1 << 20) {
    std::vector<uint8_t> image;
    Buffer<uint8_t> buffer{size_t(piece)};
    for (int64_t start = 0; start < model.image_bytes(); start += piece) {
        const int64_t size = std::min(piece, model.image_bytes() - start);
        const uint8_t* from = model.image(start, size, buffer.data());
        image.insert(image.end(), from, from + size);
    }
    return image;
}

struct Fixture {
    static constexpr int32_t BLOCKS = 23;

    Fixture(const KernelTable& k, const Format& f, const Kind& kind, int threads, int nodes = 1, bool int8 = false)
        : pool(threads, nullptr, spread(threads, nodes)),
          cosine(POSITIONS * 32),
          sine(POSITIONS * 32) {
        const KindSpec spec(f, kind);
        model = std::make_shared<PackedModel>(spec.model, spec.layers.data(), &k);
        model->allocate(pool);
        program = std::make_unique<Program>(*model);
        Random random(1);
        for (const Shape& shape : shapes(spec.model, spec.layers)) pack_random(random, shape, kind.name);
        if (!spec.model.reads_target())
            blocks = std::make_unique<Blocks>(model, BLOCKS, int8 ? INT8 : attention_precision(*model));
        if (blocks && model->keeps_state()) states = std::make_unique<States>(model, BLOCKS, blocks->precision());
        for (const LayerSpec& layer : spec.layers) fill_rope(layer.attention);
    }

    void pack_random(Random& random, const Shape& shape, const char* name) {
        Buffer<float> tensor(size_t(shape.rows * shape.columns));
        for (size_t i = 0; i < tensor.size(); i++) tensor[i] = random.normal() * (shape.columns > 1 ? 0.2f : 0.5f);
        if (shape.is("embed_tokens")) table.assign(tensor.data(), tensor.data() + tensor.size());
        if (shape.is("per_layer_embed")) per_layer_table.assign(tensor.data(), tensor.data() + tensor.size());
        const auto pack = [&](int64_t columns) {
            return model->pack(pool, shape.name, {SOURCE_F32, tensor.data(), shape.rows, columns});
        };
        CHECK(pack(shape.columns), "%s: no place for %s", name, shape.name.c_str());
        const bool matrix = shape.columns > 1 && !shape.is("embed_positions") && !shape.is("embed_tokens") &&
                            !shape.is("per_layer_embed");
        CHECK(!matrix || !pack(shape.columns - 1), "%s: %s may have another shape", name, shape.name.c_str());
    }

    // The columns of cos and sin that rotate a layer's heads; the first table has another base than the others.
    void fill_rope(const AttentionSpec& a) {
        const int32_t dim = a.rotary_dim, half = dim / 2;
        for (int32_t i = 0; i < POSITIONS * dim; i++) {
            const int32_t position = i / dim, d = i % dim;
            const double angle = position * std::pow(a.rope_column ? 50 : 1e4, -2.0 * (d % half) / dim);
            const size_t at = size_t(position * model->spec.rotary_width + a.rope_column + d);
            cosine[at] = float(std::cos(angle)), sine[at] = float((d < half ? -1 : 1) * std::sin(angle));
        }
    }

    void forward(Pool& by, const Batch& batch) {
        ipex_assist::Pass pass(*program, by, activations, batch);
        ipex_assist::forward(pass);
    }
    void top_tokens(const Batch& batch, const TopTokens& found) {
        ipex_assist::Pass pass(*program, pool, activations, batch);
        ipex_assist::top_tokens(pass, found);
    }
    void sample(const Batch& batch, const RowChoice* choices, int32_t* tokens) {
        ipex_assist::Pass pass(*program, pool, activations, batch);
        ipex_assist::sample(pass, choices, tokens);
    }
    void draft(const Batch& batch, const int32_t* counts, const DraftRequest& request) {
        ipex_assist::Pass pass(*program, pool, activations, batch, counts);
        ipex_assist::draft(pass, request);
    }

    // Logits (rows, VOCAB) of `tokens`, each row in the sequence given for it; rows of one sequence are side by side.
    std::vector<float> run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                           const std::vector<const Table*>& tables) {
        const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
        Buffer<float> logits(tokens.size() * stride, NAN);
        const PassRequest pass = make_pass(tokens, positions, tables, logits.data());
        forward(this->pool, pass.batch);
        std::vector<float> result;
        for (size_t r = 0; r < tokens.size(); r++) {
            result.insert(result.end(), logits.data() + r * stride, logits.data() + r * stride + VOCAB);
        }
        return result;
    }

    Segment make_segment(const Table& table, int32_t start, int32_t rows) const {
        Segment s{};
        s.blocks = table.ids.data(), s.block_count = int32_t(table.ids.size());
        s.start = start, s.rows = rows, s.state = table.state;
        s.cosine = model->spec.rotary_width ? cosine.data() : nullptr;
        s.sine = model->spec.rotary_width ? sine.data() : nullptr;
        s.rope_rows = model->spec.rotary_width ? POSITIONS : 0;
        return s;
    }

    PassRequest make_pass(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                          const std::vector<const Table*>& tables, float* logits) const {
        PassRequest pass;
        pass.tokens = tokens;
        for (size_t r = 0; r < tokens.size(); r++) {
            if (r == 0 || tables[r] != tables[r - 1])
                pass.segments.push_back(make_segment(*tables[r], positions[r], 0));
            Segment& s = pass.segments.back();
            s.rows++;
            pass.logit_rows.push_back(int32_t(r));
            s.settled = std::max(0, s.start - PENDING_ROWS);
            s.settle = std::max(s.settled, s.start + s.rows - PENDING_ROWS);
        }
        Batch& batch = pass.batch;
        batch.rows = batch.logit_row_count = int32_t(tokens.size()),
        batch.segment_count = int32_t(pass.segments.size());
        batch.segments = pass.segments.data(), batch.tokens = pass.tokens.data(),
        batch.logit_rows = pass.logit_rows.data();
        batch.blocks = blocks.get(), batch.states = states.get();
        batch.threads = threads;
        batch.logits = logits, batch.stride = (VOCAB + LANES - 1) / LANES * LANES;
        return pass;
    }

    std::vector<float> append(const Table& table, int32_t start, const std::vector<int32_t>& tokens) {
        std::vector<int32_t> positions;
        for (size_t i = 0; i < tokens.size(); i++) positions.push_back(start + int32_t(i));
        return run(tokens, positions, std::vector<const Table*>(tokens.size(), &table));
    }

    // Up to `count` tokens drafted after `tokens` at `start`, out of the first `vocabulary`.
    std::vector<int32_t> draft(const Table& table, int32_t start, const std::vector<int32_t>& tokens, int32_t count,
                               int32_t vocabulary, std::vector<float>* likely = nullptr) {
        std::vector<float> logits((VOCAB + LANES - 1) / LANES * LANES);
        PassRequest pass = make_pass(tokens, std::vector<int32_t>(tokens.size(), start),
                                     std::vector<const Table*>(tokens.size(), &table), logits.data());
        pass.logit_rows = {int32_t(tokens.size()) - 1}, pass.batch.logit_rows = pass.logit_rows.data(),
        pass.batch.logit_row_count = 1;
        pass.batch.vocabulary = vocabulary;
        Buffer<int32_t> drafted(static_cast<size_t>(count));
        Buffer<float> probabilities(static_cast<size_t>(count));
        const float least = 0;
        int32_t number = 0;
        draft(pass.batch, &count, {&count, &least, count, drafted.data(), probabilities.data(), &number});
        if (likely) likely->assign(probabilities.data(), probabilities.data() + number);
        return {drafted.data(), drafted.data() + number};
    }

    Pool pool;
    int32_t threads = 0;  // of its passes; 0: all
    Activations activations;
    std::shared_ptr<PackedModel> model;
    std::unique_ptr<Program> program;
    std::unique_ptr<Blocks> blocks;
    std::unique_ptr<States> states;       // of a model whose layers keep some
    int32_t taken = 0, taken_states = 0;  // of them
    std::vector<float> table, per_layer_table;
    Buffer<float> cosine, sine;
    float poison = NAN;  // for a place in a rotation table: rows at that position become NaN
};

inline Table::Table(Fixture& x, int64_t positions) {
    for (int64_t i = 0; i < (positions + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS; i++)
        ids.push_back(x.taken++ * 7 % Fixture::BLOCKS);
    state = x.taken_states++ % Fixture::BLOCKS;
}

inline std::vector<int32_t> some_tokens(int32_t count, uint32_t seed) {
    Random random(seed);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; i++) tokens.push_back(random.below(VOCAB));
    return tokens;
}

// Whether a format is run by this program: under ThreadSanitizer, which is slow, where races may be others'.
inline bool races_differ([[maybe_unused]] const Format& f) {
#ifdef __SANITIZE_THREAD__
    return f.precision != BF16 && f.group == SCALE_COLUMNS;
#else
    // Groups of int4 differ in linears alone, which have tests of their own.
    return everything || f.precision != INT4 || f.group == SCALE_COLUMNS;
#endif
}

// Whether a kind of model is run in this format: the rarer ones in few.
inline bool shows_more(const Format& f, const Kind& kind) {
    return &kind < KINDS + 3 || f.precision == FP32 || f.group != SCALE_COLUMNS;
}

// Calls check(format, kind) for each format that is run by this program, and each kind of model that is run in it.
template <typename Check>
void for_each_kind(const Check& check) {
    for (const Format& f : FORMATS) {
        if (!races_differ(f)) continue;
        for (const Kind& kind : KINDS) {
            if (shows_more(f, kind)) check(f, kind);
        }
    }
}

}  // namespace
}  // namespace check
