// What happens to a row between linears, in fp32: norm, quantization, activation, rotary embedding, arg-max.
#pragma once
#include <cmath>

#include "kernels/multiply_add.h"

namespace ipex_assist {
namespace {

// Magnitudes as integers, which compare like their floats, with infinity and then NaN above all numbers. So their
// maximum keeps NaN, which a maximum of floats drops.
inline __m512i size_bits(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

// Whether all of these magnitudes are finite.
inline bool finite(__m512i sizes) { return _mm512_reduce_max_epu32(sizes) < 0x7f800000u; }

// The first `count` lanes (all from 16 on).
inline __mmask16 lanes(int64_t count) { return count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }

// e^x to about 1 ulp for x in [-87, 88]; smaller x give 0. Cody and Waite's reduction, Taylor of degree 7.
inline __m512 exponential(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __mmask16 large_enough = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);  // NaN stays NaN
    return _mm512_maskz_scalef_ps(large_enough, p, n);
}

// 2^x to 3e-6 for x in [-125, 127], for weights that are rounded to bf16 or 8 bits: minimax of degree 4. Smaller x, and
// lanes outside of the mask, give 0; NaN stays.
inline __m512 power_of_two(__mmask16 mask, __m512 x) {
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.009582853f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.055906426f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24024099f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.6931242f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_mask_cmp_ps_mask(mask, x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ), p, n);
}

inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    // e^-x overflows below -88, where 1 / (1 + inf) is the right 0.
    return _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// Abramowitz and Stegun 7.1.26: |error| < 1.5e-7.
inline __m512 error_function(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), size = _mm512_abs_ps(x);
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(_mm512_set1_ps(0.3275911f), size, one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    const __m512 tail = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(size, size)));
    const __m512 y = _mm512_fnmadd_ps(_mm512_mul_ps(p, t), tail, one);
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(int32_t(0x80000000)));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(y), sign));
}

inline __m512 activation(Activation kind, __m512 x) {
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    switch (kind) {
        case SILU: return _mm512_mul_ps(x, sigmoid(x));
        case RELU: return _mm512_max_ps(_mm512_setzero_ps(), x);
        case RELU2: {
            const __m512 y = _mm512_max_ps(_mm512_setzero_ps(), x);
            return _mm512_mul_ps(y, y);
        }
        case GELU:
            return _mm512_mul_ps(_mm512_mul_ps(half, x),
                                 _mm512_add_ps(one, error_function(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)))));
        default: {
            // 0.5 · (1 + tanh u) is the sigmoid of 2 u.
            const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
            const __m512 u =
                _mm512_mul_ps(_mm512_set1_ps(2 * 0.79788456f), _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, x));
            return _mm512_mul_ps(x, sigmoid(u));
        }
    }
}

// gpt-oss: gate · sigmoid(1.702 · gate) · (up + 1), where gate is clamped to at most 7 and up to [-7, 7]. NaN stays.
inline __m512 clamped_swiglu(__m512 gate, __m512 up) {
    const __m512 most = _mm512_set1_ps(7.0f), least = _mm512_set1_ps(-7.0f);
    gate = _mm512_min_ps(most, gate);  // the second operand stays where it is NaN
    up = _mm512_max_ps(least, _mm512_min_ps(most, up));
    const __m512 gated = _mm512_mul_ps(gate, sigmoid(_mm512_mul_ps(_mm512_set1_ps(1.702f), gate)));
    return _mm512_mul_ps(gated, _mm512_add_ps(up, _mm512_set1_ps(1.0f)));
}

void activate(Activation kind, bool gated, const float* in, int64_t panels, float* out) {
    if (kind == CLAMPED_SWIGLU) {
        for (int64_t b = 0; b < panels; b++) {
            const float* gate = in + b * LANES * 2;
            _mm512_storeu_ps(out + b * LANES, clamped_swiglu(_mm512_loadu_ps(gate), _mm512_loadu_ps(gate + LANES)));
        }
        return;
    }
    for (int64_t b = 0; b < panels; b++) {
        const __m512 x = activation(kind, _mm512_loadu_ps(in + b * LANES * (gated ? 2 : 1)));
        const __m512 y = gated ? _mm512_mul_ps(x, _mm512_loadu_ps(in + b * LANES * 2 + LANES)) : x;
        _mm512_storeu_ps(out + b * LANES, y);
    }
}

