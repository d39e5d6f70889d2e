// Recurrent mixers: the short convolution before the scan, the scan itself, and gates.
//
// A state (key_depth, 16 columns) stays in the first-level cache while all rows pass over it, one after the other. A
// sweep over it applies a row, sums up that row's output, and what the next row recalls, so that the state is loaded
// and stored once a row. Every sum runs over the same four accumulators in the same order, wherever a pass begins or
// ends.
#pragma once
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

constexpr int SCAN_CHAINS = 4;  // accumulators: of every fourth key, as one addition waits for the one before it

void convolve(const float* const* rows, int32_t taps, const float* weights, int64_t stride, const float* bias,
              bool silu, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        __m512 sum = bias ? _mm512_maskz_loadu_ps(mask, bias + i) : _mm512_setzero_ps();
        for (int32_t t = 0; t < taps; t++) {
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

inline __m512 sum_chains(const __m512* x) {
    return _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
}

// Σ state[k] · key[k].
inline __m512 recall(const float* state, const float* key, int64_t depth) {
    __m512 sums[SCAN_CHAINS] = {};
    for (int64_t k = 0; k < depth; k += SCAN_CHAINS) {
        for (int c = 0; c < SCAN_CHAINS; c++) {
            sums[c] = _mm512_fmadd_ps(_mm512_load_ps(state + (k + c) * LANES), _mm512_set1_ps(key[k + c]), sums[c]);
        }
    }
    return sum_chains(sums);
}

// One row: state ← decay · state + key · change; returns Σ state · query, and in `recalled` Σ state · next_key.
inline __m512 sweep(float* state, int64_t depth, __m512 decay, __m512 change, const float* key, const float* query,
                    const float* next_key, __m512& recalled) {
    __m512 out[SCAN_CHAINS] = {}, next[SCAN_CHAINS] = {};
    for (int64_t k = 0; k < depth; k += SCAN_CHAINS) {
        for (int c = 0; c < SCAN_CHAINS; c++) {
            float* at = state + (k + c) * LANES;
            const __m512 s =
                _mm512_fmadd_ps(_mm512_set1_ps(key[k + c]), change, _mm512_mul_ps(decay, _mm512_load_ps(at)));
            _mm512_store_ps(at, s);
            out[c] = _mm512_fmadd_ps(s, _mm512_set1_ps(query[k + c]), out[c]);
            next[c] = _mm512_fmadd_ps(s, _mm512_set1_ps(next_key[k + c]), next[c]);
        }
    }
    recalled = sum_chains(next);
    return sum_chains(out);
}

HOT_LOOP void scan(const ScanTile& t) {
    const int64_t depth = t.key_depth, size = depth * LANES * int64_t(sizeof(float));
    if (t.from) std::memcpy(t.state, t.from, size_t(size));
    else std::memset(t.state, 0, size_t(size));
    __m512 recalled = t.delta ? recall(t.state, t.rows + t.key, depth) : _mm512_setzero_ps();
    for (int64_t r = 0; r <= t.count; r++) {
        if (t.to && r == t.settle) std::memcpy(t.to, t.state, size_t(size));
        if (r == t.count) break;
        const float* row = t.rows + r * t.stride;
        const __m512 decay = _mm512_set1_ps(row[t.decay]), beta = _mm512_set1_ps(row[t.beta]);
        const __m512 value = _mm512_loadu_ps(row + t.value);
        const __m512 change = _mm512_mul_ps(beta, t.delta ? _mm512_fnmadd_ps(decay, recalled, value) : value);
        const float* next = r + 1 < t.count ? row + t.stride : row;
        __m512 out = sweep(t.state, depth, decay, change, row + t.key, row + t.query, next + t.key, recalled);
        if (t.skip != 0) out = _mm512_fmadd_ps(_mm512_set1_ps(t.skip), value, out);
        if (r >= t.first_out) _mm512_mask_storeu_ps(t.out + (r - t.first_out) * t.out_stride, lanes(t.columns), out);
    }
}

}  // namespace
}  // namespace ipex_assist
