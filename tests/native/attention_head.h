// Keys and values of one head, stored and attended to through the kernels: what the tests of attention share.
#pragma once
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
    Head(const KernelTable& kernels, const Form& form, int32_t dim, int32_t count, uint32_t seed)
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

    const KernelTable& k;
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
        const KernelTable& k = head.k;
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
        tile.value_dim = head.head_dim;
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
        const bool more = (b + 1) * BLOCK_POSITIONS < head.positions;
        const KeyValueBlock next = head.block(more ? b + 1 : b);
        k.attend(tile, head.block(b), more ? &next : nullptr, partials.data());
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

}  // namespace
}  // namespace check
