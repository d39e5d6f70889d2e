// Linears of FP8 weights (E4M3) with bf16 rows. E4M3's values are exact in bf16: weights are widened and multiplied as
// bf16's are. An output is, for each span of 128 input columns, two chains of multiply-adds from zero, of the first and
// the second pair of each line; their sum times the span's scale is added to the total, which starts from zero; at the
// end the total is multiplied by the column's scale, and the bias is added. On AMX there is one chain for a span, over
// its four tiles. So a row's result does not depend on its neighbours.
#pragma once
#include "formats/fp8/format.h"
#include "kernels/float_linear.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/amx_prefill.h"
#endif

namespace ipex_assist {
namespace {

constexpr int64_t FP8_SPAN_BYTES = SCALE_COLUMNS * LANES;        // of the lines of a span
constexpr int64_t FP8_WIDE_BYTES = 2 * FP8_SPAN_BYTES;           // the same in bf16
constexpr int64_t FP8_CHUNK = 4 * SCALE_COLUMNS, FP8_GROUP = 4;  // many rows: what is widened at once, 64 KB

// The bits of a bf16 of the size that the lower 7 bits of an E4M3 have; 0x7f, NaN there, becomes 480.
constexpr uint16_t fp8_as_bf16(int code) {
    if (code == 0) return 0;
    int exponent = 127 - 7 + (code >> 3), mantissa = code & 7;
    if (code < 8) {  // a denormal: m · 2^-9
        exponent = 127 - 6;
        while (mantissa < 8) mantissa *= 2, exponent--;
        mantissa -= 8;
    }
    return uint16_t(exponent << 7 | mantissa << 4);
}

struct alignas(64) Fp8Tables {
    uint8_t low[128] = {}, high[128] = {};                          // bytes of fp8_as_bf16
    uint8_t low_of_denormals[64] = {}, high_of_denormals[64] = {};  // what Fp8Shuffle lacks for codes 0 … 7, at 8 … 15
    constexpr Fp8Tables() {
        for (int code = 0; code < 128; code++) {
            low[code] = uint8_t(fp8_as_bf16(code)), high[code] = uint8_t(fp8_as_bf16(code) >> 8);
        }
        for (int i = 0; i < 64; i++) {
            if (i % 16 < 8) continue;
            const int code = i % 8;
            low_of_denormals[i] = uint8_t(low[code] - (code << 4)), high_of_denormals[i] = uint8_t(high[code] - 60);
        }
    }
};
constexpr Fp8Tables FP8_TABLES;

// The next 4 input columns of 16 outputs, in bf16: pairs as Bf16::dot takes them.
struct Fp8Pairs {
    __m512i first, second;
};

inline __attribute__((always_inline)) Fp8Pairs fp8_pairs(__m512i low, __m512i high) {
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

#ifdef __AVX512F__
// Both bytes are looked up in tables of 128 (VBMI). As assembly, because only the processor tells whether it has that:
// all of those with AVX-512 and AMX but Skylake, Cascade Lake and Cooper Lake.
struct Fp8Lookup {
    __m512i low[2], high[2], sign = _mm512_set1_epi8(char(0x80));
    Fp8Lookup() {
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_load_si512(FP8_TABLES.low + i * 64), high[i] = _mm512_load_si512(FP8_TABLES.high + i * 64);
        }
    }
    static __attribute__((always_inline)) __m512i look_up(__m512i codes, const __m512i (&table)[2]) {
        __asm__("vpermi2b %2, %1, %0" : "+v"(codes) : "v"(table[0]), "v"(table[1]));
        return codes;
    }
    __attribute__((always_inline)) Fp8Pairs operator()(const uint8_t* line) const {
        const __m512i codes = _mm512_loadu_si512(line);
        return fp8_pairs(look_up(codes, low), _mm512_or_si512(look_up(codes, high), _mm512_and_si512(codes, sign)));
    }
};
#endif

// Bits are moved, and 8 denormals corrected by a table of 16 whose index is out of range for all other codes.
struct Fp8Shuffle {
    __m512i low = _mm512_load_si512(FP8_TABLES.low_of_denormals),
            high = _mm512_load_si512(FP8_TABLES.high_of_denormals);
    __attribute__((always_inline)) Fp8Pairs operator()(const uint8_t* line) const {
        const __m512i codes = _mm512_loadu_si512(line), size = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
        const __m512i index = _mm512_add_epi8(size, _mm512_set1_epi8(0x78)), sign = _mm512_xor_si512(codes, size);
        const __m512i mantissa = _mm512_and_si512(_mm512_slli_epi16(size, 4), _mm512_set1_epi8(char(0xf0)));
        const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(size, 4), _mm512_set1_epi8(15));
        const __m512i upper = _mm512_add_epi8(exponent, _mm512_set1_epi8(60));
        return fp8_pairs(_mm512_add_epi8(mantissa, _mm512_shuffle_epi8(low, index)),
                         _mm512_or_si512(_mm512_add_epi8(upper, _mm512_shuffle_epi8(high, index)), sign));
    }
};

// Widening makes 2 or 3 rows' bursts as long as those of 4 are elsewhere: on Zen 4 0.65 of memory's speed became 0.97.
struct Fp8Streaming {
    static constexpr Prefetch of(int rows) { return rows >= 2 ? Prefetch::FAR : Prefetch::NEAR; }
};

// M rows times one panel, from memory.
template <class W, int M, Prefetch P>
HOT_LOOP void fp8_tile(const Linear& w, const Bf16::Row* from, const uint8_t* panel, int64_t column, float* out,
                       int64_t stride) {
    RowPointers<Bf16::Row, M> rows(from, w.depth);
    const W widen;
    const auto* scale = reinterpret_cast<const float*>(panel);
    const uint8_t* lines = panel + fp8_head_bytes(w.depth);
    __m512 total[M];
    FOR_EACH(m, M, total[m] = _mm512_setzero_ps());
    for (const float* end = scale + w.depth / SCALE_COLUMNS; scale < end; scale++) {
        __m512 chains[2][M];
        FOR_EACH(m, M, chains[0][m] = chains[1][m] = _mm512_setzero_ps());
        for (const uint8_t* span_end = lines + FP8_SPAN_BYTES; lines < span_end; lines += 4 * 64, rows.move(16)) {
            FOR_EACH(s, 4, {
                prefetch_line<P>(lines + s * 64, s);
                const Fp8Pairs pairs = widen(lines + s * 64);
                FOR_EACH(m, M, {
                    chains[0][m] = Bf16::dot(chains[0][m], pairs.first, rows.at[m] + s * 4);
                    chains[1][m] = Bf16::dot(chains[1][m], pairs.second, rows.at[m] + s * 4 + 2);
                });
            });
        }
        const __m512 factor = _mm512_set1_ps(*scale);
        FOR_EACH(m, M, total[m] = _mm512_fmadd_ps(_mm512_add_ps(chains[0][m], chains[1][m]), factor, total[m]));
    }
    const __m512 factor = _mm512_loadu_ps(w.scales + column),
                 bias = w.bias ? _mm512_loadu_ps(w.bias + column) : _mm512_setzero_ps();
    FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride, _mm512_fmadd_ps(total[m], factor, bias)));
}

