// The weights of a model by name: what each of them is, and where it lies.
#pragma once
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "packing/spec.h"
#include "threads/pool.h"

namespace ipex_assist {

struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;
};

// The weights of a norm of queries or keys for one head, null where heads have no norm of their own.
inline const float* head_norm(const AttentionSpec& a, const float* norms, int32_t head) {
    if (a.qk_norm == ALL_HEADS || !norms) return nullptr;
    return norms + (a.qk_norm == EACH_HEAD ? int64_t(head) * a.head_dim : 0);
}

// Two convolutions over the rows of a block, before and after attention or an MLP (operations/dynamic_conv.cpp).
struct ConvWeights {
    const float* base = nullptr;  // (2, conv_kernel, hidden); null: there is none
    Linear projection{};          // of a row to what scales its weights, (2, conv_kernel, groups)
};

// What the tokens of a block are chosen by (operations/selector.cpp).
struct SelectorWeights {
    const uint8_t *before = nullptr, *after = nullptr;  // (vocab, selector_rank) bf16 or fp32
    Linear projection{};                                // of a row that logits are made of, to selector_rank columns
    Linear markov{};                                    // of a DSpark, in place of `after`: to a column for each token
    const float *confidence = nullptr, *confidence_bias = nullptr;  // (confidence_size), (1)
};

// What makes the numbers of a row of several streams (StreamSpec).
struct StreamWeights {
    Linear projection{};           // fp32, of all streams together
    const float* base = nullptr;   // (numbers), null of gated residuals, as the next
    const float* scale = nullptr;  // of what is read, written and mixed: one each, as far as there are such numbers
};

// The linears of a row that gates what a norm gives.
struct NormGate {
    Linear down{}, up{};
};

// AltUp's numbers of a layer: its router (count, hidden) and that one's norm; what predicts streams (count², count), and
// what corrects them (count, count); and what per-layer embeddings read is multiplied with (hidden), or null.
struct AltUpWeights {
    Norm router_norm;
    const float *router = nullptr, *predict = nullptr, *correct = nullptr, *scale = nullptr;
};

// What makes one of AltUp's streams of the embedding, and what brings it back before the final norm.
struct StreamProjections {
    Linear in{}, out{};
};

// What is beside attention (operations/laurel.cpp): the second linear, and the norm of what it gives.
struct LaurelWeights {
    Linear right{};
    Norm norm;
};

// What happens to a row x between two linears: it gets what the first gave (delta), times `multiplier`, and the second
// gets x; with the norms that there are.
struct ResidualNorm {
    bool add = true;                         // not before the first layer
    bool late = false;                       // the second gets what x was before delta came: of what is parallel
    float multiplier = 1;                    // of delta
    const Norm* post = nullptr;              // of delta
    const Norm* post_residual = nullptr;     // of x and delta, which becomes x
    const float* scalar = nullptr;           // of x, which is complete then
    bool deferred = false;                   // x also gets what routed experts of the layer before the first gave
    const Norm* pre = nullptr;               // of what the second gets
    bool kept = false;                       // what that gives is read once more, in fp32
    const StreamWeights* streams = nullptr;  // of a row of several streams: what the second gets is read by them
    const ConvWeights* left = nullptr;       // delta passes the second convolution of these
    // AltUp: x is behind its layer, and its streams are corrected; or delta is added to these, which are then predicted.
    const AltUpWeights* altup = nullptr;
    bool corrects = false;
    const Norm* laurel = nullptr;  // LAuReL: of what its linears gave, which x gets with its own norm `laurel_input`
    const Norm* laurel_input = nullptr;
    // Of layers aside: the second gets x and its embedding, which is behind it; or delta in the place of x; or the sum of
    // both, and x stays.
    bool with_embedding = false, instead = false, passing = false;
};

struct Mlp {
    Linear up, down;
};

// Vectors of a recurrent mixer; those of a convolution are (conv_kernel, columns), the latest row's last.
struct RecurrentWeights {
    const float *q_conv = nullptr, *k_conv = nullptr, *v_conv = nullptr;
    const float *q_conv_bias = nullptr, *k_conv_bias = nullptr, *v_conv_bias = nullptr;
    // (heads), of MAMBA1 (key_dim, value_width): -exp(A_log); of RG_LRU (value_width): what decay rates are made of.
    const float* decay_rate = nullptr;
    const float* dt_bias = nullptr;  // (decay_inputs)
    const float* skip = nullptr;     // (heads), of MAMBA1 (value_width)
    // MAMBA1: of the row of the low rank, of keys and of queries; null where their norms have no weights.
    const float *low_norm = nullptr, *key_norm = nullptr, *query_norm = nullptr;
    const float* norm = nullptr;               // of the gated norm: (norm_size), or of MAMBA2 of all groups
    std::vector<const uint8_t*> ngram_tables;  // NGRAM_ROWS: parts of its table
    // Of convolved values. MAMBA1: the row of the low rank, keys and queries; RG_LRU: gates of what enters the state.
    Linear low{};
    Linear gates{};  // of gate_rank inputs: decay inputs, of KIMI_DELTA's second such row output gates as well
};

