// Attention of some queries over one block of 256 positions, and the merge of blocks. A block's result depends on the
// query and the block alone, and blocks are merged in their order: so neither the rows beside a row nor the thread that
// happened to compute a block can change its bits. Source of the merge: Milakov and Gimelshein 2018, arXiv:1805.02867.
#pragma once
#include "linear_float.h"
#include "rows.h"

namespace ipex_assist {
namespace {

// Where an element of a packed block is stored: index of lane `column` at depth `k`, in elements.
inline int64_t packed_index(int step, int64_t depth, int64_t column, int64_t k) {
    return ((column / LANES) * (depth / step) + k / step) * (LANES * step) + column % LANES * step + k % step;
}

inline void store_packed(Precision precision, const float* x, int32_t head_dim, uint8_t* to, int64_t depth,
                         int32_t position, bool key) {
    for (int32_t d = 0; d < head_dim; d += LANES) {
        alignas(64) float values[LANES];
        const int count = head_dim - d < LANES ? head_dim - d : LANES;
        const __m512 v = _mm512_maskz_loadu_ps(lanes(count), x + d);
        if (precision == FP32) {
            _mm512_store_ps(values, v);
            for (int j = 0; j < count; j++) {
                const int64_t i = key ? packed_index(1, depth, position, d + j) : packed_index(1, depth, d + j, position);
                reinterpret_cast<float*>(to)[i] = values[j];
            }
        } else {
            _mm256_store_si256(reinterpret_cast<__m256i*>(values), to_bf16(v));
            for (int j = 0; j < count; j++) {
                const int64_t i = key ? packed_index(2, depth, position, d + j) : packed_index(2, depth, d + j, position);
                reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<uint16_t*>(values)[j];
            }
        }
    }
}

void store_key(Precision precision, const float* key, int32_t head_dim, int64_t key_depth, int32_t position,
               uint8_t* keys) {
    store_packed(precision, key, head_dim, keys, key_depth, position, true);
}

void store_value(Precision precision, const float* value, int32_t head_dim, int32_t position, uint8_t* values) {
    store_packed(precision, value, head_dim, values, KEYS, position, false);
}

// Scores to probabilities over positions first <= i < end of a block; zero elsewhere below `limit`.
inline void softmax(Precision precision, const float* scores, int32_t first, int32_t end, int64_t limit, float scale,
                    uint8_t* probabilities, int64_t row, Partial& partial) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    const auto visible = [&](int64_t i) { return __mmask16(lanes(end - i) & ~lanes(first - i)); };
    for (int64_t i = 0; i < limit; i += LANES) {
        most = _mm512_mask_max_ps(most, visible(i), most, _mm512_loadu_ps(scores + i));
    }
    partial.maximum = _mm512_reduce_max_ps(most);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < limit; i += LANES) {
        const __m512 shifted = _mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(partial.maximum));
        const __m512 p = _mm512_maskz_mov_ps(visible(i), exponential(_mm512_mul_ps(shifted, _mm512_set1_ps(scale))));
        sum = _mm512_add_ps(sum, p);
        store_row(precision, p, probabilities, row * KEYS + i);
    }
    partial.sum = _mm512_reduce_add_ps(sum);
}

// What query `q` of a tile gets from the positions it sees, where the product with all positions of the block holds NaN
// or infinity: those it does not see count for nothing, but zero times NaN is NaN. They are rows that a rolled-back draft
// or an earlier text left behind, or rows of this pass behind the query's own. The sums are those of the shared product.
template <class D>
void attend_seen(const AttentionTile& t, const KeyValueBlock& block, int32_t q, int64_t limit, float* output) {
    constexpr int64_t bytes = D::STEP == 1 ? 4 : 2;
    const auto* weights = reinterpret_cast<const typename D::Row*>(t.probabilities) + q * KEYS;
    for (int64_t d = 0; d < t.head_dim; d += LANES) {
        alignas(64) uint8_t seen[KEYS * LANES * bytes];
        std::memcpy(seen, block.values + d * KEYS * bytes, size_t(limit * LANES * bytes));
        for (int64_t i = 0; i < limit; i++) {
            if (i >= t.first[q] && i < t.end[q]) continue;
            for (int64_t j = 0; j < LANES; j++) std::memset(seen + packed_index(D::STEP, KEYS, j, i) * bytes, 0, bytes);
        }
        float_rows<D>(1, weights, KEYS, seen, limit / D::STEP, nullptr, 0, output + d, 0);
    }
}

