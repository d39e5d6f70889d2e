// The kernels of an indexer: its queries where its keys are int8, and scores of a block of keys.
#pragma once
#include "kernels/kernels.h"

namespace ipex_assist {

struct IndexKernels {
    // Quantizes a query for int8 keys, as KernelTable::store_query does, but with one scale and one offset.
    void (*store_query)(const float* x, int32_t dim, int64_t key_depth, uint8_t* to, float* scale, int32_t* offset);
    // Scores of the first `count` positions of a block of keys, rounded up to a multiple of 16: the sum over the tile's
    // queries, in their order, of weight · relu(query · key). `next` as of KernelTable::attend. Of queries that
    // store_query quantized, `weights` have been multiplied with their scales.
    void (*score)(const AttentionTile&, const KeyValueBlock&, const KeyValueBlock* next, const float* weights,
                  int64_t count, float* out);
};

}  // namespace ipex_assist

#ifdef IPEX_ASSIST_KERNELS
#include "kernels/attention.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "mixers/latent/kernels_amx.h"
#endif

namespace ipex_assist {
namespace {

// An indexer's query has one scale for all elements: relu is then that of an exact sum of integers.
void store_index_query(const float* x, int32_t dim, int64_t key_depth, uint8_t* to, float* scale, int32_t* offset) {
    __m512i largest = _mm512_setzero_si512(), sum = largest;
    for (int32_t d = 0; d < dim; d += LANES)
        largest = _mm512_max_epu32(largest, size_bits(_mm512_maskz_loadu_ps(lanes(dim - d), x + d)));
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float most;
    std::memcpy(&most, &bits, sizeof most);
    const bool number = bits < 0x7f800000u;
    const __m512 factor = _mm512_set1_ps(number && most >= SMALLEST ? 127.0f / most : 0.0f);
    for (int64_t d = 0; d < key_depth; d += LANES) {
        const __mmask16 mask = number && d < dim ? lanes(dim - d) : 0;
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + d), factor));
        sum = _mm512_sub_epi32(sum, q);
        store_digits(q, to, d);
    }
    *scale = number ? most / 127.0f : NAN;
    *offset = _mm512_reduce_add_epi32(sum) * 128;
}

// Adds to `sums` of 16 keys, or of 32 where PANELS is 2, the weighted relu of their products with M heads from `q` on.
template <int M, int PANELS>
HOT_LOOP void index_tile(const AttentionTile& t, int64_t q, const uint8_t* keys, Ahead ahead, const float* weights,
                         float* sums) {
    const int64_t bytes = t.key_depth * LANES;
    RowPointers<uint8_t, M> rows(t.query + q * t.key_depth * 2, t.key_depth * 2);
    __m512i products[PANELS][M];
    FOR_EACH(m, M, FOR_EACH(n, PANELS, {
                 products[n][m] = _mm512_set1_epi32(t.query_offsets[q + m]);
                 KEEP_VECTOR(products[n][m]);
             }));
    for (const uint8_t* end = keys + bytes; keys < end;
         keys += ATTENTION_GROUP * LANES, rows.move(ATTENTION_GROUP * DIGIT)) {
        ahead.go_on(PANELS == 2 ? bytes : 0);
        if constexpr (PANELS == 1) {
            FOR_EACH(s, 8, add_digits<M, true>(keys + s * 64, rows, s * 4, products[0]));
        } else {
            FOR_EACH(s, 8, {
                const __m512i line = _mm512_loadu_si512(keys + s * 64),
                              more = _mm512_loadu_si512(keys + bytes + s * 64);
                FOR_EACH(m, M, {
                    const __m512i value = broadcast4(rows.at[m] + s * 4);
                    products[0][m] = _mm512_dpbusd_epi32(products[0][m], line, value);
                    products[PANELS - 1][m] = _mm512_dpbusd_epi32(products[PANELS - 1][m], more, value);
                    KEEP_VECTOR(products[0][m]);
                    KEEP_VECTOR(products[PANELS - 1][m]);
                });
            });
        }
    }
    FOR_EACH(n, PANELS, {
        __m512 sum = _mm512_loadu_ps(sums + n * LANES);
        FOR_EACH(m, M, {
            const __m512 product = _mm512_max_ps(_mm512_setzero_ps(), _mm512_cvtepi32_ps(products[n][m]));
            sum = _mm512_fmadd_ps(product, _mm512_set1_ps(weights[q + m]), sum);
        });
        _mm512_storeu_ps(sums + n * LANES, sum);
    });
}

