// Packing 16 output columns of a checkpoint's matrix into one panel: what the formats share.
#pragma once
#include <cstring>

#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

// A panel to pack: see KernelTable::pack.
struct PackRequest {
    int32_t group;
    SourceType type;
    const uint8_t* source;
    int64_t stride, columns, width, depth;
    uint8_t* panel;
    float *scales, *scratch;
};

// Values i to i + 15 of a row in fp32, 0 where the mask leaves one out.
inline __m512 widened(SourceType type, __mmask16 mask, const void* source, int64_t i) {
    if (type == SOURCE_F32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(source) + i);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(source) + i);
    return type == SOURCE_F16 ? _mm512_cvtph_ps(half)
                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

bool widen(SourceType type, const void* source, int64_t size, float* out) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 v = widened(type, mask, source, i);
        largest = _mm512_max_epu32(largest, size_bits(v));
        _mm512_mask_storeu_ps(out + i, mask, v);
    }
    return finite(largest);
}

void narrow(SourceType type, const float* source, int64_t size, void* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        const __m512 v = _mm512_maskz_loadu_ps(mask, source + i);
        if (type == SOURCE_F32) {
            _mm512_mask_storeu_ps(static_cast<float*>(out) + i, mask, v);
        } else {
            _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + i, mask, to_bf16(v));
        }
    }
}

// Dword j of line i from dword i of line j: by pairs of lines, then by fours, then whole quarters change places.
inline void transpose(__m512i (&line)[LANES]) {
    __m512i pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(line[i], line[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(line[i], line[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
        const __m512i c = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xdd);
        const __m512i d = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xdd);
        line[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        line[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88);
        line[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        line[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

// The first `count` dwords (a multiple of 16) of column j (columns are `pitch` dwords apart) to lane j of `count`
// lines.
inline void interleave(const uint32_t* columns, int64_t pitch, int64_t count, uint8_t* panel) {
    for (int64_t i = 0; i < count; i += LANES) {
        __m512i line[LANES];
        for (int64_t j = 0; j < LANES; j++) line[j] = _mm512_loadu_si512(columns + j * pitch + i);
        transpose(line);
        for (int64_t k = 0; k < LANES; k++) _mm512_storeu_si512(panel + (i + k) * 64, line[k]);
    }
}

// The 32 nibbles from `first` on of 16 columns, one in each lane, as 4 lines.
template <class F>
inline void store_nibbles(int64_t first, const F& nibble, uint8_t* to) {
    const auto byte = [&](int64_t k) { return _mm512_or_si512(nibble(k), _mm512_slli_epi32(nibble(k + 16), 4)); };
    for (int64_t k = first; k < first + 16; k += 4, to += 64) {
        const __m512i half = _mm512_or_si512(byte(k), _mm512_slli_epi32(byte(k + 1), 8));
        const __m512i rest = _mm512_or_si512(byte(k + 2), _mm512_slli_epi32(byte(k + 3), 8));
        _mm512_storeu_si512(to, _mm512_or_si512(half, _mm512_slli_epi32(rest, 16)));
    }
}

// Calls to(g, x) for each group of 16 columns from input column g on, x (group, 16) in fp32. False where a weight is
// NaN or infinite.
template <class F>
inline bool pack_groups(const PackRequest& p, int32_t group, const F& to) {
    alignas(64) float turned[LANES * SCALE_COLUMNS];
    const int64_t element = p.type == SOURCE_F32 ? 4 : 2;
    __m512i most = _mm512_setzero_si512();
    for (int64_t g = 0; g < p.depth; g += group) {
        for (int64_t k = 0; k < group; k += LANES) {
            __m512i line[LANES];
            const __mmask16 mask = lanes(p.width - g - k);
            for (int64_t j = 0; j < LANES; j++) {
                line[j] = j < p.columns
                              ? _mm512_castps_si512(widened(p.type, mask, p.source + j * p.stride * element, g + k))
                              : _mm512_setzero_si512();
                most = _mm512_max_epu32(most, size_bits(_mm512_castsi512_ps(line[j])));
            }
            transpose(line);
            for (int64_t i = 0; i < LANES; i++) _mm512_store_si512(turned + (k + i) * LANES, line[i]);
        }
        to(g, turned);
    }
    return finite(most);
}

// Calls to(j, column, bytes) for each of 16 output columns in fp32 (depth), with room for its `bytes`; then they are
// interleaved. False as above. scratch: one column in fp32, then 16 columns as they will be stored.
template <class F>
inline bool pack_columns(const PackRequest& p, int64_t bytes, const F& to) {
    float* column = p.scratch;
    uint8_t* staged = reinterpret_cast<uint8_t*>(p.scratch + p.depth);
    const int64_t element = p.type == SOURCE_F32 ? 4 : 2;
    bool numbers = true;
    for (int64_t j = 0; j < LANES; j++) {
        const int64_t used = j < p.columns ? p.width : 0;
        numbers &= widen(p.type, p.source + (j < p.columns ? j * p.stride * element : 0), used, column);
        std::memset(column + used, 0, size_t(p.depth - used) * sizeof(float));
        to(j, column, staged + j * bytes);
    }
    interleave(reinterpret_cast<uint32_t*>(staged), bytes / 4, bytes / 4, p.panel);
    return numbers;
}

}  // namespace
}  // namespace ipex_assist
