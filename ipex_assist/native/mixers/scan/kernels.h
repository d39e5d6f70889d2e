// The kernels of a scan: decays by key, and the scan itself.
//
// A state (key_depth, 16 columns) stays in the first-level cache while all rows pass over it, one after the other. A
// sweep over it applies a row, sums up that row's output, and what the next row recalls, so that the state is loaded
// and stored once a row. Every sum runs over the same four accumulators in the same order, wherever a pass begins or
// ends. What comes before the second row reads the state from where it is kept, and prefetches the one that is scanned
// next, a few lines with every few keys: all at once they would queue.
#pragma once
#include "kernels/kernels.h"

namespace ipex_assist {

// Rows that pass over 16 columns of a recurrent state. All arrays but the rows are the calling thread's own.
struct ScanTile {
    float* state;        // (key_depth, 16), scratch, aligned to 64 bytes
    const float* from;   // the state before the first row; null: zeros
    const float* ahead;  // the state that is scanned after this one, or any
    float* to;           // where the state before row `settle` goes, `count` for that after all; null: nowhere
    int64_t settle;
    int64_t key_depth;
    bool delta;   // what is added is v - state · recall, not v itself
    bool by_key;  // each key has a decay of its own
    float skip;   // of the value, in the output
    // Where each channel has a step and each element of the state a decay exp(step · rate): the rates of the first
    // key's 16 columns, `rate_stride` before the next key's, for `key_dim` keys, and a skip of each column; or null.
    const float *rates, *skips;
    int64_t rate_stride, key_dim;
    const float* rows;  // (count, stride)
    int64_t count, stride;
    // Columns of a row: the first of each part, and one of betas, and of decays but where each key has one, or
    // each channel a step. What recalls is the key, or the key times its decays.
    int64_t query, key, value, decay, beta, recall;
    int64_t first_out;  // the first row that has an output
    float* out;         // of that row, `out_stride` before the next one's
    int64_t out_stride, columns;
};

struct ScanKernels {
    // decays = exp(rate · softplus(in + bias)); with a bound other than 0, exp(bound · sigmoid(-rate · (in +
    // bias))). recalls = key · decays. All are (size), zero up to a multiple of 16.
    void (*decay_keys)(const float* in, const float* bias, float rate, float bound, const float* key, int64_t size,
                       float* decays, float* recalls);
    void (*scan)(const ScanTile&);
};

}  // namespace ipex_assist

#ifdef IPEX_ASSIST_KERNELS
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

constexpr int SCAN_CHAINS = 4;  // accumulators: of every fourth key, as one addition waits for the one before it

void decay_keys(const float* in, const float* bias, float rate, float bound, const float* key, int64_t size,
                float* decays, float* recalls) {
    const __m512 rates = _mm512_set1_ps(rate), bounds = _mm512_set1_ps(bound), zero = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, in + i), _mm512_maskz_loadu_ps(mask, bias + i));
        const __m512 log = bound == 0 ? _mm512_mul_ps(rates, softplus(x))
                                      : _mm512_mul_ps(bounds, sigmoid(_mm512_mul_ps(_mm512_sub_ps(zero, rates), x)));
        const __m512 decay = exponential(log);
        _mm512_storeu_ps(decays + i, _mm512_maskz_mov_ps(mask, decay));
        _mm512_storeu_ps(recalls + i,
                         _mm512_mul_ps(_mm512_maskz_mov_ps(mask, decay), _mm512_maskz_loadu_ps(mask, key + i)));
    }
}

inline __m512 sum_chains(const __m512* x) {
    return _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
}

// Lines [FIRST, END) of every SCAN_CHAINS, from key k on, of the state that is scanned next.
template <int FIRST, int END>
inline void prefetch_state(const float* ahead, int64_t k) {
    for (int c = FIRST; c < END; c++) _mm_prefetch(reinterpret_cast<const char*>(ahead + (k + c) * LANES), _MM_HINT_T1);
}

constexpr int RECALLED = SCAN_CHAINS / 2;  // of these lines are prefetched by `recall`, if there is one

// Σ from[k] · key[k], before the first row.
inline __m512 recall(const ScanTile& t, const float* from, const float* key) {
    __m512 sums[SCAN_CHAINS] = {};
    for (int64_t k = 0; k < t.key_depth; k += SCAN_CHAINS) {
        prefetch_state<0, RECALLED>(t.ahead, k);
        for (int c = 0; c < SCAN_CHAINS; c++) {
            sums[c] = _mm512_fmadd_ps(_mm512_loadu_ps(from + (k + c) * LANES), _mm512_set1_ps(key[k + c]), sums[c]);
        }
    }
    return sum_chains(sums);
}

