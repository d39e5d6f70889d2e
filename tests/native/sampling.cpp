// Tokens that a pass chooses by every rule, beside a plain loop over the logits of the same rows; and its kernels.
#include <algorithm>
#include <string>

#include "small_model.h"

namespace check {
namespace {

double plain_noise(const RowChoice& c, int32_t token) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;
    const auto mix = [](uint64_t z) {
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    };
    const uint64_t bits =
        mix(mix(mix(c.rule->seed + GAMMA) + uint64_t(c.position + 1) * GAMMA) + uint64_t(token) * GAMMA);
    return -std::log(-std::log1p(-(double(bits >> 12) + 0.5) * 0x1p-52));
}

// Sorts all tokens, and asks each rule in its turn.
int32_t plain_choice(const KernelTable& k, std::vector<float> row, const RowChoice& c) {
    const SamplingRule& r = *c.rule;
    for (int64_t i = 0; i < c.edit_count; i++) {
        float& x = row[size_t(c.edits[i].token)];
        x += c.edits[i].bias;
        if (!c.edits[i].seen) continue;
        x = x < 0 ? x * r.repetition_penalty : x / r.repetition_penalty;
        x = x - r.frequency_penalty * float(c.edits[i].generated);
        x = x - (c.edits[i].generated ? r.presence_penalty : 0.0f);
    }
    for (float x : row) {
        if (!std::isfinite(x)) return -1;
    }
    for (size_t i = 0; c.mask && i < row.size(); i++) row[i] = c.mask[i] ? row[i] : -INFINITY;
    const int32_t best = int32_t(std::max_element(row.begin(), row.end()) - row.begin());
    const float largest = row[size_t(best)];
    if (!std::isfinite(largest)) return -1;
    if (r.temperature == 0) return best;
    std::vector<int32_t> order;
    for (size_t i = 0; i < row.size(); i++) {
        if (row[i] > -INFINITY) order.push_back(int32_t(i));
    }
    const auto sort = [&](const std::vector<float>& by) {
        std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return by[size_t(a)] != by[size_t(b)] ? by[size_t(a)] > by[size_t(b)] : a < b;
        });
    };
    sort(row);
    if (r.top_k > 0 && size_t(r.top_k) < order.size()) {
        const float least = row[size_t(order[size_t(r.top_k) - 1])];
        while (row[size_t(order.back())] < least) order.pop_back();
    }
    if (r.top_p < 1) {
        std::vector<float> weights(row.size());
        k.sampling_weights(row.data(), int64_t(row.size()), largest, float(r.temperature), weights.data());
        std::sort(order.begin(), order.end());
        sort(weights);
        double total = 0, reached = 0;
        for (const int32_t token : order) total += double(weights[size_t(token)]);
        size_t kept = 0;
        while (kept < order.size() && (kept == 0 || reached < r.top_p * total))
            reached += double(weights[size_t(order[kept++])]);
        order.resize(kept);
    }
    std::sort(order.begin(), order.end());
    int32_t chosen = -1;
    double most = -INFINITY;
    for (const int32_t token : order) {
        if (row[size_t(token)] < float(double(largest) + r.min_p_distance)) continue;
        const double score = double(row[size_t(token)]) / r.temperature + plain_noise(c, token);
        if (score > most) most = score, chosen = token;
    }
    return chosen;
}

