// Linears of more than 16 rows on AMX whose sums are scaled group by group: those of integers, with the bits of
// integer_linear.h, and of fp8.
//
// 32 rows times two panels make four tiles of sums, so each loaded tile is used twice. The first rows unpack the
// weights to what tiles take (int8: stored - 128, int4: nibble - zero, mxfp4: twice its value, fp8: bf16), which stays
// in cache for the other rows. Rows that do not fit into L2 go through slabs of 16 panels and 1024 columns (of 8 bits),
// whose weights do; rows that fit go through two panels and all columns at a time.
//
// F says how a format's groups become tiles:
//   COLUMNS        of a group: 128, 64, or 32, which fill half a tile, or 16
//   PLANES         of a group's tiles, each of which all its rows' values are multiplied with
//   VALUE_BYTES    of a row's value and a weight's in tiles: 1, or 2 where they are bf16
//   AHEAD          how far packed panels are prefetched
//   SCALES         how many scales a column has in a span, at most
//   head(depth)    bytes before a panel's first span
//   tiles(panel, span, lines, g, to, scale)
//                  unpacks group g of a span, whose lines are given; `scale` (16) where there are such. False: it
//                  cannot, and Other must
//   Other          another F that can take all weights, with the same bits where both can; void: tiles() always can
//   begin(w, b), end(w, b, total)
//                  what a panel's totals start from, and what becomes of them
//   add(sums, row_scale, scales, total)
//                  the total with a row's sums of a span: sums(g) are 16 numbers of 32 bits, scales[g] those of the columns
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/bf16_amx.h"
#include "kernels/own_memory.h"
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

constexpr int64_t SLAB_PANELS = 16, SLAB_BYTES = 1024, SQUARE_ROWS = 2 * TILE;
constexpr int64_t WHOLE_BYTES = 576 << 10;  // of rows that fit into L2

using Totals = float[TILE * LANES];  // of 16 rows and a panel

template <class F>
struct SquareSizes {
    static constexpr int PLANE = SCALE_COLUMNS / F::COLUMNS;                  // groups of a span
    static constexpr int GROUPS = PLANE * F::PLANES;                          // and sums
    static constexpr int GROUP_BYTES = F::COLUMNS * F::VALUE_BYTES;           // of a row
    static constexpr int TILE_COLUMNS = GROUP_BYTES < 64 ? GROUP_BYTES : 64;  // bytes of a row in a tile
    static constexpr int STEPS = GROUP_BYTES / TILE_COLUMNS;                  // tiles of rows in a group
    static constexpr int64_t PANEL_GROUP = GROUP_BYTES * LANES;               // bytes of a panel's group as tiles
    static constexpr int64_t SPAN = 2 * GROUPS * PANEL_GROUP;                 // and of a span of two panels
    // Spans whose sums are added to the totals together, so that these are loaded and stored less often. Not where a
    // span has many sums: the first cache has room for those of two such turns.
    static constexpr int SPANS = GROUPS <= 2 ? 2 : 1;
    static constexpr int RING = 4;  // spans: those of a turn, and the next, which may be two that are unpacked together
};

// Some columns of up to 32 rows (HALVES of 16).
struct SquareRows {
    const uint8_t* tiles;  // (bytes of a row / 64, 16, 64) of the upper rows
    int64_t lower;         // bytes from these to those of the lower rows
    const float* scales;   // (spans, HALVES · 16), of integers
    int64_t spans;
};

using UnpackTiles = bool(const uint8_t* panel, int64_t span, const uint8_t* lines, int g, uint8_t* to, float* scale);

// Two panels of weights (or one, twice) from the same span on.
struct SquareWeights {
    UnpackTiles* unpack;  // F::tiles, or of the formats that share F
    const uint8_t* panels[2];
    const uint8_t* packed[2];  // of the first span
    int64_t first;             // which span of the panels that is
    int64_t span_bytes;        // of a panel
    uint8_t* tiles;            // (spans, groups, 2 panels, PANEL_GROUP), or a ring of some spans
    float* scales;             // (spans, 2 panels, groups, 16) where there are such
    int64_t mask;              // of a span's place in the ring, else -1
    int64_t ahead;             // bytes from here to the weights that are prefetched, and …
    int64_t jump;              // … how many more where those are after the panel's end
};