// One row: state ← decay · from + key · change; returns Σ state · query, and in `recalled` Σ state · the next
// row's key. Decays: one, or one of each key. PREFETCHED: from which line on of every SCAN_CHAINS.
template <bool BY_KEY, int PREFETCHED>
inline __m512 sweep(const ScanTile& t, const float* from, const float* row, const float* next, __m512 change,
                    __m512& recalled) {
    const float *decays = row + t.decay, *key = row + t.key, *query = row + t.query, *next_key = next + t.recall;
    __m512 out[SCAN_CHAINS] = {}, following[SCAN_CHAINS] = {}, decay = _mm512_set1_ps(decays[0]);
    for (int64_t k = 0; k < t.key_depth; k += SCAN_CHAINS) {
        prefetch_state<PREFETCHED, SCAN_CHAINS>(t.ahead, k);
        for (int c = 0; c < SCAN_CHAINS; c++) {
            const int64_t at = (k + c) * LANES;
            if (BY_KEY) decay = _mm512_set1_ps(decays[k + c]);
            const __m512 s =
                _mm512_fmadd_ps(_mm512_set1_ps(key[k + c]), change, _mm512_mul_ps(decay, _mm512_loadu_ps(from + at)));
            _mm512_store_ps(t.state + at, s);
            out[c] = _mm512_fmadd_ps(s, _mm512_set1_ps(query[k + c]), out[c]);
            following[c] = _mm512_fmadd_ps(s, _mm512_set1_ps(next_key[k + c]), following[c]);
        }
    }
    recalled = sum_chains(following);
    return sum_chains(out);
}

inline int64_t state_bytes(const ScanTile& t) { return t.key_depth * LANES * int64_t(sizeof(float)); }

template <bool BY_KEY>
inline void scan_rows(const ScanTile& t) {
    if (!t.from) std::memset(t.state, 0, size_t(state_bytes(t)));
    const float* from = t.from ? t.from : t.state;
    __m512 recalled = t.delta ? recall(t, from, t.rows + t.recall) : _mm512_setzero_ps();
    for (int64_t r = 0; r <= t.count; r++) {
        if (t.to && r == t.settle) std::memcpy(t.to, t.state, size_t(state_bytes(t)));
        if (r == t.count) break;
        const float* row = t.rows + r * t.stride;
        const __m512 beta = _mm512_set1_ps(row[t.beta]), value = _mm512_loadu_ps(row + t.value);
        const __m512 left = BY_KEY    ? _mm512_sub_ps(value, recalled)
                            : t.delta ? _mm512_fnmadd_ps(_mm512_set1_ps(row[t.decay]), recalled, value)
                                      : value;
        const __m512 change = _mm512_mul_ps(beta, left);
        const float* next = r + 1 < t.count ? row + t.stride : row;
        __m512 out = r > 0     ? sweep<BY_KEY, SCAN_CHAINS>(t, t.state, row, next, change, recalled)
                     : t.delta ? sweep<BY_KEY, RECALLED>(t, from, row, next, change, recalled)
                               : sweep<BY_KEY, 0>(t, from, row, next, change, recalled);
        if (t.skip != 0) out = _mm512_fmadd_ps(_mm512_set1_ps(t.skip), value, out);
        if (r >= t.first_out) _mm512_mask_storeu_ps(t.out + (r - t.first_out) * t.out_stride, lanes(t.columns), out);
    }
}

// One row: state ← exp(step · rate) · state + key · change, element by element; returns Σ state · query.
inline __m512 sweep_channels(const ScanTile& t, __mmask16 mask, __m512 step, __m512 change, const float* key,
                             const float* query) {
    __m512 out[SCAN_CHAINS] = {};
    for (int64_t k = 0; k < t.key_dim; k++) {
        float* at = t.state + k * LANES;
        const __m512 decay = exponential(_mm512_mul_ps(step, _mm512_maskz_loadu_ps(mask, t.rates + k * t.rate_stride)));
        const __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(key[k]), change, _mm512_mul_ps(decay, _mm512_load_ps(at)));
        _mm512_store_ps(at, s);
        out[k % SCAN_CHAINS] = _mm512_fmadd_ps(s, _mm512_set1_ps(query[k]), out[k % SCAN_CHAINS]);
    }
    return sum_chains(out);
}

HOT_LOOP void scan_by_channel(const ScanTile& t) {
    const __mmask16 mask = lanes(t.columns);
    if (t.from) std::memcpy(t.state, t.from, size_t(state_bytes(t)));
    else std::memset(t.state, 0, size_t(state_bytes(t)));
    for (int64_t r = 0; r <= t.count; r++) {
        if (t.to && r == t.settle) std::memcpy(t.to, t.state, size_t(state_bytes(t)));
        if (r == t.count) break;
        const float* row = t.rows + r * t.stride;
        const __m512 step = _mm512_loadu_ps(row + t.decay), value = _mm512_loadu_ps(row + t.value);
        const __m512 out = sweep_channels(t, mask, step, _mm512_mul_ps(step, value), row + t.key, row + t.query);
        const __m512 skip = _mm512_maskz_loadu_ps(mask, t.skips);
        float* to = t.out + (r - t.first_out) * t.out_stride;
        if (r >= t.first_out) _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(skip, value, out));
    }
}

HOT_LOOP void scan_by_head(const ScanTile& t) { scan_rows<false>(t); }
HOT_LOOP void scan_by_key(const ScanTile& t) { scan_rows<true>(t); }
void scan(const ScanTile& t) {
    if (t.rates) scan_by_channel(t);
    else if (t.by_key) scan_by_key(t);
    else scan_by_head(t);
}

constexpr ScanKernels SCAN_KERNELS{decay_keys, scan};

}  // namespace
}  // namespace ipex_assist

#endif
