// Linears of int4 weights with int8 rows, by vectors or tiles.
#pragma once
#include "formats/int4/format.h"
#include "kernels/integer_linear.h"
#include "kernels/integer_prefill.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/amx_prefill.h"
#include "kernels/integer_amx.h"
#endif

namespace ipex_assist {
namespace {

// Sums of the products of M rows with a group of int4 weights, 32 columns (4 lines) at a time.
template <int M, Prefetch P>
struct NibbleSums {
#ifdef IPEX_ASSIST_VNNI
    // Separate sums for the high nibbles, where there are registers: a single chain waits for its own latency, and each
    // shift of a line costs more than one of a group's sums.
    static constexpr bool TWO_CHAINS = M == 1 || REGISTERS == 32;
    __m512i sums[M], high[M];

    __attribute__((always_inline)) void start(int m, __m512i sum) { sums[m] = sum, high[m] = _mm512_setzero_si512(); }
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column) {
        FOR_EACH(s, 4, {
            prefetch_line<P>(lines + s * 64, s);
            const Nibbles<TWO_CHAINS> line(lines + s * 64);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                sums[m] = dot_bytes(sums[m], line.low, row);
                __m512i& upper = TWO_CHAINS ? high[m] : sums[m];
                upper = dot_bytes(upper, line.high, row + 16);
            });
        });
    }
    __attribute__((always_inline)) __m512i end(int m) const {
        return TWO_CHAINS ? _mm512_add_epi32(sums[m], _mm512_srai_epi32(high[m], 4)) : sums[m];
    }
#else
    // Pairs of nibbles times signed bytes are at most 2 · 15 · 128 = 3840, and the 8 pairs of a row in 32 columns
    // 30720: below 32767, the limit of vpmaddubsw and of 16 bits. So the sums are exact.
    __m512i sums[M];

    __attribute__((always_inline)) void start(int m, __m512i sum) { sums[m] = sum; }
    __attribute__((always_inline)) void add(const uint8_t* lines, const RowPointers<int8_t, M>& rows, int column) {
        __m512i pairs[M];
        FOR_EACH(s, 4, {
            prefetch_line<P>(lines + s * 64, s);
            const Nibbles<false> line(lines + s * 64);
            FOR_EACH(m, M, {
                const int8_t* row = rows.at[m] + column + s * 4;
                const __m512i pair = _mm512_maddubs_epi16(line.low, broadcast4(row));
                pairs[m] = s > 0 ? _mm512_add_epi16(pairs[m], pair) : pair;
                KEEP_VECTOR(pairs[m]);
                pairs[m] = _mm512_add_epi16(pairs[m], _mm512_maddubs_epi16(line.high, broadcast4(row + 16)));
                KEEP_VECTOR(pairs[m]);
            });
        });
        FOR_EACH(m, M, sums[m] = _mm512_add_epi32(sums[m], _mm512_madd_epi16(pairs[m], _mm512_set1_epi16(1))));
    }
    __attribute__((always_inline)) __m512i end(int m) const { return sums[m]; }
#endif
};

// M rows times some spans of a panel of int4 weights in groups of GROUP.
template <int M, int GROUP, Prefetch P>
HOT_LOOP void int4_tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
    constexpr int GROUPS = SCALE_COLUMNS / GROUP, BYTES = (GROUP / 8 + 1) * 64;
    const int64_t spans = w.depth / SCALE_COLUMNS, before = t.row * spans + t.first;
    const uint8_t* panel = w.weights + (t.panel * spans + t.first) * GROUPS * BYTES;
    RowPointers<int8_t, M> rows(reinterpret_cast<const int8_t*>(in.values) + before * SCALE_COLUMNS, w.depth);
    RowStrides<float, M> scales(in.scales + before, spans);
    RowStrides<int32_t, M> sums(in.negated_sums + before * GROUPS, spans * GROUPS);
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + t.panel * LANES) : _mm512_setzero_ps();
    __m512 total[M];
    FOR_EACH(m, M, total[m] = t.first ? _mm512_loadu_ps(t.out + m * t.stride) : bias);
    for (const uint8_t* end = panel + (t.last - t.first) * GROUPS * BYTES; panel < end; panel += GROUPS * BYTES) {
        __m512 span[M];
        FOR_EACH(m, M, span[m] = _mm512_setzero_ps());
        FOR_EACH(g, GROUPS, {
            const uint8_t* group = panel + g * BYTES;
            const __m512i head = _mm512_loadu_si512(group);
            prefetch_line<P>(group, g);
            const __m512i zero = _mm512_and_si512(head, zero_bits);
            const __m512 scale = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
            NibbleSums<M, P> acc;
            // - zero · Σ row: both fit in 16 bits, and the upper halves of `zero` are 0.
            FOR_EACH(m, M, acc.start(m, _mm512_madd_epi16(zero, _mm512_set1_epi32(sums.at(m)[g]))));
            FOR_EACH(part, GROUP / 32, acc.add(group + 64 + part * 256, rows, g * GROUP + part * 32));
            FOR_EACH(m, M, span[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc.end(m)), scale, span[m]));
        });
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(span[m], _mm512_set1_ps(*scales.at(m)), total[m]));
        rows.move(SCALE_COLUMNS), scales.move(1), sums.move(GROUPS);
    }
    FOR_EACH(m, M, _mm512_storeu_ps(t.out + m * t.stride, total[m]));
}

