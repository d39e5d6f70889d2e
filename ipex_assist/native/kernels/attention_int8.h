// Attention to int8 keys and values in integer arithmetic: queries and softmax weights (probabilities times the values'
// scales) are quantized to 8 bits, too, and VNNI multiplies four at a time. Sums of integers are exact, so the same on
// every processor. 32 elements share a scale, which depends on the query and the block alone: so a row has the same
// bits in a prompt, a chunk, a draft or a step. A query is rounded less than a key, which has one scale for all
// elements.
//
// For one query, a block of 256 positions and head_dim 128, AVX-512 needs 512 dot-product instructions for scores and
// 512 for values, where bf16 needs 1024 each; 6 queries together load each line of keys and values once, and their own
// values once for 32 columns.
#pragma once
#include "kernels/float_linear.h"
#include "kernels/prefetch.h"
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

constexpr float SMALLEST = 1e-33f;             // smaller ones become zero: their reciprocal would overflow
constexpr int64_t HALF = 4 * ATTENTION_GROUP;  // half a block: 8 vectors of 16 positions, whose quarters share 4 scales

// 16 integers as bytes for VNNI; without it in 16 bits, of every four the first and the third before the others.
inline void store_digits(__m512i x, uint8_t* to, int64_t index) {
#ifdef IPEX_ASSIST_VNNI
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + index), _mm512_cvtepi32_epi8(x));
#else
    const __m256i words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(_mm512_cvtepi32_epi16(x), 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + index * 2), words);
#endif
}

#ifdef IPEX_ASSIST_VNNI
constexpr int64_t DIGIT = 1;  // bytes of a quantized element
#else
constexpr int64_t DIGIT = 2;
#endif

// Whether 32 columns are multiplied at once, as in float_pair_tile: with 24 sums, and lines as they are.
constexpr bool DIGITS_IN_PAIRS = IN_PAIRS && DIGIT == 1;

// The largest magnitude in each quarter of a vector, as a float in all lanes of the quarter; NaN and infinity stay.
inline __m512 largest_of_four(__m512i sizes) {
    sizes = _mm512_max_epu32(sizes, _mm512_shuffle_epi32(sizes, _MM_PERM_ENUM(0x4e)));
    return _mm512_castsi512_ps(_mm512_max_epu32(sizes, _mm512_shuffle_epi32(sizes, _MM_PERM_ENUM(0xb1))));
}

// Quantizes a query in groups of 32 elements by their largest magnitude; the scale is NaN where an element is NaN or
// infinite. Keys are stored + 128, which adds 128 times the sum of the query: `offsets` subtract that again.
void store_query(const float* x, int32_t head_dim, int64_t key_depth, uint8_t* to, float* scales, int32_t* offsets) {
    for (int64_t d = 0; d < key_depth; d += ATTENTION_GROUP) {
        __m512 v[2];
        __m512i largest = _mm512_setzero_si512(), sum = largest;
        for (int i = 0; i < 2; i++) {
            v[i] = _mm512_maskz_loadu_ps(lanes(head_dim - d - i * LANES), x + d + i * LANES);
            largest = _mm512_max_epu32(largest, size_bits(v[i]));
        }
        const uint32_t bits = _mm512_reduce_max_epu32(largest);
        float most;
        std::memcpy(&most, &bits, sizeof most);
        const bool number = bits < 0x7f800000u;
        const __m512 factor = _mm512_set1_ps(number && most >= SMALLEST ? 127.0f / most : 0.0f);
        for (int i = 0; i < 2; i++) {
            const __m512i q = _mm512_cvtps_epi32(_mm512_maskz_mov_ps(number ? 0xffff : 0, _mm512_mul_ps(v[i], factor)));
            sum = _mm512_sub_epi32(sum, q);
            store_digits(q, to, d + i * LANES);
        }
        scales[d / ATTENTION_GROUP] = number ? most / 127.0f : NAN;
        offsets[d / ATTENTION_GROUP] = _mm512_reduce_add_epi32(sum) * 128;
    }
}

// Adds the products of M rows with a line, 4 columns of 16 keys or values: of keys unsigned bytes with signed ones …
template <int M, bool OF_KEYS>
inline __attribute__((always_inline)) void add_digits(const uint8_t* at, const RowPointers<uint8_t, M>& rows,
                                                      int offset, __m512i (&sums)[M]) {
    const __m512i line = _mm512_loadu_si512(at);
#ifdef IPEX_ASSIST_VNNI
    FOR_EACH(m, M, {
        const uint8_t* row = rows.at[m] + offset;
        // … and of values signed bytes with unsigned ones.
        sums[m] = OF_KEYS ? dot_bytes(sums[m], line, reinterpret_cast<const int8_t*>(row))
                          : _mm512_dpbusd_epi32(sums[m], broadcast4(row), line);
    });
#else
    const __m512i odd = OF_KEYS ? _mm512_srli_epi16(line, 8) : _mm512_srai_epi16(line, 8);
    const __m512i even = OF_KEYS ? _mm512_and_si512(line, _mm512_set1_epi32(0xff00ff))
                                 : _mm512_srai_epi16(_mm512_slli_epi16(line, 8), 8);
    FOR_EACH(m, M, {
        const uint8_t* row = rows.at[m] + offset * DIGIT;
        const __m512i pair = _mm512_madd_epi16(even, broadcast4(row)),
                      next = _mm512_madd_epi16(odd, broadcast4(row + 4));
        sums[m] = _mm512_add_epi32(sums[m], _mm512_add_epi32(pair, next));
        KEEP_VECTOR(sums[m]);
    });
#endif
}

