// Attention by blocks of 256 positions against one softmax in double over all positions that a query sees.
#include <algorithm>

#include "attention_head.h"
#include "mixers/kernels.h"

namespace check {
namespace {

// An element of a query as it is multiplied: in 127 steps of the largest of its 32, where keys are integers.
double multiplied(const Head& head, const std::vector<float>& query, size_t d) {
    if (!head.integers()) return double(rounded(head.precision, query[d]));
    float largest = 0;
    for (size_t i = d / 32 * 32; i < std::min(query.size(), d / 32 * 32 + 32); i++)
        largest = std::max(largest, std::abs(query[i]));
    return double(std::rint(query[d] * (127.0f / largest))) * double(largest / 127.0f);
}

// How far a weight is from what it is multiplied as: less than a 255th of the largest of those that share its scale, in
// units of the probability of each position. They are every fourth four of positions, of 128.
std::vector<double> weight_steps(const Head& head, const Query& query, const std::vector<double>& scores, double most) {
    const auto scale = [&](int32_t i) {
        return head.integers() ? double(head.block(i / BLOCK_POSITIONS).value_scales[i % BLOCK_POSITIONS]) : 1;
    };
    std::map<int32_t, double> largest;
    for (int32_t i = query.first; i < query.end; i++) {
        double& size = largest[i / 128 * 4 + i / 4 % 4];
        size = std::max(size, std::exp(scores[size_t(i - query.first)] - most) * scale(i));
    }
    std::vector<double> steps;
    for (int32_t i = query.first; i < query.end; i++)
        steps.push_back(largest[i / 128 * 4 + i / 4 % 4] / 255 * 1.001 / scale(i));
    return steps;
}

void check_values(const Head& head, const std::vector<Query>& queries) {
    const std::vector<float> got = attend_all(head, queries);
    for (size_t q = 0; q < queries.size(); q++) {
        const Query& query = queries[q];
        std::vector<double> scores, sums(size_t(head.head_dim)), sizes(sums);
        double most = -INFINITY, total = 0, largest = 0;
        for (int32_t i = query.first; i < query.end; i++) {
            double score = 0;
            for (int32_t d = 0; d < head.head_dim; d++) {
                score += multiplied(head, query.values, size_t(d)) * head.key(i, d);
            }
            score *= double(Tile::scale(head));
            if (head.cap > 0) score = double(head.cap) * std::tanh(score / double(head.cap));
            if (head.sloped) score += double(query.slope) * (i - query.end + 1);
            scores.push_back(score);
            most = std::max(most, scores.back()), largest = std::max(largest, std::abs(scores.back()));
        }
        for (int32_t i = query.first; i < query.end; i++) {
            const double p = std::exp(scores[size_t(i - query.first)] - most);
            total += p;
            for (int32_t d = 0; d < head.head_dim; d++) {
                sums[size_t(d)] += p * head.value(i, d), sizes[size_t(d)] += p * std::abs(head.value(i, d));
            }
        }
        const std::vector<double> steps = weight_steps(head, query, scores, most);
        // Rounding of scores moves probabilities; and bf16 rounds each of them by up to 2^-8.
        const double relative =
            2e-6 * (1 + largest) + (head.precision == FP32 || head.integers() ? 0 : std::ldexp(1.0, -8) + 1e-5);
        for (int32_t d = 0; d < head.head_dim; d++) {
            double rounding = 0;
            for (int32_t i = query.first; head.integers() && i < query.end; i++) {
                rounding += steps[size_t(i - query.first)] * std::abs(head.value(i, d));
            }
            const double value = got[q * size_t(head.head_dim) + size_t(d)], expected = sums[size_t(d)] / total;
            CHECK(std::abs(value - expected) <= (relative * sizes[size_t(d)] + rounding) / total,
                  "dim %d, positions %d to %d, value %d: %g != %g", head.head_dim, query.first, query.end, d, value,
                  expected);
        }
    }
}

// One block and several, ends anywhere in a block, sliding windows, grouped queries, heads of odd sizes.
void test_values(const KernelTable& k) {
    for (const Form& form : FORMS) {
        for (const int32_t dim : {10, 16, 64, 80, 128}) {
            for (const int32_t positions : {1, 16, 37, 256, 257, 700}) {
                const Head head(k, form, dim, positions, uint32_t(dim + positions));
                check_values(head, make_queries(head, 1, 1, 0, 1));
                check_values(head, make_queries(head, std::min(positions, 5), 3, 0, 2));
                check_values(head, make_queries(head, std::min(positions, 3), 2, 20, 3));
            }
        }
        const Head head(k, form, 64, 600, 11);
        check_values(head, make_queries(head, 16, 4, 0, 4));    // 64 queries, the largest tile
        check_values(head, make_queries(head, 7, 1, 300, 5));   // a window over two blocks and a piece of a third
        check_values(head, make_queries(head, 70, 1, 50, 6));   // rows of which some see nothing of a block
        check_values(head, make_queries(head, 2, 8, 0, 7, 8));  // sharp: nearly all of the weight on one position
    }
}

// Scores with a soft cap, with ALiBi's slopes, and with both.
void test_adjusted_scores(const KernelTable& k) {
    for (const Form& form : FORMS) {
        for (const auto& [cap, sloped] : {std::pair{1.5f, false}, {0.0f, true}, {3.0f, true}}) {
            Head head(k, form, 40, 600, 16);
            head.cap = cap, head.sloped = sloped;
            std::vector<Query> queries = make_queries(head, 5, 3, 0, 17, 4);
            for (size_t q = 0; q < queries.size(); q++) queries[q].slope = std::ldexp(1.0f, -int(q % 3) - 3);
            check_values(head, queries);
            check_values(head, {queries[4]});
        }
    }
}

// Blocks whose scores lie far apart: the smaller one vanishes, and nothing overflows.
void test_merge(const KernelTable& k) {
    Buffer<float> left(32), right(32);
    for (const float distance : {0.0f, 3.0f, -3.0f, 50.0f, -50.0f, 1e4f, -1e4f}) {
        for (size_t d = 0; d < 32; d++) left[d] = float(d) - 9, right[d] = 20 - float(d) * 2;
        AttentionPartial into{5.0f, 2.5f, left.data()};
        const AttentionPartial next{5.0f + distance, 7.0f, right.data()};
        const double most = std::max(0.0f, distance) * 0.25, mine = std::exp(-most),
                     other = std::exp(distance * 0.25 - most);
        k.merge(into, next, 0.25f, 20);
        CHECK(into.maximum == std::max(5.0f, 5.0f + distance), "maximum %g", double(into.maximum));
        CHECK(std::abs(into.sum - (2.5 * mine + 7 * other)) <= 1e-5, "sum %g at %g", double(into.sum),
              double(distance));
        for (size_t d = 0; d < 20; d++) {
            const double expected = (double(d) - 9) * mine + (20 - double(d) * 2) * other;
            CHECK(std::abs(left[d] - expected) <= 2e-5, "value %g != %g at %g", double(left[d]), expected,
                  double(distance));
        }
    }
}

// Scores of an indexer against a plain loop, and the same bits whatever the number of positions that are asked for. Of
// int8 keys queries are in int8, too, with one scale: their products are exact, and the bits those of the loop.
void test_index_scores(const KernelTable& k) {
    for (const Form& form : FORMS) {
        for (const auto& [dim, heads] : {std::pair{32, 1}, {64, 5}, {96, 32}, {128, 16}, {128, 64}}) {
            const Head keys(k, form, dim, 256, 21);
            const std::vector<Query> queries = make_queries(keys, 1, heads, 0, 22);
            const bool integers = keys.integers();
            const int64_t bytes = form.precision == FP32 ? 4
                                  : integers             ? 2
                                                         : k.bf16_row_bytes,
                          stride = keys.key_depth * bytes;
            Buffer<int32_t> offsets(static_cast<size_t>(heads));
            Buffer<uint8_t> query(size_t(heads * stride)), widened(size_t(widened_bytes(keys.key_depth)));
            Buffer<float> scores(size_t(heads * BLOCK_POSITIONS), NAN), weights(static_cast<size_t>(heads));
            std::vector<float> scales(static_cast<size_t>(heads));
            const auto weight = [](int64_t h) { return float(h % 3) - 0.75f; };
            for (int64_t h = 0; h < heads; h++) {
                const float* from = queries[size_t(h)].values.data();
                uint8_t* to = query.data() + h * stride;
                float& scale = weights[size_t(h)] = 1;
                if (integers) k.mixers->index.store_query(from, dim, keys.key_depth, to, &scale, &offsets[size_t(h)]);
                else k.convert(form.precision, from, dim, keys.key_depth, to);
                scales[size_t(h)] = scale, scale *= weight(h);
            }
            AttentionTile t{};
            t.precision = form.precision, t.queries = heads, t.key_depth = keys.key_depth;
            t.query = query.data(), t.scores = scores.data(), t.widened = widened.data();
            t.query_offsets = offsets.data();
            const KeyValueBlock block = keys.block(0);
            Buffer<float> all(BLOCK_POSITIONS), some(BLOCK_POSITIONS);
            k.mixers->index.score(t, block, &block, weights.data(), BLOCK_POSITIONS, all.data());
            for (int32_t i = 0; i < BLOCK_POSITIONS; i++) {
                double expected = 0, size = 0;
                float exact = 0;
                for (int32_t h = 0; h < heads; h++) {
                    const std::vector<float>& values = queries[size_t(h)].values;
                    Buffer<float> copy(values.size());
                    std::copy(values.begin(), values.end(), copy.data());
                    const Integers whole(copy);
                    double product = 0;
                    for (int32_t d = 0; d < dim; d++) {
                        const double value =
                            integers ? whole.value(size_t(d))
                                     : double(rounded(form.precision, queries[size_t(h)].values[size_t(d)]));
                        product += value * keys.key(i, d);
                    }
                    expected += double(weight(h)) * std::max(0.0, product), size += std::abs(product);
                    if (!integers) continue;
                    const double whole_product = product / double(scales[size_t(h)]) / double(block.key_scales[i]);
                    exact = std::fma(std::max(0.0f, float(std::rint(whole_product))), weights[size_t(h)], exact);
                }
                if (integers) CHECK(all[size_t(i)] == exact * block.key_scales[i], "position %d", i);
                CHECK(std::abs(double(all[size_t(i)]) - expected) <= 1e-6 * size + 1e-5, "position %d: %g != %g", i,
                      double(all[size_t(i)]), expected);
            }
            for (const int64_t count : {1, 16, 17, 48, 250}) {
                k.mixers->index.score(t, block, nullptr, weights.data(), count, some.data());
                CHECK(std::memcmp(some.data(), all.data(), size_t(count) * 4) == 0, "%lld positions", (long long)count);
            }
        }
    }
}

}  // namespace

// Rows of int8 whose values are all alike, zero, too small for their reciprocals, or half way between two
// integers.
void test_integers(const KernelTable& k) {
    Head head(k, {INT8, FP32}, 20, 256, 16);
    Buffer<float> key(20), value(20);
    const float sizes[] = {0.0f, 1.0f, -1.0f, 1e-30f, 3e38f, 1e-36f, 9e-37f, 1e-44f};
    for (size_t i = 0; i < std::size(sizes); i++) {
        for (size_t d = 0; d < 20; d++) key[d] = sizes[i], value[d] = sizes[i] * ((float(d) - 10) / 10);
        head.store(int32_t(i), key, value);
        const float largest = std::abs(sizes[i]);
        CHECK(head.key(int32_t(i), 3) ==
                  (largest >= 1e-36f ? std::copysign(127.0 * double(largest / 127.0f), double(sizes[i])) : 0),
              "%g", double(sizes[i]));
    }
    for (size_t d = 0; d < 20; d++) key[d] = d ? float(d) + 0.5f : 127.0f, value[d] = -key[d];
    head.store(100, key, value);
    for (int32_t d = 1; d < 20; d++) {
        CHECK(head.key(100, d) == (d + d % 2) && head.value(100, d) == -(d + d % 2), "%d: %g", d, head.key(100, d));
    }
}

void test_attention(const KernelTable& k) {
    test_integers(k);
    test_values(k);
    test_adjusted_scores(k);
    test_merge(k);
    test_index_scores(k);
    test_attention_bits(k);
}

}  // namespace check