struct Int4Tiles {
    template <int M, Prefetch P>
    static void tile(const Linear& w, const LinearRows& in, const IntegerTile& t) {
        if (w.group == 32) return int4_tile<M, 32, P>(w, in, t);
        w.group == 64 ? int4_tile<M, 64, P>(w, in, t) : int4_tile<M, 128, P>(w, in, t);
    }
};

#ifdef IPEX_ASSIST_HAS_AMX
// The groups of int4 of up to 16 rows, 64 or 128 columns deep (32 do not fill a tile).
template <int GROUP>
struct Int4Groups {
    static constexpr int COLUMNS = GROUP, BYTES = (GROUP / 8 + 1) * 64, UNPACKED = GROUP * LANES, AHEAD = 4096;
    static constexpr int GROUPS = SCALE_COLUMNS / GROUP;
    static constexpr bool SIGNED = false;
    static int32_t start(int32_t negated_sum) { return negated_sum; }
    static __m512 begin(const Linear& w, int64_t b) {
        return w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }

    // Unsigned bytes in the order of int8 weights; `add` subtracts their zeros.
    static const uint8_t* unpack(const uint8_t* group, uint8_t* bytes) {
        const __m512i nibble = _mm512_set1_epi8(15);
        FOR_EACH(s, GROUP / 8, {
            const __m512i both = _mm512_loadu_si512(group + 64 + s * 64);
            uint8_t* to = bytes + (s / 4 * 8 + s % 4) * 64;
            _mm512_store_si512(to, _mm512_and_si512(both, nibble));
            _mm512_store_si512(to + 4 * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
        });
        return bytes;
    }

    template <int M, bool ZEROS = true>
    static void add(const uint8_t* span, const int32_t* sums, int64_t step, const float* scales, const int32_t* starts,
                    __m512* total) {
        const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
        __m512i zero[GROUPS];
        __m512 scale[GROUPS];
        FOR_EACH(g, GROUPS, {
            const __m512i head = _mm512_loadu_si512(span + g * BYTES);
            zero[g] = _mm512_and_si512(head, zero_bits);
            scale[g] = _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head));
        });
        FOR_EACH(m, M, {
            __m512 sum = _mm512_setzero_ps();
            FOR_EACH(g, GROUPS, {
                __m512i of_group = _mm512_load_si512(sums + g * step + m * LANES);
                if (ZEROS) of_group = dot_words(of_group, zero[g], starts + g * M + m);
                sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_group), scale[g], sum);
            });
            total[m] = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales[m]), total[m]);
        });
    }
};

// The same, with the zeros subtracted as the bytes are unpacked: 2 operations for each line in place of 2 for each row,
// which is faster where there are more rows than lines in a group.
template <int GROUP>
struct SignedInt4Groups : Int4Groups<GROUP> {
    static constexpr bool SIGNED = true;