// By what queries of each head grow (AttentionSpec::log_growth): (heads) each, null where they do not.
struct LogGrowth {
    const float *scale = nullptr, *base = nullptr;
    float at(int64_t head, int32_t position) const { return scale[head] * std::log(float(position + 1)) + base[head]; }
};

// Of latent attention, beside qkv and output.
struct LatentWeights {
    Linear query;                                        // latent_query_width columns
    Linear keys, values;                                 // rank, and value_dim, columns of each head in turn
    const float *norm = nullptr, *query_norm = nullptr;  // of the latent, and of the queries' row
    Norm index_norm;                                     // of the indexer's key
    const float* index_places = nullptr;                 // (pool, dim), of positions of a pool
    // Of an indexer that reads the layer's input, and of what its heads' queries grow with.
    Norm index_query_norm;
    Linear index_query{};
    LogGrowth index_growth;
};

// What a layer makes of its own embedding of each token: the residual stream through `gate`, activated and multiplied
// with it, through `out`.
struct PerLayerWeights {
    Linear gate, out;
    ResidualNorm into_gate;
    Norm norm;  // of what `out` gives
};

// Norms of experts that have their own (MlpSpec::own_norms).
struct ExpertNorms {
    Norm router, experts, experts_out, shared_out;
};

// The numbers of xIELU; null where an MLP has another activation.
struct XieluWeights {
    const float *alpha_p = nullptr, *alpha_n = nullptr, *beta = nullptr, *eps = nullptr;
};

// What one mixer alone has, defined in its folder.
struct OwnWeights {
    virtual ~OwnWeights() = default;
};

// The linears that every layer with attention and a plain MLP has.
enum LinearRole : int32_t { QKV, OUTPUT, UP, DOWN };
constexpr int32_t LINEAR_ROLES = 4;

// Where the parts of a mixer's rows lie, and what a sequence keeps of a recurrent one; made by the mixer of a layer
// (mixers/mixer.h).
struct MixerColumns {
    int64_t width = 0;        // of the rows that its linears before the mixing give
    int64_t out_width = 0;    // of what its last linear takes
    int64_t input_width = 0;  // of what its first linear gives
    // Of recurrent mixers, where there are such: the first columns of queries, keys, values, rows of a low rank, decay
    // inputs, betas and output gates, each a multiple of 16.
    int64_t query = 0, key = 0, value = 0, low = 0, decay = 0, beta = 0, gate = 0;
    int64_t decay_inputs = 0;            // of a row
    int64_t kept = 0, kept_width = 0;    // of a row, what a sequence keeps of its last ones
    int64_t scanned = 0;                 // columns of a row as it passes over the state
    int64_t tiles = 0, tile_floats = 0;  // of the state: parts that one thread computes each
};

// Its steps are into_attention, qkv, attention, output, into_mlp, up, down; or router and experts in place of the last
// two. per_layer follows where there is one.
struct PackedLayer : LayerSpec {
    Linear qkv, output, up, down;
    const float* correction_bias = nullptr;  // (experts), or null
    const float* expert_scales = nullptr;    // (experts), or null
    const float* expert_table = nullptr;     // (vocab, experts_per_token) whole numbers, or null
    const float* scalar = nullptr;           // one number, or null
    Linear router;             // fp32; where there is a shared gate, it has the first column of the last panel
    std::vector<Mlp> experts;  // the shared one is the last
    ExpertNorms expert_norms;
    PerLayerWeights per_layer;
    ResidualNorm into_attention, into_mlp;
    StreamWeights attention_streams, mlp_streams;
    AltUpWeights altup;
    LaurelWeights laurel;
    Linear aside_linear;                                              // of a layer aside, after its MLP
    ConvWeights attention_conv, mlp_conv;                             // of a draft head that has them
    NormGate mixer_gate, mlp_gate;                                    // of the norms before mixer and MLP
    Norm attention_norm, attention_out_norm, mlp_norm, mlp_out_norm;  // the latter of each is a post norm
    const float *q_norm = nullptr, *k_norm = nullptr;
    const float* sinks = nullptr;  // (heads), or null
    LogGrowth growth;
    XieluWeights xielu;               // as a checkpoint has them
    std::shared_ptr<OwnWeights> own;  // of its mixer
    LatentWeights latent;
    RecurrentWeights recurrence;  // where its mixer is recurrent: then qkv and output are its linears
    int64_t input_width = 0;      // columns of what its mixer gets
    MixerColumns columns;

