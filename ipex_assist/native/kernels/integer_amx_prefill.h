// Linears of int8 and int4 on AMX for more than 16 rows, with the bits of integer_linear.h.
//
// 32 rows times two panels make four tiles of sums, so each loaded tile is used twice. The first rows unpack the
// weights to signed bytes (int8: stored - 128, int4: nibble - zero), which stay in cache for the other rows; so the
// sums of a group need no correction by its zero. Rows that do not fit into L2 go through slabs of 16 panels and
// 1024 columns, whose weights do; rows that fit go through two panels and all columns at a time.
#pragma once
#include "kernels/integer_amx.h"
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

constexpr int64_t SLAB_PANELS = 16, SLAB_COLUMNS = 1024, SQUARE_ROWS = 2 * TILE;
constexpr int64_t WHOLE_BYTES = 576 << 10;  // of rows that fit into L2

using Totals = float[TILE * LANES];  // of 16 rows and a panel

// Some columns of up to 32 rows (HALVES of 16).
struct SquareRows {
    const uint8_t* tiles;  // (columns / 64, 16, 64) of the upper rows
    int64_t lower;         // bytes from these to those of the lower rows
    const float* scales;   // (spans, HALVES · 16)
    int64_t spans;
};

// Two panels of weights (or one, twice) from the same column on.
struct SquareWeights {
    const uint8_t* packed[2];
    uint8_t* tiles;  // as signed bytes (spans, groups of a span, 2, COLUMNS / 64, 16, 64), or a ring of two spans
    int64_t mask;    // 1: a ring, else -1
    int64_t ahead;   // bytes from here to the weights that are prefetched, and …
    int64_t jump;    // … how many more where those are after the panel's end
};

// Products of one group, the one that begins at tile FIRST of the rows' two of a span. Tiles 0 and 2: sums of upper
// rows, 1 and 3: of lower rows; 4 and 5: rows, 6 and 7: weights. The processor looks only some hundred instructions
// ahead for tile products: so the other work of a span is done in quarters, between(0) to between(3), each after
// products that take as long.
template <int COLUMNS, int HALVES, int FIRST, class Between>
inline __attribute__((always_inline)) void square_dots(const uint8_t* rows, int64_t lower, const uint8_t* weights,
                                                       const Between& between) {
    constexpr bool LOWER = HALVES > 1;
    TILE_ZERO(0);
    TILE_ZERO(2);
    if (LOWER) {
        TILE_ZERO(1);
        TILE_ZERO(3);
    }
    FOR_EACH_CONSTANT(t, COLUMNS / 64, {
        const uint8_t *from = rows + t * TILE_BYTES, *left = weights + t * TILE_BYTES;
        TILE_LOAD(4, from, 64);
        TILE_LOAD(6, left, 64);
        TILE_DOT_SIGNED(0, 4, 6);
        if (LOWER) {
            TILE_LOAD(5, from + lower, 64);
            TILE_DOT_SIGNED(1, 5, 6);
        }
        between(std::integral_constant<int, (FIRST + t) * 2>());
        TILE_LOAD(7, left + COLUMNS * LANES, 64);
        TILE_DOT_SIGNED(2, 4, 7);
        if (LOWER) TILE_DOT_SIGNED(3, 5, 7);
        between(std::integral_constant<int, (FIRST + t) * 2 + 1>());
    });
}

template <int HALVES>
inline void store_sums(int32_t (&sums)[4][TILE * LANES]) {
    TILE_STORE(0, sums[0], 64);
    if (HALVES > 1) TILE_STORE(1, sums[1], 64);
    TILE_STORE(2, sums[2], 64);
    if (HALVES > 1) TILE_STORE(3, sums[3], 64);
}