    static const uint8_t* unpack(const uint8_t* group, uint8_t* bytes) {
        const __m512i nibble = _mm512_set1_epi8(15), head = _mm512_loadu_si512(group);
        const __m512i zeros = _mm512_and_si512(head, _mm512_set1_epi32(ZERO_BITS));
        const __m512i zero = _mm512_shuffle_epi8(zeros, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
        FOR_EACH(s, GROUP / 8, {
            const __m512i both = _mm512_loadu_si512(group + 64 + s * 64);
            uint8_t* to = bytes + (s / 4 * 8 + s % 4) * 64;
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
            _mm512_store_si512(to, _mm512_sub_epi8(_mm512_and_si512(both, nibble), zero));
            _mm512_store_si512(to + 4 * 64, _mm512_sub_epi8(high, zero));
        });
        return bytes;
    }

    template <int M>
    static void add(const uint8_t* span, const int32_t* sums, int64_t step, const float* scales, const int32_t* starts,
                    __m512* total) {
        Int4Groups<GROUP>::template add<M, false>(span, sums, step, scales, starts, total);
    }
};

// Those of many rows, in any groups.
template <int GROUP>
struct Int4Squares {
    using Other = void;
    static constexpr int COLUMNS = GROUP, PLANES = 1, VALUE_BYTES = 1, AHEAD = 4096, GROUP_BYTES = (GROUP / 8 + 1) * 64;
    static constexpr int GROUPS = SCALE_COLUMNS / GROUP, SCALES = GROUPS;
    static int64_t head(int64_t) { return 0; }
    static bool tiles(const uint8_t*, int64_t, const uint8_t* lines, int g, uint8_t* to, float* scale) {
        const __m512i head = _mm512_loadu_si512(lines + g * GROUP_BYTES);
        _mm512_store_si512(scale, _mm512_andnot_si512(_mm512_set1_epi32(ZERO_BITS), head));
        SignedInt4Groups<GROUP>::unpack(lines + g * GROUP_BYTES, to);
        return true;
    }
    static __m512 begin(const Linear& w, int64_t b) { return Int4Groups<GROUP>::begin(w, b); }
    static __m512 end(const Linear&, int64_t, __m512 total) { return total; }
    template <class S>
    static __m512 add(const S& sums, __m512 row_scale, const __m512* scales, __m512 total) {
        return add_groups<GROUPS>(sums, row_scale, scales, total);
    }
};

#endif

#ifdef IPEX_ASSIST_BYTE_PAIRS
constexpr int LIFT = 32;  // what weights as bytes have above their values

// Groups of int4 weights to bytes, in the order of their columns: nibble - zero + LIFT; and the groups' scales.
HOT_LOOP void int4_to_bytes(const uint8_t* from, int64_t group, int64_t groups, uint8_t* to, float* scales) {
    const __m512i zero_bits = _mm512_set1_epi32(ZERO_BITS);
    const __m512i first_bytes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    for (int64_t g = 0; g < groups; g++, from += 64, scales += LANES) {
        const __m512i head = _mm512_loadu_si512(from);
        const __m512i zero = _mm512_shuffle_epi8(_mm512_and_si512(head, zero_bits), first_bytes);
        const __m512i lift = _mm512_sub_epi8(_mm512_set1_epi8(LIFT), zero);
        _mm512_storeu_ps(scales, _mm512_castsi512_ps(_mm512_andnot_si512(zero_bits, head)));
        for (const uint8_t* end = from + group * 8; from < end; from += 256, to += 512) {
            FOR_EACH(s, 4, {
                const Nibbles<false> line(from + 64 + s * 64);
                _mm512_storeu_si512(to + s * 64, _mm512_add_epi8(line.low, lift));
                _mm512_storeu_si512(to + (4 + s) * 64, _mm512_add_epi8(line.high, lift));
            });
        }
    }
}

struct Int4Bytes {
    static constexpr int ZERO = LIFT;
    static constexpr bool SCALED_AT_END = false, UNPACKED = true, FOLDS = false;
    static int64_t groups(const Linear& w) { return SCALE_COLUMNS / w.group; }
    static void unpack(const Linear& w, const uint8_t* from, int64_t spans, uint32_t, uint8_t* to, float* scales) {
        int4_to_bytes(from, w.group, spans * groups(w), to, scales);
    }
};
#endif

inline void format_linear(Int4Format, const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                          float* out, int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (rows > TILE) {
        if (w.group == 32) return amx_many<Int4Squares<32>>(w, in, rows, first, last, out, stride);
        if (w.group == 64) return amx_many<Int4Squares<64>>(w, in, rows, first, last, out, stride);
        return amx_many<Int4Squares<128>>(w, in, rows, first, last, out, stride);
    }
    // Groups of 32 fill half a tile: few rows are faster by vectors.
    if (rows > VECTOR_ROWS && w.group == 64)
        return amx_integer_rows<Int4Groups<64>, SignedInt4Groups<64>>(w, in, rows, first, last, out, stride);
    if (rows > VECTOR_ROWS && w.group == 128)
        return amx_integer_rows<Int4Groups<128>>(w, in, rows, first, last, out, stride);
#endif
#ifdef IPEX_ASSIST_BYTE_PAIRS
    if (rows >= UNPACKED_ROWS) return byte_pairs<Int4Bytes>(w, in, rows, first, last, out, stride);
#endif
    integer_linear<Int4Tiles>(w, in, rows, first, last, out, stride);
}

}  // namespace
}  // namespace ipex_assist