// NaN stays.
void xielu(const Xielu& of, const float* in, int64_t panels, float* out) {
    const __m512 positive = _mm512_set1_ps(of.positive), negative = _mm512_set1_ps(of.negative),
                 beta = _mm512_set1_ps(of.beta), eps = _mm512_set1_ps(of.eps), one = _mm512_set1_ps(1.0f);
    for (int64_t b = 0; b < panels; b++) {
        const __m512 x = _mm512_loadu_ps(in + b * LANES);
        const __m512 above = _mm512_mul_ps(_mm512_mul_ps(positive, x), x);
        const __m512 grown = _mm512_sub_ps(exponential(_mm512_min_ps(eps, x)), one);
        const __m512 below = _mm512_mul_ps(_mm512_sub_ps(grown, x), negative);
        const __mmask16 up = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
        _mm512_storeu_ps(out + b * LANES, _mm512_fmadd_ps(beta, x, _mm512_mask_mov_ps(below, up, above)));
    }
}

void add(float* x, const float* y, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_maskz_loadu_ps(mask, y + i));
        _mm512_mask_storeu_ps(x + i, mask, sum);
    }
}

void normalize(bool rms, const float* x, const float* weight, const float* bias, float epsilon, int64_t size,
               float* out) {
    float mean = 0;
    if (!rms) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += LANES) {
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes(size - i), x + i));
        }
        mean = _mm512_reduce_add_ps(sum) / float(size);
    }
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 centred = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(mean));
        squares = _mm512_fmadd_ps(centred, centred, squares);
    }
    float factor = 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(size) + epsilon);
    if (factor == 0) factor = NAN;  // squares beyond what fp32 holds: zeros would pass for a result
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        __m512 y = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(mean));
        y = _mm512_mul_ps(y, _mm512_set1_ps(factor));
        if (weight) y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(mask, weight + i));
        if (bias) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, bias + i));
        _mm512_mask_storeu_ps(out + i, mask, y);
    }
}

// 16 values in the row form of fp32 or bf16.
inline void store_row(Precision precision, __m512 x, uint8_t* values, int64_t index) {
    if (precision == FP32) {
        _mm512_storeu_ps(reinterpret_cast<float*>(values) + index, x);
    } else if (sizeof(Bf16::Row) == 2) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + index * 2), to_bf16(x));
    } else {
        const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(x)), 16);
        _mm512_storeu_si512(values + index * 4, wide);
    }
}

void convert(Precision precision, const float* x, int64_t size, int64_t padded, uint8_t* out) {
    for (int64_t i = 0; i < padded; i += LANES) {
        store_row(precision, _mm512_maskz_loadu_ps(lanes(size - i), x + i), out, i);
    }
}

// A span of 128 columns to int8 with scale max |x| / 127. With NaN or infinity in the span the scale is NaN, and so is
// every output of the row. paired: sums are those of BLOCK_ROWS.
inline void quantize_span(const float* x, int64_t width, int32_t group, bool paired, int8_t* values, float* scale,
                          int32_t* sums) {
    constexpr int VECTORS = SCALE_COLUMNS / LANES;
    __m512 v[VECTORS];
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < VECTORS; i++) {
        v[i] = _mm512_maskz_loadu_ps(lanes(width - i * LANES), x + i * LANES);
        largest = _mm512_max_epu32(largest, size_bits(v[i]));
    }
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    if (bits >= 0x7f800000u) {
        std::memset(values, 0, SCALE_COLUMNS);
        std::memset(sums, 0, size_t(SCALE_COLUMNS / group) * sizeof *sums);
        *scale = NAN;
        return;
    }
    float most;
    std::memcpy(&most, &bits, sizeof most);
    *scale = most / 127.0f;
    const __m512 factor = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < VECTORS; i++) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], factor));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i * LANES), _mm512_cvtsepi32_epi8(q));
        if (paired) {
            const uint32_t of_16 = uint32_t(-_mm512_reduce_add_epi32(q));
            sums[i / 2] = i % 2 ? int32_t(uint32_t(sums[i / 2]) | of_16 << 16) : int32_t(of_16 & 0xffff);
            continue;
        }
        sum = _mm512_sub_epi32(sum, q);
        if ((i + 1) * LANES % group == 0) {
            *sums++ = _mm512_reduce_add_epi32(sum);
            sum = _mm512_setzero_si512();
        }
    }
}

