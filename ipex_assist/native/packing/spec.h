// What a model is, as plain numbers: sizes, kinds and factors of the whole model and of each layer. The structures are
// part of the C interface: ipex_assist/native/structures.py makes them of the dataclasses of models/, whose fields they
// have in the same order, and behind these what is derived from them.
#pragma once
#include "kernels/kernels.h"

namespace ipex_assist {

// Norms of queries and keys: RMS of each head by one weight (Qwen3), layer norm of each head by its own (Command R+),
// RMS of all heads together (OLMo 2), RMS of each head without a weight (Llama 4).
enum HeadNorm : int32_t { NO_NORM, ONE_FOR_HEADS, EACH_HEAD, ALL_HEADS, UNWEIGHTED };

// What is made of gates of attended values.
enum GateActivation : int32_t { SIGMOID_GATE, SOFTPLUS_GATE };

// Latent attention (DeepSeek-V2, 2405.04434) in its absorbed form: what is kept of a token is one key, first rope_dim
// values that are rotated, then the latent, which is the value as well. Each head's query comes into the space of the
// latent by a matrix of its own, and what the head attended to leaves it by another.
// Sparse attention over latents (DeepSeek-V3.2, arXiv:2512.02556): a row attends to the `top_k` positions up to its own
// with the highest scores, of equal ones to the lower; to all of them where they are no more. A score is the sum over the
// indexer's heads of weight · relu(query · key), in the order of heads; the one key of a position is kept beside its
// latent, and its first values are rotated as the latent's key is. Where `pool` positions share a key (GLM-5.3), that is
// a weighted sum of theirs, by the softmax in each column of a gate of the position and a number of its place among them;
// what is chosen are such pools, `top_k` positions in all, and a row also attends to those up to its own that are not
// all of a pool yet. Beside keys and values of heads (QSA, Qwen4) a pool's key is the mean of its positions', through an
// RMS norm and rotated as its first position is; queries pass such a norm, too, and all their weights are dim ** -0.5.
struct IndexerSpec {
    int32_t top_k;       // 0: there is none
    int32_t heads, dim;  // no heads: what the last layer before it with an indexer has chosen
    float norm_eps;      // of its norms
    // Whether its queries are made of the layer's input through a layer norm of its own (Mistral Large 4); else of the
    // row that the layer's queries are made of.
    int32_t reads_input;
    int32_t pool;   // 0 or 1: each position has a key
    int32_t means;  // whether keys are means, of QSA

    bool pools() const { return pool > 1; }
    int32_t each() const { return pool > 1 ? pool : 1; }                // positions of a key
    int64_t made() const { return pools() && !means ? 2 * dim : dim; }  // columns of a position: key, pool's gates
};

// Keys that are values, and entries (DeepSeek-V4): the latent is the whole key, whose first values are rotated after its
// norm. What heads attended to is rotated back by the row's own position, and then each group of neighbouring heads
// passes a linear of its own to `value_dim` columns, in the place of each head. An entry is made of `rate` positions, and
// with two parts of as many before these; a row sees its window and the entries whose last position is its own at the
// latest, of these, with an indexer, the `top_k` best (mixers/compressed/).
struct CompressedSpec {
    int32_t groups;   // 0: there is none of this
    int32_t rate;     // 0: there are no entries
    int32_t overlap;  // whether an entry is of two windows

    int32_t parts() const { return overlap ? 2 : 1; }  // of what an entry's positions give
};

struct LatentSpec {
    int32_t rank;        // of the latent; 0: there is none
    int32_t rope_dim;    // head_dim is the sum of the two; 0: nothing of a key is rotated
    int32_t nope_dim;    // of a head's query before it is absorbed, without what is rotated
    int32_t value_dim;   // of a head
    int32_t query_rank;  // of a row between the layer's input and its queries; 0: there is none
    // Whether queries read that row after its norm and, beside it, before it; gates of values then do so as well
    // (A.X-K2), and an indexer's queries read the first half.
    int32_t reads_unnormed;
    float norm_eps;  // of the norms of that row and of the latent
    IndexerSpec indexer;
    CompressedSpec compressed;