    // What multiplies its rows first, and those of its MLP; and what a norm's gate makes them for.
    const Linear& first_linear() const {
        return mixer_gate_rank ? mixer_gate.down : attention_conv.base ? attention_conv.projection : qkv;
    }
    const Linear& first_of_mlp() const {
        return mlp_gate_rank ? mlp_gate.down : mlp_conv.base ? mlp_conv.projection : mlp_linear();
    }
    // Columns of a row of `attended`.
    int64_t mixed_width() const { return is_recurrent() ? columns.out_width : attention.attended_width(); }
    const Linear& mlp_linear() const { return mlp.experts ? router : up; }
    const Linear& linear(LinearRole role) const {
        return role == QKV ? qkv : role == OUTPUT ? output : role == UP ? up : down;
    }
};

template <class W>
const W& own_weights(const PackedLayer& layer) {
    return static_cast<const W&>(*layer.own);
}
// Likewise, made where they are listed first.
template <class W>
W& own_weights(PackedLayer& layer) {
    if (!layer.own) layer.own = std::make_shared<W>();
    return static_cast<W&>(*layer.own);
}

// Where the rows of a checkpoint's matrix go: to every `step`-th panel of a linear from `first` on.
struct PackTarget {
    const Linear* linear;
    int64_t first, step, columns, width;
};

// How a checkpoint has a vector: as a matrix (rows, columns) that is transposed, unless these are 0, and as logarithms
// of what is negated.
struct VectorForm {
    int64_t rows = 0, columns = 0;
    bool negated_logarithms = false;
};

// Where one of a checkpoint's tensors goes: its part of a linear or of that one's bias, a vector, a table, or, of an
// embedding that is the head as well, a linear and a table.
struct Weight {
    int64_t rows = 0, columns = 0;  // its shape; of what is no matrix, its size and 1; 0: there is no such weight
    int32_t layer = -1;             // -1: outside of layers
    PackTarget part{};
    bool is_bias = false;  // of that part
    float* vector = nullptr;
    VectorForm form{};
    uint8_t* table = nullptr;

    bool is_matrix() const { return rows && !is_bias && !vector; }
    bool takes(int64_t given_rows, int64_t given_columns) const {
        if (!is_matrix()) return rows && given_rows * given_columns == rows;
        return given_rows == rows && given_columns == columns;
    }
};

// The format of a linear's part, or of the table of embeddings, that is none of ModelSpec's and MlpSpec's.
using WeightFormats = std::unordered_map<std::string, Precision>;

// All weights of a model, as ImageLayout places them. Their names are those of ipex_assist/models/weights.py, such as
// "layers.3.q_proj.weight", "layers.3.experts.7.up_proj.bias" and "lm_head.weight".
struct ModelWeights {
    ModelWeights(const ModelSpec& spec, const LayerSpec* layers, WeightFormats formats = {});

    Precision format_of(const std::string& name, Precision usual) const {
        const auto found = formats.find(name);
        return found == formats.end() ? usual : found->second;
    }
    // Whether the head serves as the table of embeddings; and whether a linear does that has no other use.
    bool head_is_table() const { return spec.tied_head && is_looked_up(format_of("embed_tokens", spec.precision)); }
    bool table_is_linear() const { return !spec.tied_head && formats.count("embed_tokens"); }
    Weight find(std::string_view name) const;
    std::unordered_set<std::string> names() const;  // of all weights
    std::vector<const Linear*> linears() const;
    bool keeps_state() const;                           // whether any of its layers does
    const float* position_row(int32_t position) const;  // of the learned table, null where there is none
    const Linear& lm_head() const { return target_head ? *target_head : head; }

    const ModelSpec spec;
    const WeightFormats formats;  // by name, as "layers.3.q_proj"
    bool caches_experts = false;  // the weights of routed ones lie in an ExpertCache
    std::vector<PackedLayer> layers;
    Linear table_linear{};  // of token embeddings, where table_is_linear
    Linear head{}, project_in{}, project_out{};
    const Linear* target_head = nullptr;  // of a draft head that has none of its own
    Norm final_norm, embedding_norm;
    Linear fc{};               // of a draft head, as its norms
    Linear fc_token{};         // of one with several streams: of the token's embedding
    Linear fc_out{};           // of one that reads its target: its own hidden state to the width of the target's
    Linear clusters{};         // of one with clusters: their scores, in the precision of attention
    SelectorWeights selector;  // of one whose tokens depend on the one before
    Norm input_norm, head_embedding_norm, head_hidden_norm;  // the first of input_size columns
    ResidualNorm into_head;
    ResidualNorm after_layers;                          // of streams that leave them by projections
    std::vector<StreamProjections> stream_projections;  // AltUp: of the streams but the first
    StreamWeights head_streams;                         // these have numbers of what is read alone
    NormGate head_gate;                                 // of gated residuals
    Linear per_layer_in{};                              // of a token's embedding, to per_layer_width columns
    const float* per_layer_norm = nullptr;              // (per_layer_size), of each layer's columns
    const uint8_t* per_layer_table = nullptr;           // (vocab, per_layer_width) bf16 or fp32
    const uint8_t* table = nullptr;    // (vocab, embedding) bf16 or fp32, unless the head serves, or another model's
    const float* positions = nullptr;  // (positions, hidden)
};

