// The bits of attention depend on a query and the positions that it sees, on nothing else: not on other queries of its
// tile, on what other positions hold, or on the instruction set.
#include <algorithm>

#include "attention_head.h"

namespace check {
namespace {

bool same(const AttentionPartial& a, const AttentionPartial& b, int32_t size) {
    return same_bits(&a.maximum, &b.maximum, 1) && same_bits(&a.sum, &b.sum, 1) &&
           same_bits(a.output, b.output, size_t(size));
}

// A query's part of a block has the same bits alone and among up to 64 others that see more or less of the block.
// Of int8 in integers: of few queries on vectors, of more on tiles, where there are any.
void test_queries_alone(const KernelTable& k) {
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
void test_small_weights(const KernelTable& k) {
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
void test_zeros(const KernelTable& k) {
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
void test_stale_rows(const KernelTable& k) {
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
void test_rows_that_are_no_numbers(const KernelTable& k) {
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

// Keys of `dim` columns and values of `wide`, kept as rows, of some positions: each in memory that ends where it does.
struct KeptRows {
    KeptRows(const KernelTable& kernels, Precision precision, int32_t dim, int32_t wide, int32_t count)
        : k(kernels),
          stored(precision),
          scales(size_t(2 * BLOCK_POSITIONS)) {
        const int64_t bytes = row_type_bytes(row_type(stored));
        rows.count = count, rows.bytes = bytes, rows.value_width = round_up(wide, LANES);
        rows.key_width = round_up(dim, LANES), rows.key_depth = padded_depth(FP32, dim);
        for (int32_t i = 0; i < count; i++) {
            keys.push_back(std::make_unique<Buffer<uint8_t>>(size_t(rows.key_width * bytes)));
            values.push_back(std::make_unique<Buffer<uint8_t>>(size_t(rows.value_width * bytes)));
            rows.keys[i] = keys.back()->data(), rows.values[i] = values.back()->data();
        }
    }
    void put(int32_t i, const Buffer<float>& key, const Buffer<float>& value) {
        scales[size_t(i)] = store(key, true, keys[size_t(i)]->data());
        scales[size_t(BLOCK_POSITIONS + i)] = store(value, false, values[size_t(i)]->data());
    }
    float store(const Buffer<float>& row, bool key, uint8_t* to) const {
        if (stored == INT8) return k.store_row(row.data(), int32_t(row.size()), key, to);
        k.narrow(stored == FP32 ? SOURCE_F32 : SOURCE_BF16, row.data(), int64_t(row.size()), to);
        return 0;
    }
    const KernelTable& k;
    const Precision stored;
    PositionRows rows;
    Buffer<float> scales;
    std::vector<std::unique_ptr<Buffer<uint8_t>>> keys, values;
};

// A block that is packed of rows is the one into which the same keys and values are stored, up to whole panels.
void test_packed_positions(const KernelTable& k) {
    for (const Precision stored : {FP32, BF16, INT8}) {
        for (const auto& [dim, wide] : {std::pair{24, 24}, {64, 48}, {176, 128}}) {
            if (stored == INT8 && dim % LANES) continue;  // a lane behind the last column meets a query's zero
            for (const int32_t count : {1, 16, 31, 256}) {
                KeptRows kept(k, stored, dim, wide, count);
                const PositionRows& r = kept.rows;
                Buffer<uint8_t> keys(size_t(BLOCK_POSITIONS * r.key_depth * r.bytes)), key_bytes(keys.size(), 0xee);
                Buffer<uint8_t> values(size_t(BLOCK_POSITIONS * r.value_width * r.bytes)),
                    value_bytes(values.size(), 0xee);
                Buffer<float> scales(size_t(2 * BLOCK_POSITIONS));
                const KeyValueBlock block{keys.data(), values.data(), scales.data(), scales.data() + BLOCK_POSITIONS};
                Random random(uint32_t(count + dim));
                Buffer<float> key(static_cast<size_t>(dim)), value(static_cast<size_t>(wide));
                for (int32_t i = 0; i < count; i++) {
                    for (size_t d = 0; d < key.size(); d++) key[d] = random.normal();
                    for (size_t d = 0; d < value.size(); d++) value[d] = random.normal();
                    k.store_key(stored, key.data(), dim, r.key_depth, i, block);
                    k.store_value(stored, value.data(), wide, i, block);
                    kept.put(i, key, value);
                }
                k.pack_positions(r, {key_bytes.data(), value_bytes.data(), nullptr, nullptr});
                const int64_t panels = (count + LANES - 1) / LANES, key_panel = LANES * r.key_depth * r.bytes;
                CHECK(std::memcmp(keys.data(), key_bytes.data(), size_t(panels * key_panel)) == 0,
                      "keys of %d positions, %d columns, precision %d", count, dim, stored);
                for (int64_t d = 0; d < r.value_width; d += LANES) {
                    const int64_t at = d * BLOCK_POSITIONS * r.bytes, size = panels * LANES * LANES * r.bytes;
                    CHECK(std::memcmp(values.data() + at, value_bytes.data() + at, size_t(size)) == 0,
                          "values of %d positions, columns from %d on, precision %d", count, int(d), stored);
                }
                if (stored == INT8) CHECK(same_bits(scales.data(), kept.scales.data(), scales.size()), "scales");
            }
        }
    }
}

}  // namespace

// Every level gives the same bits where it multiplies in the same order, in one block and merged with the next.
void test_attention_agree(const std::vector<const KernelTable*>& levels) {
    for (const Form& form : FORMS) {
        for (const KernelTable* k : levels) {
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

void test_attention_bits(const KernelTable& k) {
    test_queries_alone(k);
    test_small_weights(k);
    test_zeros(k);
    test_stale_rows(k);
    test_rows_that_are_no_numbers(k);
    test_packed_positions(k);
}

}  // namespace check