// Adds the scaled sums of a span's groups to the totals, of 16 rows and a panel.
template <class F>
inline void add_sums(const uint8_t* weights, const int32_t* sums, const float* row_scales, float* totals) {
    constexpr int GROUPS = SCALE_COLUMNS / F::COLUMNS;
    __m512 scales[GROUPS];
    FOR_EACH(g, GROUPS, scales[g] = group_scale(F(), weights + g * F::BYTES));
    FOR_EACH(m, TILE, {
        __m512 total = _mm512_load_ps(totals + m * LANES);
        const __m512 row_scale = _mm512_set1_ps(row_scales[m]);
        FOR_EACH_CONSTANT(g, GROUPS, {
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + (g * 4 * TILE + m) * LANES));
            total = add_sum(F(), sum, row_scale, scales[g], total);
        });
        _mm512_store_ps(totals + m * LANES, total);
    });
}

// All columns; the sums of a span are added to the totals while the tiles have the next one. NEW: the weights are not
// signed bytes yet.
template <class F, int HALVES, bool NEW>
HOT_LOOP void amx_square(const SquareRows& in, const SquareWeights& w, Totals* totals) {
    constexpr int GROUPS = SCALE_COLUMNS / F::COLUMNS;
    constexpr int64_t BYTES = F::COLUMNS * LANES;
    alignas(64) int32_t sums[2][GROUPS][4][TILE * LANES];
    const auto prepare = [&](int64_t span, int i) __attribute__((always_inline)) {
        const int64_t at = (span * GROUPS + i / 2) * F::BYTES;
        const uint8_t *group = w.packed[i % 2] + at, *next = group + w.ahead;
        if (at + w.ahead >= in.spans * GROUPS * F::BYTES) next += w.jump;
        for (int line = 0; line < F::BYTES / 64; line++) {
            _mm_prefetch(reinterpret_cast<const char*>(next + line * 64), _MM_HINT_T0);
        }
        to_signed(F(), group, w.tiles + ((span & w.mask) * 2 * GROUPS + i) * BYTES);
    };
    const auto add = [&](int64_t span, int t) __attribute__((always_inline)) {
        if (t % 2 >= HALVES) return;
        add_sums<F>(w.packed[t / 2] + span * GROUPS * F::BYTES, sums[span & 1][0][t],
                    in.scales + (span * HALVES + t % 2) * TILE, totals[t]);
    };
    if (NEW) FOR_EACH(i, 2 * GROUPS, prepare(0, i));
    for (int64_t span = 0; span < in.spans; span++) {
        const uint8_t *rows = in.tiles + span * SCALE_COLUMNS * TILE,
                      *weights = w.tiles + (span & w.mask) * 2 * GROUPS * BYTES;
        const auto between = [&](auto quarter) __attribute__((always_inline)) {
            if (GROUPS > 1) return;
            if (NEW && quarter < 2 * GROUPS && span + 1 < in.spans) prepare(span + 1, quarter);
            if (span > 0) add(span - 1, quarter);
        };
        if (GROUPS > 1 && NEW && span + 1 < in.spans) FOR_EACH(i, 2 * GROUPS, prepare(span + 1, i));
        FOR_EACH_CONSTANT(g, GROUPS, {
            square_dots<F::COLUMNS, HALVES, g*(F::COLUMNS / 64)>(rows + g * F::COLUMNS * TILE, in.lower,
                                                                 weights + g * 2 * BYTES, between);
            store_sums<HALVES>(sums[span & 1][g]);
        });
        if (GROUPS > 1 && span > 0) FOR_EACH(t, 4, add(span - 1, t));
    }
    FOR_EACH(t, 4, add(in.spans - 1, t));
}

// Part of a linear: rows r …, `count` of them, and input columns k … k + columns.
struct Part {
    int64_t r, count, k, columns;
};

