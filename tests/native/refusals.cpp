// What the core refuses, and that it goes on afterwards: NaN and infinity in weights, rows and logits, and calls that
// would read or write where nothing is.
#include <algorithm>
#include <exception>

#include "small_model.h"

namespace check {
namespace {

// A sequence whose rows became NaN is as good as new once it is used again from the start.
void check_poisoned_cache(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        Fixture x(k, f, KINDS[0], 2);
        const Table used(x, 300), fresh(x, 300);
        const std::vector<int32_t> text = some_tokens(70, 6), step = some_tokens(1, 7), prompt = some_tokens(20, 8);
        std::swap(x.cosine[5], x.poison);
        CHECK(std::isnan(x.append(used, 0, text).back()), "%s: the text was to end in NaN", f.name);
        std::swap(x.cosine[5], x.poison);
        for (const std::vector<int32_t>* first : {&step, &prompt}) {
            const std::vector<float> got = x.append(used, 0, *first), expected = x.append(fresh, 0, *first);
            CHECK(same_bits(got.data(), expected.data(), got.size()), "%s: %zu rows behind NaN", f.name, first->size());
            const std::vector<float> next = x.append(used, int32_t(first->size()), step);
            CHECK(same_bits(next.data(), x.append(fresh, int32_t(first->size()), step).data(), next.size()),
                  "%s: next row", f.name);
        }
    }
}

template <class F>
std::string refused(F&& f) {
    try {
        f();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

#define CHECK_REFUSED(text, call)                                                                               \
    do {                                                                                                        \
        const std::string said = refused([&] { call; }), wanted = text;                                         \
        CHECK(said.find(wanted) != std::string::npos, "said \"%s\", not \"%s\"", said.c_str(), wanted.c_str()); \
    } while (0)

// A draft that meets NaN ends with -1 and not with token 0, whichever thread's slice holds it; the next draft is right.
void check_draft_of_no_numbers(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const int threads : {1, 3}) {
            Fixture x(k, f, KINDS[0], threads);
            const Table table(x, 300);
            const auto draft = [&](std::vector<float>* likely = nullptr) {
                return x.draft(table, 0, some_tokens(3, 5), 20, VOCAB, likely);
            };
            const std::vector<int32_t> expected = draft();
            CHECK(expected.size() == 20, "%s", f.name);
            std::swap(x.cosine[size_t(7 * x.model->spec.rotary_width)], x.poison);
            std::vector<float> likely;
            std::vector<int32_t> cut(expected.begin(), expected.begin() + 5);
            cut.push_back(-1);
            CHECK(draft(&likely) == cut && std::isnan(likely.back()), "%s: %zu tokens with NaN at position 7", f.name,
                  likely.size());
            std::swap(x.cosine[size_t(7 * x.model->spec.rotary_width)], x.poison);
            CHECK(draft() == expected, "%s: drafted again", f.name);
        }
    }
}

// A layer reads the keys and values of an earlier one that has some, as many and as wide.
void check_kv_layers(const KernelTable& k) {
    const auto make = [&](void (*change)(std::vector<LayerSpec>&)) {
        UniformSpec spec = base_spec(FORMATS[3]);
        spec.layers = 3;
        std::vector<LayerSpec> layers = spec.layer_specs();
        share_first(layers[2]);
        change(layers);
        PackedModel(spec.model(), layers.data(), &k);
    };
    make([](std::vector<LayerSpec>&) {});
    CHECK_REFUSED("are read is 2 and must be from 0 to 1",
                  make([](std::vector<LayerSpec>& all) { all[2].attention.kv_layer = 2; }));
    CHECK_REFUSED("are read is -1", make([](std::vector<LayerSpec>& all) { all[2].attention.kv_layer = -1; }));
    CHECK_REFUSED("layer 2 reads the keys and values of layer 1, which has none", make([](std::vector<LayerSpec>& all) {
                      share_first(all[1]);
                      all[2].attention.kv_layer = 1;
                  }));
    CHECK_REFUSED("layer 2 reads 4 key/value heads of 10, and layer 0 has 2 of 10",
                  make([](std::vector<LayerSpec>& all) { all[2].attention.kv_heads = 4; }));
    CHECK_REFUSED("what is done to values", make([](std::vector<LayerSpec>& all) { all[2].attention.value_norm = 1; }));
}

constexpr StreamSpec GATED{3, 0, 0, 2, 0, 0, 20};

void make_stream_head(UniformSpec& s, HeadKind kind, int32_t input_size) {
    s.draft_head.kind = kind, s.draft_head.taps = 1, s.draft_head.input_size = input_size;
}

// Several residual streams: what they are not computed with.
void check_streams(const KernelTable& k) {
    const auto make = [&](void (*change)(UniformSpec&), void (*change_last)(LayerSpec&) = nullptr) {
        UniformSpec spec = base_spec(FORMATS[3]);
        spec.hidden_size = spec.embedding_size = 48, spec.streams = {3, 2, 1e-6f, 2, 0.1f, 0, 0};
        change(spec);
        std::vector<LayerSpec> layers = spec.layer_specs();
        if (change_last) change_last(layers.back());
        PackedModel(spec.model(), layers.data(), &k);
    };
    const auto plain = [](UniformSpec&) {};
    make(plain);
    make([](UniformSpec& s) { s.streams.count = 1, s.hidden_size = s.embedding_size = 40, s.per_layer_size = 20; });
    CHECK_REFUSED("hc_mult is 9", make([](UniformSpec& s) { s.streams.count = 9; }));
    CHECK_REFUSED("hc_mult is -1", make([](UniformSpec& s) { s.streams.count = -1; }));
    CHECK_REFUSED("hc_sinkhorn_iters is 1001", make([](UniformSpec& s) { s.streams.sinkhorn_steps = 1001; }));
    CHECK_REFUSED("hyper-connections is nan", make([](UniformSpec& s) { s.streams.eps = NAN; }));
    CHECK_REFUSED("hyper-connections is inf", make([](UniformSpec& s) { s.streams.gain_eps = INFINITY; }));
    CHECK_REFUSED("streams of 40 columns", make([](UniformSpec& s) { s.hidden_size = s.embedding_size = 40; }));
    const std::string head = "several streams in a draft head of another kind, or with a norm behind them";
    CHECK_REFUSED(head, make([](UniformSpec& s) { make_stream_head(s, EAGLE3, 48); }));
    CHECK_REFUSED(head, make([](UniformSpec& s) { make_stream_head(s, DFLASH, 48), s.streams = GATED; }));
    CHECK_REFUSED(head, make([](UniformSpec& s) {
                      make_stream_head(s, MTP, 144), s.streams = GATED, s.draft_head.fed_back_normed = 1;
                  }));
    CHECK_REFUSED("48 columns for hidden states of 48",
                  make([](UniformSpec& s) { make_stream_head(s, MTP, 48), s.streams = GATED; }));
    CHECK_REFUSED("layer 0 of gated residuals has gates of its own",
                  make([](UniformSpec& s) { make_stream_head(s, MTP, 144), s.streams = GATED; }));
    const std::string other = "with projected or per-layer embeddings";
    CHECK_REFUSED(other, make([](UniformSpec& s) { s.projected_embedding = 1, s.embedding_size = 24; }));
    CHECK_REFUSED(other, make([](UniformSpec& s) { s.per_layer_size = 20; }));
    const std::string form = "layer 1 has a form of its own";
    CHECK_REFUSED(form, make(plain, [](LayerSpec& layer) { layer.parallel = 1; }));
    CHECK_REFUSED(form, make(plain, [](LayerSpec& layer) { layer.scaled = 1; }));
    CHECK_REFUSED(form, make(plain, [](LayerSpec& layer) { layer.norm_place = POST_RESIDUAL; }));
    CHECK_REFUSED(form, make(plain, [](LayerSpec& layer) {
                      layer.mlp.experts = layer.mlp.experts_per_token = layer.mlp.shared_size = 1;
                      layer.mlp.own_norms = 1, layer.norm_place = SANDWICH;
                  }));
}

// Keys that are values, and entries.
void check_compressed(const KernelTable& k) {
    const auto make = [&](void (*change)(AttentionSpec&)) {
        std::vector<LayerSpec> layers = base_spec(FORMATS[3]).layer_specs();
        AttentionSpec& a = layers.back().attention;
        make_compressed(a, 4, {48, 16, 32, 16, 20, 0, 1e-6f, {6, 2, 16, 1e-6f, 0, 0, 0}, {2, 4, 1}});
        a.rope_column = 0, a.rotary_dim = 10, a.window = 30;
        change(a);
        PackedModel(base_spec(FORMATS[3]).model(), layers.data(), &k);
    };
    make([](AttentionSpec&) {});
    make([](AttentionSpec& a) { a.latent.compressed = {4, 128, 0}, a.latent.indexer = {}; });
    make([](AttentionSpec& a) { a.latent.compressed = {1, 0, 0}, a.latent.indexer = {}; });
    CHECK_REFUSED("tokens of an entry is 129", make([](AttentionSpec& a) { a.latent.compressed.rate = 129; }));
    CHECK_REFUSED("tokens of an entry is -1", make([](AttentionSpec& a) { a.latent.compressed.rate = -1; }));
    CHECK_REFUSED("whether entries overlap is 2", make([](AttentionSpec& a) { a.latent.compressed.overlap = 2; }));
    CHECK_REFUSED("whether entries overlap is 1", make([](AttentionSpec& a) { a.latent.compressed.rate = 0; }));
    CHECK_REFUSED("index_topk is 0", make([](AttentionSpec& a) { a.latent.indexer.top_k = 0; }));
    CHECK_REFUSED("index_n_heads is 2", make([](AttentionSpec& a) { a.latent.compressed = {2, 0, 0}; }));
    CHECK_REFUSED("index_head_dim is 8", make([](AttentionSpec& a) { a.latent.indexer.dim = 8; }));
    CHECK_REFUSED("an indexer of index_head_dim 24", make([](AttentionSpec& a) { a.latent.indexer.dim = 24; }));
    CHECK_REFUSED("entries of 3 tokens beside", make([](AttentionSpec& a) { a.latent.compressed.rate = 3; }));
    CHECK_REFUSED("entries of 1 tokens beside", make([](AttentionSpec& a) { a.latent.compressed.rate = 1; }));
    CHECK_REFUSED("entries of 128 tokens beside", make([](AttentionSpec& a) { a.latent.compressed.rate = 128; }));
    CHECK_REFUSED("the window of keys that are values is 0", make([](AttentionSpec& a) { a.window = 0; }));
    CHECK_REFUSED("beside a window of 193", make([](AttentionSpec& a) { a.window = 193; }));
    CHECK_REFUSED("qk_rope_head_dim is 0", make([](AttentionSpec& a) { a.latent.rope_dim = 0; }));
    CHECK_REFUSED("o_lora_rank is 8", make([](AttentionSpec& a) { a.latent.value_dim = 8; }));
    CHECK_REFUSED("q_lora_rank is 0", make([](AttentionSpec& a) { a.latent.query_rank = 0; }));
    CHECK_REFUSED("o_groups is 5", make([](AttentionSpec& a) { a.latent.compressed.groups = 5; }));
    CHECK_REFUSED("4 heads in 3 groups", make([](AttentionSpec& a) { a.latent.compressed.groups = 3; }));
    CHECK_REFUSED("head_dim 40, qk_rope_head_dim 16", make([](AttentionSpec& a) { a.latent.rank = a.head_dim = 40; }));
    const std::string form = "keys that are values have one key/value head";
    CHECK_REFUSED(form, make([](AttentionSpec& a) { a.latent.nope_dim = 48; }));
    CHECK_REFUSED(form, make([](AttentionSpec& a) { a.output_gate = 1; }));
    CHECK_REFUSED(form, make([](AttentionSpec& a) { a.qkv_bias = 1; }));
    CHECK_REFUSED(form, make([](AttentionSpec& a) { a.latent.indexer.reads_input = 1; }));
    CHECK_REFUSED("a key's norm is 0", make([](AttentionSpec& a) { a.latent.norm_eps = 0; }));
}

// What no model can be is refused before sizes are divided or multiplied.
void check_specs(const KernelTable& k) {
    const auto make = [&](void (*change)(UniformSpec&)) {
        UniformSpec spec = base_spec(FORMATS[3]);
        change(spec);
        PackedModel(spec.model(), spec.layer_specs().data(), &k);
    };
    const auto make_last = [&](void (*change)(LayerSpec&)) {
        const UniformSpec spec = base_spec(FORMATS[3]);
        std::vector<LayerSpec> layers = spec.layer_specs();
        change(layers.back());
        PackedModel(spec.model(), layers.data(), &k);
    };
    make([](UniformSpec&) {});
    CHECK_REFUSED("num_hidden_layers is 0", make([](UniformSpec& s) { s.layers = 0; }));
    CHECK_REFUSED("num_hidden_layers is -3", make([](UniformSpec& s) { s.layers = -3; }));
    CHECK_REFUSED("window is -1", make_last([](LayerSpec& layer) { layer.attention.window = -1; }));
    CHECK_REFUSED("num_key_value_heads is 0", make_last([](LayerSpec& layer) { layer.attention.kv_heads = 0; }));
    make_last([](LayerSpec& layer) { layer.mlp.intermediate_size = 0; });
    CHECK_REFUSED("intermediate_size is -1", make_last([](LayerSpec& layer) { layer.mlp.intermediate_size = -1; }));
    CHECK_REFUSED("intermediate_size is 0",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = 1, s.intermediate_size = 0; }));
    CHECK_REFUSED("nothing parallel to attention",
                  make([](UniformSpec& s) { s.parallel = 1, s.intermediate_size = 0; }));
    CHECK_REFUSED("norm_place is -1", make_last([](LayerSpec& layer) { layer.norm_place = NormPlace(-1); }));
    CHECK_REFUSED("column of a rotary table is 1 and",
                  make_last([](LayerSpec& layer) { layer.attention.rope_column = 1; }));
    CHECK_REFUSED("paired_dim is 11", make_last([](LayerSpec& layer) { layer.attention.paired_dim = 11; }));
    CHECK_REFUSED("multiples of 16 are computed", make_last([](LayerSpec& layer) {
                      make_latent(layer.attention, 4, {40, 16, 24, 32, 0, 0, 1e-6f, {}, {}});
                      layer.attention.rope_column = 0, layer.attention.rotary_dim = 10;
                  }));
    CHECK_REFUSED("latent attention has one key/value head", make_last([](LayerSpec& layer) {
                      make_latent(layer.attention, 4, {48, 16, 24, 32, 0, 0, 1e-6f, {}, {}});
                      layer.attention.rope_column = 0, layer.attention.rotary_dim = 10;
                      layer.attention.output_gate = 1, layer.attention.gate_activation = SOFTPLUS_GATE;
                  }));
    CHECK_REFUSED("rank of a norm's gate is 41", make_last([](LayerSpec& layer) { layer.mlp_gate_rank = 41; }));
    CHECK_REFUSED("queries read a row before its norm is 1", make_last([](LayerSpec& layer) {
                      make_latent(layer.attention, 4, {48, 16, 24, 32, 0, 1, 1e-6f, {}, {}});
                      layer.attention.rope_column = 0, layer.attention.rotary_dim = 10;
                  }));
    CHECK_REFUSED("grow by logarithms is 1", make_last([](LayerSpec& layer) { layer.attention.log_growth = 1; }));
    CHECK_REFUSED("blocks of 24 positions",
                  make_last([](LayerSpec& layer) { layer.attention.choice = {2, 24, 1, 16}; }));
    CHECK_REFUSED("index_local_blocks is 3",
                  make_last([](LayerSpec& layer) { layer.attention.choice = {2, 32, 3, 16}; }));
    CHECK_REFUSED("beside latents, windows", make_last([](LayerSpec& layer) {
                      layer.attention.choice = {2, 32, 1, 16}, layer.attention.chunk = 30;
                  }));
    CHECK_REFUSED("pools of 3 positions, and 6 that are chosen", make_last([](LayerSpec& layer) {
                      make_latent(layer.attention, 4, {48, 16, 24, 32, 40, 0, 1e-6f, {6, 2, 16, 1e-6f, 0, 3, 0}, {}});
                      layer.attention.rope_column = 0, layer.attention.rotary_dim = 10;
                  }));
    CHECK_REFUSED("decays of each channel of 2 key heads of 10", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {KIMI_DELTA, 4, 2, 10, 10, 4, 0, 0, 0, 0, 7, NOT_NORMED, 0, 0, 0, 1, 0, 0, {}};
                  }));
    CHECK_REFUSED("layer 1 beside that of one before it", make_last([](LayerSpec& layer) { layer.beside = 1; }));
    CHECK_REFUSED("experts are deferred is 1", make_last([](LayerSpec& layer) { layer.defers = 1; }));
    CHECK_REFUSED("layer 1 defers to none", make_last([](LayerSpec& layer) {
                      layer.mlp.experts = layer.mlp.experts_per_token = layer.mlp.shared_size = layer.defers = 1;
                  }));
    CHECK_REFUSED("experts that give what they read is 1", make_last([](LayerSpec& layer) {
                      layer.mlp.experts = layer.mlp.experts_per_token = layer.mlp.identity = 1;
                  }));
    CHECK_REFUSED("rank of gates is -1", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {KIMI_DELTA, 4, 4, 10, 10, 4, 0, 0, 0, 0, -1, NOT_NORMED, 0, 0, 0, 1, 0, 0, {}};
                  }));
    CHECK_REFUSED("logarithms of decays above nan", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {KIMI_DELTA, 4,          4, 10, 10, 4, 0, 0,   0, 0,
                                         0,          NOT_NORMED, 0, 0,  0,  1, 0, NAN, {}};
                  }));
    CHECK_REFUSED("logarithms of decays above -5", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {GATED_DELTA, 4,          4, 10, 10, 4, 0, 0,  0, 0,
                                         0,           NOT_NORMED, 0, 0,  0,  1, 0, -5, {}};
                  }));
    CHECK_REFUSED("the norm of a selection is 1", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {KIMI_DELTA, 4, 4, 10, 10, 4, 0, 0, 0, 0, 7, NORMED, 0, 0, 0, 1, 0, 0, {}};
                  }));
    CHECK_REFUSED("the block of a layer aside is 1", make_last([](LayerSpec& layer) { layer.aside = 1; }));
    CHECK_REFUSED("layer 0 is aside, and no mixer", make([](UniformSpec& s) {
                      s.hidden_size = s.embedding_size = 48, s.layers = s.keeps_embedding = 1;
                  }));
    CHECK_REFUSED("layer 0 is aside and is no more",
                  make([](UniformSpec& s) { s.keeps_embedding = 1, s.norm_place = SANDWICH; }));
    CHECK_REFUSED("in rows of 40 columns", make([](UniformSpec& s) { s.keeps_embedding = 1; }));
    CHECK_REFUSED("laurel_rank is -1", make_last([](LayerSpec& layer) { layer.laurel_rank = -1; }));
    CHECK_REFUSED("laurel_rank is 8", make_last([](LayerSpec& layer) { layer.laurel_rank = 8, layer.mlp = {}; }));
    CHECK_REFUSED("whether gates are sparse is 1",
                  make_last([](LayerSpec& layer) { layer.mlp.sparsity = 0.5f, layer.mlp.limit = 2; }));
    CHECK_REFUSED("gates above inf standard deviations",
                  make_last([](LayerSpec& layer) { layer.mlp.sparsity = 0.5f, layer.mlp.deviations = INFINITY; }));
    CHECK_REFUSED("blocks of 24 channels", make_last([](LayerSpec& layer) {
                      layer.attention = {};
                      layer.recurrent = {RG_LRU, 4, 1, 1, 24, 4, 0, 0, 0, 0, 24, NOT_NORMED, 0, 0, 0, 1, 0, 0, {}};
                  }));
    CHECK_REFUSED("4 attention heads cannot share 8", make([](UniformSpec& s) { s.kv_heads = 8; }));
    CHECK_REFUSED("4 attention heads cannot share 3", make([](UniformSpec& s) { s.kv_heads = 3; }));
    CHECK_REFUSED("num_key_value_heads is 0", make([](UniformSpec& s) { s.kv_heads = 0; }));
    CHECK_REFUSED("num_attention_heads is -4", make([](UniformSpec& s) { s.heads = -4; }));
    CHECK_REFUSED("9 values of a head are rotated", make([](UniformSpec& s) { s.head_dim = s.rotary_dim = 9; }));
    CHECK_REFUSED("rotary_dim is 10 and must be from 0 to 8", make([](UniformSpec& s) { s.head_dim = 8; }));
    CHECK_REFUSED("rotary_dim is 10 and must be from 0 to 0", make([](UniformSpec& s) { s.rotary_tables = 0; }));
    CHECK_REFUSED("norm_place is 5", make([](UniformSpec& s) { s.norm_place = NormPlace(5); }));
    CHECK_REFUSED("qk_norm is -1", make([](UniformSpec& s) { s.qk_norm = HeadNorm(-1); }));
    CHECK_REFUSED("multiplier is 0", make([](UniformSpec& s) { s.residual_multiplier = 0; }));
    CHECK_REFUSED("soft cap is nan", make([](UniformSpec& s) { s.logit_cap = NAN; }));
    CHECK_REFUSED("parallel layers are before", make([](UniformSpec& s) { s.parallel = 1, s.norm_place = SANDWICH; }));
    CHECK_REFUSED("in parallel layers only", make([](UniformSpec& s) { s.shared_norm = 1; }));
    CHECK_REFUSED("head_dim is 0", make([](UniformSpec& s) { s.head_dim = 0; }));
    CHECK_REFUSED("num_attention_heads x head_dim",
                  make([](UniformSpec& s) { s.heads = s.kv_heads = s.head_dim = 1 << 20; }));
    CHECK_REFUSED("vocab_size is 0", make([](UniformSpec& s) { s.vocab_size = 0; }));
    CHECK_REFUSED("hidden_size is -1", make([](UniformSpec& s) { s.hidden_size = -1; }));
    CHECK_REFUSED("intermediate_size is 2147483647", make([](UniformSpec& s) { s.intermediate_size = INT32_MAX; }));
    CHECK_REFUSED("embedding of 24 for a hidden size of 40", make([](UniformSpec& s) { s.embedding_size = 24; }));
    CHECK_REFUSED("groups of 48", make([](UniformSpec& s) { s.group = 48; }));
    CHECK_REFUSED("groups of 0", make([](UniformSpec& s) { s.group = 0; }));
    CHECK_REFUSED("precision is 6", make([](UniformSpec& s) { s.precision = Precision(6); }));
    CHECK_REFUSED("precision of experts is 6",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = 1, s.expert_precision = Precision(6); }));
    CHECK_REFUSED("activation is 6", make([](UniformSpec& s) { s.activation = CLAMPED_SWIGLU, s.gated = 0; }));
    CHECK_REFUSED("activation is -1", make([](UniformSpec& s) { s.activation = Activation(-1); }));
    CHECK_REFUSED("experts of a token is 3 and must be from 1 to 2",
                  make([](UniformSpec& s) { s.experts = 2, s.experts_per_token = 3; }));
    CHECK_REFUSED("experts of a token is 0", make([](UniformSpec& s) { s.experts = 2; }));
    CHECK_REFUSED("experts of a layer is -1", make([](UniformSpec& s) { s.experts = -1; }));
    CHECK_REFUSED("shared expert's intermediate_size is 8", make([](UniformSpec& s) { s.shared_size = 8; }));
    CHECK_REFUSED("shared expert that is not there",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = s.shared_gate = 1; }));
    CHECK_REFUSED("groups of experts is 9",
                  make([](UniformSpec& s) { s.experts = 8, s.experts_per_token = 1, s.groups = 9; }));
    CHECK_REFUSED("8 experts in 3 groups",
                  make([](UniformSpec& s) { s.experts = 8, s.experts_per_token = 1, s.groups = 3; }));
    CHECK_REFUSED("3 experts of a token in 1 groups of 2",
                  make([](UniformSpec& s) { s.experts = 8, s.experts_per_token = 3, s.groups = 4; }));
    CHECK_REFUSED("groups of a token is 2",
                  make([](UniformSpec& s) { s.experts = 8, s.experts_per_token = 1, s.groups_per_token = 2; }));
    CHECK_REFUSED("scores of experts is 4",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = 1, s.scores = Scores(4); }));
    CHECK_REFUSED("sparsemixer chooses 2",
                  make([](UniformSpec& s) { s.experts = 3, s.experts_per_token = 1, s.scores = SPARSEMIXER; }));
    CHECK_REFUSED("number of the routing is nan",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = 1, s.least_sum = NAN; }));
    CHECK_REFUSED("multiplier is 0", make([](UniformSpec& s) { s.experts = s.experts_per_token = 1, s.scaling = 0; }));
    CHECK_REFUSED("gate that is not there", make([](UniformSpec& s) { s.gate_per_head = 1; }));
    check_kv_layers(k);
    CHECK_REFUSED("per-layer embeddings follow an MLP",
                  make([](UniformSpec& s) { s.per_layer_size = 8, s.parallel = 1; }));
    CHECK_REFUSED("size of per-layer embeddings is -1", make([](UniformSpec& s) { s.per_layer_size = -1; }));
    CHECK_REFUSED("within those around them",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = s.shared_size = s.own_norms = 1; }));
    CHECK_REFUSED("norms of experts, and no shared one",
                  make([](UniformSpec& s) { s.experts = s.experts_per_token = s.own_norms = 1; }));
    CHECK_REFUSED("scales of experts that", make([](UniformSpec& s) { s.expert_scales = 1; }));
    CHECK_REFUSED("norm of all keys", make([](UniformSpec& s) { s.values_are_keys = 1, s.qk_norm = ALL_HEADS; }));
    CHECK_REFUSED("epsilon is nan", make([](UniformSpec& s) { s.norm_eps = NAN; }));
    CHECK_REFUSED("epsilon is -1", make([](UniformSpec& s) { s.norm_eps = -1; }));
    CHECK_REFUSED("attention scale is inf", make([](UniformSpec& s) { s.attention_scale = INFINITY; }));
}

