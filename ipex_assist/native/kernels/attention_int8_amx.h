// Attention to int8 keys and values on AMX, with the bits of attention_int8.h: a tile of 8 lines holds the 32 columns
// that share a scale; its sums go through memory to vectors, which convert and scale them as those of attention_int8.h.
//
// Instructions for a query, 32 columns and 16 keys or values: 11 on vectors (8 products; start, conversion and scaling
// of the sum), 4 here, and in both cases some 30 more for all queries together, 8 prefetches among them. A tile product
// has a latency of about 50 cycles, in which vectors serve 8 queries, but products of other groups and columns overlap
// with it: from about 4 queries on tiles are no slower. Fewer queries use vectors.
#pragma once
#include "kernels/attention_int8.h"
#include "kernels/bf16_amx.h"

namespace ipex_assist {
namespace {

constexpr int32_t TILED_QUERIES = 4;
constexpr int64_t SUMS = TILE * LANES;                    // of a group: 16 rows and 16 columns
constexpr int64_t GROUP_BYTES = ATTENTION_GROUP * LANES;  // of columns

// The operands: queries and keys, or weights and values. The products over each 32 of `depth` share a scale.
struct AmxDigits {
    int64_t depth;
    const uint8_t* rows;     // (queries, 2 · depth), of which the first half is used
    const float* scales;     // (queries, depth / 32)
    const int32_t* offsets;  // likewise, of queries
    const uint8_t* columns;  // packed panels of 16 columns, `depth` deep
    const float* key_scales;
    int64_t distance;  // from the columns to the next block's
    float* out;
    int64_t stride;  // of `out`
};

// Sums of the products of the rows that tiles_begin_shared was given with 16 columns: (groups, 16, 16). Of 128
// positions of values, those that share a scale are in every fourth line.
template <bool OF_KEYS>
HOT_LOOP void amx_sums(const uint8_t* rows, int64_t row_bytes, const uint8_t* columns, Ahead ahead, int64_t groups,
                       int32_t* sums) {
    for (int64_t g = 0; g < groups; g++) {
        TILE_ZERO(0);
        TILE_LOAD(1, rows + g * ATTENTION_GROUP, row_bytes);
        if (OF_KEYS) {
            TILE_LOAD(2, columns + g * GROUP_BYTES, 64);
            TILE_DOT_SIGNED_UNSIGNED(0, 1, 2);
        } else {
            TILE_LOAD(2, columns + g / 4 * 4 * GROUP_BYTES + g % 4 * 64, 4 * 64);
            TILE_DOT_UNSIGNED_SIGNED(0, 1, 2);
        }
        TILE_STORE(0, sums + g * SUMS, 64);
        ahead.go_on();
    }
}

// From the sums of M rows from `q` on: scores of 16 keys from `column` on, or 16 columns of the output.
template <int M, bool OF_KEYS>
HOT_LOOP void amx_totals(const AmxDigits& x, int64_t q, const int32_t* sums, int64_t groups, int64_t column) {
    const int64_t each = x.depth / ATTENTION_GROUP;
    const float* scales = x.scales + q * each;
    const int32_t* offsets = x.offsets + q * each;
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (int64_t g = 0; g < groups; g++, sums += SUMS, scales++, offsets++) {
        FOR_EACH(m, M, {
            __m512i sum = _mm512_loadu_si512(sums + m * LANES);
            if (OF_KEYS) sum = _mm512_add_epi32(sum, _mm512_set1_epi32(offsets[m * each]));
            total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scales[m * each]), total[m]);
        });
    }
    float* out = x.out + q * x.stride + column;
    FOR_EACH(m, M, {
        if (OF_KEYS) total[m] = _mm512_mul_ps(total[m], _mm512_loadu_ps(x.key_scales + column));
        _mm512_storeu_ps(out + m * x.stride, total[m]);
    });
}

// All rows, 16 at a time, times `end` columns. The sums of 16 columns are used while the tiles compute the next ones:
// two buffers (groups, 16, 16) at `sums`, for which widened_bytes is enough.
template <bool OF_KEYS>
void amx_products(const AmxDigits& x, int32_t queries, int64_t end, int64_t groups, int32_t* sums) {
    const int64_t parts = (queries + TILE - 1) / TILE;
    for (int64_t q = 0; q < queries; q += TILE) {
        const int64_t count = queries - q < TILE ? queries - q : TILE;
        const auto use = [&](int64_t column) {
            const int32_t* made = sums + column / LANES % 2 * groups * SUMS;
            for (int64_t m = 0; m < count; m += TILE_ROWS) {
#define CALL(M) amx_totals<M, OF_KEYS>(x, q + m, made + m * LANES, groups, column)
                IPEX_ASSIST_BY_ROWS(count - m, CALL)
#undef CALL
            }
        };
        tiles_begin_shared(count);
        for (int64_t c = 0; c < end; c += LANES) {
            const uint8_t* columns = x.columns + c * x.depth;
            const Ahead ahead = Ahead::of(columns, x.distance, groups, GROUP_BYTES / 64, q / TILE, parts);
            amx_sums<OF_KEYS>(x.rows + q * x.depth * 2, x.depth * 2, columns, ahead, groups,
                              sums + c / LANES % 2 * groups * SUMS);
            if (c) use(c - LANES);
        }
        if (end) use((end - 1) / LANES * LANES);
    }
    tiles_end();
}

// Puts weights into the order that tiles take: of 128 positions, those that share a scale side by side; zeros from
// `used` on.
inline void amx_quarters(uint8_t* digits, int64_t used) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    for (int64_t i = 0; i < used; i += HALF) {
        const __m512i left = _mm512_maskz_loadu_epi32(lanes((used - i) / 4), digits + i);
        const __m512i right = _mm512_maskz_loadu_epi32(lanes((used - i) / 4 - LANES), digits + i + 64);
        _mm512_storeu_si512(digits + i, _mm512_permutex2var_epi32(left, first, right));
        _mm512_storeu_si512(digits + i + 64, _mm512_permutex2var_epi32(left, second, right));
    }
}

struct OnTiles {
    static void score(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t limit) {
        const AmxDigits x{t.key_depth,      t.query,  t.query_scales, t.query_offsets, block.keys,
                          block.key_scales, distance, t.scores,       BLOCK_POSITIONS};
        amx_products<true>(x, t.queries, limit, t.key_depth / ATTENTION_GROUP, reinterpret_cast<int32_t*>(t.widened));
    }
    static void weigh(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t used,
                      const AttentionPartial* partials) {
        const AmxDigits x{BLOCK_POSITIONS, t.probabilities,    t.weight_scales,
                          nullptr,         block.values,       nullptr,
                          distance,        partials[0].output, partials[1].output - partials[0].output};
        for (int32_t q = 0; q < t.queries; q++) amx_quarters(t.probabilities + q * BLOCK_POSITIONS * 2, used);
        amx_products<false>(x, t.queries, t.value_dim, (used + HALF - 1) / HALF * 4,
                            reinterpret_cast<int32_t*>(t.widened));
    }
};

}  // namespace
}  // namespace ipex_assist