template <class F>
class AmxMany {
public:
    AmxMany(const Linear& w, const LinearRows& in, int64_t count, int64_t first, float* out, int64_t stride)
        : w_(w),
          first_(first),
          out_(out),
          stride_(stride),
          ring_(count <= SQUARE_ROWS),
          whole_(ring_ || count * w.depth <= WHOLE_BYTES),
          columns_(whole_ ? w.depth : SLAB_COLUMNS),
          panels_(whole_ ? 2 : SLAB_PANELS) {
        const int64_t padded = (count + SQUARE_ROWS - 1) / SQUARE_ROWS * SQUARE_ROWS;
        const int64_t weights = panels_ * LANES * (ring_ ? 2 * SCALE_COLUMNS : columns_),
                      scales = padded * w.depth / SCALE_COLUMNS * 4;
        const int64_t totals = (whole_ ? SQUARE_ROWS : padded) * panels_ * LANES * 4;
        weights_ = own_memory(size_t(weights + scales + totals + (in.tiles ? 0 : padded * w.depth)));
        scales_ = reinterpret_cast<float*>(weights_ + weights);
        totals_ = reinterpret_cast<Totals*>(weights_ + weights + scales);
        tiles_ = in.tiles ? in.tiles : weights_ + weights + scales + totals;
        for (int64_t r = 0; r < count; r++) {
            if (!in.tiles) copy_to_tiles(in.values + r * w.depth, r, w.depth, 0, w.depth, tiles_);
        }
        for (int64_t r = 0; r < count; r += SQUARE_ROWS) gather_scales(in, r, count - r);
    }

    // Rows 0 … count times panels b … end.
    void run(int64_t count, int64_t b, int64_t end) {
        tiles_begin(SQUARE_ROWS);
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
            for (int64_t s = 0; s < spans; s++) scales_[r * spans + s * width + m] = m < count ? from[s] : 0;
        }
    }

    template <int HALVES>
    void squares(const Part& part, int64_t b, int64_t end) {
        const int64_t bytes = w_.depth / F::COLUMNS * F::BYTES;
        const SquareRows rows{tiles_ + part.r * w_.depth + part.k * TILE, TILE * w_.depth,
                              scales_ + part.r * w_.depth / SCALE_COLUMNS + part.k / SCALE_COLUMNS * HALVES * TILE,
                              part.columns / SCALE_COLUMNS};
        for (int64_t n = b; n < end; n += 2) {
            const uint8_t* left = w_.weights + n * bytes + part.k / F::COLUMNS * F::BYTES;
            const int64_t panels = n + 1 < end ? 2 : 1;
            // Ahead in the same panels, and then in the next two; or in the next two's same columns.
            const SquareWeights weights{{left, left + (panels - 1) * bytes},
                                        weights_ + (n - b) * part.columns * LANES,
                                        ring_ ? 1 : -1,
                                        whole_ ? F::AHEAD / 2 : 2 * bytes,
                                        whole_ ? bytes : 0};
            Totals* totals = totals_ + (whole_ ? 0 : (part.r / SQUARE_ROWS * SLAB_PANELS + n - b) * 2);
            if (part.k == 0) start<HALVES>(n, panels, totals);
            part.r == 0 ? amx_square<F, HALVES, true>(rows, weights, totals)
                        : amx_square<F, HALVES, false>(rows, weights, totals);
            if (part.k + part.columns == w_.depth) finish(part, n, panels, totals);
        }
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
    const int64_t first_;
    float* out_;
    const int64_t stride_;
    const bool ring_, whole_;  // weights are used once; two panels go by all columns
    const int64_t columns_, panels_;
    uint8_t *weights_, *tiles_;
    float* scales_;
    Totals* totals_;  // of the rows and panels of a slab: (rows / 32, pairs, 2 panels, 2 halves)
};

// Any number of rows. MORE: the groups in the form for 9 to 16 rows.
template <class F, class MORE = F>
inline void amx_integer(const Linear& w, const LinearRows& in, int64_t count, int64_t first, int64_t last, float* out,
                        int64_t stride) {
    if (count > TILE) return AmxMany<F>(w, in, count, first, out, stride).run(count, first, last);
    amx_integer_rows<F, MORE>(w, in, count, first, last, out, stride);
    tiles_end();
}

}  // namespace
}  // namespace ipex_assist