    int64_t query_width() const { return int64_t(query_rank) * (reads_unnormed ? 2 : 1); }  // of what queries read
    bool is_compressed() const { return compressed.groups > 0; }
    bool has_entries() const { return compressed.rate > 0; }
    // Linears by which attended values become what the output linear reads: of each head, or of groups of them.
    int32_t value_parts(int32_t heads) const { return is_compressed() ? compressed.groups : heads; }
    // Columns of what entries are made of: values and gates of all parts, then the indexer's.
    int64_t entry_width() const { return has_entries() ? 2 * int64_t(compressed.parts()) * (rank + indexer.dim) : 0; }
    // Of a sequence's last positions is kept what pools, or entries, that are open yet will be made of: of so many that
    // rows which are taken back (PENDING_ROWS at most) leave enough of them; and how many columns that is.
    int32_t open_rows() const {
        const int32_t pooled = indexer.pools() ? indexer.pool : 0;
        const int32_t made_of = has_entries() ? compressed.rate * compressed.parts() : pooled;
        return made_of ? made_of + LANES : 0;
    }
    int64_t open_width() const { return has_entries() ? entry_width() : indexer.pools() ? indexer.made() : 0; }
};

// Attention to blocks of positions that a row chooses for each KV head (MiniMax-M3): its own and those before it, `local`
// in all, and those of which one position up to the row's has the highest score, of equal ones the lower. A score is
// query · key, of a query for each KV head and the one key of a position, which pass an RMS norm and are rotated as heads
// are. To all positions where these are no more blocks.
struct BlockChoiceSpec {
    int32_t blocks, size;  // 0 blocks: there is no choice; positions of a block
    int32_t local, dim;    // values of queries and keys

    int32_t positions() const { return blocks * size; }
};

// Softmax attention with grouped keys and values, or over latents.
struct AttentionSpec {
    int32_t heads, kv_heads, head_dim;
    int32_t v_head_dim;         // of a KV head's value, 0: head_dim
    int32_t window;             // positions a row may see, 0: all
    int32_t chunk;              // positions of a chunk, of which a row may see its own, 0: all
    int32_t rotary_dim;         // how many values of each head are rotated, 0: none
    const float* alibi_slopes;  // (heads), or null; those of a PackedModel's layers are ÷ scale
    HeadNorm qk_norm;
    int32_t norm_after_rope;  // whether that norm is of rotated heads
    int32_t qkv_bias, output_bias;
    int32_t sinks;                   // whether each query head has a logit beside the scores of its softmax
    int32_t output_gate;             // whether attended values are multiplied with a function of a gate each
    GateActivation gate_activation;  // that function
    int32_t gate_per_head;           // or all of a head with that of one gate
    float scale;                     // of query · key
    float cap;                       // scores x become cap · tanh(x / cap); 0: they stay
    // Queries at position p are multiplied with 1 + growth · log(1 + ⌊(p + growth_shift) / growth_step⌋); 0: they stay.
    float growth;
    int32_t growth_step, growth_shift;
    // Queries of head h at position p, those of an indexer likewise, are multiplied with scale_h · log(p + 1) + base_h.
    int32_t log_growth;
    int32_t kv_layer;
    int32_t values_are_keys;  // whether values are what the key projection gives, before its norm and rotation
    int32_t value_norm;       // whether each head's value passes an RMS norm without a weight
    float value_scale;        // of attended values; 0: they stay
    LatentSpec latent;
    BlockChoiceSpec choice;
    int32_t shares_kv;    // whether it has no keys and values but reads those of the layer `kv_layer`
    int32_t rope_column;  // first column of this layer's cos and sin among those of a position (Segment)
    int32_t paired_dim;   // how many channels of each key head have one int8 factor for two (key_factors.h)

