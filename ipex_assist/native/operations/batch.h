// What callers ask of a pass: the C interface's structures, which ipex_assist/native/structures.py mirrors.
#pragma once
#include <cstdint>

#include "kv_cache/blocks.h"

namespace ipex_assist {

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
    int32_t vocabulary;  // logits of the first `vocabulary` tokens, 0: of all
    float* logits;       // (logit_row_count, stride)
    int64_t stride;      // at least the vocabulary, rounded up to 16
    int32_t threads;     // of the pool, its first ones, that run the pass; 0, or more than it has: all. Changes no bit
};

// Greedy drafting after a pass, and what it drafted; arrays have an element, or a row of `stride`, for each segment.
struct GreedyDraft {
    const int32_t* counts;         // tokens at most, from 1 to `stride`
    const float* min_probability;  // a token with a smaller probability is the last
    int64_t stride;
    int32_t* tokens;       // -1 where logits hold NaN or infinity, which ends the draft, too
    float* probabilities;  // NaN there
    int32_t* drafted;      // how many tokens there are, that -1 included
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

// Processor cycles of thread 0, waiting for the others included.
struct Timing {
    uint64_t linear = 0, attention = 0, total = 0;
};

}  // namespace ipex_assist