// Scores of M queries from `q` on with 16 keys.
template <int M>
HOT_LOOP void key_tile(const AttentionTile& t, int64_t q, const uint8_t* keys, Ahead ahead, const float* key_scales,
                       float* scores) {
    const int64_t groups = t.key_depth / ATTENTION_GROUP;
    RowPointers<uint8_t, M> rows(t.query + q * t.key_depth * 2, t.key_depth * 2);
    const float* scales = t.query_scales + q * groups;
    const int32_t* offsets = t.query_offsets + q * groups;
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (const uint8_t* end = keys + t.key_depth * LANES; keys < end;
         keys += ATTENTION_GROUP * LANES, rows.move(ATTENTION_GROUP * DIGIT)) {
        __m512i sums[M];
        ahead.go_on();
        FOR_EACH(m, M, sums[m] = _mm512_set1_epi32(offsets[m * groups]));
        FOR_EACH(s, 8, add_digits<M, true>(keys + s * 64, rows, s * 4, sums));
        FOR_EACH(m, M,
                 total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m]), _mm512_set1_ps(scales[m * groups]), total[m]));
        scales++, offsets++;
    }
    const __m512 scale = _mm512_loadu_ps(key_scales);
    FOR_EACH(m, M, _mm512_storeu_ps(scores + m * BLOCK_POSITIONS, _mm512_mul_ps(total[m], scale)));
}

// Scores of M queries from `q` on with 32 keys: the values of a query are loaded once for 16 keys and the next 16.
template <int M>
HOT_LOOP void key_pair_tile(const AttentionTile& t, int64_t q, const uint8_t* keys, Ahead ahead,
                            const float* key_scales, float* scores) {
    const int64_t groups = t.key_depth / ATTENTION_GROUP, bytes = t.key_depth * LANES;
    RowPointers<uint8_t, M> rows(t.query + q * t.key_depth * 2, t.key_depth * 2);
    RowStrides<float, M> scales(t.query_scales + q * groups, groups);
    const int64_t to_offsets =
        reinterpret_cast<const char*>(t.query_offsets) - reinterpret_cast<const char*>(t.query_scales);
    __m512 total[2][M];
    FOR_EACH(m, M, total[0][m] = total[1][m] = _mm512_setzero_ps());
    for (const uint8_t* end = keys + bytes; keys < end; keys += ATTENTION_GROUP * LANES, rows.move(ATTENTION_GROUP)) {
        __m512i sums[2][M];
        ahead.go_on(bytes);
        FOR_EACH(m, M, {
            sums[0][m] = sums[1][m] = broadcast4(reinterpret_cast<const char*>(scales.at(m)) + to_offsets);
            KEEP_VECTOR(sums[0][m]);
        });
        FOR_EACH(s, 8, {
            const __m512i line = _mm512_loadu_si512(keys + s * 64), more = _mm512_loadu_si512(keys + bytes + s * 64);
            FOR_EACH(m, M, {
                const __m512i value = broadcast4(rows.at[m] + s * 4);
                sums[0][m] = _mm512_dpbusd_epi32(sums[0][m], line, value);
                sums[1][m] = _mm512_dpbusd_epi32(sums[1][m], more, value);
                KEEP_VECTOR(sums[0][m]);
                KEEP_VECTOR(sums[1][m]);
            });
        });
        FOR_EACH(m, M, {
            const __m512 scale = _mm512_set1_ps(*scales.at(m));
            FOR_EACH(n, 2, total[n][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[n][m]), scale, total[n][m]));
        });
        scales.move(1);
    }
    FOR_EACH(n, 2, {
        const __m512 scale = _mm512_loadu_ps(key_scales + n * LANES);
        FOR_EACH(m, M, _mm512_storeu_ps(scores + m * BLOCK_POSITIONS + n * LANES, _mm512_mul_ps(total[n][m], scale)));
    });
}

// 16 columns of the output of M queries from `q` on. Of 128 positions those in the same quarter of their vectors share
// a scale.
template <int M>
HOT_LOOP void value_tile(const AttentionTile& t, int64_t q, const uint8_t* values, int64_t limit, Ahead ahead,
                         float* out, int64_t stride) {
    constexpr int64_t SCALES = BLOCK_POSITIONS / ATTENTION_GROUP;
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (int64_t i = 0; i < limit; i += HALF) {
        const int64_t pairs = (limit - i < HALF ? limit - i : HALF) / 32;  // of vectors
        for (int64_t j = 0; j < 4; j++) {
            RowPointers<uint8_t, M> rows(t.probabilities + (q * BLOCK_POSITIONS * 2 + (i + j * 4) * DIGIT),
                                         BLOCK_POSITIONS * 2);
            const uint8_t* line = values + (i / 4 + j) * 64;
            __m512i sums[M];
            ahead.go_on();
            FOR_EACH(m, M, sums[m] = _mm512_setzero_si512());
            for (const uint8_t* end = line + pairs * 8 * 64; line < end; line += 8 * 64, rows.move(32 * DIGIT)) {
                FOR_EACH(v, 2, add_digits<M, false>(line + v * 4 * 64, rows, v * LANES, sums));
            }
            const float* scales = t.weight_scales + q * SCALES + i / ATTENTION_GROUP + j;
            FOR_EACH(
                m, M,
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m]), _mm512_set1_ps(scales[m * SCALES]), total[m]));
        }
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

