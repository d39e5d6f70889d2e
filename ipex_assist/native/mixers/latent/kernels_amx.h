// Scores of an indexer on AMX: a tile has the products of 16 queries and 16 keys, of int8 or bf16, which vectors weight
// and sum up in the order of the queries. Of int8 the bits are those of kernels.h, as products are exact.
//
// For 16 queries and 32 keys of int8: 4 tile products of 16 cycles, where vectors need 1024 instructions, two a cycle;
// the sums take 160 instructions on vectors. A processor does not look far enough ahead to begin the sums during the
// products before them, so the two take turns in the program, with prefetches between: all at once these would hold up
// the loads of tiles.
#pragma once
#include "kernels/bf16_amx.h"
#include "kernels/prefetch.h"

namespace ipex_assist {
namespace {

template <bool INTEGERS>
class TiledIndex {
public:
    static bool fits(const AttentionTile& t) { return t.queries % TILE == 0 && t.key_depth == DEPTH; }

    TiledIndex(const AttentionTile& t, const float* weights) : t_(t), weights_(weights) {}

    // Of the first `limit` positions of a block.
    HOT_LOOP void score(const KeyValueBlock& block, int64_t distance, int64_t limit, float* out) const {
        const int64_t groups = t_.queries / TILE;
        float *now = reinterpret_cast<float*>(t_.widened), *before = now + PAIR * PRODUCTS;
        Sums sums = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        tiles_begin(TILE);
        for (int64_t i = 0; i < limit; i += PAIR * LANES) {
            const uint8_t *keys = block.keys + i / LANES * PANEL_BYTES,
                          *more = i + LANES < limit ? keys + PANEL_BYTES : keys;
            for (int64_t g = 0; g < groups; g++) {
                const uint8_t* rows = t_.query + g * TILE * ROW_BYTES;
                Ahead ahead =
                    Ahead::of(keys, distance, TILE / EACH, PAIR * PANEL_BYTES / 64 / (TILE / EACH), g, groups);
                const int64_t q = ((g > 0 ? g : groups) - 1) * TILE;
                const bool first = i == 0 && g == 0;
                TILE_ZERO(0);
                TILE_ZERO(1);
                FOR_EACH(k, STEPS, {
                    TILE_LOAD(2, rows + k * 64, ROW_BYTES);
                    TILE_LOAD(3, keys + k * TILE_BYTES, 64);
                    TILE_LOAD(4, more + k * TILE_BYTES, 64);
                    if constexpr (INTEGERS) {
                        TILE_DOT_SIGNED_UNSIGNED(0, 2, 3);
                        TILE_DOT_SIGNED_UNSIGNED(1, 2, 4);
                    } else {
                        TILE_DOT_BF16(0, 2, 3);
                        TILE_DOT_BF16(1, 2, 4);
                    }
                    FOR_EACH(p, TILE / EACH / STEPS, {
                        const int64_t m = (k * (TILE / EACH / STEPS) + p) * EACH;
                        if (!first) add(q + m, before + m * LANES, sums);
                        ahead.go_on();
                    });
                });
                TILE_STORE(0, now, 64);
                TILE_STORE(1, now + PRODUCTS, 64);
                if (g == 0 && i > 0) finish(block, i - PAIR * LANES, limit, sums, out);
                std::swap(now, before);
            }
        }
        FOR_EACH(p, TILE / EACH, add((groups - 1) * TILE + p * EACH, before + p * EACH * LANES, sums));
        finish(block, (limit - 1) / (PAIR * LANES) * (PAIR * LANES), limit, sums, out);
        tiles_end();
    }

private:
    static constexpr int64_t DEPTH = 128;  // as published models have it
    static constexpr int64_t ROW_BYTES = DEPTH * 2, PANEL_BYTES = DEPTH * LANES * (INTEGERS ? 1 : 2);
    static constexpr int STEPS = PANEL_BYTES / TILE_BYTES, EACH = 4;  // products of tiles; queries summed up at once
    static constexpr int64_t PRODUCTS = TILE * LANES;                 // of a tile

    using Sums = __m512[PAIR];

    // Adds EACH queries from `q` on.
    void add(int64_t q, const float* products, Sums& sums) const {
        FOR_EACH(m, EACH, {
            const __m512 weight = _mm512_set1_ps(weights_[q + m]);
            FOR_EACH(n, PAIR, {
                __m512 product = _mm512_loadu_ps(products + n * PRODUCTS + m * LANES);
                if constexpr (INTEGERS) {
                    const __m512i offset = _mm512_set1_epi32(t_.query_offsets[q + m]);
                    product = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_castps_si512(product), offset));
                }
                sums[n] = _mm512_fmadd_ps(_mm512_max_ps(_mm512_setzero_ps(), product), weight, sums[n]);
            });
        });
    }
    // Of two panels from position `i` on.
    static void finish(const KeyValueBlock& block, int64_t i, int64_t limit, Sums& sums, float* out) {
        FOR_EACH(n, PAIR, {
            const int64_t at = i + n * LANES;
            if (INTEGERS && at < limit) sums[n] = _mm512_mul_ps(sums[n], _mm512_loadu_ps(block.key_scales + at));
            if (at < limit) _mm512_storeu_ps(out + at, sums[n]);
            sums[n] = _mm512_setzero_ps();
        });
    }

    const AttentionTile& t_;
    const float* weights_;
};

}  // namespace
}  // namespace ipex_assist