// Sizes that are allowed each, and whose product is more than 64 bits hold, are refused when they are added up.
void check_sums(const KernelTable& k) {
    const auto make = [&](void (*change)(UniformSpec&)) {
        UniformSpec spec = base_spec(FORMATS[0]);
        change(spec);
        return PackedModel(spec.model(), spec.layer_specs().data(), &k).image_bytes();
    };
    CHECK_REFUSED("more than 2^60 bytes", make([](UniformSpec& s) {
                      s.layers = 1000, s.experts = 1024, s.experts_per_token = 1;
                      s.hidden_size = s.embedding_size = s.intermediate_size = 1 << 20;
                  }));
    CHECK_REFUSED("more than 2^60 bytes", make([](UniformSpec& s) {
                      s.layers = 4096, s.vocab_size = s.hidden_size = s.embedding_size = s.intermediate_size = 1 << 24;
                  }));
    const int64_t large =
        make([](UniformSpec& s) { s.layers = 1000, s.hidden_size = s.embedding_size = s.intermediate_size = 1 << 20; });
    CHECK(large > 1000 * (int64_t(3) << 42) && large < 1001 * (int64_t(3) << 42), "%lld bytes", (long long)large);
}

// Weights: memory first, the shapes of this model, all of them before a pass, and numbers.
void check_weights(const KernelTable& k) {
    Pool pool(2, nullptr);
    for (const Format& f : FORMATS) {
        for (const Kind& kind : KINDS) {
            const KindSpec spec(f, kind);
            PackedModel model(spec.model, spec.layers.data(), &k);
            const std::vector<Shape> all = shapes(spec.model, spec.layers);
            int64_t most = 0;
            for (const Shape& s : all) most = std::max(most, (s.rows + 1) * (s.columns + 1));
            std::vector<float> values(size_t(most), 0.1f);
            const auto pack = [&](const std::string& name, int64_t rows, int64_t columns) {
                return model.pack(pool, name, {SOURCE_F32, values.data(), rows, columns});
            };
            CHECK_REFUSED("allocated first", pack(all[0].name, all[0].rows, all[0].columns));
            CHECK(!model.ready(), "%s: ready without memory", kind.name);
            model.allocate(pool);
            const int64_t weights = model.missing();
            CHECK(weights > 0 && !model.ready(), "%s: %ld weights are missing", kind.name, long(weights));
            CHECK_REFUSED("source type 3",
                          model.pack(pool, "embed_tokens.weight",
                                     {SourceType(3), values.data(), VOCAB, spec.model.embedding_size}));
            CHECK_REFUSED("0 rows", pack(all[0].name, 0, 8));
            int64_t count = 0;
            for (const Shape& s : all) {
                const char* name = s.name.c_str();
                for (const int64_t more : {-1, 1}) {
                    CHECK(s.rows + more < 1 || !pack(s.name, s.rows + more, s.columns), "%s: %s of %ld more rows",
                          kind.name, name, long(more));
                    if (s.columns + more < 1) continue;
                    CHECK(!pack(s.name, s.rows, s.columns + more), "%s: %s of %ld more columns", kind.name, name,
                          long(more));
                }
                const std::string rest = s.in_layer() ? s.name.substr(s.name.find('.', 7)) : "";
                for (const char* layer : {"", "-1", "00", "99"})
                    CHECK(!pack("layers." + (layer + rest), s.rows, s.columns), "%s: layer %s", kind.name, layer);
                const size_t at = size_t(s.rows * s.columns - 1);
                std::swap(values[at], values.back()), values[at] = NAN;
                CHECK_REFUSED("NaN in row", pack(s.name, s.rows, s.columns));
                values[at] = -INFINITY;
                CHECK_REFUSED("infinity in row " + std::to_string(s.rows - 1), pack(s.name, s.rows, s.columns));
                values[at] = 0.1f;
                CHECK(model.missing() == weights - count, "%s: %s counts though it was refused", kind.name, name);
                for (int twice = 0; twice < 2; twice++)
                    CHECK(pack(s.name, s.rows, s.columns), "%s: %s", kind.name, name);
                count++;
                CHECK(model.missing() == weights - count, "%s: %s does not count once", kind.name, name);
            }
            CHECK(model.ready() && count == weights, "%s: %ld of %ld weights", kind.name, long(count), long(weights));
            for (const char* none :
                 {"", ".weight", "lm_head", "lm_head.weights", "layers.0", "layers.0.", "experts.0."})
                CHECK(!pack(none, 1, 1), "a weight called \"%s\"", none);
            model.allocate(pool);
            CHECK(!model.ready(), "%s: ready with new memory", kind.name);
        }
    }
}

