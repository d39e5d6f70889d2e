#include "operations/routing.h"

#include <algorithm>
#include <numeric>

namespace ipex_assist {
namespace {

// The numbers of the `most` highest of `count` values first, the highest first; of equals the lower number.
void order_highest(const float* values, int32_t count, int32_t most, std::vector<int32_t>& order) {
    order.resize(size_t(count));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + most, order.end(), [values](int32_t a, int32_t b) {
        return values[a] != values[b] ? values[a] > values[b] : a < b;
    });
}

float sqrt_softplus(float x) { return std::sqrt(x > 20 ? x : std::log1p(std::exp(x))); }

// Of all experts: softmax, or a function of each of the logits.
void score(const MlpSpec& spec, const float* logits, std::vector<float>& scores) {
    const int32_t count = spec.routed();
    scores.resize(size_t(count));
    if (spec.scores == SIGMOID || spec.scores == SQRT_SOFTPLUS) {
        std::transform(logits, logits + count, scores.begin(), spec.scores == SIGMOID ? sigmoid : sqrt_softplus);
        return;
    }
    const float most = *std::max_element(logits, logits + count);
    float sum = 0;
    for (int32_t e = 0; e < count; e++) sum += scores[size_t(e)] = std::exp(logits[e] - most);
    for (float& each : scores) each /= sum;
}

// Puts what experts are chosen by at -inf outside of the best groups.
void keep_best_groups(const MlpSpec& spec, RouterScratch& s) {
    const int32_t each = spec.experts / spec.groups;
    s.groups.resize(size_t(spec.groups));
    for (int32_t g = 0; g < spec.groups; g++) {
        const float* group = s.choice.data() + g * each;
        order_highest(group, each, spec.best_of_group, s.order);
        s.groups[size_t(g)] = group[s.order[0]] + (spec.best_of_group > 1 ? group[s.order[1]] : 0);
    }
    order_highest(s.groups.data(), spec.groups, spec.groups_per_token, s.group_order);
    for (int32_t i = spec.groups_per_token; i < spec.groups; i++) {
        const auto first = s.choice.begin() + s.group_order[size_t(i)] * each;
        std::fill(first, first + each, -INFINITY);
    }
}

// The weights of the chosen by a softmax over them, or over all experts.
void weigh_by_softmax(const MlpSpec& spec, const float* logits, const int32_t* chosen, float* weights) {
    const int32_t each = spec.experts_per_token, count = spec.routed();
    const float most = *std::max_element(logits, logits + count);
    float sum = 0;
    for (int32_t i = 0; i < (spec.experts_normalised ? each : count); i++) {
        sum += std::exp(logits[spec.experts_normalised ? chosen[i] : i] - most);
    }
    for (int32_t i = 0; i < each; i++) weights[i] = std::exp(logits[chosen[i]] - most) / sum;
}

void weigh_by_scores(const MlpSpec& spec, const float* scores, const int32_t* chosen, float* weights) {
    float sum = 0;
    for (int32_t i = 0; i < spec.experts_per_token; i++) sum += weights[i] = scores[chosen[i]];
    if (!spec.experts_normalised) return;
    sum = std::max(sum + spec.added_to_sum, spec.least_sum);
    for (int32_t i = 0; i < spec.experts_per_token; i++) weights[i] /= sum;
}

// The weight of expert `of`: its share of a softmax over the experts whose logits are near its own, but `without`.
float near_share(const MlpSpec& spec, const float* logits, int32_t of, int32_t without) {
    const float most = logits[of];
    float sum = 0;
    for (int32_t e = 0; e < spec.experts; e++) {
        const float scale = std::max(std::abs(logits[e]), most);
        if (e != without && !((most - logits[e]) / scale > 2 * spec.jitter)) sum += std::exp(logits[e] - most);
    }
    return 1 / sum;
}

void mix_two(const MlpSpec& spec, const float* logits, RouterScratch& s, int32_t* chosen, float* weights) {
    order_highest(logits, spec.experts, 2, s.order);
    const int32_t first = s.order[0], second = s.order[1];
    const int place = first < second ? 0 : 1;
    chosen[place] = first, weights[place] = near_share(spec, logits, first, -1);
    chosen[1 - place] = second, weights[1 - place] = near_share(spec, logits, second, first);
}

}  // namespace

void choose_experts(const MlpSpec& spec, const float* logits, const float* correction_bias, RouterScratch& s,
                    int32_t* chosen, float* weights, const float* named) {
    const int32_t each = spec.experts_per_token, count = spec.routed();
    const auto is_expert = [&](float x) { return x >= 0 && x < float(spec.experts); };
    if (!std::all_of(logits, logits + count, [](float x) { return std::isfinite(x); }) ||
        (named && !std::all_of(named, named + each, is_expert))) {
        std::iota(chosen, chosen + each, 0);
        std::fill(weights, weights + each, NAN);
        return;
    }
    if (spec.scores == SPARSEMIXER) return mix_two(spec, logits, s, chosen, weights);
    const float* choice = logits;  // scores rise with their logits, of which fewer are equal
    if (correction_bias || spec.groups > 1 || spec.scores != SOFTMAX) score(spec, logits, s.scores);
    if (correction_bias || spec.groups > 1) {
        s.choice = s.scores;
        for (int32_t e = 0; correction_bias && e < count; e++) s.choice[size_t(e)] += correction_bias[e];
        if (spec.groups > 1) keep_best_groups(spec, s);
        choice = s.choice.data();
    }
    if (named) {
        std::copy(named, named + each, chosen);
    } else {
        order_highest(choice, count, each, s.order);
        std::copy(s.order.begin(), s.order.begin() + each, chosen);
    }
    std::sort(chosen, chosen + each);
    if (spec.scores == SOFTMAX && !correction_bias) weigh_by_softmax(spec, logits, chosen, weights);
    else weigh_by_scores(spec, s.scores.data(), chosen, weights);
    for (int32_t i = 0; i < each; i++) {
        weights[i] *= spec.scaling;
        if (chosen[i] >= spec.experts) chosen[i] = IDENTITY;
    }
}

}  // namespace ipex_assist