// Tiles 0 and 2: sums of upper rows, 1 and 3: of lower rows; 4 and 5: rows, 6 and 7: weights.
inline void tiles_begin_squares(int64_t row_bytes) {
    tiles_configure(
        [=](int tile) { return TileShape{tile < 6 ? TILE : row_bytes / 4, tile == 4 || tile == 5 ? row_bytes : 64}; });
}

// One product of tiles of the format's values.
#define SQUARE_DOT(c, a, b)           \
    do {                              \
        if (F::VALUE_BYTES == 2) {    \
            TILE_DOT_BF16(c, a, b);   \
        } else {                      \
            TILE_DOT_SIGNED(c, a, b); \
        }                             \
    } while (0)

// Products of group g of a span. The processor looks only some hundred instructions ahead for tile products: so other
// work is done in parts, between(0), between(1) …, each after products that take as long.
template <class F, int HALVES, int G, class Between>
inline __attribute__((always_inline)) void square_dots(const uint8_t* span_rows, int64_t lower, const uint8_t* weights,
                                                       const Between& between) {
    using S = SquareSizes<F>;
    constexpr bool LOWER = HALVES > 1;
    TILE_ZERO(0);
    TILE_ZERO(2);
    if (LOWER) {
        TILE_ZERO(1);
        TILE_ZERO(3);
    }
    FOR_EACH_CONSTANT(t, S::STEPS, {
        constexpr int at = G % S::PLANE * S::GROUP_BYTES + t * 64;  // of the span's bytes
        const uint8_t *from = span_rows + at / 64 * TILE_BYTES + at % 64,
                      *left = weights + G * 2 * S::PANEL_GROUP + t * TILE_BYTES;
        TILE_LOAD(4, from, 64);
        TILE_LOAD(6, left, 64);
        SQUARE_DOT(0, 4, 6);
        if (LOWER) {
            TILE_LOAD(5, from + lower, 64);
            SQUARE_DOT(1, 5, 6);
        }
        between(std::integral_constant<int, (G * S::STEPS + t) * 2>());
        TILE_LOAD(7, left + S::PANEL_GROUP, 64);
        SQUARE_DOT(2, 4, 7);
        if (LOWER) SQUARE_DOT(3, 5, 7);
        between(std::integral_constant<int, (G * S::STEPS + t) * 2 + 1>());
    });
}
#undef SQUARE_DOT

using SquareSums = int32_t[4][TILE * LANES];  // of a group; of fp8 floats

template <int HALVES>
inline void store_sums(SquareSums& sums) {
    TILE_STORE(0, sums[0], 64);
    if (HALVES > 1) TILE_STORE(1, sums[1], 64);
    TILE_STORE(2, sums[2], 64);
    if (HALVES > 1) TILE_STORE(3, sums[3], 64);
}

// What F::add does where it is GROUPS sums of integers.
template <int GROUPS, class S>
inline __attribute__((always_inline)) __m512 add_groups(const S& sums, __m512 row_scale, const __m512* scales,
                                                        __m512 total) {
    __m512 sum = _mm512_setzero_ps();
    FOR_EACH(g, GROUPS, sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums(g))), scales[g], sum));
    return _mm512_fmadd_ps(sum, row_scale, total);
}

