// Units of formats whose columns are looked up together, or have several to a byte: all of them at once, to memory.
#pragma once
#include "formats/blocks/grids.h"
#include "formats/blocks/scales.h"

namespace ipex_assist {
namespace {

// 32 columns: where their points are in the grid, which of them are negative (a byte for 8 columns), and the factors of
// the first 16 and of the others.
struct LatticeGroup {
    __m512i index[8], signs, factors[2];
};

// Some bits of each lane, from one place to another.
template <int FROM, int TO>
inline __attribute__((always_inline)) __m512i moved_bits(__m512i x, uint32_t mask) {
    if constexpr (FROM > TO) x = _mm512_srli_epi32(x, FROM - TO);
    else if constexpr (FROM < TO) x = _mm512_slli_epi32(x, TO - FROM);
    return _mm512_and_si512(x, _mm512_set1_epi32(int32_t(mask << TO)));
}

template <int FROM>
inline __m512i bits_at(__m512i x, uint32_t mask) {
    return moved_bits<FROM, 0>(x, mask);
}

// 2 · x + 1 of x at these bits.
template <int FROM>
inline __m512i odd_factor(__m512i x, uint32_t mask) {
    return _mm512_or_si512(moved_bits<FROM, 1>(x, mask), _mm512_set1_epi32(1));
}

// Bytes of seven signs and, as the eighth, their parity.
inline __m512i with_parity(__m512i sevens) {
    const __m512i folded = bytes_of(_mm512_xor_si512(sevens, shifted<4>(sevens)), 15);
    constexpr uint8_t ODD = 0x80, PARITY[16] = {0, ODD, ODD, 0, ODD, 0, 0, ODD, ODD, 0, 0, ODD, 0, ODD, ODD, 0};
    return _mm512_or_si512(sevens, _mm512_shuffle_epi8(table_of(PARITY), folded));
}

// Four times seven bits, to a byte each.
inline __m512i sevens_of(__m512i x) {
    return _mm512_or_si512(_mm512_or_si512(moved_bits<0, 0>(x, 0x7f), moved_bits<7, 8>(x, 0x7f)),
                           _mm512_or_si512(moved_bits<14, 16>(x, 0x7f), moved_bits<21, 24>(x, 0x7f)));
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq2XxsFormat&, const uint8_t* lines) {
    LatticeGroup g;
    const __m512i points = line_at(lines, 2 * K), rest = line_at(lines, 2 * K + 1);
    FOR_EACH_CONSTANT(i, 4, g.index[i] = bits_at<8 * i>(points, 255));
    g.signs = with_parity(sevens_of(rest));
    g.factors[0] = odd_factor<28>(rest, 15);
    return g;
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq3XxsFormat&, const uint8_t* lines) {
    LatticeGroup g;
    const __m512i rest = line_at(lines, 16 + K);
    FOR_EACH_CONSTANT(i, 8, g.index[i] = bits_at<i % 4 * 8>(line_at(lines, 2 * K + i / 4), 255));
    g.signs = with_parity(sevens_of(rest));
    g.factors[0] = odd_factor<28>(rest, 15);
    return g;
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq3SFormat&, const uint8_t* lines) {
    LatticeGroup g;
    const __m512i high = line_at(lines, 16 + K / 4);
    FOR_EACH_CONSTANT(i, 8, {
        const __m512i low = bits_at<i % 4 * 8>(line_at(lines, 2 * K + i / 4), 255);
        g.index[i] = _mm512_or_si512(low, moved_bits<K % 4 * 8 + i, 8>(high, 1));
    });
    g.signs = line_at(lines, 18 + K);
    g.factors[0] = odd_factor<K * 4>(line_at(lines, 26), 15);
    return g;
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq2XsFormat&, const uint8_t* lines) {
    LatticeGroup g;
    const __m512i a = line_at(lines, 2 * K), b = line_at(lines, 2 * K + 1), scales = line_at(lines, 16 + K / 4);
    g.index[0] = bits_at<0>(a, 511), g.index[1] = bits_at<16>(a, 511);
    g.index[2] = bits_at<0>(b, 511), g.index[3] = bits_at<16>(b, 511);
    const __m512i sevens = _mm512_or_si512(shifted<9>(a), shifted<-8>(shifted<9>(b)));  // 0, 2, 1, 3
    g.signs = moved_bytes<0x3120>(with_parity(sevens));
    g.factors[0] = odd_factor<K % 4 * 8>(scales, 15), g.factors[1] = odd_factor<K % 4 * 8 + 4>(scales, 15);
    return g;
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq2SFormat&, const uint8_t* lines) {
    LatticeGroup g;
    const __m512i points = line_at(lines, K), high = line_at(lines, 16 + K / 4), scales = line_at(lines, 18 + K / 4);
    FOR_EACH_CONSTANT(i, 4, {
        g.index[i] = _mm512_or_si512(bits_at<8 * i>(points, 255), moved_bits<K % 4 * 8 + 2 * i, 8>(high, 3));
    });
    g.signs = line_at(lines, 8 + K);
    g.factors[0] = odd_factor<K % 4 * 8>(scales, 15), g.factors[1] = odd_factor<K % 4 * 8 + 4>(scales, 15);
    return g;
}

// The sign is that of what is added to all columns.
template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq1SFormat&, const uint8_t* lines) {
    LatticeGroup g;
    constexpr int AT = K % 2 * 16;
    const __m512i points = line_at(lines, K), rest = line_at(lines, 8 + K / 2);
    FOR_EACH_CONSTANT(
        i, 4, { g.index[i] = _mm512_or_si512(bits_at<8 * i>(points, 255), moved_bits<AT + 3 * i, 8>(rest, 7)); });
    g.signs = _mm512_srai_epi32(_mm512_slli_epi32(rest, 16 - AT), 31);
    g.factors[0] = odd_factor<AT + 12>(rest, 7);
    return g;
}

template <int K>
inline __attribute__((always_inline)) LatticeGroup lattice_group(const Iq1MFormat&, const uint8_t* lines) {
    LatticeGroup g;
    constexpr int AT = K % 2 * 16, FACTOR = K / 2 % 2 * 16 + K % 2 * 6;
    const __m512i points = line_at(lines, K), rest = line_at(lines, 8 + K / 2), scales = line_at(lines, 12 + K / 4);
    __m512i ones = _mm512_setzero_si512();
    FOR_EACH_CONSTANT(i, 4, {
        g.index[i] = _mm512_or_si512(bits_at<8 * i>(points, 255), moved_bits<AT + 4 * i, 8>(rest, 7));
        ones = _mm512_or_si512(ones, moved_bits<AT + 4 * i + 3, 8 * i>(rest, 1));
    });
    g.signs = _mm512_sub_epi32(_mm512_slli_epi32(ones, 8), ones);  // 255 times each
    g.factors[0] = odd_factor<FACTOR>(scales, 7), g.factors[1] = odd_factor<FACTOR + 3>(scales, 7);
    return g;
}

inline const uint32_t* grid_of(const Iq2XxsFormat&) { return IQ2_XXS_GRID.points; }
inline const uint32_t* grid_of(const Iq2XsFormat&) { return IQ2_XS_GRID.points; }
inline const uint32_t* grid_of(const Iq2SFormat&) { return IQ2_S_GRID.points; }
inline const uint32_t* grid_of(const Iq3XxsFormat&) { return IQ3_XXS_GRID.points; }
inline const uint32_t* grid_of(const Iq3SFormat&) { return IQ3_S_GRID.points; }
inline const uint32_t* grid_of(const Iq1SFormat&) { return IQ1_GRID.points; }
inline const uint32_t* grid_of(const Iq1MFormat&) { return IQ1_GRID.points; }

template <class F>
constexpr bool FEW_POINTS = std::is_same_v<F, Iq2XxsFormat> || std::is_same_v<F, Iq2XsFormat> ||
                            std::is_same_v<F, Iq3XxsFormat> || std::is_same_v<F, Iq3SFormat>;

// 8 more where a column's bit is set.
inline __m512i with_signs(__m512i numbers, __m512i signs, __m512i bits) {
#ifdef __AVX512F__
    const __mmask64 negative = _mm512_test_epi8_mask(signs, bits);
    return _mm512_mask_add_epi8(numbers, negative, numbers, _mm512_set1_epi8(8));
#else
    const __m512i one = _mm512_min_epu8(_mm512_and_si512(signs, bits), _mm512_set1_epi8(1));
    return _mm512_or_si512(numbers, shifted<-3>(one));
#endif
}

// 32 columns by gathers.
template <class F>
inline __attribute__((always_inline)) void unpack_lattice_points(const LatticeGroup& group, uint8_t* codes) {
    const uint32_t* grid = grid_of(F());
    const __m512i values = table_of(F::VALUES);
    const __m512i first_bits = _mm512_set1_epi32(0x08040201), last_bits = _mm512_set1_epi32(int32_t(0x80402010));
    FOR_EACH_CONSTANT(i, 32 / F::POINT, {
        const __m512i point = _mm512_i32gather_epi32(group.index[i], reinterpret_cast<const int*>(grid), 4);
        constexpr int BYTE = i * F::POINT / 8;
        const __m512i signs = moved_bytes<BYTE * 0x1111>(group.signs);
        uint8_t* to = codes + i * F::POINT / 4 * 64;
        if constexpr (F::POINT == 4) {
            const __m512i numbers = with_signs(point, signs, i % 2 ? last_bits : first_bits);
            _mm512_store_si512(to, _mm512_shuffle_epi8(values, numbers));
        } else {
            const __m512i low = with_signs(bytes_of(point, 15), signs, first_bits),
                          high = with_signs(bytes_of(shifted<4>(point), 15), signs, last_bits);
            _mm512_store_si512(to, _mm512_shuffle_epi8(values, low));
            _mm512_store_si512(to + 64, _mm512_shuffle_epi8(values, high));
        }
    });
}

// Gathers are made of 16 loads. They are slow on AMD's processors (15 cycles on Zen 5) and, since microcode guards against
// Downfall, on Intel's before Sapphire Rapids: there permutations look up as many points in registers. On Zen 5 IQ3_XXS
// takes 0.26 of the time so, IQ2_XXS 0.40, IQ3_S 0.34 and IQ2_XS 0.51; a thousand points (IQ2_S) would take longer. Where
// there is AMX, gathers keep two ports for loads as busy as these permutations the one that shuffles.
#if defined(__AVX512F__) && !defined(__AMX_TILE__)
#define IPEX_ASSIST_LATTICE_WORDS

// What the lower byte of each word stands for in a table of 256 words; two registers hold 64 of them.
inline __m512i words_at(const uint16_t* table, __m512i index) {
    const auto of_two = [&](int i) {
        return _mm512_permutex2var_epi16(_mm512_load_si512(table + i), index, _mm512_load_si512(table + i + 32));
    };
    const __mmask32 odd = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64)),
                    upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    const __m512i first = _mm512_mask_mov_epi16(of_two(0), odd, of_two(64)),
                  last = _mm512_mask_mov_epi16(of_two(128), odd, of_two(192));
    return _mm512_mask_mov_epi16(first, upper, last);
}