    int32_t group() const { return heads / kv_heads; }  // query heads that share a KV head
    int64_t query_width() const { return int64_t(heads) * head_dim; }
    int64_t key_width() const { return int64_t(kv_heads) * head_dim; }
    int64_t values_width() const { return int64_t(kv_heads) * value_dim(); }
    // KV heads whose keys and values it keeps; 1 where it keeps an indexer's keys alone.
    int32_t kept_heads() const { return shares_kv ? latent.indexer.heads > 0 : kv_heads; }
    // Columns of the rows that the QKV linear gives: queries from 0 on, keys, values, gates, each from a multiple of 16
    // on; then the queries and the key that blocks are chosen by.
    int64_t key_column() const { return round_up(query_width(), LANES); }
    int64_t value_column() const {
        if (shares_kv || values_are_keys) return key_column();
        return key_column() + (is_latent() ? head_dim - latent.rank : round_up(key_width(), LANES));
    }
    int64_t gate_column() const {
        if (is_latent()) return index_weight_column() + round_up(latent.indexer.heads, LANES);
        return value_column() + (shares_kv ? 0 : round_up(values_width(), LANES));
    }
    int64_t gate_width() const { return !output_gate ? 0 : gate_per_head ? heads : output_width(); }
    int64_t qkv_width() const {
        const int64_t chosen = choice.blocks ? (kv_heads + 1) * int64_t(choice.dim) : 0;
        return gate_column() + round_up(gate_width(), LANES) + chosen +
               (has_means() ? (latent.indexer.heads + 1) * int64_t(latent.indexer.dim) : 0);
    }
    bool has_means() const { return latent.indexer.means != 0; }  // of its positions, by which they are chosen
    bool is_latent() const { return latent.rank > 0; }
    // Over latents the first linear gives the columns from the key's on: the key, then the row of the queries. Those
    // that it makes of that row, or of the layer's input, are of all heads, then what is rotated of all heads.
    // Behind that row are the indexer's key, gates of its key where that is of a pool, or what entries are made of, and
    // its weights of heads, then gates of values; behind the queries are the indexer's, and last gates that are made
    // with them, until these come to the columns of gates.
    int64_t index_key_column() const {
        if (has_means()) return qkv_width() - latent.indexer.dim;
        return key_column() + (shares_kv ? 0 : head_dim) + round_up(latent.query_rank, LANES);
    }
    int64_t index_weight_column() const {
        return index_key_column() + (latent.is_compressed() ? latent.entry_width() : latent.indexer.made());
    }
    int64_t index_query_column() const {
        if (has_means()) return index_key_column() - int64_t(latent.indexer.heads) * latent.indexer.dim;
        return rotated_column() + int64_t(heads) * latent.rope_dim;
    }
    int64_t latent_width() const { return (latent.reads_unnormed ? gate_column() : qkv_width()) - key_column(); }
    int64_t rotated_column() const { return round_up(int64_t(heads) * latent.nope_dim, LANES); }
    int64_t latent_query_width() const {
        const int64_t index = int64_t(latent.indexer.heads) * latent.indexer.dim;
        return index_query_column() + index + (latent.reads_unnormed ? gate_width() : 0);
    }
    // Of a KV head; what all heads attend to; and what the output linear takes.
    int32_t value_dim() const { return is_latent() ? latent.rank : v_head_dim ? v_head_dim : head_dim; }
    int64_t attended_width() const { return int64_t(heads) * value_dim(); }
    int64_t output_width() const {
        return is_latent() ? int64_t(latent.value_parts(heads)) * latent.value_dim : int64_t(heads) * value_dim();
    }
    // Of a head in keys as they are packed, and in values.
    int64_t key_depth() const { return padded_depth(FP32, head_dim); }
    int64_t index_depth() const {
        const int32_t dim = choice.blocks ? choice.dim : latent.indexer.heads ? latent.indexer.dim : 0;
        return dim ? padded_depth(FP32, dim) : 0;
    }
    int64_t value_width() const { return round_up(value_dim(), LANES); }
    bool has_norm_weights() const { return qk_norm != NO_NORM && qk_norm != UNWEIGHTED; }
};

inline bool attends_sparsely(const AttentionSpec& a) {
    return a.latent.indexer.top_k > 0 || a.latent.has_entries() || a.choice.blocks > 0;
}

// What a router makes of its logits: their softmax over all experts, a sigmoid of each, for each of two experts a
// softmax over the logits near its own (Phi-3.5-MoE), or the square root of each one's softplus.
enum Scores : int32_t { SOFTMAX, SIGMOID, SPARSEMIXER, SQRT_SOFTPLUS };

// What a layer has in the place of softmax attention: a mixer that keeps, for each sequence, a state of fixed size
// instead of keys and values. In all of them a short causal convolution over the last `conv_kernel` rows comes first.
//   GATED_DELTA  per head: S <- decay·S; S <- S + k·(beta·(v - S·k)); out = S·q        (Yang et al. 2024, 2412.06464)
//   MAMBA2       per head: S <- decay·S + B·(dt·x); out = S·C + skip·x                 (Dao and Gu 2024, 2405.21060)
//   SHORT_CONV   no state beside the rows of the convolution: out = C·conv(B·x)        (LFM2)
//   KIMI_DELTA   as GATED_DELTA, with a decay for each channel of a head's keys        (Kimi Linear, 2510.26692)
//   MAMBA1       as MAMBA2, with a step for each channel and a decay for each element of the state; all channels are
//                one head                                                              (Gu and Dao 2023, 2312.00752)
//   RG_LRU       per channel: h <- a·h + sqrt(1 - a²)·(b·x); out = h; heads are blocks whose channels make the gates a
//                and b of each other                                                   (Griffin, 2402.19427)
//   NGRAM_ROWS   what streams (heads) get of tokens (mixers/ngrams/); gate_rank: columns of a row's embeddings
enum RecurrentKind : int32_t { NO_RECURRENCE, GATED_DELTA, MAMBA2, SHORT_CONV, KIMI_DELTA, MAMBA1, RG_LRU, NGRAM_ROWS };

// What of MAMBA1's selection (the row of the low rank, keys and queries) passes a norm each: nothing in Mamba, all of
// it in Falcon Mamba and, with weights, in Jamba.
enum SelectionNorm : int32_t { NOT_NORMED, NORMED, NORMED_AND_WEIGHTED };

constexpr int32_t MOST_CONV_ROWS = 16;

// See models/ngram_spec.py; numbers: a factor for each token of an n-gram, then how many rows each hash has.
struct NgramSpec {
    int32_t size, heads, kernel, end, rows, part_rows;
    const int64_t* numbers;
    int32_t tables() const { return (size - 1) * heads; }
};

// Of MAMBA2 and MAMBA1, queries are C, keys B and values x, and key heads are the groups that share B and C. What the
// kinds differ in is in mixers/.
struct RecurrentSpec {
    RecurrentKind kind;
    int32_t heads, key_heads;  // of values, and of queries and keys
    int32_t key_dim, value_dim;
    int32_t conv_kernel, conv_bias;
    int32_t input_bias, output_bias;
    int32_t norm_groups;           // MAMBA2: parts of a row that are normalised by themselves, 0: no norm
    int32_t gate_rank;             // KIMI_DELTA, MAMBA1: of the rows that decay inputs (and output gates) are made of;
                                   // 0, of KIMI_DELTA: they are made of the layer's input; RG_LRU: value_dim
    SelectionNorm selection_norm;  // MAMBA1
    int32_t sigmoid_gate;          // GATED_DELTA: whether output gates are sigmoids, as KIMI_DELTA's are, not silu
    float step_limit[2];           // MAMBA2: what dt is clamped to
    float beta_scale;              // GATED_DELTA, KIMI_DELTA: of the sigmoid that beta is
    float norm_eps;                // of its norms, 0: the model's
    float decay_bound;             // KIMI_DELTA: what logarithms of decays are above (Ling 3); 0: they have no bound
    NgramSpec hashes;              // NGRAM_ROWS
    bool reads_streams() const { return hashes.size > 0; }  // as they are, and adds to each
    int64_t key_width() const { return int64_t(key_heads) * key_dim; }
    int64_t value_width() const { return int64_t(heads) * value_dim; }
    int64_t low_width() const { return round_up(gate_rank, LANES); }
    // Of a head of keys, and of values, where they are padded to 16.
    int64_t key_depth() const { return round_up(key_dim, LANES); }
    int64_t value_depth() const { return round_up(value_dim, LANES); }
};

// A plain MLP, a gated one, or experts in its place, which are such MLPs.
struct MlpSpec {
    int32_t intermediate_size;  // of each expert where there are experts; 0: the layer ends with its mixer
    Activation activation;
    int32_t gated, bias;
    float limit;           // what activated gates are at most, and what is multiplied with them within ± of it; 0: none
    int32_t limits_gates;  // whether limits are of gates before their activation
    // Gaussian top-k (Gemma 3n): where it is above 0, gates become what they are above the mean of a row's plus
    // `deviations` standard deviations, and below it 0, before their activation.
    float sparsity;
    float deviations;
    Precision precision;  // of its linears; a router is in fp32
    int32_t experts;      // 0: none
    int32_t experts_per_token;
    int32_t experts_normalised;  // whether the weights of a row's experts sum to 1, else those of all experts do
    int32_t router_bias;
    int32_t shared_size;  // intermediate_size of the expert that every row passes through, 0: none
    int32_t shared_gate;  // whether a sigmoid weights it
    Scores scores;
    int32_t correction_bias;  // whether a bias is added to scores for the choice of experts
    int32_t groups;           // of neighbouring experts, of which a row's are in `groups_per_token`
    int32_t groups_per_token;
    int32_t best_of_group;  // experts of a group that it is judged by: 1 or 2
    float scaling;          // of a row's weights
    float added_to_sum;     // that weights are divided by, and `least_sum` is the least of it
    float least_sum;
    float jitter;           // SPARSEMIXER: logits are near each other up to twice this share of them
    int32_t expert_scales;  // whether weights are multiplied with a number of each expert
    // Whether router, experts and the shared expert read the residual stream through a norm each, and experts together
    // and the shared one give what they compute through a norm each (Gemma 4). The norms around the MLP are then the
    // shared expert's first one, and that of the sum.
    int32_t own_norms;
    int32_t scales_inputs;  // whether weights are of what experts read, not of what they give
    int32_t identity;       // further experts that give what they read, and have no weights (LongCat-Flash)
    int32_t by_token;       // whether a table has each token's experts, and scores alone weigh them (DeepSeek-V4)
    float shared_limit;     // the shared expert's limit