// Adds the sums of COUNT spans to the totals of rows FIRST … FIRST + ROWS of two panels. A row's scales are loaded once
// for both. `sums` (COUNT, groups); `scales` as in SquareWeights, from the first of the spans on.
template <class F, int HALVES, int COUNT, int FIRST, int ROWS>
inline __attribute__((always_inline)) void add_sums(const SquareSums* sums, const float* row_scales,
                                                    const float* scales, Totals* totals) {
    constexpr int GROUPS = SquareSizes<F>::GROUPS;
    __m512 scale[2][COUNT * GROUPS];
    FOR_EACH(p, 2, FOR_EACH(i, COUNT * GROUPS, {
                 const float* from = scales + ((i / GROUPS * 2 + p) * GROUPS + i % GROUPS) * LANES;
                 scale[p][i] = F::SCALES ? _mm512_load_ps(from) : _mm512_setzero_ps();
             }));
    FOR_EACH(m, ROWS, {
        const int r = FIRST + m, half = r / TILE, at = r % TILE * LANES;
        __m512 row_scale[COUNT];
        FOR_EACH(s, COUNT, {
            row_scale[s] =
                F::VALUE_BYTES == 1 ? _mm512_set1_ps(row_scales[s * HALVES * TILE + r]) : _mm512_setzero_ps();
        });
        FOR_EACH(p, 2, {
            float* to = totals[p * 2 + half] + at;
            __m512 total = _mm512_load_ps(to);
            FOR_EACH(s, COUNT, {
                const auto of_group = [&](int g) __attribute__((always_inline)) {
                    return sums[s * GROUPS + g][p * 2 + half] + at;
                };
                total = F::add(of_group, row_scale[s], scale[p] + s * GROUPS, total);
            });
            _mm512_store_ps(to, total);
        });
    });
}

// All columns, SPANS spans at a turn; the sums of a turn are added to the totals while the tiles have the next one. NEW:
// the weights are not tiles yet.
template <class F, int HALVES, bool NEW>
class Square {
    using S = SquareSizes<F>;
    static constexpr int GROUPS = S::GROUPS, SPANS = S::SPANS, ROWS = HALVES * TILE;
    static constexpr int PARTS = SPANS * GROUPS * S::STEPS * 2;  // of the other work of a turn
    // Where a span is one group. More groups have more of that work than products: it is done at once (measured).
    static constexpr bool IN_PARTS = GROUPS == 1;

public:
    Square(const SquareRows& in, const SquareWeights& w, Totals* totals) : in_(in), w_(w), totals_(totals) {}

    // False: F::Other must do it.
    __attribute__((always_inline)) bool run() {
        for (int64_t s = 0; NEW && s < SPANS && s < in_.spans; s++) {
            for (int i = 0; i < 2 * GROUPS; i++) prepare(s, i);
        }
        if (in_.spans < SPANS) {
            turn<1, false>(0);
            add<1, 0, ROWS>(0);
            return fits_;
        }
        turn<SPANS, false>(0);
        int64_t first = SPANS;
        for (; first + SPANS <= in_.spans; first += SPANS) turn<SPANS, true>(first);
        if (SPANS == 1 || first == in_.spans) {
            add<SPANS, 0, ROWS>(first - SPANS);
        } else {
            turn<1, true>(first);
            add<1, 0, ROWS>(first);
        }
        return fits_;
    }

private:
    // COUNT spans from `first` on. AFTER: others, whose sums are added.
    template <int COUNT, bool AFTER>
    __attribute__((always_inline)) void turn(int64_t first) {
        for (int i = 0; NEW && !IN_PARTS && i < SPANS * 2 * GROUPS; i++) {
            prepare(first + SPANS + i / (2 * GROUPS), i % (2 * GROUPS));
        }
        FOR_EACH_CONSTANT(s, COUNT, {
            constexpr int before = decltype(s)::value * PARTS / SPANS;
            const int64_t span = first + s;
            const uint8_t *rows = in_.tiles + span * SCALE_COLUMNS * F::VALUE_BYTES * TILE,
                          *weights = w_.tiles + (span & w_.mask) * S::SPAN;
            const auto between = [&](auto step) __attribute__((always_inline)) {
                if constexpr (IN_PARTS) {
                    constexpr int i = before + decltype(step)::value, EACH = PARTS / (2 * SPANS), SHARE = ROWS / PARTS;
                    if (NEW && i % EACH == 0) prepare(first + SPANS + i / EACH / 2, i / EACH % 2);
                    if (AFTER) add<SPANS, i * SHARE, SHARE>(first - SPANS);
                }
            };
            FOR_EACH_CONSTANT(g, GROUPS, {
                square_dots<F, HALVES, decltype(g)::value>(rows, in_.lower, weights, between);
                store_sums<HALVES>(sums_[first / SPANS & 1][s * GROUPS + g]);
            });
        });
        if (!AFTER) return;
        if (!IN_PARTS) return add<SPANS, 0, ROWS>(first - SPANS);
        if (COUNT < SPANS) add<SPANS, ROWS * COUNT / SPANS, ROWS - ROWS * COUNT / SPANS>(first - SPANS);
    }

