// Linears of MXFP4 weights with int8 rows: as those of int4 (kernels/integer_linear.h), whose nibbles are looked up.
//
// Twice a value of E2M1 is a whole number from -12 to 12, so that sums of 32 products are integers and exact, and have
// the same bits by whichever instructions; the other half is in the scale, a power of two.
#pragma once
#include "formats/mxfp4/format.h"
#include "kernels/integer_linear.h"
#include "kernels/integer_prefill.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/amx_prefill.h"
#endif

namespace ipex_assist {
namespace {

constexpr int MX_GROUP = 32, MX_GROUPS = SCALE_COLUMNS / MX_GROUP;  // input columns that share a scale; such in a span
constexpr int MX_BYTES = (SCALE_COLUMNS / 8 + 1) * 64;              // of a span of a panel
constexpr int MX_ZERO = 12;                                         // added to all, so that they are unsigned
alignas(64) constexpr uint8_t MX_VALUES[64] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                               12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                               12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                               12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The values of a line of weights, as unsigned bytes.
struct MxValues {
    __m512i low, high;
    MxValues(const uint8_t* line, __m512i values) {
        const __m512i both = _mm512_loadu_si512(line), nibble = _mm512_set1_epi8(15);
        low = _mm512_shuffle_epi8(values, _mm512_and_si512(both, nibble));
        high = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
    }
};

// Half of the scales of group g of a span; its first line has their exponents.
inline __m512 mx_half_scales(__m512i head, int g) {
    const __m512i exponent = _mm512_and_si512(_mm512_srli_epi32(head, unsigned(8 * g)), _mm512_set1_epi32(255));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)), _mm512_set1_ps(0.5f));
}

// Sums of the products of M rows with a group (4 lines).
template <int M, Prefetch P>
struct MxSums {
    __m512i sums[M];

#ifdef IPEX_ASSIST_VNNI
    // Few rows have sums of their own for the high nibbles: one chain would be longer than reading the weights takes.
    static constexpr bool TWO_CHAINS = 8 * M <= REGISTERS;
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column,
                                            __m512i values) {
        __m512i high[M];
        if (TWO_CHAINS) FOR_EACH(m, M, high[m] = _mm512_setzero_si512());
        FOR_EACH(s, 4, {
            prefetch_line<P>(lines + s * 64, s);
            const MxValues line(lines + s * 64, values);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                sums[m] = dot_bytes(sums[m], line.low, row);
                __m512i& upper = TWO_CHAINS ? high[m] : sums[m];
                upper = dot_bytes(upper, line.high, row + 16);
            });
        });
        if (TWO_CHAINS) FOR_EACH(m, M, sums[m] = _mm512_add_epi32(sums[m], high[m]));
    }
#else
    // Pairs of values times signed bytes are at most 2 · 24 · 128 = 6144, and 4 of them 24576: below 32767, the limit
    // of vpmaddubsw and of 16 bits. So the sums are exact.
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column,
                                            __m512i values) {
        __m512i low[M], high[M];
        FOR_EACH(s, 4, {
            prefetch_line<P>(lines + s * 64, s);
            const MxValues line(lines + s * 64, values);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                const __m512i l = _mm512_maddubs_epi16(line.low, broadcast4(row));
                const __m512i h = _mm512_maddubs_epi16(line.high, broadcast4(row + 16));
                low[m] = s > 0 ? _mm512_add_epi16(low[m], l) : l, high[m] = s > 0 ? _mm512_add_epi16(high[m], h) : h;
                KEEP_VECTOR(low[m]);
                KEEP_VECTOR(high[m]);
            });
        });
        FOR_EACH(m, M, {
            sums[m] = _mm512_add_epi32(sums[m], _mm512_madd_epi16(low[m], _mm512_set1_epi16(1)));
            sums[m] = _mm512_add_epi32(sums[m], _mm512_madd_epi16(high[m], _mm512_set1_epi16(1)));
        });
    }
#endif
};

