// How sure a draft is of a token that it has chosen: see `choose_for_draft` in
// ipex_assist/speculative/choosing/sampling.py, which is the same in NumPy.
//
// It is the token's share of the sum of exp(logit + temperature · noise). Noise counts where it may matter: of tokens
// whose logit and whose score are near the best.
#include "operations/logit_row.h"

namespace ipex_assist {
namespace {

constexpr double NEAR = 7;  // sampling.py: _HEAD

}  // namespace

float draft_confidence(const Pass& pass, const LogitRow& row, int64_t number, int32_t chosen) {
    const ArgMax all = arg_max(pass, number);
    const double temperature = row.rule.temperature, largest = double(row.state.largest);
    if (chosen < 0 || !is_finite(all)) return NAN;
    if (temperature == 0) return 1.0f / all.sum;
    const NoisyToken best = row.noisy(chosen);
    const double score = best.score - NEAR / temperature;
    const float least = std::max(row.state.kept, float(largest - NEAR * temperature));
    double perturbed = 0, likely = 0;  // of those whose noise counts: with it, and without
    const auto add = [&](const NoisyToken& each) {
        perturbed += std::exp((each.score - best.score) * temperature);
        likely += std::exp(double(row.logits[each.token]) - largest);
    };
    int32_t found[NOISE_GROUP];
    for (int64_t g = 0; g < row.groups; g++) {
        if (!(row.maxima[g] >= least)) continue;
        const int32_t count = row.find_noise(pass, g, least, score, found);
        for (int32_t i = 0; i < count; i++) {
            const NoisyToken each = row.noisy(found[i]);
            // What would have been better was dropped by top-p.
            if (each.score >= score && !better(each, best)) add(each);
        }
    }
    if (row.logits[chosen] < least) add(best);
    const double rest = std::max(double(all.sum) - likely, 0.0);
    return float(1 / (perturbed + rest * std::exp(std::min(largest - best.score * temperature, 700.0))));
}

}  // namespace ipex_assist