// Rows outside of what there is: read out of bounds before, or written.
void check_batches(const KernelTable& k) {
    for (const Kind& kind : KINDS) {
        Fixture x(k, FORMATS[3], kind, 2);
        const Fixture other(k, FORMATS[3], KINDS[&kind == KINDS + 2 ? 0 : 2], 1);
        const Table table(x, 256), second(x, 1000);
        const auto run = [&](std::vector<int32_t> tokens, std::vector<int32_t> at, std::vector<const Table*> tables) {
            x.run(tokens, at, tables);
        };
        run({0, VOCAB - 1}, {254, 255}, {&table, &table});
        CHECK_REFUSED("token id 50 of a vocabulary of 50", run({1, VOCAB}, {0, 1}, {&table, &table}));
        CHECK_REFUSED("token id -1 ", run({-1}, {0}, {&table}));
        CHECK_REFUSED("token id 2147483647", run({INT32_MAX}, {0}, {&table}));
        CHECK_REFUSED("position 256, and its table has 1 blocks", run({1}, {256}, {&table}));
        CHECK_REFUSED("position 256, and its table has 1 blocks", run({1, 2}, {255, 256}, {&table, &table}));
        CHECK_REFUSED("position -1", run({1}, {-1}, {&table}));
        CHECK_REFUSED("is written by two segments", run({1, 2, 3}, {4, 0, 5}, {&table, &second, &table}));
        const bool tables = x.model->spec.positions || x.model->spec.rotary_width;
        if (tables) CHECK_REFUSED("and", run({1}, {POSITIONS}, {&second}));
        CHECK_REFUSED("rows of a pass is 0", run({}, {}, {}));
        Table twice = second, reading = second;
        twice.ids[0] = twice.ids[1], reading.ids[1] = table.ids[0];
        CHECK_REFUSED("is written while segment 0 reads it", run({1}, {260}, {&twice}));
        CHECK_REFUSED("is written while segment 1 reads it", run({1, 2}, {0, 260}, {&second, &twice}));
        for (const int32_t wrong : {-1, Fixture::BLOCKS, INT32_MAX, INT32_MIN}) {
            Table bad = second;
            bad.ids[1] = wrong;
            CHECK_REFUSED("has block " + std::to_string(wrong) + " of a pool of 23", run({1}, {260}, {&bad}));
            run({1}, {255}, {&bad});
        }

        Buffer<float> logits(64);
        const auto pass = [&](void (*change)(Batch&, Segment&), int32_t further = 0) {
            PassRequest made = x.make_pass({1}, {0}, {&table}, logits.data());
            change(made.batch, made.segments[0]);
            ipex_assist::Pass(*x.program, x.pool, x.activations, made.batch, further ? &further : nullptr);
        };
        pass([](Batch&, Segment&) {}, 256);
        CHECK_REFUSED("position 256", pass([](Batch&, Segment&) {}, 257));
        CHECK_REFUSED("tokens drafted after a segment is -1", pass([](Batch&, Segment&) {}, -1));
        CHECK_REFUSED("rows with logits is 2", pass([](Batch& b, Segment&) { b.logit_row_count = 2; }));
        CHECK_REFUSED("rows with logits is -1", pass([](Batch& b, Segment&) { b.logit_row_count = -1; }));
        CHECK_REFUSED("drafting takes the last row", pass([](Batch& b, Segment&) { b.logit_row_count = 0; }, 1));
        for (const int32_t row : {-1, 1}) {
            static int32_t wanted;
            wanted = row;
            CHECK_REFUSED("a row with logits is " + std::to_string(row),
                          pass([](Batch& b, Segment&) { b.logit_rows = &wanted; }));
        }
        CHECK_REFUSED("2 rows of a pass, and 1 of its segments", pass([](Batch& b, Segment&) { b.rows = 2; }));
        CHECK_REFUSED("rows of a segment is 0", pass([](Batch&, Segment& s) { s.rows = 0; }));
        CHECK_REFUSED("rows of a segment is 2", pass([](Batch&, Segment& s) { s.rows = 2; }));
        CHECK_REFUSED("segments of a pass is 0", pass([](Batch& b, Segment&) { b.segment_count = 0; }));
        CHECK_REFUSED("at position 2147483647", pass([](Batch&, Segment& s) { s.start = INT32_MAX; }));
        CHECK_REFUSED("its table has 0 blocks", pass([](Batch&, Segment& s) { s.blocks = nullptr; }));
        CHECK_REFUSED("its table has -3 blocks", pass([](Batch&, Segment& s) { s.block_count = -3; }));
        CHECK_REFUSED("needs tokens, segments and blocks", pass([](Batch& b, Segment&) { b.blocks = nullptr; }));
        static const Blocks* foreign;
        foreign = other.blocks.get();
        CHECK_REFUSED("of another model", pass([](Batch& b, Segment&) { b.blocks = foreign; }));
        CHECK_REFUSED("logits of 63 columns for a vocabulary that takes 64",
                      pass([](Batch& b, Segment&) { b.stride = 63; }));
        CHECK_REFUSED("logits of 0 columns", pass([](Batch& b, Segment&) { b.logits = nullptr; }));
        if (x.model->spec.streams.several()) {
            CHECK_REFUSED("whose residual stream has 3 rows", pass([](Batch& b, Segment&) { b.taps.count = 1; }));
            CHECK_REFUSED("whose residual stream has 3 rows", pass([](Batch& b, Segment&) {
                              b.taps.count = b.taps.normed = 1, b.taps.streams = ALL_STREAMS;
                          }));
            static const int32_t first = 0;
            CHECK_REFUSED("the layer of a tap is 0", pass([](Batch& b, Segment&) {
                              static float rows[64];
                              b.taps = {&first, 1, 1, 0, ONE_STREAM, rows};
                          }));
        } else {
            CHECK_REFUSED("what is given of streams is 1",
                          pass([](Batch& b, Segment&) { b.taps.streams = MEAN_OF_STREAMS; }));
        }
        CHECK_REFUSED("threads of a pass is -1", pass([](Batch& b, Segment&) { b.threads = -1; }));
        CHECK_REFUSED("the vocabulary of logits is 51", pass([](Batch& b, Segment&) { b.vocabulary = 51; }));
        pass([](Batch& b, Segment&) { b.vocabulary = 16, b.stride = 16; });
        if (x.model->spec.rotary_width)
            CHECK_REFUSED("need their tables", pass([](Batch&, Segment& s) { s.sine = nullptr; }));
        if (x.model->spec.rotary_width)
            CHECK_REFUSED("holds 5 from 3 on", pass([](Batch&, Segment& s) { s.rope_start = 3, s.rope_rows = 5; }));
        CHECK_REFUSED("a pool of 0 blocks", Blocks(x.model, 0, BF16));
        CHECK_REFUSED("a pool of 2147483648", Blocks(x.model, int64_t(1) << 31, BF16));
        const Fixture wide(k, FORMATS[0], kind, 1), narrow(k, FORMATS[1], kind, 1);
        CHECK_REFUSED("in precision 0 for attention in precision 1", Blocks(narrow.model, 1, FP32));
        CHECK_REFUSED("in precision 3 for attention in precision 0", Blocks(wide.model, 1, INT4));
        CHECK(!Blocks(x.model, 1, INT8).fits(*narrow.model) && Blocks(x.model, 1, INT8).fits(*x.model), "int8");
        CHECK(!Blocks(wide.model, 1, FP32).fits(*narrow.model), "fp32");
        CHECK(Blocks(wide.model, 1, BF16).fits(*narrow.model), "bf16");
        CHECK_REFUSED("block -1 of a pool of 23", x.blocks->copy(x.pool, 0, -1));
        CHECK_REFUSED("block 23 of a pool of 23", x.blocks->copy(x.pool, 23, 0));
        const int32_t beyond[] = {0, 23};
        CHECK_REFUSED("block 23 of a pool of 23", x.blocks->discard(beyond, 2));
        const KindSpec spec(FORMATS[3], kind);
        const auto made_empty = std::make_shared<PackedModel>(spec.model, spec.layers.data(), &k);
        PackedModel& empty = *made_empty;
        CHECK_REFUSED("keys of int8 for a model without weights", Blocks(made_empty, 1, INT8));
        const PassRequest made = x.make_pass({1}, {0}, {&table}, logits.data());
        const Batch& batch = made.batch;
        CHECK_REFUSED("no weights yet", ipex_assist::Pass(Program(empty), x.pool, x.activations, batch));
        empty.allocate(x.pool);
        CHECK_REFUSED("weights are not packed yet", ipex_assist::Pass(Program(empty), x.pool, x.activations, batch));
    }
}

