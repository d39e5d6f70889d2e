// Attention by blocks of 256 positions against one softmax in double over all positions that a query sees.
#include <algorithm>
#include <map>
#include <memory>

#include "check.h"

namespace check {
namespace {

// How keys and values lie in a block, and what attention computes in.
struct Form {
    Precision stored, precision;
};
const Form FORMS[] = {{FP32, FP32}, {BF16, BF16}, {INT8, FP32}, {INT8, BF16}};

// A row as int8 and its scale, by a plain loop.
struct Integers {
    explicit Integers(const Buffer<float>& row) {
        for (size_t d = 0; d < row.size(); d++) largest = std::max(largest, std::abs(row[d]));
        for (size_t d = 0; d < row.size(); d++)
            values.push_back(largest >= 1e-36f ? std::rint(row[d] * (127.0f / largest)) : 0);
    }
    double value(size_t d) const { return double(values[d]) * double(largest / 127.0f); }
    float largest = 0;
    std::vector<float> values;
};

// Keys and values of one KV head in `count` positions, stored through the kernels.
struct Head {
    Head(const Kernels& kernels, const Form& form, int32_t dim, int32_t count, uint32_t seed)
        : k(kernels),
          stored(form.stored),
          precision(form.precision),
          head_dim(dim),
          positions(count),
          key_depth(padded_depth(FP32, dim)),
          value_width((dim + LANES - 1) / LANES * LANES) {
        Random random(seed);
        for (int32_t b = 0; b * BLOCK_POSITIONS < positions; b++) {
            keys.push_back(std::make_unique<Buffer<uint8_t>>(size_t(BLOCK_POSITIONS * key_depth * bytes())));
            values.push_back(std::make_unique<Buffer<uint8_t>>(size_t(BLOCK_POSITIONS * value_width * bytes())));
            scales.push_back(std::make_unique<Buffer<float>>(size_t(2 * BLOCK_POSITIONS)));
        }
        Buffer<float> key(static_cast<size_t>(dim)), value(key.size());
        // Not in order, as a cache is written after a rollback.
        for (int32_t i = 0; i < positions; i++) {
            for (size_t d = 0; d < key.size(); d++) key[d] = random.normal(), value[d] = random.normal();
            store(positions - 1 - i, key, value);
        }
    }

    void put(int32_t position, const Buffer<float>& key, const Buffer<float>& value) {
        const KeyValueBlock at = block(position / BLOCK_POSITIONS);
        k.store_key(stored, key.data(), head_dim, key_depth, position % BLOCK_POSITIONS, at);
        k.store_value(stored, value.data(), head_dim, position % BLOCK_POSITIONS, at);
    }

    void store(int32_t position, const Buffer<float>& key, const Buffer<float>& value) {
        put(position, key, value);
        const Integers key_integers(key), value_integers(value);
        for (int32_t d = 0; d < head_dim; d++) {
            const size_t i = size_t(d);
            const double right = stored == INT8 ? key_integers.value(i) : double(rounded(stored, key[i]));
            const double right_value = stored == INT8 ? value_integers.value(i) : double(rounded(stored, value[i]));
            CHECK(this->key(position, d) == right, "key %d of %d: %g != %g", d, position, this->key(position, d),
                  right);
            CHECK(this->value(position, d) == right_value, "value %d of %d", d, position);
        }
    }

    bool integers() const { return stored == INT8 && precision == BF16; }  // multiplied as they are
    int bytes() const { return stored == FP32 ? 4 : stored == BF16 ? 2 : 1; }
    KeyValueBlock block(int32_t b) const {
        float* at = stored == INT8 ? scales[size_t(b)]->data() : nullptr;
        return {keys[size_t(b)]->data(), values[size_t(b)]->data(), at, at ? at + BLOCK_POSITIONS : nullptr};
    }

    // Like weights whose output columns are positions …
    double key(int32_t position, int32_t d) const {
        const KeyValueBlock at = block(position / BLOCK_POSITIONS);
        return packed(at.keys, key_depth, position % BLOCK_POSITIONS, d, true) *
               (at.key_scales ? double(at.key_scales[position % BLOCK_POSITIONS]) : 1);
    }
    // … and whose input columns are.
    double value(int32_t position, int32_t d) const {
        const KeyValueBlock at = block(position / BLOCK_POSITIONS);
        return packed(at.values, BLOCK_POSITIONS, d, position % BLOCK_POSITIONS, false) *
               (at.value_scales ? double(at.value_scales[position % BLOCK_POSITIONS]) : 1);
    }
    double packed(const uint8_t* data, int64_t depth, int64_t column, int64_t k, bool key) const {
        const uint8_t* start = data + column / LANES * LANES * depth * bytes();
        if (stored == FP32) return bits_as<float>(start + (k * LANES + column % LANES) * 4);
        if (stored == INT8) {
            const uint8_t byte = start[k / 4 * 64 + column % LANES * 4 + k % 4];
            return key ? int(byte) - 128 : int(int8_t(byte));
        }
        return from_bf16(bits_as<uint16_t>(start + k / 2 * 64 + column % LANES * 4 + k % 2 * 2));
    }