    int32_t count() const { return experts + (shared_size ? 1 : 0); }  // experts, the shared one included
    int32_t routed() const { return experts + identity; }              // those that a router chooses from
    MlpSpec of_expert(int32_t expert) const {
        MlpSpec made = *this;
        if (expert == experts) made.limit = shared_limit;
        return made;
    }
};

// Where a layer's norms are: before attention and MLP (Llama), of the sum after each (OPT-350m), of what each of them
// gives, before it is added (OLMo 2), both before and after (Gemma 2), or before each and after the MLP (A.X K1).
enum NormPlace : int32_t { PRE, POST_RESIDUAL, POST, SANDWICH, PRE_AND_MLP_OUT };

struct LayerSpec {
    NormPlace norm_place;
    int32_t parallel;           // attention and MLP read the same rows, and both are added to them
    int32_t shared_norm;        // of these, one norm serves both
    float residual_multiplier;  // of what attention and MLP add
    int32_t scaled;             // whether the residual stream is multiplied with a number after the layer
    int32_t beside;             // its mixer reads the rows that the one of the layer before it read (Falcon-H1)
    int32_t defers;             // what its routed experts give is added after the MLP of the next layer (LongCat-Flash)
    // Columns of the row by which what a norm before the mixer, or the MLP, gives is gated (A.X-K2): y becomes
    // y · sigmoid(up · silu(down · y)); 0: it is not.
    int32_t mixer_gate_rank, mlp_gate_rank;
    int32_t laurel_rank;  // of the pair of linears beside its attention (LAuReL), 0: there is none
    // Its attention reads the residual stream beside the embedding, through one norm; its MLP what attention gives; and
    // what a linear makes of what that gives, the next layer's mixer reads, added to the stream for it alone (Zamba2).
    // The number of the block whose weights it has, from 1 on; 0: it is no such layer.
    int32_t aside;
    AttentionSpec attention;  // without heads where there is a recurrent mixer
    RecurrentSpec recurrent;
    MlpSpec mlp;