// Bytes [first, last) of row `row`, which has so many of them, to their places in the tiles.
inline void copy_to_tiles(const uint8_t* values, int64_t row, int64_t row_bytes, int64_t first, int64_t last,
                          uint8_t* tiles) {
    uint8_t* to = tiles + row / 16 * 16 * row_bytes + row % 16 * 64;
    for (int64_t i = first; i < last; i += 64) _mm512_storeu_si512(to + i * 16, _mm512_loadu_si512(values + i));
}

void quantize(Precision precision, int32_t group, const float* x, int64_t width, int64_t first, int64_t last,
              int64_t row, const LinearRows& out) {
    const RowType rows = row_type(precision);
    if (rows != INT8_ROWS && rows != BLOCK_ROWS) {
        const int64_t bytes = rows == FP32_ROWS ? 4 : sizeof(Bf16::Row), row_bytes = out.depth * bytes;
        convert(precision, x + first, width - first, last - first, out.values + row * row_bytes + first * bytes);
        if (out.tiles && rows == BF16_ROWS) {
            copy_to_tiles(out.values + row * row_bytes, row, row_bytes, first * bytes, last * bytes, out.tiles);
        }
        return;
    }
    const int64_t spans = out.depth / SCALE_COLUMNS, groups = out.depth / group;
    for (int64_t k = first; k < last; k += SCALE_COLUMNS) {
        quantize_span(x + k, width - k, group, rows == BLOCK_ROWS,
                      reinterpret_cast<int8_t*>(out.values) + row * out.depth + k,
                      out.scales + row * spans + k / SCALE_COLUMNS, out.negated_sums + row * groups + k / group);
    }
    if (out.tiles) copy_to_tiles(out.values + row * out.depth, row, out.depth, first, last, out.tiles);
}

// One stream: several in one thread were slower (38 against 60 GB/s on Zen 4).
uint64_t read(const uint8_t* data, int64_t size, int64_t ahead) {
    __m512i even = _mm512_setzero_si512(), odd = even;
    for (int64_t i = 0; i + 128 <= size; i += 128) {
        if (ahead) {
            _mm_prefetch(reinterpret_cast<const char*>(data + i + ahead), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(data + i + ahead + 64), _MM_HINT_T0);
        }
        even = _mm512_xor_si512(even, _mm512_loadu_si512(data + i));
        odd = _mm512_xor_si512(odd, _mm512_loadu_si512(data + i + 64));
    }
    return uint64_t(_mm512_reduce_add_epi64(_mm512_xor_si512(even, odd)));
}

// Rotates the two halves of a head's first rotary_dim values as pairs. cosine and sine (rotary_dim); the sine has
// rotate_half's sign.
void apply_rotary(float* x, int32_t rotary_dim, const float* cosine, const float* sine) {
    const int32_t half = rotary_dim / 2;
    for (int32_t d = 0; d < half; d++) {
        const float left = x[d], right = x[d + half];
        x[d] = left * cosine[d] + right * sine[d];
        x[d + half] = right * cosine[d + half] + left * sine[d + half];
    }
}

void multiply_sigmoid(float* x, const float* gate, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 y = sigmoid(_mm512_maskz_loadu_ps(mask, gate + i));
        _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), y));
    }
}