// Rows of one pass with rules, edits and masks of their own; on any number of threads.
void check_sampling(const KernelTable& k, const Format& f, const Kind& kind) {
    constexpr size_t COUNT = 12;
    Random random(3);
    std::vector<LogitEdit> edits;
    for (int32_t token = 0; token < VOCAB; token += 1 + random.below(9))
        edits.push_back({token, random.normal(), random.below(2), random.below(3)});
    std::vector<uint8_t> mask(VOCAB), one(VOCAB);
    for (uint8_t& allowed : mask) allowed = uint8_t(random.below(2));
    one[VOCAB - 1] = 1;
    for (int threads = 1; threads <= 3; threads++) {
        Fixture x(k, f, kind, threads);
        const Table table(x, 300);
        const std::vector<int32_t> tokens = some_tokens(COUNT, 11);
        std::vector<int32_t> positions;
        for (size_t i = 0; i < COUNT; i++) positions.push_back(int32_t(i));
        const std::vector<const Table*> tables(COUNT, &table);
        for (const bool broken : {false, true}) {
            if (broken && !x.model->spec.rotary_width) break;
            if (broken) std::swap(x.cosine[size_t(3 * x.model->spec.rotary_width)], x.poison);
            const std::vector<float> all = x.run(tokens, positions, tables);
            for (uint64_t seed = 0; seed < 20; seed++) {
                std::vector<SamplingRule> rules;
                std::vector<RowChoice> choices(COUNT);
                std::vector<float> kept(COUNT * VOCAB, 7);
                for (size_t i = 0; i < COUNT; i++) {
                    const double temperature = random.below(5) ? double(random.between(0.05f, 3)) : 0;
                    const double top_p = random.below(2) ? double(random.between(0.01f, 0.99f)) : 1;
                    const double min_p =
                        random.below(2) ? temperature * std::log(double(random.between(0.01f, 1))) : -INFINITY;
                    rules.push_back({temperature, top_p, min_p, seed, random.below(2) * random.below(VOCAB + 9),
                                     random.between(0.7f, 1.5f), random.normal(), random.normal()});
                }
                for (size_t i = 0; i < COUNT; i++) {
                    choices[i].rule = &rules[i], choices[i].position = int64_t(seed) + int64_t(i);
                    if (random.below(2)) choices[i].edits = edits.data(), choices[i].edit_count = int64_t(edits.size());
                    if (random.below(3) == 0) choices[i].mask = random.below(3) ? mask.data() : one.data();
                    if (random.below(2)) choices[i].logits = kept.data() + i * VOCAB;
                }
                std::vector<float> logits(COUNT * ((VOCAB + LANES - 1) / LANES * LANES));
                const PassRequest pass = x.make_pass(tokens, positions, tables, logits.data());
                int32_t chosen[COUNT];
                x.sample(pass.batch, choices.data(), chosen);
                for (size_t i = 0; i < COUNT; i++) {
                    const float* row = all.data() + i * VOCAB;
                    const int32_t expected = plain_choice(k, {row, row + VOCAB}, choices[i]);
                    CHECK(chosen[i] == expected, "%s, %s: row %zu: %d, not %d", f.name, kind.name, i, chosen[i],
                          expected);
                    const std::vector<float> untouched(VOCAB, 7);
                    CHECK(same_bits(kept.data() + i * VOCAB, choices[i].logits ? row : untouched.data(), VOCAB),
                          "%s, %s: logits of row %zu", f.name, kind.name, i);
                }
            }
        }
    }
}

void check_group_maxima(const KernelTable& k) {
    Random random(5);
    for (const int64_t size : {1, 15, 16, 17, 127, 128, 129, 2048, 300}) {
        Buffer<float> x(static_cast<size_t>(size)), maxima(static_cast<size_t>((size + NOISE_GROUP - 1) / NOISE_GROUP));
        for (size_t i = 0; i < x.size(); i++) x[i] = random.normal() - 5;
        for (const float place : {-INFINITY, INFINITY, NAN, 3.0f}) {
            x[size_t(random.below(int(size)))] = place;
            k.group_maxima(x.data(), size, maxima.data());
            for (int64_t g = 0; g < int64_t(maxima.size()); g++) {
                float expected = -INFINITY;
                for (int64_t i = g * NOISE_GROUP; i < std::min(size, (g + 1) * NOISE_GROUP); i++)
                    expected = std::isnan(x[size_t(i)]) || x[size_t(i)] > expected ? x[size_t(i)] : expected;
                bool nan = false;
                for (int64_t i = g * NOISE_GROUP; i < std::min(size, (g + 1) * NOISE_GROUP); i++)
                    nan |= std::isnan(x[size_t(i)]);
                CHECK(nan ? std::isnan(maxima[size_t(g)]) : maxima[size_t(g)] == expected, "group %d of %d: %g, not %g",
                      int(g), int(size), double(maxima[size_t(g)]), double(expected));
            }
        }
    }
}