// 32 columns of the output, the same way, of one half of a block or both.
template <int M>
HOT_LOOP void value_pair_tile(const AttentionTile& t, int64_t q, const uint8_t* values, int64_t limit, Ahead ahead,
                              float* out, int64_t stride) {
    constexpr int64_t SCALES = BLOCK_POSITIONS / ATTENTION_GROUP, BYTES = BLOCK_POSITIONS * LANES;
    const uint8_t* row = t.probabilities + q * BLOCK_POSITIONS * 2;
    const float* scales = t.weight_scales + q * SCALES;
    __m512 total[2][M];
    FOR_EACH(m, M, total[0][m] = total[1][m] = _mm512_setzero_ps());
    for (int64_t i = 0; i < limit; i += HALF, row += HALF - 16, values += HALF * LANES - 4 * 64) {
        for (int64_t j = 0; j < 4; j++, row += 4, values += 64, scales++) {
            __m512i sums[2][M];
            ahead.go_on(BYTES);
            FOR_EACH(m, M, FOR_EACH(n, 2, sums[n][m] = _mm512_setzero_si512(); KEEP_VECTOR(sums[n][m])));
            FOR_EACH(v, HALF / LANES, {
                const __m512i line = _mm512_loadu_si512(values + v * 4 * 64);
                const __m512i more = _mm512_loadu_si512(values + v * 4 * 64 + BYTES);
                FOR_EACH(m, M, {
                    const __m512i value = broadcast4(row + m * BLOCK_POSITIONS * 2 + v * LANES);
                    sums[0][m] = _mm512_dpbusd_epi32(sums[0][m], value, line);
                    sums[1][m] = _mm512_dpbusd_epi32(sums[1][m], value, more);
                    KEEP_VECTOR(sums[0][m]);
                    KEEP_VECTOR(sums[1][m]);
                });
            });
            FOR_EACH(m, M, {
                const __m512 scale = _mm512_set1_ps(scales[m * SCALES]);
                FOR_EACH(n, 2, total[n][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[n][m]), scale, total[n][m]));
            });
        }
    }
    FOR_EACH(m, M, FOR_EACH(n, 2, _mm512_storeu_ps(out + m * stride + n * LANES, total[n][m])));
}

// Ordered dither, added to weights before they are rounded, between -1/2 and 1/2: many small weights next to a large
// one would all become zero; so some become one, chosen by their places, and the sum stays. The bits of a place in
// reverse order.
struct Thresholds {
    alignas(64) float at[HALF] = {};
    constexpr Thresholds() {
        for (int i = 0; i < HALF; i++) {
            const int place = i / LANES * 4 + i % 4;
            int reversed = 0;
            for (int bit = 0; bit < 5; bit++) reversed |= (place >> bit & 1) << (4 - bit);
            at[i] = (float(reversed) + 0.5f) / 32 - 0.5f;
        }
    }
};
constexpr Thresholds THRESHOLDS;

// Quantizes the weights of up to 128 positions, with a scale for each quarter; zeros up to an even number of vectors.
inline void store_weights(const __m512 (&weights)[HALF / LANES], __m512i sizes, int64_t vectors, uint8_t* to,
                          int64_t index, float* scales) {
    const __m512 most = largest_of_four(sizes);
    const __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_set1_ps(SMALLEST), _CMP_NLT_UQ);
    const __mmask16 number = _mm512_cmp_ps_mask(most, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    const __m512 factor = _mm512_maskz_mov_ps(some & number, _mm512_div_ps(_mm512_set1_ps(255.0f), most));
    alignas(64) float each[LANES];
    const __m512 scale = _mm512_mul_ps(most, _mm512_set1_ps(1.0f / 255));
    _mm512_store_ps(each, _mm512_mask_mov_ps(_mm512_set1_ps(NAN), number, scale));
    for (int j = 0; j < 4; j++) scales[j] = each[j * 4];
    for (int64_t v = 0; v < vectors; v++) {
        const __m512 scaled = _mm512_fmadd_ps(weights[v], factor, _mm512_load_ps(THRESHOLDS.at + v * LANES));
        store_digits(_mm512_cvtps_epi32(scaled), to, index + v * LANES);  // where the scale is NaN, no matter what
    }
    if (vectors % 2) store_digits(_mm512_setzero_si512(), to, index + vectors * LANES);
}

}  // namespace
}  // namespace ipex_assist