    const Kernels& k;
    Precision stored, precision;
    float cap = 0;  // soft, of scores
    bool sloped = false;
    int32_t head_dim, positions;
    int64_t key_depth, value_width;
    std::vector<std::unique_ptr<Buffer<uint8_t>>> keys, values;
    std::vector<std::unique_ptr<Buffer<float>>> scales;
};

struct Query {
    std::vector<float> values;
    int32_t first, end;  // positions that it sees
    float slope = 0;     // ALiBi's
};

// Partials of some queries over one block, and the room they need.
struct Tile {
    Tile(const Head& head, const std::vector<Query>& queries, int32_t b)
        : stride(size_t(head.value_width) + LANES),
          outputs(queries.size() * stride, NAN),
          partials(queries.size()) {
        const Kernels& k = head.k;
        const int32_t row_bytes = head.precision == FP32 ? 4 : head.integers() ? 2 : k.bf16_row_bytes;
        const size_t shared = size_t(head.key_depth) / ATTENTION_GROUP;
        Buffer<uint8_t> query(queries.size() * size_t(head.key_depth) * size_t(row_bytes));
        Buffer<uint8_t> probabilities(queries.size() * BLOCK_POSITIONS * size_t(row_bytes), 0xff);
        Buffer<float> scores(queries.size() * BLOCK_POSITIONS, NAN);
        Buffer<uint8_t> widened(size_t(widened_bytes(head.key_depth)), 0xff);
        Buffer<int32_t> first(queries.size()), end(queries.size()), query_offsets(queries.size() * shared);
        Buffer<float> query_scales(queries.size() * shared),
            weight_scales(queries.size() * BLOCK_POSITIONS / ATTENTION_GROUP);
        Buffer<float> slopes(queries.size()), distances(queries.size());
        for (size_t q = 0; q < queries.size(); q++) {
            uint8_t* to = query.data() + q * size_t(head.key_depth) * size_t(row_bytes);
            const float* from = queries[q].values.data();
            if (head.integers())
                k.store_query(from, head.head_dim, head.key_depth, to, &query_scales[q * shared],
                              &query_offsets[q * shared]);
            else k.convert(head.precision, from, head.head_dim, head.key_depth, to);
            first[q] = std::clamp(queries[q].first - b * BLOCK_POSITIONS, 0, BLOCK_POSITIONS);
            end[q] = std::clamp(queries[q].end - b * BLOCK_POSITIONS, 0, BLOCK_POSITIONS);
            partials[q] = {NAN, NAN, outputs.data() + q * stride};
            slopes[q] = queries[q].slope / scale(head), distances[q] = float(b * BLOCK_POSITIONS - queries[q].end + 1);
        }
        AttentionTile tile{};
        tile.precision = head.precision;
        tile.queries = int32_t(queries.size());
        tile.head_dim = head.head_dim;
        tile.key_depth = head.key_depth;
        tile.scale = scale(head);
        tile.query = query.data();
        tile.first = first.data();
        tile.end = end.data();
        tile.scores = scores.data();
        tile.probabilities = probabilities.data();
        tile.query_scales = query_scales.data();
        tile.query_offsets = query_offsets.data();
        tile.weight_scales = weight_scales.data();
        tile.widened = widened.data();
        tile.cap = head.cap;
        if (head.sloped) tile.slopes = slopes.data(), tile.distances = distances.data();
        k.attend(tile, head.block(b), partials.data());
    }

    static float scale(const Head& head) { return 1 / std::sqrt(float(head.head_dim)); }