    bool has_mlp() const { return mlp.intermediate_size != 0; }
    bool is_recurrent() const { return recurrent.kind != NO_RECURRENCE; }
    bool has_pre_norms() const { return norm_place != POST_RESIDUAL && norm_place != POST; }
    bool has_attention_out_norm() const { return norm_place == POST || norm_place == SANDWICH; }
    bool has_mlp_out_norm() const { return has_mlp() && (has_attention_out_norm() || norm_place == PRE_AND_MLP_OUT); }
};

// Draft heads, which read hidden states of a target: see ipex_assist/models/draft_head.py, which has their arithmetic.
enum HeadKind : int32_t { NO_DRAFT_HEAD, MTP, EAGLE3, DFLASH, SHARED_KV };

// What a draft head's hidden states pass before `fc`: nothing, one norm of all of them, or one of each tap's part.
enum InputNorm : int32_t { NO_INPUT_NORM, NORM_OF_ALL, NORM_OF_EACH };

struct HeadSpec {
    HeadKind kind;
    InputNorm input_norm;
    int32_t norm_before_residual;
    int32_t fed_back_normed;   // whether its own hidden states are those after its final norm
    int32_t shared_embedding;  // the target's table and head, of which it has none
    int32_t shared_head;
    int32_t clusters;       // parts of equal size that its lm_head's tokens are in, one after the other; 0: it has none
    int32_t clusters_read;  // of these a row has the logits of so many
    // DFLASH of the second kind: rows of the convolutions around attention and MLP, columns that are scaled together;
    // tokens that each drafted one is chosen among, and columns of the tables that they are chosen by; 0 of the first.
    int32_t conv_kernel, conv_group;
    int32_t candidates, selector_rank;
    // DSpark is a DFLASH with a rank and no candidates: each token is chosen among all. Columns that its confidence head
    // reads: hidden_size, and selector_rank with the token before; 0: it has none.
    int32_t confidence_size;
    int32_t input_size, taps;  // columns of a row of the target's hidden states, and the parts that they are of
    int32_t lm_head_rows;      // tokens that it tells apart, or without a draft head the first ones, which alone have
                               // logits; 0: all of the vocabulary

