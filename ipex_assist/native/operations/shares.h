// What each thread gets of a pass's work, without a model or a pass: for benchmarks of machines on paper.
#pragma once
#include <vector>

#include "operations/linear_blocks.h"
#include "operations/pass_plan.h"

namespace ipex_assist {

// Panels of a linear, `granularity` of which stay together.
std::vector<int64_t> shares_of_linear(int64_t panels, int64_t granularity, int threads);

// Panels of the linears of `experts` experts that are alike, through each of which one row passes.
std::vector<int64_t> shares_of_experts(int64_t panels, int64_t granularity, int32_t experts, const TeamNodes& team);

// Blocks of keys and values that a decode pass of one row after `position` others reads in a layer, each for one KV
// head; and whether their partials are merged without a barrier.
struct AttentionShares {
    std::vector<int64_t> blocks;
    bool merges_in_place;
};
AttentionShares shares_of_attention(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window, int32_t position,
                                    const TeamNodes& team);

// What each thread multiplies and reads of a linear in a pass of many rows, whose inputs have `row_bytes` each.
struct LinearWork {
    int64_t products, weight_bytes, row_bytes;
};
std::vector<LinearWork> shares_of_rows(const Linear& linear, int64_t rows, int64_t row_bytes, const TeamNodes& team);

// When each thread ends that takes query tiles in turns, of `rows` rows of a prompt after `position` others, in units of
// PassPlan::cost.
std::vector<int64_t> shares_of_tiles(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window,
                                     int32_t position, int32_t rows, const TeamNodes& team);

// The same of a pass of `texts` texts that have `rows` rows each, as a step with drafts has: when a thread would end if
// all had the same, when the last one ends where threads share query tiles, and when it ends in the way that is chosen.
struct TextEnds {
    int64_t even, tiles, chosen;
    bool splits_kv;
};
TextEnds shares_of_texts(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t position, int32_t rows,
                         int32_t texts, const TeamNodes& team);

}  // namespace ipex_assist