// In one of 512 words, the last half of which are for those in `last`.
inline __m512i words_at(const uint16_t* table, __m512i index, __mmask32 last) {
    return _mm512_mask_mov_epi16(words_at(table, index), last, words_at(table + 256, index));
}

// 32 columns as words: of each half (of a point of eight columns, or of eight points), those of two vectors of indices.
// SIDE_BY_SIDE: points lie in words one after the other; else one vector has the even bytes of four, the other the odd.
template <bool SIDE_BY_SIDE>
struct LatticeWords {
    __m512i at[2][2];
    template <int POINT>
    __m512i number(int half) const {  // in four bytes, whose upper halves are of any value below 8
        constexpr int VECTOR = SIDE_BY_SIDE ? POINT / 2 : POINT % 2,
                      PLACES = (SIDE_BY_SIDE ? POINT % 2 : POINT / 2) ? 0x3322 : 0x1100;
        const __m512i words = at[half][VECTOR];
        return _mm512_mask_mov_epi8(moved_bytes<PLACES>(words), 0xaaaaaaaaaaaaaaaa,
                                    moved_bytes<PLACES>(shifted<4>(words)));
    }
};

template <int K>
inline __attribute__((always_inline)) auto lattice_words(const Iq2XxsFormat&, const uint8_t* lines) {
    const __m512i index = line_at(lines, 2 * K), odd = shifted<8>(index);
    const auto& words = IQ2_XXS_GRID.words;
    return LatticeWords<false>{
        {{words_at(words[0], index), words_at(words[0], odd)}, {words_at(words[1], index), words_at(words[1], odd)}}};
}

