// What a model is, as plain numbers: sizes, kinds and factors of the whole model and of each layer. The structures are
// part of the C interface: ipex_assist/native/structures.py mirrors them.
#pragma once
#include "kernels/kernels.h"

namespace ipex_assist {

// Norms of queries and keys: RMS of each head by one weight (Qwen3), layer norm of each head by its own (Command R+),
// RMS of all heads together (OLMo 2).
enum HeadNorm : int32_t { NO_NORM, ONE_FOR_HEADS, EACH_HEAD, ALL_HEADS };

// Softmax attention with grouped keys and values.
struct AttentionSpec {
    int32_t heads, kv_heads, head_dim;
    int32_t window;       // positions a row may see, 0: all
    int32_t rotary_dim;   // how many values of each head are rotated, 0: none
    int32_t rope_column;  // first column of this layer's cos and sin among those of a position (Segment)
    int32_t paired_dim;   // how many channels of each key head have one int8 factor for two (key_factors.h)
    HeadNorm qk_norm;
    int32_t qkv_bias, output_bias;
    int32_t sinks;              // whether each query head has a logit beside the scores of its softmax
    float scale;                // of query · key
    float cap;                  // scores x become cap · tanh(x / cap); 0: they stay
    const float* alibi_slopes;  // (heads), or null; those of a PackedModel's layers are ÷ scale

    int32_t group() const { return heads / kv_heads; }  // query heads that share a KV head
    int64_t query_width() const { return int64_t(heads) * head_dim; }
    int64_t kv_width() const { return int64_t(kv_heads) * head_dim; }
    // Columns of the rows that the QKV linear gives: queries from 0 on, keys, values, each from a multiple of 16 on.
    int64_t key_column() const { return round_up(query_width(), LANES); }
    int64_t value_column() const { return key_column() + round_up(kv_width(), LANES); }
    int64_t qkv_width() const { return value_column() + round_up(kv_width(), LANES); }
    // Of a head in keys as they are packed, and in values.
    int64_t key_depth() const { return padded_depth(FP32, head_dim); }
    int64_t value_width() const { return round_up(head_dim, LANES); }
    // The weights of a norm of queries or keys for one head, null where heads have no norm of their own.
    const float* head_norm(const float* norms, int32_t head) const {
        if (qk_norm == ALL_HEADS || !norms) return nullptr;
        return norms + (qk_norm == EACH_HEAD ? int64_t(head) * head_dim : 0);
    }
};

// A plain MLP, a gated one, or experts in its place, which are gated.
struct MlpSpec {
    int32_t intermediate_size;  // of each expert where there are experts
    Activation activation;
    int32_t gated, bias;
    Precision precision;  // of its linears; a router is in fp32
    int32_t experts;      // 0: none
    int32_t experts_per_token;
    int32_t experts_normalised;  // whether the weights of a row's experts sum to 1, else those of all experts do
    int32_t router_bias;
    int32_t shared_size;  // intermediate_size of the expert that every row passes through, 0: none
    int32_t shared_gate;  // whether a sigmoid weights it

    int32_t count() const { return experts + (shared_size ? 1 : 0); }  // experts, the shared one included
};

// Where a layer's norms are: before attention and MLP (Llama), of the sum after each (OPT-350m), of what each of them
// gives, before it is added (OLMo 2), or both before and after (Gemma 2).
enum NormPlace : int32_t { PRE, POST_RESIDUAL, POST, SANDWICH };

struct LayerSpec {
    AttentionSpec attention;
    MlpSpec mlp;
    NormPlace norm_place;
    int32_t parallel;           // attention and MLP read the same rows, and both are added to them
    int32_t shared_norm;        // of these, one norm serves both
    float residual_multiplier;  // of what attention and MLP add

    bool has_pre_norms() const { return norm_place == PRE || norm_place == SANDWICH; }
    bool has_post_norms() const { return norm_place == POST || norm_place == SANDWICH; }
};

// What the layers have in common, and what is outside of them.
struct ModelSpec {
    Precision precision;        // of the linears of attention, and of what is computed beside linears
    Precision outer_precision;  // of the head and of project_in and project_out
    int32_t group;              // input columns that share an int4 scale
    int32_t ordered;            // whether linears have an order of input columns of their own (GPTQ's act-order)
    int32_t layers, vocab_size, hidden_size, embedding_size;
    int32_t projected_embedding;  // whether project_in and project_out lie between the two sizes
    int32_t tied_head;            // whether the head is the embedding's table
    int32_t positions;            // rows of the learned table, 0: none
    int32_t position_offset;
    int32_t rope_width;  // columns of the cos of a position, those of all tables side by side; 0: none
    int32_t rms_norm, norm_weight, norm_bias;
    int32_t final_norm, embedding_norm, head_bias;
    float norm_eps, embedding_multiplier;
    float logit_cap;  // logits x become cap · tanh(x / cap); 0: they stay
};

}  // namespace ipex_assist