// M rows times one panel.
template <int M, Prefetch P>
HOT_LOOP void mxfp4_tile(const Linear& w, const LinearRows& in, int64_t row, const uint8_t* panel, int64_t column,
                         float* out, int64_t stride) {
    const int64_t spans = w.depth / SCALE_COLUMNS, groups = spans * MX_GROUPS;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + row * w.depth, w.depth);
    RowStrides<float, M> scales(in.scales + row * spans, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + row * groups, groups);
    const __m512i values = _mm512_loadu_si512(MX_VALUES), zero = _mm512_set1_epi32(MX_ZERO);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps());
    for (const uint8_t* end = panel + spans * MX_BYTES; panel < end; panel += MX_BYTES) {
        const __m512i head = _mm512_loadu_si512(panel);
        prefetch_line<P>(panel, 0);
        FOR_EACH(g, MX_GROUPS, {
            const __m512 scale = mx_half_scales(head, g);
            MxSums<M, P> acc;
            // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
            FOR_EACH(m, M, acc.sums[m] = _mm512_madd_epi16(zero, _mm512_set1_epi32(sums.at(m)[g])));
            acc.add(panel + 64 + g * 256, rows, g * MX_GROUP, values);
            FOR_EACH(m, M, {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.at(m)));
                total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc.sums[m]), factor, total[m]);
            });
        });
        rows.move(SCALE_COLUMNS), scales.move(1), sums.move(MX_GROUPS);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

#ifdef IPEX_ASSIST_HAS_AMX
// Groups of many rows.
struct MxSquares {
    static constexpr int COLUMNS = MX_GROUP, VALUE_BYTES = 1, AHEAD = 4096;
    static constexpr int64_t SPAN_BYTES = MX_BYTES;
    static constexpr bool SCALES = true;
    static int64_t head(int64_t) { return 0; }
    static void tiles(const uint8_t*, int64_t, const uint8_t* lines, int g, uint8_t* to, float* scale) {
        const __m512i values = _mm512_sub_epi8(_mm512_loadu_si512(MX_VALUES), _mm512_set1_epi8(MX_ZERO));
        _mm512_store_ps(scale, mx_half_scales(_mm512_loadu_si512(lines), g));
        FOR_EACH(s, 4, {
            const MxValues line(lines + 64 + (g * 4 + s) * 64, values);
            _mm512_store_si512(to + s * 64, line.low);
            _mm512_store_si512(to + (4 + s) * 64, line.high);
        });
    }
    static __m512 begin(const Linear& w, int64_t b) {
        return w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }
    static __m512 add(const int32_t* sums, __m512 row_scale, __m512 scale, __m512 total) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums));
        return _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, row_scale), total);
    }
};
#endif

#ifdef IPEX_ASSIST_BYTE_PAIRS
struct MxBytes {
    static constexpr int ZERO = MX_ZERO;
    static constexpr bool SCALED_AT_END = false, UNPACKED = true;
    static constexpr int64_t groups(const Linear&) { return MX_GROUPS; }
    // Spans of a panel to bytes, in the order of their columns: twice the value + ZERO; and the scales of groups.
    static void unpack(const Linear&, const uint8_t* from, int64_t groups, uint8_t* to, float* scales) {
        const __m512i values = _mm512_loadu_si512(MX_VALUES);
        for (int64_t g = 0; g < groups; g++, scales += LANES) {
            if (g % MX_GROUPS == 0 && g) from += MX_BYTES;
            _mm512_storeu_ps(scales, mx_half_scales(_mm512_loadu_si512(from), int(g % MX_GROUPS)));
            FOR_EACH(s, 4, {
                const MxValues line(from + 64 + (g % MX_GROUPS * 4 + s) * 64, values);
                _mm512_storeu_si512(to + s * 64, line.low);
                _mm512_storeu_si512(to + (4 + s) * 64, line.high);
            });
            to += 8 * 64;
        }
    }
};
#endif

inline void format_linear(Mxfp4Format, const Linear& w, const LinearRows& in, int64_t count, int64_t first,
                          int64_t last, float* out, int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (count > TILE) return amx_many(MxSquares(), w, in, count, first, last, out, stride);
#endif
#ifdef IPEX_ASSIST_BYTE_PAIRS
    if (count >= UNPACKED_ROWS) return byte_pairs<MxBytes>(w, in, count, first, last, out, stride);
#endif
    const int64_t bytes = panel_bytes(w.precision, w.group, w.depth);
    for (int64_t b = first; b < last; b++) {
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            float* to = out + r * stride + (b - first) * LANES;
#define CALL(M) mxfp4_tile<M, Streaming::of(M)>(w, in, r, w.weights + b * bytes, b * LANES, to, stride)
            IPEX_ASSIST_BY_ROWS(count - r < TILE_ROWS ? count - r : TILE_ROWS, CALL)
#undef CALL
        }
    }
}

}  // namespace
}  // namespace ipex_assist