template <int K>
inline __attribute__((always_inline)) auto lattice_words(const Iq2XsFormat&, const uint8_t* lines) {
    LatticeWords<true> found;
    FOR_EACH_CONSTANT(v, 2, {
        const __m512i index = line_at(lines, 2 * K + v);
        const __mmask32 last = _mm512_test_epi16_mask(index, _mm512_set1_epi16(256));
        for (int half = 0; half < 2; half++) found.at[half][v] = words_at(IQ2_XS_GRID.words[half], index, last);
    });
    return found;
}

template <int K>
inline __attribute__((always_inline)) auto lattice_words(const Iq3XxsFormat&, const uint8_t* lines) {
    LatticeWords<false> found;
    FOR_EACH_CONSTANT(half, 2, {
        const __m512i index = line_at(lines, 2 * K + half);
        found.at[half][0] = words_at(IQ3_XXS_GRID.words[0], index);
        found.at[half][1] = words_at(IQ3_XXS_GRID.words[0], shifted<8>(index));
    });
    return found;
}

template <int K>
inline __attribute__((always_inline)) auto lattice_words(const Iq3SFormat&, const uint8_t* lines) {
    LatticeWords<false> found;
    const __m512i high = moved_bytes<K % 4 * 0x1111>(line_at(lines, 16 + K / 4));  // a bit for each point
    FOR_EACH_CONSTANT(half, 2, {
        const __m512i index = line_at(lines, 2 * K + half);
        FOR_EACH_CONSTANT(odd, 2, {
            constexpr int BIT = half * 4 + odd;
            const __mmask32 last = _mm512_test_epi16_mask(high, _mm512_set1_epi32(1 << BIT | 1 << (BIT + 18)));
            found.at[half][odd] = words_at(IQ3_S_GRID.words[0], odd ? shifted<8>(index) : index, last);
        });
    });
    return found;
}

