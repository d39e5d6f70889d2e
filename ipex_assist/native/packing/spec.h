// What a model is, as plain numbers: sizes, kinds and factors of the whole model and of each layer.
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
    int32_t rotary_dim;   // of each head, so many values are rotated, 0: none
    int32_t rope_column;  // first column of this layer's cos and sin among those of a position (Segment)
    HeadNorm qk_norm;
    int32_t qkv_bias, output_bias;
    int32_t sinks;              // whether each query head has a logit beside the scores of its softmax
    float scale;                // of query · key
    float cap;                  // scores x become cap · tanh(x / cap); 0: they stay
    const float* alibi_slopes;  // (heads), or null

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
};

}  // namespace ipex_assist
