// Keys and values of positions that are kept as rows (kv_cache/blocks.h), and how they become a block.
#pragma once
#include <cstring>

#include "kernels/attention_store.h"
#include "kernels/pack_rows.h"

namespace ipex_assist {
namespace {

float store_row(const float* x, int32_t size, bool key, uint8_t* to) {
    return quantize_position(x, size, key, [&](int32_t d, int, __m128i bytes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + d), bytes);
    });
}

// The keys of 16 positions from `first` on: what is side by side in a row is in the same lane of lines.
inline void pack_keys(const PositionRows& r, int64_t first, uint8_t* panel) {
    const int64_t bytes = r.key_width * r.bytes, rows = r.count - first;
    for (int64_t b = 0; b < bytes; b += 64) {
        __m512i line[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            if (first + LANES + j < r.count)
                _mm_prefetch(reinterpret_cast<const char*>(r.keys[first + LANES + j] + b), _MM_HINT_T0);
            alignas(64) uint8_t rest[64] = {};
            const uint8_t* from = rest;
            if (j < rows && b + 64 <= bytes) from = r.keys[first + j] + b;
            else if (j < rows) std::memcpy(rest, r.keys[first + j] + b, size_t(bytes - b));
            line[j] = _mm512_loadu_si512(from);
        }
        transpose(line);
        const int64_t lines = bytes - b < 64 ? (bytes - b) / 4 : LANES;
        for (int64_t k = 0; k < lines; k++) _mm512_storeu_si512(panel + (b / 4 + k) * 64, line[k]);
    }
    std::memset(panel + bytes * LANES, 0, size_t(r.key_depth * r.bytes - bytes) * LANES);
}

// The values of 16 positions from `first` on, of which each line has as many as a lane has elements.
template <int BYTES>
inline void pack_values(const PositionRows& r, int64_t first, uint8_t* values) {
    constexpr int64_t STEP = 4 / BYTES, COLUMNS = 16 / BYTES;
    for (int64_t d = 0; d < r.value_width; d += COLUMNS) {
        uint8_t* to = values + (d / LANES * BLOCK_POSITIONS + first) / STEP * 64 + d % LANES * 4;
        for (int64_t p = 0; p < LANES; p += STEP, to += 64) {
            __m128i row[4];
            for (int64_t j = 0; j < STEP; j++) {
                const int64_t i = first + p + j;
                const auto at = [&](int64_t n) { return reinterpret_cast<const __m128i*>(r.values[n] + d * BYTES); };
                row[j] = i < r.count ? _mm_loadu_si128(at(i)) : _mm_setzero_si128();
                if (i + LANES < r.count) _mm_prefetch(reinterpret_cast<const char*>(at(i + LANES)), _MM_HINT_T0);
            }
            const auto store = [&](int n, __m128i quarter) {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + n, quarter);
            };
            if constexpr (BYTES == 4) {
                store(0, row[0]);
            } else if constexpr (BYTES == 2) {
                store(0, _mm_unpacklo_epi16(row[0], row[1])), store(1, _mm_unpackhi_epi16(row[0], row[1]));
            } else {
                const __m128i low = _mm_unpacklo_epi8(row[0], row[1]), high = _mm_unpackhi_epi8(row[0], row[1]),
                              next_low = _mm_unpacklo_epi8(row[2], row[3]),
                              next_high = _mm_unpackhi_epi8(row[2], row[3]);
                store(0, _mm_unpacklo_epi16(low, next_low)), store(1, _mm_unpackhi_epi16(low, next_low));
                store(2, _mm_unpacklo_epi16(high, next_high)), store(3, _mm_unpackhi_epi16(high, next_high));
            }
        }
    }
}

void pack_positions(const PositionRows& r, const KeyValueBlock& to) {
    for (int64_t first = 0; first < r.count; first += LANES) {
        pack_keys(r, first, to.keys + first * r.key_depth * r.bytes);
        switch (r.bytes) {
            case 4: pack_values<4>(r, first, to.values); break;
            case 2: pack_values<2>(r, first, to.values); break;
            default: pack_values<1>(r, first, to.values);
        }
    }
}

}  // namespace
}  // namespace ipex_assist