    // Rows FIRST … FIRST + COUNT_ROWS of the turn that began with a span.
    template <int COUNT, int FIRST, int COUNT_ROWS>
    __attribute__((always_inline)) void add(int64_t span) {
        add_sums<F, HALVES, COUNT, FIRST, COUNT_ROWS>(sums_[span / SPANS & 1], in_.scales + span * ROWS,
                                                      w_.scales + span * 2 * GROUPS * LANES, totals_);
    }

    // The i-th of a span's groups of two panels, if there is such a span.
    __attribute__((noinline)) void prepare(int64_t span, int i) {
        if (span >= in_.spans) return;
        const int p = i % 2, g = i / 2;
        const int64_t at = span * w_.span_bytes, lines = w_.span_bytes / 64;
        const uint8_t* next = w_.packed[p] + at + w_.ahead;
        if (at + w_.ahead >= in_.spans * w_.span_bytes) next += w_.jump;
        for (int64_t line = g * lines / GROUPS; line < (g + 1) * lines / GROUPS; line++) {
            _mm_prefetch(reinterpret_cast<const char*>(next + line * 64), _MM_HINT_T0);
        }
        fits_ &= w_.unpack(w_.panels[p], w_.first + span, w_.packed[p] + at, g,
                           w_.tiles + (span & w_.mask) * S::SPAN + i * S::PANEL_GROUP,
                           w_.scales + ((span * 2 + p) * GROUPS + g) * LANES);
    }

    const SquareRows& in_;
    const SquareWeights& w_;
    Totals* const totals_;
    bool fits_ = true;
    alignas(64) SquareSums sums_[2][SPANS * GROUPS];  // of a turn and the one before
};

template <class F, int HALVES, bool NEW>
HOT_LOOP bool amx_square(const SquareRows& in, const SquareWeights& w, Totals* totals) {
    return Square<F, HALVES, NEW>(in, w, totals).run();
}

// Part of a linear: rows r …, `count` of them, and input columns k … k + columns.
struct Part {
    int64_t r, count, k, columns;
};

template <class F>
class AmxMany {
    using S = SquareSizes<F>;
    using Other = typename F::Other;

public:
    AmxMany(const Linear& w, const LinearRows& in, int64_t count, int64_t first, float* out, int64_t stride,
            UnpackTiles* unpack)
        : w_(w),
          unpack_(unpack),
          first_(first),
          out_(out),
          stride_(stride),
          row_bytes_(w.depth * F::VALUE_BYTES),
          ring_(count <= SQUARE_ROWS),
          whole_(ring_ || count * row_bytes_ <= WHOLE_BYTES),
          columns_(whole_ ? w.depth : SLAB_BYTES / F::VALUE_BYTES),
          panels_(whole_ ? 2 : SLAB_PANELS) {
        const int64_t padded = (count + SQUARE_ROWS - 1) / SQUARE_ROWS * SQUARE_ROWS, spans = columns_ / SCALE_COLUMNS;
        const int64_t weights = panels_ / 2 * (ring_ ? S::RING : spans) * S::SPAN;
        const int64_t scales = panels_ * spans * F::SCALES * LANES * 4;
        const int64_t row_scales = F::VALUE_BYTES == 1 ? padded * w.depth / SCALE_COLUMNS * 4 : 0;
        const int64_t totals = (whole_ ? SQUARE_ROWS : padded) * panels_ * LANES * 4;
        weights_ = own_memory(size_t(weights + scales + row_scales + totals + (in.tiles ? 0 : padded * row_bytes_)));
        scales_ = reinterpret_cast<float*>(weights_ + weights);
        row_scales_ = scales_ + scales / 4;
        totals_ = reinterpret_cast<Totals*>(weights_ + weights + scales + row_scales);
        tiles_ = in.tiles ? in.tiles : weights_ + weights + scales + row_scales + totals;
        for (int64_t r = 0; r < count && !in.tiles; r++) {
            copy_to_tiles(in.values + r * row_bytes_, r, row_bytes_, 0, row_bytes_, tiles_);
        }
        for (int64_t r = 0; r < count && row_scales; r += SQUARE_ROWS) gather_scales(in, r, count - r);
    }

