// What callers ask of a pass: the C interface's structures, which ipex_assist/native/structures.py mirrors.
#pragma once
#include <cstdint>

#include "kv_cache/blocks.h"
#include "kv_cache/states.h"

namespace ipex_assist {

class Adapter;

// The rows of one sequence in a pass, at consecutive positions.
struct Segment {
    const int32_t* blocks;  // the sequence's block table: positions 256 · i to 256 · i + 255 are in block blocks[i]
    int32_t block_count;
    int32_t start, rows;  // its rows are at positions start, start + 1, …
    // cos and sin (rope_rows, columns of all of the model's tables) of positions from `rope_start` on; null where no
    // layer rotates.
    int32_t rope_start, rope_rows;
    const float* cosine;
    const float* sine;
    // Of a model whose layers keep states: the number of its state, which is that after its first `settled` tokens, and of
    // which it becomes the one after `settle` tokens. The rows between the state and `start` are applied once more; at
    // most PENDING_ROWS rows may be after it when the pass is done.
    int32_t state, settled, settle;
    float adapter_scale;     // of what the adapter adds
    const Adapter* adapter;  // of these rows, one of the model's own; null: they have none
};

// What of a row's streams is given where it has several: their mean, or all of them side by side.
enum StreamTaps : int32_t { ONE_STREAM, MEAN_OF_STREAMS, ALL_STREAMS };

// Hidden states that a pass gives besides logits, of all of its rows or of those with logits.
struct Taps {
    const int32_t* layers;  // (count) i: what enters layer i, or, of the number of layers, what leaves the last one
    int32_t count;
    int32_t normed;         // whether what leaves the last one is given after the final norm
    int32_t of_logit_rows;  // whether rows without logits have none
    StreamTaps streams;
    float* rows;  // (rows, count · width)

    int64_t width(const ModelSpec& s) const {
        return streams == ALL_STREAMS ? s.streams.columns(s.hidden_size) : s.hidden_size;
    }
};

// Rows of any sequences; tokens in the order of the segments. What a segment writes is its own: no other segment
// has these blocks in its table.
struct Batch {
    int32_t segment_count, rows;
    const Segment* segments;
    const int32_t* tokens;  // (rows)
    const Blocks* blocks;
    const int32_t* logit_rows;  // ascending numbers of the rows whose logits are computed
    int32_t logit_row_count;
    int32_t vocabulary;    // logits of the first `vocabulary` tokens, 0: of all
    float* logits;         // (logit_row_count, stride)
    int64_t stride;        // at least the vocabulary, rounded up to 16
    const States* states;  // null in a model whose layers keep none
    int32_t threads;      // of the pool, its first ones, that run the pass; 0, or more than it has: all. Changes no bit
    int32_t own_hidden;   // whether `hidden` has states that the draft head itself computed, of hidden_size columns
    const float* hidden;  // of a draft head: (rows, input_size) of its target's
    Taps taps;
    // (rows) where a row is no token's but was made of an image: what enters the first layer, hidden_size numbers, and
    // as many after them for each of `embedding_layers`, which are added before the layers from 1 on; null in others.
    const float* const* embeddings;  // null: every row is a token's
    int32_t embedding_layers;
    // Whether rows see further ones only in layers with a window.
    int32_t ahead_in_windows;
    // (rows) the last position that a row sees: at least its own, at most the last of its segment, and no lower than
    // that of the row before it there. Null: its own. Images whose rows see each other.
    const int32_t* last_seen;
};

// The most likely tokens after each row with logits, and the logarithms of their probabilities; a row whose logits hold
// NaN or infinity gets -1 and NaN.
struct TopTokens {
    int32_t top;          // how many besides the arg-max
    int32_t* tokens;      // (logit_row_count), arg-max
    float* logs;          // (logit_row_count)
    float* log_sums;      // (logit_row_count), log of the sum of exp(logit)
    int32_t* top_tokens;  // (logit_row_count, top), by descending logit, lower ids before higher ones of the same logit
    float* top_logs;      // (logit_row_count, top)
};

// A token whose logit changes before one is chosen.
struct LogitEdit {
    int32_t token;
    float bias;         // added first
    int32_t seen;       // whether prompt or output have it: then the repetition penalty applies
    int32_t generated;  // how often the output has it: for the frequency penalty, and from 1 on the presence penalty
};

// How the tokens of a request are chosen: see ipex_assist/speculative/choosing/sampling.py, which has the same rules in
// NumPy.
struct SamplingRule {
    double temperature;     // 0: the arg-max, without noise
    double top_p;           // 1: all
    double min_p_distance;  // logits below the largest + this are dropped: temperature · log min_p; -infinity: none
    uint64_t seed;
    int32_t top_k;  // 0: all
    float repetition_penalty, presence_penalty, frequency_penalty;
};

// The choice after one row with logits.
struct RowChoice {
    const SamplingRule* rule;
    int64_t position;        // of the output token, from 0 on: part of the noise's key
    const LogitEdit* edits;  // (edit_count) by ascending tokens
    int64_t edit_count;
    const uint8_t* mask;  // (vocabulary) 0 for tokens that may not be chosen; null: all may
    float* logits;        // (vocabulary) the model's own logits are copied there; null: they stay
    // (following_count) output tokens after those that `edits` count, for penalties; any that has no logit has none.
    const int32_t* following;
    int64_t following_count;
};

// Drafting after a pass, and what it drafted; arrays have an element, or a row of `stride`, for each segment.
struct DraftRequest {
    const int32_t* counts;         // tokens at most, from 1 to `stride`
    const float* min_probability;  // a token with a smaller probability is the last
    int64_t stride;
    int32_t* tokens;       // -1 where logits hold NaN or infinity, which ends the draft, too
    float* probabilities;  // or the confidence in a token that was not the likeliest; NaN beside a -1
    int32_t* drafted;      // how many tokens there are, that -1 included
    // (lm_head_rows) which token of the vocabulary each is; null: itself.
    const int32_t* target_tokens = nullptr;
    // Of the first token of each; later ones follow from it. Edits are of the vocabulary's tokens, logits are not
    // copied. Null: the likeliest tokens.
    const RowChoice* choices = nullptr;
};

// Processor cycles of thread 0, waiting for the others included. scores, choice: of indexers, and among attention's.
struct Timing {
    uint64_t linear = 0, attention = 0, total = 0, scores = 0, choice = 0;
};

}  // namespace ipex_assist
