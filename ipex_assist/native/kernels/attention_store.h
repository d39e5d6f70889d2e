// Keys and values of a position, put into their block.
#pragma once
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

// The index, in elements, of row `k` and column `column` in a packed panel of that depth. step: elements of a lane.
inline int64_t packed_index(int step, int64_t depth, int64_t column, int64_t k) {
    return ((column / LANES) * (depth / step) + k / step) * (LANES * step) + column % LANES * step + k % step;
}

// A key is a column of its panel: one lane of each line. Lanes from head_dim on stay the zeros that they are.
template <class T>
inline void store_down(const T* values, int count, T* to) {
    for (int j = 0; j < count; j++) to[j * LANES] = values[j];
}

// A value is a row of its panel. In bf16 a lane holds two positions: the other one stays as it is.
inline void store_across(Precision precision, __m512 v, int32_t position, uint8_t* line) {
    if (precision == FP32) return _mm512_storeu_ps(reinterpret_cast<float*>(line), v);
    const __m512i halves = _mm512_cvtepu16_epi32(to_bf16(v)), lower = _mm512_set1_epi32(0xffff);
    const __m512i both = _mm512_loadu_si512(line);
    const __m512i mixed = position % 2 ? _mm512_or_si512(_mm512_and_si512(lower, both), _mm512_slli_epi32(halves, 16))
                                       : _mm512_or_si512(_mm512_andnot_si512(lower, both), halves);
    _mm512_storeu_si512(line, mixed);
}

inline void store_packed(Precision precision, const float* x, int32_t head_dim, uint8_t* to, int64_t depth,
                         int32_t position, bool key) {
    const int step = precision == FP32 ? 1 : 2, bytes = 4 / step;
    for (int32_t d = 0; d < head_dim; d += LANES) {
        const int count = head_dim - d < LANES ? head_dim - d : LANES;
        const __m512 v = _mm512_maskz_loadu_ps(lanes(count), x + d);
        if (!key) {
            store_across(precision, v, position, to + packed_index(step, depth, d, position / step * step) * bytes);
            continue;
        }
        uint8_t* at = to + packed_index(step, depth, position, d) * bytes;
        if (precision == FP32) {
            store_down(x + d, count, reinterpret_cast<float*>(at));
        } else {
            alignas(32) uint32_t pairs[LANES / 2];
            _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), to_bf16(v));
            store_down(pairs, (count + 1) / 2, reinterpret_cast<uint32_t*>(at));
        }
    }
}

// Stores a key or value as int8 and returns its scale, max |x| / 127. With NaN or infinity in the row the scale is NaN,
// and so is every result that the row contributes to. A row below 1e-36, whose reciprocal overflows, becomes zeros.
// put(d, count, bytes): where elements from d on go. Those of keys are unsigned, like the weights of linears.
template <class F>
inline float quantize_position(const float* x, int32_t head_dim, bool key, const F& put) {
    __m512i largest = _mm512_setzero_si512();
    for (int32_t d = 0; d < head_dim; d += LANES) {
        largest = _mm512_max_epu32(largest, size_bits(_mm512_maskz_loadu_ps(lanes(head_dim - d), x + d)));
    }
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float most;
    std::memcpy(&most, &bits, sizeof most);
    const bool number = finite(largest);
    const __m512 factor = _mm512_set1_ps(number && most >= 1e-36f ? 127.0f / most : 0.0f);
    for (int32_t d = 0; d < head_dim; d += LANES) {
        const int count = head_dim - d < LANES ? head_dim - d : LANES;
        const __mmask16 mask = number ? lanes(count) : 0;
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + d), factor));
        const __m128i bytes = _mm512_cvtsepi32_epi8(q);
        put(d, count, key ? _mm_xor_si128(bytes, _mm_set1_epi8(-128)) : bytes);
    }
    return number ? most / 127.0f : NAN;
}

inline float store_int8(const float* x, int32_t head_dim, uint8_t* to, int64_t depth, int32_t position, bool key) {
    return quantize_position(x, head_dim, key, [&](int32_t d, int count, __m128i bytes) {
        alignas(16) uint8_t values[LANES];
        _mm_store_si128(reinterpret_cast<__m128i*>(values), bytes);
        // From head_dim on keys meet a query's zeros.
        for (int j = 0; j < count; j++) {
            const int64_t at = key ? packed_index(4, depth, position, d + j) : packed_index(4, depth, d + j, position);
            to[at] = values[j];
        }
    });
}

void store_key(Precision precision, const float* key, int32_t head_dim, int64_t key_depth, int32_t position,
               const KeyValueBlock& block) {
    if (precision == INT8) {
        block.key_scales[position] = store_int8(key, head_dim, block.keys, key_depth, position, true);
    } else {
        store_packed(precision, key, head_dim, block.keys, key_depth, position, true);
    }
}

void store_value(Precision precision, const float* value, int32_t head_dim, int32_t position,
                 const KeyValueBlock& block) {
    if (precision == INT8) {
        block.value_scales[position] = store_int8(value, head_dim, block.values, BLOCK_POSITIONS, position, false);
    } else {
        store_packed(precision, value, head_dim, block.values, BLOCK_POSITIONS, position, false);
    }
}

constexpr int64_t WIDENED_AHEAD = 2048;  // bytes that are prefetched, of the few KB that a panel has

}  // namespace
}  // namespace ipex_assist
