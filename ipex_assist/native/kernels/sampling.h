// Sampling over a row of logits, in fp32: maxima of groups, weights for top-p, and the search for tokens whose noise
// may make them the choice. What they decide has the same bits with every instruction set.
#pragma once
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

// The largest of each NOISE_GROUP columns, NaN where one is.
void group_maxima(const float* x, int64_t size, float* maxima) {
    for (int64_t first = 0; first < size; first += NOISE_GROUP) {
        const int64_t end = first + NOISE_GROUP < size ? first + NOISE_GROUP : size;
        __m512 best = _mm512_set1_ps(-INFINITY);
        __m512i sizes = _mm512_setzero_si512();
        for (int64_t i = first; i < end; i += LANES) {
            const __m512 loaded = _mm512_maskz_loadu_ps(lanes(end - i), x + i);
            const __m512 v = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), lanes(end - i), loaded);
            best = _mm512_max_ps(best, v);
            sizes = _mm512_max_epu32(sizes, size_bits(loaded));
        }
        *maxima++ = _mm512_reduce_max_epu32(sizes) > 0x7f800000u ? NAN : _mm512_reduce_max_ps(best);
    }
}

// e^x for x <= 0 as NumPy has it in fp32, bit for bit: Cody and Waite's reduction and a rational function. Which token
// is the last that top-p keeps depends on these bits.
inline __m512 numpy_exponential(__m512 x) {
    const __mmask16 large_enough = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-103.97208404541015625f), _CMP_GT_OQ);
    x = _mm512_maskz_mov_ps(large_enough, x);
    const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 · 2^23: added, it rounds to an integer
    __m512 n = _mm512_mul_ps(x, _mm512_set1_ps(1.442695040888963407f));
    n = _mm512_sub_ps(_mm512_add_ps(n, magic), magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-6.93145752e-1f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(5.082762527590693718e-04f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.757896990527504603e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.114512081637298353e-02f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.473615434895520811e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(7.257664613233124478e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.999999999980870925e-01f));
    __m512 q = _mm512_set1_ps(2.159509375685829852e-02f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(-2.742335390411667453e-01f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    // Denormal weights, too, have their bits: in two steps, as scaling by less than 2^-126 at once is not what AVX2
    // does.
    const __m512 most = _mm512_max_ps(n, _mm512_set1_ps(-100.0f));
    const __m512 scaled = _mm512_maskz_scalef_ps(large_enough, _mm512_div_ps(p, q), most);
    return _mm512_maskz_scalef_ps(large_enough, scaled, _mm512_sub_ps(n, most));
}

inline __m512 weight(__m512 x, __m512 largest, __m512 temperature) {
    return numpy_exponential(_mm512_div_ps(_mm512_sub_ps(x, largest), temperature));
}

void sampling_weights(const float* x, int64_t size, float largest, float temperature, float* out) {
    const __m512 most = _mm512_set1_ps(largest), divisor = _mm512_set1_ps(temperature);
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes(size - i), x + i);
        _mm512_mask_storeu_ps(out + i, lanes(size - i), weight(v, most, divisor));
    }
}

// Sums in fp64 by lanes, and of the lanes in their order.
WeightSums sum_weights(const float* x, int64_t size, float largest, float temperature, float limit, int64_t before) {
    const __m512 most = _mm512_set1_ps(largest), divisor = _mm512_set1_ps(temperature);
    double all[LANES] = {}, likelier[LANES] = {};
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes(size - i), x + i);
        alignas(64) float weights[LANES];
        _mm512_store_ps(weights, _mm512_maskz_mov_ps(lanes(size - i), weight(v, most, divisor)));
        // Of equally likely tokens the lower id comes first.
        const float first = i + LANES <= before ? std::nextafter(limit, 0.0f) : limit;
        for (int j = 0; j < LANES; j++) {
            all[j] += double(weights[j]);
            likelier[j] += weights[j] > first ? double(weights[j]) : 0.0;
        }
        if (i < before && before < i + LANES) {
            for (int j = 0; j < before - i; j++) likelier[j] += weights[j] == limit ? double(limit) : 0.0;
        }
    }
    WeightSums sums{0, 0};
    for (int j = 0; j < LANES; j++) sums.all += all[j], sums.likelier += likelier[j];
    return sums;
}

typedef uint64_t Random8 __attribute__((vector_size(64)));
typedef int32_t Integers8 __attribute__((vector_size(32)));

// SplitMix64's finalizer (Stafford's constants), as gumbel_noise.py has it.
inline Random8 finalized(Random8 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Noise -log(-log(1 - v)) is at most -log v. The bits of a float, as a number, are 2^23 · (its base-2 logarithm + 127)
// or less: so v's 31 highest bits as a float bound the noise with a conversion and a product.
HOT_LOOP int32_t find_noise(const NoiseSearch& s, const float* x, int64_t size, uint64_t start, int32_t* found) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;
    Random8 key = {0, GAMMA, 2 * GAMMA, 3 * GAMMA, 4 * GAMMA, 5 * GAMMA, 6 * GAMMA, 7 * GAMMA};
    key += start;
    const __m256 largest = _mm256_set1_ps(s.largest), inverse = _mm256_set1_ps(1 / s.temperature);
    const __m256 bound = _mm256_set1_ps(s.bound), least = _mm256_set1_ps(s.least);
    const __m256 factor = _mm256_set1_ps(-0.69314718f / (1 << 23)), most = _mm256_set1_ps(158 * 0.69314718f);
    int32_t count = 0;
    for (int64_t i = 0; i < size; i += 8, key += 8 * GAMMA) {
        __m256 v;
        if (i + 8 <= size) {
            v = _mm256_loadu_ps(x + i);
        } else {
            alignas(32) float rest[8];
            for (int j = 0; j < 8; j++) rest[j] = i + j < size ? x[i + j] : -INFINITY;
            v = _mm256_load_ps(rest);
        }
        const auto high = __builtin_convertvector(finalized(key) >> 33, Integers8);
        const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(reinterpret_cast<const __m256i&>(high)));
        const __m256 noise = _mm256_fmadd_ps(_mm256_cvtepi32_ps(bits), factor, most);
        const __m256 score = _mm256_fmadd_ps(_mm256_sub_ps(v, largest), inverse, noise);
        const __m256 hit = _mm256_and_ps(_mm256_cmp_ps(score, bound, _CMP_GE_OQ), _mm256_cmp_ps(v, least, _CMP_GE_OQ));
        for (uint32_t mask = uint32_t(_mm256_movemask_ps(hit)); mask; mask &= mask - 1)
            found[count++] = int32_t(i) + __builtin_ctz(mask);
    }
    return count;
}

}  // namespace
}  // namespace ipex_assist