// Weights are e^x; their sums hold each once; and the search finds every token that may be the best.
void check_weights_and_noise(const KernelTable& k) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;
    Random random(6);
    for (const int64_t size : {1, 7, 8, 9, 16, 31, 100, 128}) {
        Buffer<float> x(static_cast<size_t>(size)), weights(static_cast<size_t>(size));
        for (size_t i = 0; i < x.size(); i++) x[i] = i % 5 ? -std::abs(random.normal()) * 9 : -1.5f;
        x[0] = -INFINITY;
        for (const float temperature : {0.25f, 1.0f, 7.0f}) {
            k.sampling_weights(x.data(), size, 0, temperature, weights.data());
            for (size_t i = 0; i < x.size(); i++) {
                const double expected = std::exp(double(x[i] / temperature));
                CHECK(std::abs(double(weights[i]) - expected) <= 3e-7 * expected + 1e-44, "%g, not %g",
                      double(weights[i]), expected);
            }
            for (int64_t place = 0; place < size; place++) {
                for (const int64_t before : {place, place - 200, place + 200}) {
                    const float limit = weights[size_t(place)];
                    double all = 0, likelier = 0;
                    for (int64_t i = 0; i < size; i++) {
                        const float w = weights[size_t(i)];
                        all += double(w), likelier += w > limit || (w == limit && i < before) ? double(w) : 0;
                    }
                    const WeightSums got = k.sum_weights(x.data(), size, 0, temperature, limit, before);
                    CHECK(std::abs(got.all - all) < 1e-13 * (1 + all), "%.17g, not %.17g", got.all, all);
                    CHECK(std::abs(got.likelier - likelier) < 1e-13 * (1 + all), "%.17g, not %.17g", got.likelier,
                          likelier);
                }
            }
            const SamplingRule rule{double(temperature), 1, -INFINITY, uint64_t(size), 0, 1, 0, 0};
            RowChoice choice{};
            choice.rule = &rule;
            const auto mix = [](uint64_t z) {
                z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
                z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
                return z ^ (z >> 31);
            };
            const uint64_t key = mix(mix(rule.seed + GAMMA) + GAMMA);
            for (const float bound : {-30.0f, -2.0f, 0.0f, 3.0f}) {
                int32_t found[NOISE_GROUP];
                const NoiseSearch search{0, temperature, -20, bound};
                const int32_t count = k.find_noise(search, x.data(), size, key, found);
                const std::vector<int32_t> set(found, found + count);
                CHECK(std::is_sorted(set.begin(), set.end()), "%d tokens", count);
                for (int32_t i = 0; i < size; i++) {
                    const double score = double(x[size_t(i)]) / double(temperature) + plain_noise(choice, i);
                    const bool has = std::binary_search(set.begin(), set.end(), i);
                    CHECK(has || x[size_t(i)] < -20 || score < double(bound) + 1e-3, "token %d of %d", i, int(size));
                    CHECK(!has || x[size_t(i)] >= -20, "token %d of %d", i, int(size));
                }
            }
        }
    }
}

}  // namespace

void test_sampling(const KernelTable& k) {
    check_group_maxima(k);
    check_weights_and_noise(k);
    for (const Format& f : FORMATS) {
        if (f.precision != FP32) continue;
        for (const Kind& kind : KINDS) {
            if (&kind < KINDS + 4) check_sampling(k, f, kind);
        }
    }
}

// Which tokens top-p keeps is the same on every level.
void test_sampling_agrees(const std::vector<const KernelTable*>& levels) {
    Random random(8);
    const std::vector<float> x = normal_row(random, 1003);
    std::vector<float> expected(x.size()), got(x.size());
    for (const KernelTable* k : levels) {
        levels[0]->sampling_weights(x.data(), int64_t(x.size()), 5, 0.3f, expected.data());
        k->sampling_weights(x.data(), int64_t(x.size()), 5, 0.3f, got.data());
        CHECK(same_bits(got.data(), expected.data(), x.size()), "weights on %s", k->name);
        const WeightSums a = levels[0]->sum_weights(x.data(), int64_t(x.size()), 5, 0.3f, expected[9], 9);
        const WeightSums b = k->sum_weights(x.data(), int64_t(x.size()), 5, 0.3f, expected[9], 9);
        CHECK(a.all == b.all && a.likelier == b.likelier, "sums on %s", k->name);
    }
}

}  // namespace check
