// int8: linears by vectors or tiles, and packing.
#pragma once
#include "formats/int8/format.h"
#include "kernels/integer_linear.h"
#include "kernels/integer_prefill.h"
#include "kernels/pack_rows.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/amx_prefill.h"
#include "kernels/integer_amx.h"
#endif

namespace ipex_assist {
namespace {

// M rows times some spans of a panel of int8 weights.
template <int M, Prefetch P>
HOT_LOOP void int8_tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
    const int64_t spans = w.depth / SCALE_COLUMNS, before = t.row * spans + t.first;
    const uint8_t* panel = w.weights + (t.panel * spans + t.first) * SCALE_COLUMNS * LANES;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, w.depth);
    RowStrides<float, M> scales(in.scales + before, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + before, spans);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = t.first ? _mm512_loadu_ps(t.out + m * t.stride) : _mm512_setzero_ps());
    for (int64_t g = t.first; g < t.last; g++) {
        __m512i acc[M];
        // Weights are stored + 128, which adds 128 times the sum of the row.
        FOR_EACH(m, M, acc[m] = _mm512_slli_epi32(_mm512_set1_epi32(*sums.at(m)), 7));
        for (const uint8_t* end = panel + SCALE_COLUMNS * LANES; panel < end;
             panel += INT16_LINES * 64, rows.move(INT16_LINES * 4)) {
            add_bytes<M, P>(panel, rows, acc);
        }
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m]), _mm512_set1_ps(*scales.at(m)), total[m]));
        scales.move(1), sums.move(1);
    }
    if (t.last == spans) {
        const __m512 scale = _mm512_loadu_ps(w.scales + t.panel * LANES);
        const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + t.panel * LANES) : _mm512_setzero_ps();
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(total[m], scale, bias));
    }
    FOR_EACH(m, M, _mm512_storeu_ps(t.out + m * t.stride, total[m]));
}

struct Int8Tiles {
    template <int M, Prefetch P>
    static void tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
        int8_tile<M, P>(w, in, t);
    }
};

#ifdef IPEX_ASSIST_HAS_AMX
// The groups of int8: weights lie as the tiles take them, and are stored + 128, which adds 128 times the sum of the
// row.
struct Int8Groups {
    static constexpr int COLUMNS = SCALE_COLUMNS, BYTES = SCALE_COLUMNS * LANES, UNPACKED = 64, AHEAD = 2048;
    static constexpr int GROUPS = 1;
    static constexpr bool SIGNED = false;
    static int32_t start(int32_t negated_sum) { return negated_sum * 128; }
    static __m512 begin(const Linear&, int64_t) { return _mm512_setzero_ps(); }
    static __m512 end(const Linear& w, int64_t b, __m512 total) { return scaled_column(w, b, total); }
    static const uint8_t* unpack(const uint8_t* group, uint8_t*) { return group; }

    template <int M>
    static void add(const uint8_t*, const int32_t* sums, int64_t, const float* scales, const int32_t* starts,
                    __m512* total) {
        FOR_EACH(m, M, {
            const __m512i sum = _mm512_add_epi32(_mm512_set1_epi32(starts[m]), _mm512_load_si512(sums + m * LANES));
            total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scales[m]), total[m]);
        });
    }
};

// And those of many rows, as signed bytes.
struct Int8Squares {
    static constexpr int COLUMNS = SCALE_COLUMNS, PLANES = 1, VALUE_BYTES = 1, AHEAD = 2048;
    using Other = void;
    static constexpr int SCALES = 0;
    static int64_t head(int64_t) { return 0; }
    static bool tiles(const uint8_t*, int64_t, const uint8_t* lines, int, uint8_t* to, float*) {
        const __m512i sign = _mm512_set1_epi8(-128);
        FOR_EACH(s, SCALE_COLUMNS / 4,
                 { _mm512_store_si512(to + s * 64, _mm512_xor_si512(_mm512_loadu_si512(lines + s * 64), sign)); });
        return true;
    }
    static __m512 begin(const Linear&, int64_t) { return _mm512_setzero_ps(); }
    static __m512 end(const Linear& w, int64_t b, __m512 total) { return scaled_column(w, b, total); }
    template <class S>
    static __m512 add(const S& sums, __m512 row_scale, const __m512*, __m512 total) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums(0))), row_scale, total);
    }
};

#endif

#ifdef IPEX_ASSIST_BYTE_PAIRS
// Bytes are where they were; the sums of a column are scaled at its end.
struct Int8Bytes {
    static constexpr int ZERO = 128;
    static constexpr bool SCALED_AT_END = true, UNPACKED = false, FOLDS = false;
    static int64_t groups(const Linear&) { return 1; }
    static void unpack(const Linear&, const uint8_t*, int64_t, uint32_t, uint8_t*, float*) {}
};
#endif

inline void format_linear(Int8Format, const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                          float* out, int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (rows > TILE) return amx_many<Int8Squares>(w, in, rows, first, last, out, stride);
    if (rows > VECTOR_ROWS) return amx_integer_rows<Int8Groups>(w, in, rows, first, last, out, stride);
#endif
#ifdef IPEX_ASSIST_BYTE_PAIRS
    if (rows > TILE_ROWS) return byte_pairs<Int8Bytes>(w, in, rows, first, last, out, stride);
#endif
    integer_linear<Int8Tiles>(w, in, rows, first, last, out, stride);
}

inline float largest(const float* x, int64_t size) {
    __m512 most = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(most);
}

// int8: one scale a column, largest / 127.
inline float pack_int8_column(const float* x, int64_t depth, uint8_t* out) {
    const float most = largest(x, depth);
    const __m512 factor = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    for (int64_t i = 0; i < depth; i += LANES) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(128))));
    }
    return most / 127.0f;
}

inline bool format_pack(Int8Format, const PackRequest& p) {
    return pack_columns(p, p.depth, [&](int64_t j, const float* column, uint8_t* to) {
        p.scales[j] = pack_int8_column(column, p.depth, to);
    });
}

}  // namespace
}  // namespace ipex_assist
