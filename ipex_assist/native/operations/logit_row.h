// A row of logits with the rule by which a token is chosen, and the noise of its tokens.
#pragma once
#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {

constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;
constexpr double LARGEST_NOISE = 37;  // -log(-log(1 - v)) of the smallest v, 2^-53, and a little
constexpr double MARGIN = 1e-3;       // of scores in fp32: far more than their rounding errors

inline uint64_t finalized(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// As gumbel_noise.py has it: 52 bits make a number between 0 and 1.
inline double gumbel(uint64_t bits) {
    const double small = (double(bits >> 12) + 0.5) * 0x1p-52;
    return -std::log(-std::log1p(-small));
}

struct LogitRow {
    // target_tokens: the token of each column, ascending; null: its number. Noise belongs to tokens.
    LogitRow(const Pass& pass, const RowChoice& choice, int64_t number, const int32_t* target_tokens)
        : rule(*choice.rule),
          logits(pass.batch.logits + number * pass.batch.stride),
          columns(vocabulary_columns(pass)),
          groups((columns + NOISE_GROUP - 1) / NOISE_GROUP),
          maxima(pass.activations.shared.group_maxima.row(number)),
          tokens(target_tokens),
          state(*pass.activations.shared.sampled_rows.row(number)),
          key(finalized(finalized(rule.seed + GAMMA) + uint64_t(choice.position + 1) * GAMMA)) {}

    bool filtered_by_count() const { return rule.top_k > 0 && rule.top_k < columns; }
    bool searched() const { return rule.temperature > 0 && !filtered_by_count(); }
    uint64_t random_bits(int64_t column) const {
        return finalized(key + uint64_t(tokens ? tokens[column] : column) * GAMMA);
    }
    NoisyToken noisy(int32_t column) const {
        return {double(logits[column]) / rule.temperature + gumbel(random_bits(column)), column};
    }
    float weight(const Pass& pass, int32_t column) const {
        float found;
        pass.kernels.sampling_weights(logits + column, 1, state.largest, float(rule.temperature), &found);
        return found;
    }
    // The columns of a group that may have a logit of at least `least` and a score of at least `score`, ascending, and
    // a few that do not, to `found` (NOISE_GROUP); returns how many.
    int32_t find_noise(const Pass& pass, int64_t group, float least, double score, int32_t* found) const {
        const double temperature = rule.temperature, bound = score - double(state.largest) / temperature - MARGIN;
        const int64_t first = group * NOISE_GROUP, end = std::min(first + NOISE_GROUP, columns);
        if (!tokens) {
            const NoiseSearch search{state.largest, float(temperature), least, float(bound)};
            const int32_t count =
                pass.kernels.find_noise(search, logits + first, end - first, key + uint64_t(first) * GAMMA, found);
            for (int32_t i = 0; i < count; i++) found[i] += int32_t(first);
            return count;
        }
        // Noise is at most -log v of v = bits ÷ 2^64: the group's largest logit says which bits are small enough.
        const double v =
            std::exp((double(maxima[group]) - double(state.largest)) / temperature - bound) * 0x1p64 + 4096;
        const uint64_t most = v < 0x1p64 ? uint64_t(v) : UINT64_MAX;
        int32_t count = 0;
        for (int64_t i = first; i < end; i++) {
            if (logits[i] >= least && random_bits(i) <= most) found[count++] = int32_t(i);
        }
        return count;
    }

    const SamplingRule& rule;
    const float* logits;
    int64_t columns, groups;
    const float* maxima;  // (groups)
    const int32_t* tokens;
    SampledRow& state;
    uint64_t key;
};

inline bool better(const NoisyToken& a, const NoisyToken& b) {
    return a.score > b.score || (a.score == b.score && a.token < b.token);
}

// draft_confidence.cpp: how sure a draft is of a column that was chosen. After `find_maxima`, or what stands for it.
float draft_confidence(const Pass& pass, const LogitRow& row, int64_t number, int32_t chosen);

}  // namespace ipex_assist