// Spans of a panel to bf16, as that is packed.
template <class W>
HOT_LOOP void fp8_widen(const uint8_t* lines, int64_t spans, uint8_t* to) {
    const W widen;
    for (const uint8_t* end = lines + spans * FP8_SPAN_BYTES; lines < end; lines += 64, to += 128) {
        prefetch_line<Prefetch::NEAR>(lines, 0);
        const Fp8Pairs pairs = widen(lines);
        _mm512_storeu_si512(to, pairs.first);
        _mm512_storeu_si512(to + 64, pairs.second);
    }
}

// Rows' totals become outputs.
inline void fp8_finish(const Linear& w, int64_t panel, int64_t rows, float* out, int64_t stride) {
    const __m512 factor = _mm512_loadu_ps(w.scales + panel * LANES),
                 bias = w.bias ? _mm512_loadu_ps(w.bias + panel * LANES) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; r++, out += stride) {
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_loadu_ps(out), factor, bias));
    }
}

// Chunk after chunk of FP8_GROUP panels (`group` or fewer) is widened once for all rows:
// add(first row, its column k, TOGETHER panels or one of them, widened spans of the first, spans, scales of the first,
// out).
template <int TOGETHER, class W, class F>
inline void fp8_chunks(const Linear& w, int64_t rows, int64_t row_tile, int64_t group, int64_t first, int64_t last,
                       float* out, int64_t stride, const F& add) {
    alignas(64) uint8_t wide[FP8_GROUP * FP8_CHUNK / SCALE_COLUMNS * FP8_WIDE_BYTES];
    const int64_t bytes = panel_bytes(FP8, 0, w.depth), head = fp8_head_bytes(w.depth);
    for (int64_t b = first; b < last; b += group) {
        const int64_t panels = b + group < last ? group : last - b;
        for (int64_t k = 0; k < w.depth; k += FP8_CHUNK) {
            const int64_t spans = (k + FP8_CHUNK < w.depth ? FP8_CHUNK : w.depth - k) / SCALE_COLUMNS;
            const int64_t each = spans * FP8_WIDE_BYTES;
            for (int64_t i = 0; i < panels; i++) {
                fp8_widen<W>(w.weights + (b + i) * bytes + head + k * LANES, spans, wide + i * each);
            }
            for (int64_t r = 0; r < rows; r += row_tile) {
                for (int64_t i = 0, some; i < panels; i += some) {
                    some = i + TOGETHER <= panels ? TOGETHER : 1;
                    const auto* scales = reinterpret_cast<const float*>(w.weights + (b + i) * bytes);
                    add(r, k, some, wide + i * each, spans, scales + k / SCALE_COLUMNS,
                        out + r * stride + (b + i - first) * LANES);
                }
            }
        }
        for (int64_t i = 0; i < panels; i++) fp8_finish(w, b + i, rows, out + (b + i - first) * LANES, stride);
    }
}