// Rows that pass through a linear together, so that they stay in a core's own cache while it takes them times some
// panels: 256 of 2048 columns in int8, or of 1024 in bf16, are half a megabyte.
constexpr int64_t ROW_BLOCK = 256;

// Of a row's value in the form that a linear of this precision multiplies.
inline int64_t value_bytes(Precision precision, const KernelTable& kernels) {
    const RowType rows = row_type(precision);
    return rows == BF16_ROWS ? kernels.bf16_row_bytes : row_type_bytes(rows);
}

// Whether a linear's rows are bytes, with scales and sums, and how many sums of each 128 columns.
inline bool has_byte_rows(const Linear& linear) {
    switch (row_type(linear.precision)) {
        case FP32_ROWS:
        case BF16_ROWS: return false;
        case INT8_ROWS:
        case BLOCK_ROWS: return true;
    }
    __builtin_unreachable();
}
inline int64_t sums_of_span(const Linear& linear) { return SCALE_COLUMNS / linear.group; }

// The rows of a linear's inputs from `first` on, a multiple of 16 where there are tiles.
inline LinearRows rows_from(const Linear& linear, const KernelTable& kernels, LinearRows in, int64_t first) {
    const int64_t before = first * in.depth * value_bytes(linear.precision, kernels);
    in.values += before;
    if (in.tiles && row_type(linear.precision) != FP32_ROWS) in.tiles += before;
    if (!has_byte_rows(linear)) return in;
    in.scales += first * (in.depth / SCALE_COLUMNS);
    in.negated_sums += first * (in.depth / SCALE_COLUMNS) * sums_of_span(linear);
    return in;
}

// The panels of a linear that a thread computes and packs: [first, second).
inline std::pair<int64_t, int64_t> slice(const Linear& linear, int thread, int threads) {
    const int64_t pieces = linear.panels / linear.granularity;
    return {share(pieces, thread, threads) * linear.granularity,
            share(pieces, thread + 1, threads) * linear.granularity};
}

inline Precision panel_format(const Linear& linear, int64_t panel) {
    return linear.mixed ? linear.mixed->formats[panel] : linear.precision;
}

// Bytes of the panels before one.
inline int64_t panel_offset(const Linear& linear, int64_t panel) {
    if (linear.mixed) return linear.mixed->offsets[panel];
    return panel * panel_bytes(linear.precision, linear.group, linear.depth);
}

// Where a panel of a linear lies.
inline const uint8_t* weights_of(const Linear& linear, int64_t panel) {
    const NodePanels* node = linear.nodes;
    while (node && node[1].first <= panel) node++;
    return (node ? node->weights : linear.weights) + panel_offset(linear, panel);
}

// f(part, from, end) for panels first <= b < last of a linear that lie side by side: for those of each format.
template <class F>
void each_format(const Linear& linear, int64_t first, int64_t last, F&& f) {
    if (!linear.mixed) {
        if (first < last) f(linear, first, last);
        return;
    }
    Linear part = linear;
    part.mixed = nullptr;
    for (int64_t from = first, end = first; from < last; from = end) {
        part.precision = panel_format(linear, from);
        while (end < last && panel_format(linear, end) == part.precision) end++;
        part.weights = linear.weights + panel_offset(linear, from) - panel_offset(part, from);
        f(part, from, end);
    }
}

// Likewise wherever they lie: for those of each memory node and format.
template <class F>
void each_part(const Linear& linear, int64_t first, int64_t last, F&& f) {
    if (!linear.nodes) return each_format(linear, first, last, f);
    Linear part = linear;
    part.nodes = nullptr;
    for (const NodePanels* node = linear.nodes; node->first < last; node++) {
        const int64_t from = first > node->first ? first : node->first,
                      end = last < node[1].first ? last : node[1].first;
        part.weights = node->weights;
        if (from < end) each_format(part, from, end, f);
    }
}

}  // namespace ipex_assist