    size_t stride;
    Buffer<float> outputs;
    std::vector<AttentionPartial> partials;
};

// Every block by `Tile`, merged in order: (queries, head_dim).
std::vector<float> attend_all(const Head& head, const std::vector<Query>& queries) {
    std::vector<float> result;
    std::vector<std::unique_ptr<Tile>> tiles;
    for (int32_t b = 0; b * BLOCK_POSITIONS < head.positions; b++)
        tiles.push_back(std::make_unique<Tile>(head, queries, b));
    for (size_t q = 0; q < queries.size(); q++) {
        AttentionPartial* sum = nullptr;
        for (int32_t b = 0; b < int32_t(tiles.size()); b++) {
            AttentionPartial& next = tiles[size_t(b)]->partials[q];
            if (queries[q].first >= (b + 1) * BLOCK_POSITIONS || queries[q].end <= b * BLOCK_POSITIONS) {
                CHECK(next.sum == 0, "query %zu sees nothing of block %d, its sum is %g", q, b, double(next.sum));
            } else if (sum) {
                head.k.merge(*sum, next, Tile::scale(head), head.head_dim);
            } else {
                sum = &next;
            }
        }
        for (int32_t d = 0; d < head.head_dim; d++) result.push_back(sum->output[d] / sum->sum);
    }
    return result;
}

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

std::vector<Query> make_queries(const Head& head, int32_t rows, int32_t group, int32_t window, uint32_t seed,
                                float size = 1.0f) {
    Random random(seed);
    std::vector<Query> queries;
    for (int32_t r = 0; r < rows; r++) {
        const int32_t end = head.positions - rows + r + 1;
        for (int32_t h = 0; h < group; h++) {
            Query query{std::vector<float>(size_t(head.head_dim)), window ? std::max(0, end - window) : 0, end};
            for (float& value : query.values) value = random.normal() * size;
            queries.push_back(query);
        }
    }
    return queries;
}

// One block and several, ends anywhere in a block, sliding windows, grouped queries, heads of odd sizes.
void test_values(const Kernels& k) {
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
void test_adjusted_scores(const Kernels& k) {
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

bool same(const AttentionPartial& a, const AttentionPartial& b, int32_t size) {
    return same_bits(&a.maximum, &b.maximum, 1) && same_bits(&a.sum, &b.sum, 1) &&
           same_bits(a.output, b.output, size_t(size));
}

// A query's part of a block has the same bits alone and among up to 64 others that see more or less of the block.
// Of int8 in integers: of few queries on vectors, of more on tiles, where there are any.
void test_queries_alone(const Kernels& k) {
    for (const auto& [form, dim] :
         {std::pair{FORMS[0], 40}, {FORMS[1], 40}, {FORMS[2], 40}, {FORMS[3], 40}, {FORMS[3], 16}, {FORMS[3], 136}}) {
        for (const int32_t window : {0, 30}) {
            const Head head(k, form, dim, 300, 12);
            for (const int32_t rows : {2, 3, 8, 9, 16, 50}) {
                const std::vector<Query> queries = make_queries(head, rows, rows > 16 ? 1 : 4, window, uint32_t(rows));
                for (int32_t b = 0; b < 2; b++) {
                    const Tile together(head, queries, b);
                    for (size_t q = 0; q < queries.size(); q++) {
                        if (queries[q].first >= (b + 1) * BLOCK_POSITIONS || queries[q].end <= b * BLOCK_POSITIONS)
                            continue;
                        const Tile alone(head, {queries[q]}, b);
                        CHECK(same(together.partials[q], alone.partials[0], head.head_dim),
                              "query %zu of %zu, block %d", q, queries.size(), b);
                    }
                }
            }
        }
    }
}

// A position that all others are small beside, each by less than half of what its weight is rounded to: together they
// count.
void test_small_weights(const Kernels& k) {
    Head head(k, {INT8, BF16}, 32, 256, 19);
    const Buffer<float> large(32, 1.0f), small(32, 0.0f), zero(32, 0.0f), one(32, 1.0f);
    for (int32_t i = 0; i < 256; i++) head.put(i, i % 32 ? small : large, i % 32 ? one : zero);
    const float size = 6.5f * std::sqrt(32.0f) / 32;  // the scores of large keys
    const Query query{std::vector<float>(32, size), 0, 256};
    const double rest = 248 * std::exp(-6.5), expected = rest / (8 + rest);
    const float got = attend_all(head, {query})[0];
    CHECK(std::abs(got - expected) <= 0.1 * expected, "%g != %g", double(got), expected);
}

// Products so small that they round to -0 in all chains of a sum, which the zeros of positions that only a neighbour
// sees would turn into +0.
void test_zeros(const Kernels& k) {
    for (const Form& form : FORMS) {
        Head head(k, form, 24, 256, 15);
        const Buffer<float> large(24, 20.0f), small(24, 3.0f), zero(24, 0.0f), least(24, -1e-10f), one(24, 1.0f);
        for (int32_t i = 0; i < 256; i++) head.put(i, i ? small : large, i == 0 ? zero : i < 5 ? least : one);
        const Query query{std::vector<float>(24, 1.0f), 0, 5}, neighbour{std::vector<float>(24, 1.0f), 0, 200};
        const Tile alone(head, {query}, 0), beside(head, {query, neighbour}, 0);
        CHECK(alone.partials[0].output[0] == 0, "%g", double(alone.partials[0].output[0]));
        CHECK(same(alone.partials[0], beside.partials[0], 24), "%g beside a longer row",
              double(beside.partials[0].output[0]));
    }
}

// What a rolled-back draft left behind the end of a sequence, however large, does not show.
void test_stale_rows(const Kernels& k) {
    for (const Form& form : FORMS) {
        for (const int32_t end : {1, 15, 16, 100, 241}) {
            Head clean(k, form, 24, 256, 13);
            const std::vector<Query> queries = {{std::vector<float>(24, 0.5f), 0, end},
                                                {std::vector<float>(24, -0.5f), 0, end}};
            const Tile before(clean, queries, 0);
            Buffer<float> key(24, 1e18f), value(24, -3e38f);
            for (int32_t i = end; i < 256; i++) clean.store(i, key, value);
            const Tile after(clean, queries, 0);
            for (size_t q = 0; q < 2; q++) CHECK(same(before.partials[q], after.partials[q], 24), "behind %d", end);
        }
    }
}

// Nor do rows of NaN or infinity, which zero times anything does not take away: behind a sequence's end, in front of
// its window, and rows of the same pass that only queries behind this one see. Those that see such a row get it.
void test_rows_that_are_no_numbers(const Kernels& k) {
    for (const Form& form : FORMS) {
        for (const int32_t dim : {24, 64}) {
            const std::vector<float> x(size_t(dim), 0.5f), y(size_t(dim), -0.5f);
            for (const float bad : {NAN, INFINITY, -INFINITY}) {
                for (const auto& [first, end] :
                     {std::pair{0, 1}, {0, 16}, {0, 17}, {0, 100}, {37, 100}, {48, 241}, {3, 256}}) {
                    Head head(k, form, dim, 256, 14);
                    const std::vector<Query> queries = {{x, first, end}, {y, first, end}};
                    const Tile before(head, queries, 0);
                    const Buffer<float> row(size_t(dim), bad);
                    for (int32_t i = 0; i < 256; i++) {
                        if (i < first || i >= end) head.put(i, row, row);
                    }
                    const Tile after(head, queries, 0);
                    for (size_t q = 0; q < 2; q++) {
                        CHECK(same(before.partials[q], after.partials[q], dim), "%g around %d to %d", double(bad),
                              first, end);
                    }
                    if (end == 256) continue;
                    // Among queries that see one, two, … of the bad rows, and one more that sees nothing of this block.
                    std::vector<Query> many = queries;
                    for (int32_t i = 1; i < 12 && end + i <= 256; i++) many.push_back({i % 2 ? x : y, first, end + i});
                    many.push_back({x, 0, 0});
                    const Tile among(head, many, 0);
                    for (size_t q = 0; q + 1 < many.size(); q++) {
                        if (q < 2)
                            CHECK(same(before.partials[q], among.partials[q], dim), "%g among others", double(bad));
                        if (q >= 2)
                            CHECK(!std::isfinite(among.partials[q].output[0]), "%g is seen and gives %g", double(bad),
                                  double(among.partials[q].output[0]));
                    }
                    CHECK(among.partials.back().sum == 0, "nothing seen, and a sum of %g",
                          double(among.partials.back().sum));
                }
            }
        }
    }
}

// Blocks whose scores lie far apart: the smaller one vanishes, and nothing overflows.
void test_merge(const Kernels& k) {
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

}  // namespace

// Rows of int8 whose values are all alike, zero, too small for their reciprocals, or half way between two integers.
void test_integers(const Kernels& k) {
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

// Every level gives the same bits where it multiplies in the same order, in one block and merged with the next.
void test_attention_agree(const std::vector<const Kernels*>& levels) {
    for (const Form& form : FORMS) {
        for (const Kernels* k : levels) {
            if (!agree(*levels[0], *k, form.precision)) continue;
            const Head head(*k, form, 40, 300, 17), first(*levels[0], form, 40, 300, 17);
            for (const int32_t window : {0, 30}) {
                const std::vector<Query> queries = make_queries(head, 5, 3, window, 18);
                const std::vector<float> got = attend_all(head, queries), expected = attend_all(first, queries);
                CHECK(same_bits(got.data(), expected.data(), got.size()), "keys %d, window %d on %s", form.stored,
                      window, k->name);
            }
        }
    }
}

void test_attention(const Kernels& k) {
    test_integers(k);
    test_values(k);
    test_adjusted_scores(k);
    test_queries_alone(k);
    test_small_weights(k);
    test_zeros(k);
    test_stale_rows(k);
    test_rows_that_are_no_numbers(k);
    test_merge(k);
}

}  // namespace check
