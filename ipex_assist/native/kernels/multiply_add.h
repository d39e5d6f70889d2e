// Multiply-add steps of each number format, for the instruction set this file is compiled for.
#pragma once
#include <cstring>
#include <utility>

#include "kernels/kernels.h"
#include "kernels/avx512_by_avx2.h"

// A hot loop is a function of its own, under its own name: benchmarks/instructions.py finds and counts it there.
#define HOT_LOOP __attribute__((noinline, noclone))

namespace ipex_assist {
namespace {

// f(0), f(1), … f(COUNT - 1) with constants.
template <class F, int... I>
inline __attribute__((always_inline)) void for_each(const F& f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>()), ...);
}
#define FOR_EACH_CONSTANT(i, COUNT, ...) \
    for_each([&](auto i) __attribute__((always_inline)) { __VA_ARGS__; }, std::make_integer_sequence<int, COUNT>())

// The same, so that arrays indexed by i become registers. Sanitizers take minutes for what is unrolled, and gain
// nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FOR_EACH(i, COUNT, ...)         \
    for (int i = 0; i < (COUNT); i++) { \
        __VA_ARGS__;                    \
    }
#else
#define FOR_EACH FOR_EACH_CONSTANT
#endif

// Hides from the compiler where the value of a register came from ("r": general, "v": vector). Otherwise it keeps more
// sums of pointers and offsets than there are registers, and reorders sums of integers until those spill as well.
#define KEEP_IN(kind, value) __asm__("" : "+" kind(value))
#ifdef __AVX512F__
#define KEEP_VECTOR(value) KEEP_IN("v", value)
#else
#define KEEP_VECTOR(value) __asm__("" : "+x"((value).low), "+x"((value).high))
#endif

// The next values of M rows, by a pointer to each: the cheapest address of an operand.
template <class T, int M>
struct RowPointers {
    const T* at[M];
    RowPointers(const T* rows, int64_t stride) {
        FOR_EACH(m, M, at[m] = rows + m * stride);
        move(0);
    }
    __attribute__((always_inline)) void move(int64_t by) {
        FOR_EACH(m, M, {
            at[m] += by;
            KEEP_IN("r", at[m]);
        });
    }
};

// The same for values that are used once a group: two pointers and two strides address M rows (up to 8).
template <class T, int M>
struct RowStrides {
    const char *first, *third;
    int64_t stride, three;
    RowStrides(const T* rows, int64_t row_stride)
        : first(reinterpret_cast<const char*>(rows)),
          stride(row_stride * int64_t(sizeof(T))),
          three(3 * stride) {
        third = first + three;
        KEEP_IN("r", stride);
        KEEP_IN("r", three);
        move(0);
    }
    __attribute__((always_inline)) void move(int64_t by) {
        first += by * int64_t(sizeof(T));
        KEEP_IN("r", first);
        if (M <= 3) return;
        third += by * int64_t(sizeof(T));
        KEEP_IN("r", third);
    }
    __attribute__((always_inline)) const T* at(int row) const {
        const char* from = row < 3 ? first : third;
        return reinterpret_cast<const T*>(from + (row == 6 ? three : stride * (row < 3 ? row : row - 3)));
    }
};

inline __m512i broadcast4(const void* four_bytes) {
    int32_t value;
    std::memcpy(&value, four_bytes, 4);
    return _mm512_set1_epi32(value);
}

inline __m512 low_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 high_half(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))));
}

// Round to nearest even, as hardware does; NaN stays NaN.
inline __m256i to_bf16(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#endif
}

// These instructions can broadcast an operand from memory; gcc 11 to 14 loads it into a register first. Not under a
// sanitizer, which checks loads that it sees.
#if defined(__AVX512F__) && !defined(__SANITIZE_ADDRESS__)
struct __attribute__((packed, may_alias)) FourBytes {
    char bytes[4];
};
#define DOT_BROADCAST(instruction, acc, weights, row) \
    __asm__(instruction " %2%{1to16%}, %1, %0"        \
            : "+v"(acc)                               \
            : "v"(weights), "m"(*reinterpret_cast<const FourBytes*>(row)))
#endif

#ifdef IPEX_ASSIST_VNNI
// acc + Σ of four products of unsigned bytes `u` with the signed bytes at `row`, in each lane.
inline __m512i dot_bytes(__m512i acc, __m512i u, const int8_t* row) {
#ifdef DOT_BROADCAST
    DOT_BROADCAST("vpdpbusd", acc, u, row);
    return acc;
#else
    return _mm512_dpbusd_epi32(acc, u, broadcast4(row));
#endif
}

// acc + the products of the lower halves of `zero` (its upper halves are 0) with `sum`, of 16 bits both.
inline __m512i dot_words(__m512i acc, __m512i zero, const int32_t* sum) {
#ifdef DOT_BROADCAST
    DOT_BROADCAST("vpdpwssd", acc, zero, sum);
    return acc;
#else
    return _mm512_dpwssd_epi32(acc, zero, broadcast4(sum));
#endif
}
#endif

struct Fp32 {
    using Row = float;
    static constexpr int STEP = 1;  // input columns of 64 bytes
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_set1_ps(*row), acc);
    }
    using Value = __m512;  // of a row, in all lanes
    static Value value(const Row* row) { return _mm512_set1_ps(*row); }
    static __m512 dot(__m512 acc, __m512i weights, Value value) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(weights), value, acc);
    }
};

struct Bf16 {
    static constexpr int STEP = 2;
#ifdef __AVX512BF16__
    using Row = uint16_t;
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
#ifdef DOT_BROADCAST
        DOT_BROADCAST("vdpbf16ps", acc, weights, row);
        return acc;
#else
        return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)broadcast4(row));
#endif
    }
    using Value = __m512i;
    static Value value(const Row* row) { return broadcast4(row); }
    static __m512 dot(__m512 acc, __m512i weights, Value value) {
        return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)value);
    }
#else
    using Row = float;  // values of bf16, widened
    struct Value {
        __m512 low, high;
    };
    static Value value(const Row* row) { return {_mm512_set1_ps(row[0]), _mm512_set1_ps(row[1])}; }
    static __m512 dot(__m512 acc, __m512i weights, const Value& value) {
        acc = _mm512_fmadd_ps(low_half(weights), value.low, acc);
        return _mm512_fmadd_ps(high_half(weights), value.high, acc);
    }
    static __m512 dot(__m512 acc, __m512i weights, const Row* row) {
        acc = _mm512_fmadd_ps(low_half(weights), _mm512_set1_ps(row[0]), acc);
        return _mm512_fmadd_ps(high_half(weights), _mm512_set1_ps(row[1]), acc);
    }
#endif
};

// Compile a function for each number of rows from 1 to 8.
#define IPEX_ASSIST_BY_ROWS(rows, CALL) \
    switch (rows) {                     \
        case 1: CALL(1); break;         \
        case 2: CALL(2); break;         \
        case 3: CALL(3); break;         \
        case 4: CALL(4); break;         \
        case 5: CALL(5); break;         \
        case 6: CALL(6); break;         \
        case 7: CALL(7); break;         \
        default: CALL(8); break;        \
    }
constexpr int64_t TILE_ROWS = 8;

// Rows of each tile where `count` rows become tiles of at most `most` that are as equal as can be.
inline int64_t even_tile(int64_t count, int64_t most) {
    const int64_t tiles = (count + most - 1) / most;
    return (count + tiles - 1) / tiles;
}

}  // namespace
}  // namespace ipex_assist
