// Scores of some queries against the positions of a block to softmax weights: caps, slopes, maxima and exponentials.
#pragma once
#include "kernels/attention_int8.h"

namespace ipex_assist {
namespace {

// The model's soft cap of scores, and ALiBi (Press et al. 2021, arXiv:2108.12409).
inline void adjust_scores(const AttentionTile& t, int64_t limit) {
    const __m512 steps = _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int32_t q = 0; q < t.queries; q++) {
        float* scores = t.scores + q * BLOCK_POSITIONS;
        if (t.cap > 0) soft_cap(scores, limit, t.scale / t.cap, t.cap / t.scale);
        if (!t.slopes) continue;
        const __m512 slope = _mm512_set1_ps(t.slopes[q]), step = _mm512_set1_ps(LANES);
        __m512 distance = _mm512_add_ps(steps, _mm512_set1_ps(t.distances[q]));
        for (int64_t i = 0; i < limit; i += LANES) {
            _mm512_storeu_ps(scores + i, _mm512_fmadd_ps(slope, distance, _mm512_loadu_ps(scores + i)));
            distance = _mm512_add_ps(distance, step);
        }
    }
}

// Those of the 16 positions from `i` on that a query sees.
inline __mmask16 visible(const AttentionTile& t, int32_t q, int64_t i) {
    if (t.first[q] <= i && t.end[q] >= i + LANES) return 0xffff;  // nearly always
    return __mmask16(lanes(t.end[q] - i) & ~lanes(t.first[q] - i));
}

// Whether a query sees all positions below `limit`.
inline bool sees_all(const AttentionTile& t, int32_t q, int64_t limit) { return t.first[q] <= 0 && t.end[q] >= limit; }

inline float largest_score(const AttentionTile& t, int32_t q, int64_t limit) {
    const float* scores = t.scores + q * BLOCK_POSITIONS;
    __m512 most = _mm512_set1_ps(-INFINITY);
    if (sees_all(t, q, limit)) {
        for (int64_t i = 0; i < limit; i += LANES) most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    } else {
        for (int64_t i = 0; i < limit; i += LANES) {
            most = _mm512_mask_max_ps(most, visible(t, q, i), most, _mm512_loadu_ps(scores + i));
        }
    }
    return _mm512_reduce_max_ps(most);
}

// Softmax weights of 16 positions of a query before they are divided by their sum, exp(scale · (score - maximum)); zero
// at positions that it does not see.
template <Precision>
struct Exponential;

template <>
struct Exponential<FP32> {
    Exponential(float scale, float maximum) : factor(_mm512_set1_ps(scale)), most(_mm512_set1_ps(maximum)) {}
    __m512 operator()(__mmask16 seen, const float* scores) const {
        const __m512 shifted = _mm512_sub_ps(_mm512_loadu_ps(scores), most);
        return _mm512_maskz_mov_ps(seen, exponential(_mm512_mul_ps(shifted, factor)));
    }
    __m512 factor, most;
};

// As a power of two. A product of the maximum that is rounded shifts all exponents of the block alike.
template <>
struct Exponential<BF16> {
    Exponential(float scale, float maximum)
        : factor(_mm512_set1_ps(scale * 1.44269504f)),
          shift(_mm512_set1_ps(-(maximum * (scale * 1.44269504f)))) {}
    __m512 operator()(__mmask16 seen, const float* scores) const {
        return power_of_two(seen, _mm512_fmadd_ps(_mm512_loadu_ps(scores), factor, shift));
    }
    __m512 factor, shift;
};

// Scores to softmax weights of the positions that a query sees, times the scales of int8 values; zero at the other
// positions below `limit`. ALL: whether it sees all of them, which takes fewer instructions.
template <Precision P, bool ALL>
void softmax_row(const AttentionTile& t, int32_t q, int64_t limit, const float* value_scales,
                 AttentionPartial& partial) {
    const Exponential<P> exponential(t.scale, partial.maximum);
    const float* scores = t.scores + q * BLOCK_POSITIONS;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < limit; i += LANES) {
        const __mmask16 seen = ALL ? __mmask16(0xffff) : visible(t, q, i);
        __m512 p = exponential(seen, scores + i);
        sum = _mm512_add_ps(sum, p);
        if (value_scales) p = _mm512_maskz_mul_ps(seen, p, _mm512_loadu_ps(value_scales + i));
        store_row(P, p, t.probabilities, q * BLOCK_POSITIONS + i);
    }
    partial.sum = _mm512_reduce_add_ps(sum);
}

template <Precision P>
inline void softmax(const AttentionTile& t, int32_t q, int64_t limit, const float* value_scales,
                    AttentionPartial& partial) {
    if (sees_all(t, q, limit)) return softmax_row<P, true>(t, q, limit, value_scales, partial);
    softmax_row<P, false>(t, q, limit, value_scales, partial);
}

// The same, with the weights quantized to 8 bits.
template <bool ALL>
void softmax_digits_row(const AttentionTile& t, int32_t q, int64_t limit, const float* value_scales,
                        AttentionPartial& partial) {
    const Exponential<BF16> exponential(t.scale, partial.maximum);
    const float* scores = t.scores + q * BLOCK_POSITIONS;
    __m512 sum = _mm512_setzero_ps(), weights[HALF / LANES];
    for (int64_t i = 0; i < limit; i += HALF) {
        const int64_t vectors = (limit - i < HALF ? limit - i : HALF) / LANES;
        __m512i sizes = _mm512_setzero_si512();
        for (int64_t v = 0; v < vectors; v++) {
            const int64_t at = i + v * LANES;
            const __mmask16 seen = ALL ? __mmask16(0xffff) : visible(t, q, at);
            const __m512 p = exponential(seen, scores + at);
            sum = _mm512_add_ps(sum, p);
            weights[v] = _mm512_maskz_mul_ps(seen, p, _mm512_loadu_ps(value_scales + at));
            sizes = _mm512_max_epu32(sizes, _mm512_castps_si512(weights[v]));  // not negative, or NaN
        }
        float* scales = t.weight_scales + (q * BLOCK_POSITIONS + i) / ATTENTION_GROUP;
        store_weights(weights, sizes, vectors, t.probabilities + q * BLOCK_POSITIONS * 2, i, scales);
    }
    partial.sum = _mm512_reduce_add_ps(sum);
}

inline void softmax_digits(const AttentionTile& t, int32_t q, int64_t limit, const float* value_scales,
                           AttentionPartial& partial) {
    if (sees_all(t, q, limit)) return softmax_digits_row<true>(t, q, limit, value_scales, partial);
    softmax_digits_row<false>(t, q, limit, value_scales, partial);
}

// Of all queries before any weights, as each takes a while to reduce.
inline void find_maxima(const AttentionTile& t, int64_t limit, AttentionPartial* partials) {
    for (int32_t q = 0; q < t.queries; q++) {
        if (t.first[q] < t.end[q]) partials[q].maximum = largest_score(t, q, limit);
    }
}

}  // namespace
}  // namespace ipex_assist