template <int K, class F>
inline __attribute__((always_inline)) void unpack_lattice_words(const uint8_t* lines, __m512i signs, uint8_t* codes) {
    const auto words = lattice_words<K>(F(), lines);
    const __m512i values = table_of(F::VALUES);
    const __m512i first_bits = _mm512_set1_epi32(0x08040201), last_bits = _mm512_set1_epi32(int32_t(0x80402010));
    FOR_EACH_CONSTANT(q, 8, {
        constexpr int POINT = F::POINT == 8 ? q / 2 : q % 4, HALF = F::POINT == 8 ? q % 2 : q / 4;
        const __m512i bytes = moved_bytes<q / 2 * 0x1111>(signs);
        const __m512i numbers = with_signs(words.template number<POINT>(HALF), bytes, q % 2 ? last_bits : first_bits);
        _mm512_store_si512(codes + q * 64, _mm512_shuffle_epi8(values, numbers));
    });
}
#endif

template <class F>
HOT_LOOP void unpack_lattice(const uint8_t* lines, uint8_t* codes, int32_t (*factors)[LANES], int32_t (*pairs)[LANES]) {
    constexpr int EACH = 32 / F::GROUP;
    FOR_EACH_CONSTANT(k, 8, {
        const LatticeGroup group = lattice_group<k>(F(), lines);
        const __m512i last = group.factors[EACH - 1];
        FOR_EACH_CONSTANT(g, EACH, _mm512_store_si512(factors[k * EACH + g], group.factors[g]));
        const __m512i pair = _mm512_or_si512(group.factors[0], _mm512_slli_epi32(last, 16));
        _mm512_store_si512(pairs[k], _mm512_slli_epi32(pair, log2_of(F::ZERO)));
#ifdef IPEX_ASSIST_LATTICE_WORDS
        if constexpr (FEW_POINTS<F>) return unpack_lattice_words<k, F>(lines, group.signs, codes + k * 8 * 64);
#endif
        unpack_lattice_points<F>(group, codes + k * 8 * 64);
    });
}

// The next trit of each byte, of four columns: what is 1 or 2 thirds of 256 at least; the byte becomes the rest times 3.
inline __m512i next_trit(__m512i& bytes) {
    const __m512i mask = _mm512_set1_epi32(0x00ff00ff);
    const __m512i low = _mm512_and_si512(bytes, mask), high = _mm512_and_si512(shifted<8>(bytes), mask);
    const __m512i low3 = _mm512_add_epi16(low, _mm512_add_epi16(low, low)),
                  high3 = _mm512_add_epi16(high, _mm512_add_epi16(high, high));
    bytes = _mm512_add_epi8(bytes, _mm512_add_epi8(bytes, bytes));
    return _mm512_or_si512(shifted<8>(low3), _mm512_andnot_si512(mask, high3));
}

// Lines 0 to 7 have 5 trits a byte of 160 columns, 8 to 11 of the next 80, and line 12 has 4 of the last 16.
HOT_LOOP void unpack_trits(const uint8_t* lines, uint8_t* codes) {
    for (int line = 0; line < 13; line++) {
        const int first = line < 8 ? line : line < 12 ? 32 + line : 60, step = line < 8 ? 8 : line < 12 ? 4 : 1;
        __m512i bytes = line_at(lines, line);
        for (int n = 0; n < (line < 12 ? 5 : 4); n++)
            _mm512_store_si512(codes + (first + n * step) * 64, next_trit(bytes));
    }
}

inline __m512 lattice_scale(const Iq1MFormat&, const uint8_t* unit) {
    const __m512i a = line_at(unit, 12), b = line_at(unit, 13);
    const __m512i bits = _mm512_or_si512(_mm512_or_si512(bits_at<12>(a, 15), moved_bits<28, 4>(a, 15)),
                                         _mm512_or_si512(moved_bits<12, 8>(b, 15), moved_bits<28, 12>(b, 15)));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
}
template <class F>
inline __m512 lattice_scale(const F&, const uint8_t* unit) {
    return halves_at(unit);
}

}  // namespace
}  // namespace ipex_assist