// tanh u is 2 · sigmoid(2 u) - 1, and 1 from 10 on.
void soft_cap(float* x, int64_t size, float inner, float outer) {
    const __m512 one = _mm512_set1_ps(1.0f), most = _mm512_set1_ps(10.0f), least = _mm512_set1_ps(-10.0f);
    for (int64_t i = 0; i < size; i += LANES) {
        __m512 u = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(size - i), x + i), _mm512_set1_ps(inner));
        u = _mm512_max_ps(least, _mm512_min_ps(most, u));  // the second operand stays where it is NaN
        const __m512 y = _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(2.0f), sigmoid(_mm512_add_ps(u, u))), one);
        _mm512_mask_storeu_ps(x + i, lanes(size - i), _mm512_mul_ps(y, _mm512_set1_ps(outer)));
    }
}

ArgMax argmax(const float* x, int64_t size) {
    __m512 best = _mm512_set1_ps(-INFINITY);
    __m512i where = _mm512_setzero_si512(),
            index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes(size - i), x + i);
        const __mmask16 more = _mm512_mask_cmp_ps_mask(lanes(size - i), v, best, _CMP_GT_OQ);
        best = _mm512_mask_mov_ps(best, more, v);
        where = _mm512_mask_mov_epi32(where, more, index);
        index = _mm512_add_epi32(index, _mm512_set1_epi32(LANES));
    }
    ArgMax result;
    result.value = _mm512_reduce_max_ps(best);
    const __mmask16 equal = _mm512_cmp_ps_mask(best, _mm512_set1_ps(result.value), _CMP_EQ_OQ);
    result.index = equal ? _mm512_mask_reduce_min_epi32(equal, where) : 0;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 e = exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(result.value)));
        sum = _mm512_mask_add_ps(sum, mask, sum, e);
    }
    result.sum = _mm512_reduce_add_ps(sum);
    return result;
}

void convolve(const float* const* rows, int32_t kernel_size, const float* weights, int64_t stride, const float* bias,
              bool silu, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        __m512 sum = bias ? _mm512_maskz_loadu_ps(mask, bias + i) : _mm512_setzero_ps();
        for (int32_t t = 0; t < kernel_size; t++) {
            if (!rows[t]) continue;
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, weights + t * stride + i),
                                  _mm512_maskz_loadu_ps(mask, rows[t] + i), sum);
        }
        _mm512_storeu_ps(out + i, _mm512_maskz_mov_ps(mask, silu ? activation(SILU, sum) : sum));
    }
}

void unit_length(float* x, int64_t size, float epsilon, float factor) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512 each = _mm512_maskz_loadu_ps(lanes(size - i), x + i);
        squares = _mm512_fmadd_ps(each, each, squares);
    }
    const __m512 scale = _mm512_set1_ps(factor / std::sqrt(_mm512_reduce_add_ps(squares) + epsilon));
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale));
    }
}

void silu_gate(float* x, const float* gate, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 z = activation(SILU, _mm512_maskz_loadu_ps(mask, gate + i));
        _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), z));
    }
}

// log(1 + e^x) to about 2 ulp: max(x, 0) + log(1 + y) with y = e^-|x|, which is 2 atanh(y / (2 + y)).
inline __m512 softplus(__m512 x) {
    const __m512 zero = _mm512_setzero_ps();
    const __m512 y = exponential(_mm512_sub_ps(zero, _mm512_abs_ps(x)));
    const __m512 s = _mm512_div_ps(y, _mm512_add_ps(y, _mm512_set1_ps(2.0f))), square = _mm512_mul_ps(s, s);
    __m512 p = _mm512_set1_ps(2.0f / 15);
    for (const float c : {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f})
        p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(c));
    return _mm512_fmadd_ps(p, s, _mm512_max_ps(zero, x));
}

void steps(const float* in, const float* bias, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, in + i), _mm512_maskz_loadu_ps(mask, bias + i));
        _mm512_storeu_ps(out + i, _mm512_maskz_mov_ps(mask, softplus(x)));
    }
}

}  // namespace
}  // namespace ipex_assist
