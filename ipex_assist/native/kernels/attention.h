// Attention of some queries to one block of 256 positions, and the merge of partials. A partial depends on its query
// and block alone, and the order of merges on positions alone: so neither other rows nor the thread that computes a
// block can change bits. The merge is online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).
#pragma once
#include "kernels/attention_int8.h"
#include "kernels/attention_softmax.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_store.h"
#include "kernels/float_linear.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/attention_bf16_amx.h"
#include "kernels/attention_int8_amx.h"
#endif

namespace ipex_assist {
namespace {

// 16 columns of int8 keys (stored + 128) or values, as fp32.
inline void widen_int8(const uint8_t* from, int64_t depth, bool keys, uint8_t* to) {
    const __m512i flip = _mm512_set1_epi32(keys ? int32_t(0x80808080) : 0);
    for (int64_t k = 0; k < depth; k += 4, from += 64, to += 4 * 64) {
        _mm_prefetch(reinterpret_cast<const char*>(from + WIDENED_AHEAD), _MM_HINT_T0);
        const __m512i line = _mm512_xor_si512(_mm512_loadu_si512(from), flip);
        for (int i = 0; i < 4; i++) {
            const __m512i value = _mm512_srai_epi32(_mm512_slli_epi32(line, 24 - 8 * i), 24);
            _mm512_storeu_ps(reinterpret_cast<float*>(to + i * 64), _mm512_cvtepi32_ps(value));
        }
    }
}

// 16 columns of a packed panel from `column` on, the first `used` rows of them, as D multiplies them: in place, or
// widened into `buffer`.
template <class D>
inline const uint8_t* columns_of(const uint8_t* packed, bool widened, bool keys, int64_t column, int64_t depth,
                                 int64_t used, uint8_t* buffer) {
    if (!widened) return packed + column * depth * (D::STEP == 1 ? 4 : 2);
    widen_int8(packed + column * depth, used, keys, buffer);
    return buffer;
}

inline bool finite(const float* x, int64_t size) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += LANES) largest = _mm512_max_epu32(largest, size_bits(_mm512_loadu_ps(x + i)));
    return finite(largest);
}

// The next block's bytes from this one's, 0 where there is none: of keys and of values alike, as blocks of a layer are.
inline int64_t distance_to(const KeyValueBlock* next, const KeyValueBlock& block) {
    return next ? int64_t(reinterpret_cast<uintptr_t>(next->keys) - reinterpret_cast<uintptr_t>(block.keys)) : 0;
}

