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

#ifdef IPEX_ASSIST_BYTE_PAIRS
// What the exponents of a span's groups leave of its columns: values · 2^shift with one scale, where they lie at most
// MX_SHIFTS apart. These fit into a byte, and all sums with them into the 24 bits of a float: so they have the bits of
// sums that are scaled group by group.
constexpr int MX_SHIFTS = 3, MX_FOLDED_ZERO = MX_ZERO << MX_SHIFTS;
struct MxFolded {
    __m512i shifts;  // a byte for each group
    __m512 half_scale;
    bool fits;

    explicit MxFolded(__m512i head) {
        // Near the ends of a float's exponents products would be rounded. The exponent of zeros is any.
        constexpr int LEAST = 8, MOST = 200;
        __m512i most = _mm512_max_epu8(head, _mm512_ror_epi32(head, 16));
        most = _mm512_max_epu8(_mm512_max_epu8(most, _mm512_ror_epi32(most, 8)), _mm512_set1_epi8(LEAST));
        const __m512i own = _mm512_mask_mov_epi8(head, _mm512_testn_epi8_mask(head, head), most);
        const __m512i below = _mm512_sub_epi8(most, own);
        fits = !(_mm512_cmpgt_epu8_mask(below, _mm512_set1_epi8(MX_SHIFTS)) |
                 _mm512_cmpgt_epu8_mask(most, _mm512_set1_epi8(char(MOST))));
        shifts = _mm512_sub_epi8(_mm512_set1_epi8(MX_SHIFTS), below);
        half_scale = mx_half_scales(_mm512_sub_epi8(most, _mm512_set1_epi8(MX_SHIFTS)), 0);
    }
    // Of all values of group g, in each lane.
    __m512i shift(int g) const {
        return _mm512_and_si512(_mm512_srli_epi32(shifts, unsigned(8 * g)), _mm512_set1_epi32(255));
    }
    // The 8 lines of group g of a span: its values as bytes, + zero.
    template <int ZERO>
    void unpack(const uint8_t* span, int g, uint8_t* to) const {
        const __m512i values = _mm512_loadu_si512(MX_VALUES), by = shift(g);
        const __m512i zero = _mm512_sub_epi8(_mm512_set1_epi8(ZERO), _mm512_sllv_epi32(_mm512_set1_epi8(MX_ZERO), by));
        FOR_EACH(s, 4, {
            const MxValues line(span + 64 + (g * 4 + s) * 64, values);
            _mm512_storeu_si512(to + s * 64, _mm512_add_epi8(_mm512_sllv_epi32(line.low, by), zero));
            _mm512_storeu_si512(to + (4 + s) * 64, _mm512_add_epi8(_mm512_sllv_epi32(line.high, by), zero));
        });
    }
};
#endif

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
        __m512 span[M];
        FOR_EACH(m, M, span[m] = _mm512_setzero_ps());
        FOR_EACH(g, MX_GROUPS, {
            const __m512 scale = mx_half_scales(head, g);
            MxSums<M, P> acc;
            // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
            FOR_EACH(m, M, acc.sums[m] = _mm512_madd_epi16(zero, _mm512_set1_epi32(sums.at(m)[g])));
            acc.add(panel + 64 + g * 256, rows, g * MX_GROUP, values);
            FOR_EACH(m, M, span[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc.sums[m]), scale, span[m]));
        });
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(span[m], _mm512_set1_ps(*scales.at(m)), total[m]));
        rows.move(SCALE_COLUMNS), scales.move(1), sums.move(MX_GROUPS);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, total[m]));
}

#ifdef IPEX_ASSIST_HAS_AMX
// Many rows, group by group.
struct MxGroupSquares {
    using Other = void;
    static constexpr int COLUMNS = MX_GROUP, PLANES = 1, VALUE_BYTES = 1, SCALES = MX_GROUPS, AHEAD = 4096;
    static int64_t head(int64_t) { return 0; }
    static bool tiles(const uint8_t*, int64_t, const uint8_t* lines, int g, uint8_t* to, float* scale) {
        const __m512i values = _mm512_sub_epi8(_mm512_loadu_si512(MX_VALUES), _mm512_set1_epi8(MX_ZERO));
        _mm512_store_ps(scale, mx_half_scales(_mm512_loadu_si512(lines), g));
        FOR_EACH(s, 4, {
            const MxValues line(lines + 64 + (g * 4 + s) * 64, values);
            _mm512_store_si512(to + s * 64, line.low);
            _mm512_store_si512(to + (4 + s) * 64, line.high);
        });
        return true;
    }
    static __m512 begin(const Linear& w, int64_t b) {
        return w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }
    template <class S>
    static __m512 add(const S& sums, __m512 row_scale, const __m512* scales, __m512 total) {
        return add_groups<SCALE_COLUMNS / MX_GROUP>(sums, row_scale, scales, total);
    }
};

// And span by span.
struct MxSquares {
    using Other = MxGroupSquares;
    static constexpr int COLUMNS = SCALE_COLUMNS, PLANES = 1, VALUE_BYTES = 1, SCALES = MX_GROUPS, AHEAD = 4096;
    static int64_t head(int64_t) { return 0; }
    static bool tiles(const uint8_t*, int64_t, const uint8_t* lines, int, uint8_t* to, float* scale) {
        const MxFolded folded(_mm512_loadu_si512(lines));
        _mm512_store_ps(scale, folded.half_scale);
        FOR_EACH(g, MX_GROUPS, folded.unpack<0>(lines, g, to + g * MX_GROUP * LANES));
        return folded.fits;
    }
    static __m512 begin(const Linear& w, int64_t b) { return Other::begin(w, b); }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }
    template <class S>
    static __m512 add(const S& sums, __m512 row_scale, const __m512* scales, __m512 total) {
        return add_groups<1>(sums, row_scale, scales, total);
    }
};
#endif

#ifdef IPEX_ASSIST_BYTE_PAIRS
struct MxBytes {
    static constexpr int ZERO = MX_FOLDED_ZERO;
    static constexpr bool SCALED_AT_END = false, UNPACKED = true, FOLDS = true;
    static constexpr int64_t groups(const Linear&) { return MX_GROUPS; }
    static bool folds(const uint8_t* span) { return MxFolded(_mm512_loadu_si512(span)).fits; }
    // Spans of a panel to bytes, in the order of their columns: twice the value, or folded, + ZERO; and the scales.
    static void unpack(const Linear&, const uint8_t* from, int64_t spans, uint32_t folded, uint8_t* to, float* scales) {
        for (int64_t s = 0; s < spans; s++, from += MX_BYTES, folded >>= 1) {
            const __m512i head = _mm512_loadu_si512(from);
            MxFolded values(head);
            if (!(folded & 1)) values.shifts = _mm512_setzero_si512();
            for (int g = 0; g < MX_GROUPS; g++, to += 8 * 64, scales += LANES) {
                _mm512_storeu_ps(scales, folded & 1 ? values.half_scale : mx_half_scales(head, g));
                values.unpack<ZERO>(from, g, to);
            }
        }
    }
};
#endif

inline void format_linear(Mxfp4Format, const Linear& w, const LinearRows& in, int64_t count, int64_t first,
                          int64_t last, float* out, int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (count > TILE) return amx_many<MxSquares>(w, in, count, first, last, out, stride);
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