inline bool finite(const float* x, int64_t size) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += LANES) largest = _mm512_max_epu32(largest, size_bits(_mm512_loadu_ps(x + i)));
    return finite(largest);
}

// `limit` follows the query of the tile that sees most. Of the positions that another query does not see, its maximum and
// its sum know nothing, and to its values they add zeros, in chains whose order is that of the positions: such a chain may
// end as -0 or +0, which the total, never -0, does not show. What zero times NaN gives is mended at the end.
template <class D>
void attend_block(const AttentionTile& t, const KeyValueBlock& block, Partial* partials) {
    using Row = typename D::Row;
    const int64_t bytes = D::STEP == 1 ? 4 : 2;
    int32_t end = 0;
    for (int32_t q = 0; q < t.queries; q++) end = t.first[q] < t.end[q] && t.end[q] > end ? t.end[q] : end;
    const int64_t limit = (end + LANES - 1) / LANES * LANES;
    const int64_t key_steps = t.key_depth / D::STEP, value_steps = limit / D::STEP;
    for (int32_t q = 0; q < t.queries; q += TILE_ROWS) {
        const int64_t part = t.queries - q < TILE_ROWS ? t.queries - q : TILE_ROWS;
        const Row* query = reinterpret_cast<const Row*>(t.query) + q * t.key_depth;
        for (int64_t i = 0; i < limit; i += LANES) {
            float_rows<D>(part, query, t.key_depth, block.keys + i * t.key_depth * bytes, key_steps, nullptr,
                          0, t.scores + q * KEYS + i, KEYS);
        }
        for (int32_t m = q; m < q + part; m++) {
            if (t.first[m] < t.end[m]) {
                softmax(t.precision, t.scores + m * KEYS, t.first[m], t.end[m], limit, t.scale, t.probabilities, m,
                        partials[m]);
            } else {
                partials[m].sum = 0;
                convert(t.precision, t.scores, 0, limit, t.probabilities + m * KEYS * sizeof(Row));
            }
        }
        const Row* weights = reinterpret_cast<const Row*>(t.probabilities) + q * KEYS;
        for (int64_t d = 0; d < t.head_dim; d += LANES) {
            // Partials of one tile lie at equal distances.
            const int64_t stride = part > 1 ? partials[q + 1].output - partials[q].output : 0;
            float_rows<D>(part, weights, KEYS, block.values + d * KEYS * bytes, value_steps, nullptr,
                          0, partials[q].output + d, stride);
        }
        for (int32_t m = q; m < q + part; m++) {
            const bool hidden = t.first[m] < t.end[m] && (t.first[m] > 0 || t.end[m] < limit);
            if (hidden && !finite(partials[m].output, t.head_dim)) attend_seen<D>(t, block, m, limit, partials[m].output);
        }
    }
}

void attend(const AttentionTile& tile, const KeyValueBlock& block, Partial* partials) {
    tile.precision == FP32 ? attend_block<Fp32>(tile, block, partials) : attend_block<Bf16>(tile, block, partials);
}

void merge(Partial& into, const Partial& next, float scale, int32_t head_dim) {
    const float most = into.maximum > next.maximum ? into.maximum : next.maximum;
    float factors[LANES] = {(into.maximum - most) * scale, (next.maximum - most) * scale};
    _mm512_storeu_ps(factors, exponential(_mm512_loadu_ps(factors)));
    into.maximum = most;
    into.sum = into.sum * factors[0] + next.sum * factors[1];
    for (int32_t d = 0; d < head_dim; d += LANES) {
        const __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(into.output + d), _mm512_set1_ps(factors[0]));
        const __m512 added = _mm512_fmadd_ps(_mm512_loadu_ps(next.output + d), _mm512_set1_ps(factors[1]), kept);
        _mm512_storeu_ps(into.output + d, added);
    }
}

}  // namespace
}  // namespace ipex_assist
