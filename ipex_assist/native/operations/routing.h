// Which experts a row passes through, and what they weigh: a function of the row's logits alone.
#pragma once
#include <cmath>
#include <vector>

#include "packing/spec.h"

namespace ipex_assist {

// Of a row after another.
struct RouterScratch {
    std::vector<float> scores, choice, groups;
    std::vector<int32_t> order, group_order;
};

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

constexpr int32_t IDENTITY = -1;  // any of the experts that give what they read

// A row's experts, ascending, then those that give what they read, and their weights (experts_per_token both), for its
// logits (routed). Of equals the lower number is chosen. Where a logit is not finite, no weight is. named: the row's
// experts (experts_per_token) where its token names them, or null; where one of them is none, no weight is finite.
void choose_experts(const MlpSpec& spec, const float* logits, const float* correction_bias, RouterScratch& scratch,
                    int32_t* chosen, float* weights, const float* named = nullptr);

}  // namespace ipex_assist