#ifdef IPEX_ASSIST_HAS_AMX

// Up to 16 rows (`count`, as tiles_begin was told) times spans of a widened panel, added to `out`.
HOT_LOOP void fp8_amx_spans(const uint8_t* rows, int64_t row_bytes, int64_t count, const uint8_t* wide, int64_t spans,
                            const float* scales, bool start, float* out, int64_t stride) {
    alignas(64) float sums[TILE * LANES];
    for (int64_t s = 0; s < spans; s++, rows += 4 * 64, wide += 4 * TILE_BYTES, start = false) {
        TILE_ZERO(0);
        for (int64_t i = 0; i < 4; i++) {
            TILE_LOAD(4, rows + i * 64, row_bytes);
            TILE_LOAD(5, wide + i * TILE_BYTES, 64);
            TILE_DOT_BF16(0, 4, 5);
        }
        TILE_STORE(0, sums, 64);
        const __m512 factor = _mm512_set1_ps(scales[s]);
        for (int64_t r = 0; r < count; r++) {
            const __m512 before = start ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * stride);
            _mm512_storeu_ps(out + r * stride, _mm512_fmadd_ps(_mm512_load_ps(sums + r * LANES), factor, before));
        }
    }
}

// Many rows: a span is one group, whose scale is the same for all columns.
template <class W>
struct Fp8Squares {
    static constexpr int COLUMNS = SCALE_COLUMNS, PLANES = 1, VALUE_BYTES = 2, AHEAD = 2048;
    using Other = void;
    static constexpr int SCALES = 1;
    static int64_t head(int64_t depth) { return fp8_head_bytes(depth); }
    static bool tiles(const uint8_t* panel, int64_t span, const uint8_t* lines, int, uint8_t* to, float* scale) {
        const W widen;
        _mm512_store_ps(scale, _mm512_set1_ps(reinterpret_cast<const float*>(panel)[span]));
        FOR_EACH(s, FP8_SPAN_BYTES / 64, {
            const Fp8Pairs pairs = widen(lines + s * 64);
            _mm512_store_si512(to + s * 128, pairs.first);
            _mm512_store_si512(to + s * 128 + 64, pairs.second);
        });
        return true;
    }
    static __m512 begin(const Linear&, int64_t) { return _mm512_setzero_ps(); }
    static __m512 end(const Linear& w, int64_t b, __m512 total) { return scaled_column(w, b, total); }
    template <class S>
    static __m512 add(const S& sums, __m512, const __m512* scales, __m512 total) {
        return _mm512_fmadd_ps(_mm512_load_ps(sums(0)), scales[0], total);
    }
};

template <class W>
void fp8_by(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
            int64_t stride) {
    if (rows > TILE) return amx_many<Fp8Squares<W>>(w, in, rows, first, last, out, stride);
    const auto add = [&](int64_t, int64_t k, int64_t, const uint8_t* wide, int64_t spans, const float* scales,
                         float* to) {
        fp8_amx_spans(in.values + k * 2, w.depth * 2, rows, wide, spans, scales, k == 0, to, stride);
    };
    tiles_begin(rows);
    fp8_chunks<1, W>(w, rows, TILE, 1, first, last, out, stride, add);
    tiles_end();
}

#else