    // Rows 0 … count times panels b … end.
    void run(int64_t count, int64_t b, int64_t end) {
        tiles_begin_squares(tile_columns_ = S::TILE_COLUMNS);
        for (; b < end; b += panels_) {
            const int64_t slab_end = b + panels_ < end ? b + panels_ : end;
            for (int64_t k = 0; k < w_.depth; k += columns_) {
                const int64_t part = k + columns_ < w_.depth ? columns_ : w_.depth - k;
                for (int64_t r = 0; r < count; r += SQUARE_ROWS) {
                    const Part square{r, count - r < SQUARE_ROWS ? count - r : SQUARE_ROWS, k, part};
                    square.count > TILE ? squares<2>(square, b, slab_end) : squares<1>(square, b, slab_end);
                }
            }
        }
        tiles_end();
    }

private:
    // The scales of up to 32 rows beside each other. What is behind the last row is multiplied too, and not used.
    void gather_scales(const LinearRows& in, int64_t r, int64_t count) {
        const int64_t spans = w_.depth / SCALE_COLUMNS, width = count > TILE ? SQUARE_ROWS : TILE;
        for (int64_t m = 0; m < width; m++) {
            const float* from = in.scales + (r + m) * spans;
            for (int64_t s = 0; s < spans; s++) row_scales_[r * spans + s * width + m] = m < count ? from[s] : 0;
        }
    }

    template <int HALVES>
    void squares(const Part& part, int64_t b, int64_t end) {
        const int64_t bytes = panel_bytes(w_.precision, w_.group, w_.depth), spans = part.columns / SCALE_COLUMNS;
        const int64_t span_bytes = (bytes - F::head(w_.depth)) / (w_.depth / SCALE_COLUMNS);
        const int64_t row_scales =
            F::VALUE_BYTES == 1 ? (part.r * w_.depth + part.k * HALVES * TILE) / SCALE_COLUMNS : 0;
        const SquareRows rows{tiles_ + part.r * row_bytes_ + part.k * F::VALUE_BYTES * TILE, TILE * row_bytes_,
                              row_scales_ + row_scales, spans};
        for (int64_t n = b; n < end; n += 2) {
            const uint8_t *left = w_.weights + n * bytes, *right = left + (n + 1 < end ? bytes : 0);
            const int64_t pair = (n - b) / 2, span = part.k / SCALE_COLUMNS, at = F::head(w_.depth) + span * span_bytes;
            // Ahead in the same panels, and then in the next two; or in the next two's same columns.
            const SquareWeights weights{unpack_,
                                        {left, right},
                                        {left + at, right + at},
                                        span,
                                        span_bytes,
                                        weights_ + pair * spans * S::SPAN,
                                        scales_ + pair * spans * 2 * F::SCALES * LANES,
                                        ring_ ? S::RING - 1 : -1,
                                        whole_ ? F::AHEAD / 2 : 2 * bytes,
                                        whole_ ? bytes : 0};
            Totals* totals = totals_ + (whole_ ? 0 : (part.r / SQUARE_ROWS * SLAB_PANELS + n - b) * 2);
            const int64_t panels = n + 1 < end ? 2 : 1;
            if (part.k == 0) start<HALVES>(n, panels, totals);
            multiply<HALVES>(part.r == 0, rows, weights, totals, unfit_[pair]);
            if (part.k + part.columns == w_.depth) finish(part, n, panels, totals);
        }
    }