// Weights in 4 bits that come with scales of their own, and orders of columns.
void check_stored_weights(const KernelTable& k) {
    Pool pool(2, nullptr);
    UniformSpec spec = base_spec(FORMATS[3]);
    spec.ordered = 1;
    PackedModel model(spec.model(), spec.layer_specs().data(), &k);
    const std::vector<uint8_t> values(40 * 40, 7), zeros(40 * 2, 8);
    std::vector<float> scales(40 * 2, 0.5f);
    const auto pack = [&] {
        return model.pack_stored(pool, "layers.1.q_proj.weight",
                                 {values.data(), scales.data(), zeros.data(), 2, 40, 40});
    };
    std::vector<int32_t> order(40);
    for (int32_t i = 0; i < 40; i++) order[size_t(i)] = 39 - i;
    const auto set = [&] { return model.set_order("layers.1.q_proj.weight", order.data(), 40); };
    CHECK_REFUSED("allocated first", pack());
    CHECK_REFUSED("allocated first", set());
    CHECK_REFUSED("not there", model.checksum(pool));
    model.allocate(pool);
    const int64_t weights = model.missing();
    for (const float bad : {NAN, INFINITY}) {
        scales[77] = bad;
        CHECK_REFUSED("in row 38, column 1", pack());
        CHECK(model.missing() == weights, "a refused weight counts");
    }
    scales[77] = 0.25f;
    CHECK(pack() && model.missing() == weights - 1, "int4 weight");
    CHECK(set(), "an order");
    for (const int32_t bad : {-1, 40, 3, INT32_MAX}) {
        order[5] = bad;
        CHECK_REFUSED("names column " + std::to_string(bad), set());
    }
}

}  // namespace

void test_refusals(const KernelTable& k) {
    check_poisoned_cache(k);
    check_draft_of_no_numbers(k);
    check_specs(k);
    check_streams(k);
    check_compressed(k);
    check_sums(k);
    check_weights(k);
    check_stored_weights(k);
    check_batches(k);
}

}  // namespace check