// M queries times 16 columns, in the order of sums of float_linear.h. `steps` is a multiple of 4.
template <class D, int M>
HOT_LOOP void attention_tile(const typename D::Row* from, int64_t row_stride, const uint8_t* columns, int64_t steps,
                             Ahead ahead, float* out, int64_t stride) {
    RowPointers<typename D::Row, M> rows(from, row_stride);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (int64_t s = 0; s < steps; s += CHUNK_STEPS<D>) {
        __m512 chains[2][M];  // of even steps, and of odd ones
        FOR_EACH(m, M, chains[0][m] = chains[1][m] = _mm512_setzero_ps());
        const int64_t part = s + CHUNK_STEPS<D> < steps ? CHUNK_STEPS<D> : steps - s;
        for (const uint8_t* end = columns + part * 64; columns < end; columns += 4 * 64, rows.move(4 * D::STEP)) {
            ahead.go_on();
            FOR_EACH(i, 4, {
                const __m512i line = _mm512_loadu_si512(columns + i * 64);
                FOR_EACH(m, M, chains[i % 2][m] = D::dot(chains[i % 2][m], line, rows.at[m] + i * D::STEP));
            });
        }
        FOR_EACH(m, M, total[m] = _mm512_add_ps(total[m], _mm512_add_ps(chains[0][m], chains[1][m])));
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

// All queries, each with its row (rows, row_stride), times 16 columns. `packed`: the columns in their panel, if they
// are there as D multiplies them. outputs(q): where the results of a query are; stride: from one query to the next.
template <class D, class Outputs>
void attention_rows(const AttentionTile& t, const typename D::Row* rows, int64_t row_stride, const uint8_t* columns,
                    const uint8_t* packed, int64_t steps, int64_t distance, const Outputs& outputs, int64_t stride) {
    const int64_t parts = (t.queries + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t q = 0; q < t.queries; q += TILE_ROWS) {
        const Ahead ahead = Ahead::of(columns, columns == packed ? distance : 0, steps / 4, 4, q / TILE_ROWS, parts);
#define CALL(M) attention_tile<D, M>(rows + q * row_stride, row_stride, columns, steps, ahead, outputs(q), stride)
        IPEX_ASSIST_BY_ROWS(t.queries - q, CALL)
#undef CALL
    }
}

// Whether panels of 16 columns are multiplied two at a time. Up to 8 queries, mostly those of one row, are as fast as
// memory is read, and two streams are read more slowly than one.
inline bool in_pairs(const AttentionTile& t) { return IN_PAIRS && t.queries > TILE_ROWS; }

// The same for two panels of 16 columns, the second `bytes` after the first, both as D multiplies them.
template <class D, class Outputs>
void attention_pairs(const AttentionTile& t, const typename D::Row* rows, int64_t row_stride, const uint8_t* columns,
                     int64_t bytes, int64_t steps, int64_t distance, const Outputs& outputs, int64_t stride) {
    const int64_t tile = even_tile(t.queries, PAIR_ROWS), parts = (t.queries + tile - 1) / tile;
    for (int64_t q = 0; q < t.queries; q += tile) {
        const int64_t count = t.queries - q < tile ? t.queries - q : tile;
        for (int64_t s = 0; s < steps; s += CHUNK_STEPS<D>) {
            const int64_t part = s + CHUNK_STEPS<D> < steps ? CHUNK_STEPS<D> : steps - s;
            const uint8_t* lines = columns + s * 64;
            const Ahead ahead = Ahead::of(lines, distance, part / 4, 4, q / tile, parts);
            float* out = outputs(q);
#define CALL(M)                                                                                                     \
    float_pair_tile<D, M <= PAIR_ROWS ? M : 1>(rows + q * row_stride + s * D::STEP, row_stride, lines, bytes, part, \
                                               ahead, s > 0 ? out : nullptr, stride, out, stride)
            IPEX_ASSIST_BY_ROWS(count, CALL)
#undef CALL
        }
    }
}

// Scores of all queries against the positions from `i` on, 16 or 32 of them: returns how many. Those of a query are
// `stride` after those of the one before it.
template <class D>
int64_t score_columns(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t i, int64_t limit,
                      float* scores, int64_t stride) {
    const auto* rows = reinterpret_cast<const typename D::Row*>(t.query);
    const auto outputs = [&](int64_t q) { return scores + q * stride; };
    const uint8_t* keys = columns_of<D>(block.keys, block.key_scales, true, i, t.key_depth, t.key_depth, t.widened);
    const int64_t steps = t.key_depth / D::STEP;
    if (in_pairs(t) && !block.key_scales && i + LANES < limit) {
        attention_pairs<D>(t, rows, t.key_depth, keys, steps * 64, steps, distance, outputs, stride);
        return PAIR * LANES;
    }
    attention_rows<D>(t, rows, t.key_depth, keys, block.key_scales ? nullptr : keys, steps, distance, outputs, stride);
    for (int64_t q = 0; block.key_scales && q < t.queries; q++) {
        float* row = outputs(q);
        _mm512_storeu_ps(row, _mm512_mul_ps(_mm512_loadu_ps(row), _mm512_loadu_ps(block.key_scales + i)));
    }
    return LANES;
}

// Columns of values from `d` on, 16 or 32 of them, weighted with each query's probabilities of the first `limit`
// positions: returns how many.
template <class D>
int64_t weigh_columns(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t d, int64_t limit,
                      AttentionPartial* partials) {
    const auto* rows = reinterpret_cast<const typename D::Row*>(t.probabilities);
    const auto outputs = [&](int64_t q) { return partials[q].output + d; };
    const uint8_t* values =
        columns_of<D>(block.values, block.value_scales, false, d, BLOCK_POSITIONS, limit, t.widened);
    // Partials of one tile lie at equal distances.
    const int64_t stride = t.queries > 1 ? partials[1].output - partials[0].output : 0, steps = limit / D::STEP;
    if (in_pairs(t) && !block.value_scales && d + LANES < t.value_dim) {
        attention_pairs<D>(t, rows, BLOCK_POSITIONS, values, BLOCK_POSITIONS / D::STEP * 64, steps, distance, outputs,
                           stride);
        return PAIR * LANES;
    }
    attention_rows<D>(t, rows, BLOCK_POSITIONS, values, block.value_scales ? nullptr : values, steps, distance, outputs,
                      stride);
    return LANES;
}

// Positions that a tile's queries see, a multiple of 16.
inline int64_t limit_of(const AttentionTile& t) {
    int32_t end = 0;
    for (int32_t q = 0; q < t.queries; q++) end = t.first[q] < t.end[q] && t.end[q] > end ? t.end[q] : end;
    return (end + LANES - 1) / LANES * LANES;
}

// The products of attention over what D multiplies, on vectors.
template <class D>
struct OnColumns {
    static constexpr int64_t POSITIONS = LANES;  // that are weighted at once

    static void score(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t limit) {
        for (int64_t i = 0; i < limit;)
            i += score_columns<D>(t, block, distance, i, limit, t.scores + i, BLOCK_POSITIONS);
    }
    static void ask_next(const AttentionTile&, const KeyValueBlock&, int64_t, int32_t) {}  // as products are made
    static void weigh(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t used,
                      AttentionPartial* partials) {
        for (int64_t d = 0; d < t.value_dim;) d += weigh_columns<D>(t, block, distance, d, used, partials);
    }
    // Of one query, 16 columns whose other positions are zero.
    static void weigh_seen(const AttentionTile& t, int32_t q, const uint8_t* values, int64_t used, float* out) {
        const auto* weights = reinterpret_cast<const typename D::Row*>(t.probabilities) + q * BLOCK_POSITIONS;
        float_rows<D>(1, weights, BLOCK_POSITIONS, values, used / D::STEP, nullptr, 0, out, 0);
    }
};

// The output of query `q` where the product with all positions of the block has NaN or infinity. Positions that it does
// not see have weight zero, but zero times NaN is NaN: they may hold what a rolled-back draft or an earlier sequence
// has left, or later rows of this pass. Here their values are zero, and the order of the sums is the same.
template <class D, class Products>
void attend_seen(const AttentionTile& t, const KeyValueBlock& block, int32_t q, int64_t used, float* output) {
    constexpr int64_t bytes = D::STEP == 1 ? 4 : 2;
    for (int64_t d = 0; d < t.value_dim; d += LANES) {
        alignas(64) uint8_t seen[BLOCK_POSITIONS * LANES * bytes];
        std::memcpy(seen, block.values + d * BLOCK_POSITIONS * bytes, size_t(used * LANES * bytes));
        for (int64_t i = 0; i < used; i++) {
            if (i >= t.first[q] && i < t.end[q]) continue;
            for (int64_t j = 0; j < LANES; j++)
                std::memset(seen + packed_index(D::STEP, BLOCK_POSITIONS, j, i) * bytes, 0, bytes);
        }
        Products::weigh_seen(t, q, seen, used, output + d);
    }
}

// `limit` is that of the query that sees most. Positions that another query does not see are left out of its maximum
// and sum; to its output they add zeros, in chains in the order of the positions. Such a chain may end as -0 or +0,
// which makes no difference to the total, as that is never -0. NaN in values that a query does not see is handled at
// the end. (In int8 only scales can be NaN, and those the softmax leaves out: integers times zero are zero.)
template <class D, class Products>
void attend_block(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, AttentionPartial* partials) {
    constexpr int64_t EACH = Products::POSITIONS;
    const int64_t limit = limit_of(t), used = (limit + EACH - 1) / EACH * EACH;
    Products::score(t, block, distance, limit);
    if (t.cap > 0 || t.slopes) adjust_scores(t, limit);
    find_maxima(t, limit, partials);
    for (int32_t q = 0; q < t.queries; q++) {
        const bool sees = t.first[q] < t.end[q];
        if (sees) softmax<D::STEP == 1 ? FP32 : BF16>(t, q, limit, block.value_scales, partials[q]);
        else partials[q].sum = 0;
        auto* weights = reinterpret_cast<typename D::Row*>(t.probabilities) + q * BLOCK_POSITIONS;
        const int64_t first = sees ? limit : 0;
        std::memset(weights + first, 0, size_t(used - first) * sizeof(typename D::Row));
        Products::ask_next(t, block, distance, q);
    }
    Products::weigh(t, block, distance, used, partials);
    for (int32_t q = 0; !block.value_scales && q < t.queries; q++) {
        const bool hidden = t.first[q] < t.end[q] && (t.first[q] > 0 || t.end[q] < used);
        if (hidden && !finite(partials[q].output, t.value_dim))
            attend_seen<D, Products>(t, block, q, used, partials[q].output);
    }
}

// The products of attention over int8 in integers, on vectors. TWO: with two panels of 16 columns at once.
struct OnVectors {
    static void score(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t limit) {
        for (int64_t i = 0; i < limit;) {
            const bool two = DIGITS_IN_PAIRS && in_pairs(t) && i + LANES < limit;
            two ? score_keys<DIGITS_IN_PAIRS>(t, block, distance, i) : score_keys<false>(t, block, distance, i);
            i += two ? PAIR * LANES : LANES;
        }
    }
    static void weigh(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t used,
                      const AttentionPartial* partials) {
        for (int64_t d = 0; d < t.value_dim;) {
            const bool two = DIGITS_IN_PAIRS && in_pairs(t) && used % HALF == 0 && d + LANES < t.value_dim;
            two ? weigh_values<DIGITS_IN_PAIRS>(t, block, distance, d, used, partials)
                : weigh_values<false>(t, block, distance, d, used, partials);
            d += two ? PAIR * LANES : LANES;
        }
    }

private:
    template <bool TWO>
    static void score_keys(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t i) {
        const uint8_t* keys = block.keys + i * t.key_depth;
        const int64_t tile = TWO ? even_tile(t.queries, PAIR_ROWS) : TILE_ROWS, parts = (t.queries + tile - 1) / tile;
        for (int64_t q = 0; q < t.queries; q += tile) {
            const Ahead ahead = Ahead::of(keys, distance, t.key_depth / ATTENTION_GROUP, 8, q / tile, parts);
            const float* scales = block.key_scales + i;
            float* scores = t.scores + q * BLOCK_POSITIONS + i;
#define CALL(M)                                                                                  \
    if constexpr (TWO) key_pair_tile<M <= PAIR_ROWS ? M : 1>(t, q, keys, ahead, scales, scores); \
    else key_tile<M>(t, q, keys, ahead, scales, scores)
            IPEX_ASSIST_BY_ROWS(t.queries - q < tile ? t.queries - q : tile, CALL)
#undef CALL
        }
    }
    template <bool TWO>
    static void weigh_values(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t d,
                             int64_t used, const AttentionPartial* partials) {
        const uint8_t* values = block.values + d * BLOCK_POSITIONS;
        const int64_t tile = TWO ? even_tile(t.queries, PAIR_ROWS) : TILE_ROWS, parts = (t.queries + tile - 1) / tile;
        const int64_t stride = t.queries > 1 ? partials[1].output - partials[0].output : 0;
        for (int64_t q = 0; q < t.queries; q += tile) {
            const Ahead ahead = Ahead::of(values, distance, BLOCK_POSITIONS / ATTENTION_GROUP, 8, q / tile, parts);
            float* out = partials[q].output + d;
#define CALL(M)                                                                                         \
    if constexpr (TWO) value_pair_tile<M <= PAIR_ROWS ? M : 1>(t, q, values, used, ahead, out, stride); \
    else value_tile<M>(t, q, values, used, ahead, out, stride)
            IPEX_ASSIST_BY_ROWS(t.queries - q < tile ? t.queries - q : tile, CALL)
#undef CALL
        }
    }
};

// The same over an int8 block in integer arithmetic. Positions that a query does not see have weight zero, and integers
// times zero are zero; NaN in a key or value is in its scale.
template <class Products>
void attend_integers(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, AttentionPartial* partials) {
    const int64_t limit = limit_of(t), used = (limit + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    for (int64_t i = 0; i < BLOCK_POSITIONS; i += LANES) {
        _mm_prefetch(reinterpret_cast<const char*>(block.key_scales + i) + distance, _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(block.value_scales + i) + distance, _MM_HINT_T1);
    }
    Products::score(t, block, distance, limit);
    if (t.cap > 0 || t.slopes) adjust_scores(t, limit);
    find_maxima(t, limit, partials);
    for (int32_t q = 0; q < t.queries; q++) {
        if (t.first[q] < t.end[q]) {
            softmax_digits(t, q, limit, block.value_scales, partials[q]);
        } else {
            partials[q].sum = 0;
            std::memset(t.probabilities + q * BLOCK_POSITIONS * 2, 0, size_t(BLOCK_POSITIONS * 2));
            std::fill_n(t.weight_scales + q * (BLOCK_POSITIONS / ATTENTION_GROUP), BLOCK_POSITIONS / ATTENTION_GROUP,
                        0.0f);
        }
    }
    Products::weigh(t, block, distance, used, partials);
}

void attend(const AttentionTile& tile, const KeyValueBlock& block, const KeyValueBlock* next,
            AttentionPartial* partials) {
    const int64_t distance = distance_to(next, block);
    if (tile.precision == FP32) return attend_block<Fp32, OnColumns<Fp32>>(tile, block, distance, partials);
#ifdef IPEX_ASSIST_HAS_AMX
    if (!block.key_scales) return attend_block<Bf16, Bf16OnTiles>(tile, block, distance, partials);
    if (tile.queries >= TILED_QUERIES) return attend_integers<OnTiles>(tile, block, distance, partials);
#endif
    if (!block.key_scales) return attend_block<Bf16, OnColumns<Bf16>>(tile, block, distance, partials);
    attend_integers<OnVectors>(tile, block, distance, partials);
}

void merge(AttentionPartial& into, const AttentionPartial& next, float scale, int32_t head_dim) {
    const float most = into.maximum > next.maximum ? into.maximum : next.maximum;
    // Both exponentials in one vector, half of the lanes each, and from there without memory to all lanes.
    const __m512 into_shift = _mm512_set1_ps((into.maximum - most) * scale);
    const __m512 next_shift = _mm512_set1_ps((next.maximum - most) * scale);
    const __m512i both = _mm512_castps_si512(exponential(_mm512_mask_mov_ps(into_shift, 0xff00, next_shift)));
    const __m512 into_factor = _mm512_castsi512_ps(_mm512_shuffle_i32x4(both, both, 0x00));
    const __m512 next_factor = _mm512_castsi512_ps(_mm512_shuffle_i32x4(both, both, 0xff));
    into.maximum = most;
    into.sum = into.sum * _mm512_cvtss_f32(into_factor) + next.sum * _mm512_cvtss_f32(next_factor);
    float* output = into.output;
    const float* added = next.output;
    for (int32_t d = 0; d < head_dim; d += LANES) {
        const __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(output + d), into_factor);
        _mm512_storeu_ps(output + d, _mm512_fmadd_ps(_mm512_loadu_ps(added + d), next_factor, kept));
    }
}

}  // namespace
}  // namespace ipex_assist