// Widened spans of one or two panels, one after the other.
struct Fp8Spans {
    const uint8_t* wide;
    const float* scales[PAIR];
    int64_t spans;
    bool start;  // whether they are the first of the panels
};

// M rows times them, added to `out`.
template <int M, int N>
HOT_LOOP void fp8_wide_tile(const Bf16::Row* from, int64_t row_stride, const Fp8Spans& c, float* out, int64_t stride) {
    const uint8_t *wide = c.wide, *second = wide + (N - 1) * c.spans * FP8_WIDE_BYTES;
    RowPointers<Bf16::Row, M> rows(from, row_stride);
    __m512 total[N][M];
    FOR_EACH(n, N, FOR_EACH(m, M, {
                 total[n][m] = c.start ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * stride + n * LANES);
             }));
    for (int64_t s = 0; s < c.spans; s++) {
        __m512 chains[N][2][M];
        FOR_EACH(n, N, FOR_EACH(m, M, chains[n][0][m] = chains[n][1][m] = _mm512_setzero_ps()));
        for (const uint8_t* end = wide + FP8_WIDE_BYTES; wide < end; wide += 4 * 64, second += 4 * 64, rows.move(8)) {
            FOR_EACH(i, 4, {
                const __m512i weights = _mm512_loadu_si512(wide + i * 64);
                const __m512i more = _mm512_loadu_si512(second + i * 64);
                FOR_EACH(m, M, {
                    const Bf16::Value value = Bf16::value(rows.at[m] + i * 2);
                    chains[0][i % 2][m] = Bf16::dot(chains[0][i % 2][m], weights, value);
                    if (N > 1) chains[N - 1][i % 2][m] = Bf16::dot(chains[N - 1][i % 2][m], more, value);
                });
            });
        }
        FOR_EACH(n, N, {
            const __m512 factor = _mm512_set1_ps(c.scales[n][s]);
            FOR_EACH(m, M, {
                total[n][m] = _mm512_fmadd_ps(_mm512_add_ps(chains[n][0][m], chains[n][1][m]), factor, total[n][m]);
            });
        });
    }
    FOR_EACH(n, N, FOR_EACH(m, M, _mm512_storeu_ps(out + m * stride + n * LANES, total[n][m])));
}

// Up to 16 rows stream the weights, panel after panel; for more, each weight is widened once.
template <class W>
void fp8_by(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
            int64_t stride) {
    const auto* values = reinterpret_cast<const Bf16::Row*>(in.values);
    const int64_t bytes = panel_bytes(FP8, 0, w.depth);
    if (rows > STREAMED_ROWS) {
        const int64_t tile = even_tile(rows, IN_PAIRS ? PAIR_ROWS : TILE_ROWS);
        const auto add = [&](int64_t r, int64_t k, int64_t panels, const uint8_t* wide, int64_t spans,
                             const float* scales, float* to) {
            const Bf16::Row* from = values + r * w.depth + k;
            const auto* more = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(scales) + bytes);
            const Fp8Spans chunk{wide, {scales, more}, spans, k == 0};
#define CALL(M)                                                                                                   \
    panels == PAIR ? fp8_wide_tile<M <= PAIR_ROWS ? M : 1, IN_PAIRS ? PAIR : 1>(from, w.depth, chunk, to, stride) \
                   : fp8_wide_tile<M, 1>(from, w.depth, chunk, to, stride)
            IPEX_ASSIST_BY_ROWS(rows - r < tile ? rows - r : tile, CALL)
#undef CALL
        };
        return fp8_chunks<IN_PAIRS ? PAIR : 1, W>(w, rows, tile, FP8_GROUP, first, last, out, stride, add);
    }
    for (int64_t b = first; b < last; b++) {
        const uint8_t* panel = w.weights + b * bytes;
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            const Bf16::Row* from = values + r * w.depth;
            float* to = out + r * stride + (b - first) * LANES;
#define CALL(M) fp8_tile<W, M, Fp8Streaming::of(M)>(w, from, panel, b * LANES, to, stride)
            IPEX_ASSIST_BY_ROWS(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, CALL)
#undef CALL
        }
    }
}

#endif

inline void format_linear(Fp8Format, const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                          float* out, int64_t stride) {
#ifdef __AVX512F__
    static const bool has_vbmi = __builtin_cpu_supports("avx512vbmi");
    if (has_vbmi) return fp8_by<Fp8Lookup>(w, in, rows, first, last, out, stride);
#endif
    fp8_by<Fp8Shuffle>(w, in, rows, first, last, out, stride);
}

}  // namespace
}  // namespace ipex_assist