// Scores of an indexer with 16 or 32 keys from `i` on.
template <int PANELS>
void score_index_keys(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, int64_t i,
                      const float* weights, float* out) {
    const uint8_t* keys = block.keys + i * t.key_depth;
    const int64_t tile = even_tile(t.queries, TILE_ROWS), parts = (t.queries + tile - 1) / tile;
    FOR_EACH(n, PANELS, _mm512_storeu_ps(out + n * LANES, _mm512_setzero_ps()));
    for (int64_t q = 0; q < t.queries; q += tile) {
        const Ahead ahead = Ahead::of(keys, distance, t.key_depth / ATTENTION_GROUP, 8, q / tile, parts);
#define CALL(M) index_tile<M, PANELS>(t, q, keys, ahead, weights, out)
        IPEX_ASSIST_BY_ROWS(t.queries - q < tile ? t.queries - q : tile, CALL)
#undef CALL
    }
    FOR_EACH(n, PANELS, {
        const __m512 scales = _mm512_loadu_ps(block.key_scales + i + n * LANES);
        _mm512_storeu_ps(out + n * LANES, _mm512_mul_ps(_mm512_loadu_ps(out + n * LANES), scales));
    });
}

// Of the first `limit` positions of a block, a multiple of 16.
inline void score_index_integers(const AttentionTile& t, const KeyValueBlock& block, int64_t distance,
                                 const float* weights, int64_t limit, float* out) {
    constexpr int PANELS = DIGITS_IN_PAIRS ? 2 : 1;
    for (int64_t i = 0; i < BLOCK_POSITIONS; i += LANES)
        _mm_prefetch(reinterpret_cast<const char*>(block.key_scales + i) + distance, _MM_HINT_T1);
#ifdef IPEX_ASSIST_HAS_AMX
    if (TiledIndex<true>::fits(t)) return TiledIndex<true>(t, weights).score(block, distance, limit, out);
#endif
    int64_t i = 0;
    for (; i + PANELS * LANES <= limit; i += PANELS * LANES)
        score_index_keys<PANELS>(t, block, distance, i, weights, out + i);
    if (i < limit) score_index_keys<1>(t, block, distance, i, weights, out + i);
}

template <class D>
void score_index_block(const AttentionTile& t, const KeyValueBlock& block, int64_t distance, const float* weights,
                       int64_t limit, float* out) {
    constexpr int64_t stride = PAIR * LANES;  // side by side: a few KB, which stay in L1
    for (int64_t i = 0, end; i < limit; i = end) {
        end = i + score_columns<D>(t, block, distance, i, limit, t.scores, stride);
        for (int64_t j = i; j < end; j += LANES) {
            __m512 sum = _mm512_setzero_ps();
            for (int32_t q = 0; q < t.queries; q++) {
                const __m512 score = _mm512_loadu_ps(t.scores + q * stride + j - i);
                sum = _mm512_fmadd_ps(_mm512_max_ps(_mm512_setzero_ps(), score), _mm512_set1_ps(weights[q]), sum);
            }
            _mm512_storeu_ps(out + j, sum);
        }
    }
}

void score_index(const AttentionTile& tile, const KeyValueBlock& block, const KeyValueBlock* next, const float* weights,
                 int64_t count, float* out) {
    const int64_t distance = distance_to(next, block), limit = (count + LANES - 1) / LANES * LANES;
    if (tile.precision == FP32) return score_index_block<Fp32>(tile, block, distance, weights, limit, out);
    if (block.key_scales) return score_index_integers(tile, block, distance, weights, limit, out);
#ifdef IPEX_ASSIST_HAS_AMX
    if (TiledIndex<false>::fits(tile)) return TiledIndex<false>(tile, weights).score(block, distance, limit, out);
#endif
    score_index_block<Bf16>(tile, block, distance, weights, limit, out);
}

constexpr IndexKernels INDEX_KERNELS{store_index_query, score_index};

}  // namespace
}  // namespace ipex_assist

#endif