    int32_t input_norms() const { return input_norm == NORM_OF_EACH ? taps : input_norm == NORM_OF_ALL ? 1 : 0; }
    // Whether a row's hidden state enters it together with the token.
    bool feeds_back() const { return kind != NO_DRAFT_HEAD && kind != DFLASH; }
    bool is_dspark() const { return !candidates && (selector_rank || confidence_size); }
    // Scales of a row of one of the convolutions, those of a row of the kernel after another's.
    int64_t conv_groups(int64_t hidden) const { return hidden / conv_group; }
    int64_t conv_scales(int64_t hidden) const { return conv_kernel * conv_groups(hidden); }
    int32_t tokens_of_cluster(int32_t tokens) const { return tokens / clusters; }
};

// A residual stream of several rows side by side ("hyper-connections", operations/streams.cpp). Behind them a row has the
// numbers that weigh them: how much of each is read, how much of what is computed is added to each, and, where they are
// mixed, how much of each (first) goes into each (second).
struct StreamSpec {
    int32_t count;           // 0 or 1: the usual residual stream, without numbers
    int32_t sinkhorn_steps;  // by which the matrix that mixes streams is normalised; 0: each stays as it is
    float eps;               // added to what is read of a stream, and to sums that the matrix is divided by
    float gain, gain_eps;    // of what is added to a stream: gain · sigmoid + gain_eps
    int32_t averaged;        // whether the final norm reads the mean of all streams
    int32_t gate_rank;  // gated residuals (Qwen4, operations/norm_gate.cpp): columns of what gates are made of; 0: none