    // `fresh`: the first rows, which unpack the weights; `unfit` is whether those are F::Other's.
    template <int HALVES>
    void multiply(bool fresh, const SquareRows& rows, const SquareWeights& weights, Totals* totals, bool& unfit) {
        if constexpr (!std::is_void_v<Other>) {
            if (fresh) {
                alignas(64) Totals before[4];
                std::memcpy(before, totals, sizeof before);
                unfit = !square<F, HALVES>(true, rows, weights, totals);
                if (unfit) std::memcpy(totals, before, sizeof before);
            }
            if (unfit) {
                SquareWeights others = weights;
                others.unpack = Other::tiles;
                square<Other, HALVES>(fresh, rows, others, totals);
            } else if (!fresh) {
                square<F, HALVES>(false, rows, weights, totals);
            }
        } else {
            square<F, HALVES>(fresh, rows, weights, totals);
        }
    }

    template <class G, int HALVES>
    bool square(bool fresh, const SquareRows& rows, const SquareWeights& weights, Totals* totals) {
        constexpr int64_t columns = SquareSizes<G>::TILE_COLUMNS;
        if (tile_columns_ != columns) tiles_begin_squares(tile_columns_ = columns);
        return fresh ? amx_square<G, HALVES, true>(rows, weights, totals)
                     : amx_square<G, HALVES, false>(rows, weights, totals);
    }

    template <int HALVES>
    void start(int64_t b, int64_t panels, Totals* totals) const {
        for (int64_t n = 0; n < 2; n++) {
            const __m512 begin = F::begin(w_, b + (n < panels ? n : 0));
            for (int64_t half = 0; half < HALVES; half++) {
                for (int64_t m = 0; m < TILE; m++) _mm512_store_ps(totals[n * 2 + half] + m * LANES, begin);
            }
        }
    }

    void finish(const Part& part, int64_t b, int64_t panels, const Totals* totals) const {
        float* out = out_ + part.r * stride_ + (b - first_) * LANES;
        for (int64_t m = 0; m < part.count; m++) {
            for (int64_t n = 0; n < panels; n++) {
                const __m512 total = _mm512_load_ps(totals[n * 2 + m / TILE] + m % TILE * LANES);
                _mm512_storeu_ps(out + m * stride_ + n * LANES, F::end(w_, b + n, total));
            }
        }
    }

    const Linear& w_;
    UnpackTiles* const unpack_;
    const int64_t first_;
    float* out_;
    const int64_t stride_, row_bytes_;
    const bool ring_, whole_;  // weights are used once; two panels go by all columns
    const int64_t columns_, panels_;
    int64_t tile_columns_ = 0;       // bytes of a row in the tiles as they are now
    bool unfit_[SLAB_PANELS / 2]{};  // of each two panels of a slab
    uint8_t *weights_, *tiles_;
    float *scales_, *row_scales_;
    Totals* totals_;  // of the rows and panels of a slab: (rows / 32, pairs, 2 panels, 2 halves)
};

// More than 16 rows.
template <class F>
inline void amx_many(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                     int64_t stride, UnpackTiles* unpack = F::tiles) {
    AmxMany<F>(w, in, count, first, out, stride, unpack).run(count, first, last);
}

// What totals become where each column has a scale.
inline __m512 scaled_column(const Linear& w, int64_t b, __m512 total) {
    const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + b * LANES) : _mm512_setzero_ps();
    return _mm512_fmadd_ps(total, _mm512_loadu_ps(w.scales + b * LANES), bias);
}

}  // namespace
}  // namespace ipex_assist