    bool gated() const { return gate_rank > 0; }
    bool several() const { return count > 1; }
    int64_t columns(int64_t hidden) const { return several() ? count * hidden : hidden; }
    int64_t written() const { return gated() ? 0 : count; }  // among a row's numbers, and likewise
    int64_t mixed() const { return 2 * count; }
    int64_t numbers() const { return count * (gated() ? 1 : sinkhorn_steps ? 2 + count : 2); }
    // Columns of a row with its numbers.
    int64_t width(int64_t hidden) const { return columns(hidden) + (several() ? round_up(numbers(), LANES) : 0); }
};
constexpr int32_t MOST_STREAMS = 8;

// AltUp (operations/altup.cpp): streams behind the row that layers see.
struct AltUpSpec {
    int32_t count;   // 0 or 1: there are none
    int32_t active;  // the stream that layers change
    int32_t scaled;  // whether per-layer embeddings read it times a number for each column

    bool several() const { return count > 1; }
};

// What the layers have in common, and what is outside of them.
struct ModelSpec {
    int32_t vocab_size, hidden_size;
    float norm_eps;
    int32_t norm_affine, final_norm, embedding_norm;
    int32_t position_offset;
    int32_t head_bias;
    float logit_cap;  // logits x become cap · tanh(x / cap); 0: they stay
    float embedding_multiplier;
    int32_t tied_head;  // whether the head is the embedding's table
    int32_t embedding_size;
    int32_t per_layer_size;  // values of a token for each layer in the table of per-layer embeddings; 0: there is none
    StreamSpec streams;
    AltUpSpec altup;
    Precision precision;        // of the linears of attention, and of what is computed beside linears
    Precision outer_precision;  // of the head and of project_in and project_out
    int32_t group;              // input columns that share an int4 scale
    int32_t ordered;            // whether linears have an order of input columns of their own (GPTQ's act-order)
    int32_t layers;
    int32_t projected_embedding;  // whether project_in and project_out lie between the two sizes
    int32_t positions;            // rows of the learned table, 0: none
    int32_t rotary_width;         // columns of the cos of a position, those of all tables side by side; 0: none
    int32_t rms_norm, norms_biased;
    int32_t per_layer_tokens;  // rows of the table of per-layer embeddings: tokens from there on have the first one's
    int32_t keeps_embedding;   // whether a row has its embedding behind the residual stream, as layers aside read it
    HeadSpec draft_head;

    // Columns of a row of the residual stream.
    int64_t stream_width() const {
        if (keeps_embedding) return 2 * int64_t(hidden_size);
        return altup.several() ? int64_t(altup.count + 1) * hidden_size : streams.width(hidden_size);
    }
    // Columns of the norms before mixers, MLPs and the head.
    int64_t norm_width() const { return streams.gated() ? streams.columns(hidden_size) : hidden_size; }
    bool is_draft_head() const { return draft_head.kind != NO_DRAFT_HEAD; }
    // Whether it keeps no keys and values, and reads those of its target.
    bool reads_target() const { return draft_head.kind == SHARED_KV; }
    // Whether its hidden state has several streams, each of which passes `fc` by itself, and the token another linear.
    bool enters_by_streams() const { return draft_head.kind == MTP && streams.several(); }
    // Columns of what `fc` takes, 0 where there is no draft head.
    int64_t fc_width() const {
        if (draft_head.kind == MTP) return int64_t(hidden_size) * (enters_by_streams() ? 1 : 2);
        return int64_t(draft_head.input_size) * (reads_target() ? 2 : 1);
    }
    // Columns of a row of the table of embeddings; of a head that reads its target, the target's.
    int32_t table_width() const { return reads_target() ? draft_head.input_size : embedding_size; }
    int32_t lm_head_rows() const { return draft_head.lm_head_rows ? draft_head.lm_head_rows : vocab_size; }
    // Columns of what the mixer of a layer gets; number: of the layer.
    int64_t mixer_input_width(const LayerSpec& layer, int64_t number) const {
        return int64_t(hidden_size) * (layer.aside || (draft_head.kind == EAGLE3 && number == 0) ? 2 : 1);
    }
    int64_t per_layer_width() const { return int64_t(layers) * per_layer_size; }
};

}  // namespace ipex_assist
