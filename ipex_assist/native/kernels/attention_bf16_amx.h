// The products of attention over bf16 on AMX, whatever the number of queries: each is one chain over tiles of 32 columns
// or positions, so its bits are a query's own.
//
// Of 64 queries and a block of 256 positions of 128 columns, tiles take 8,192 cycles at least where vectors take
// 130,000. The softmax between takes about as long, and is when the next block is asked for.
#pragma once
#include "kernels/bf16_amx.h"
#include "kernels/prefetch.h"

namespace ipex_assist {
namespace {

// Up to 16 rows times a panel of 16 columns, or with LOWER up to 32 and with RIGHT two (`bytes` apart). Tiles 0 to 3:
// sums, 4 and 5: rows, 6 and 7: columns. Few rows, which are multiplied faster than memory is read, ask for the lines of
// the next panel.
template <bool LOWER, bool RIGHT>
HOT_LOOP void amx_attention(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t bytes, int64_t steps,
                            float* out, int64_t stride) {
    static_assert(LOWER || !RIGHT);
    const uint8_t* lower = rows + TILE * row_bytes;
    TILE_ZERO(0);
    if (LOWER) TILE_ZERO(1);
    if (RIGHT) TILE_ZERO(2);
    if (RIGHT) TILE_ZERO(3);
    for (int64_t s = 0; s < steps; s++) {
        const uint8_t* columns = panel + s * TILE_BYTES;
        TILE_LOAD(4, rows + s * 64, row_bytes);
        if (!LOWER) prefetch_lines<0>(columns + bytes, TILE);
        TILE_LOAD(6, columns, 64);
        TILE_DOT_BF16(0, 4, 6);
        if (LOWER) {
            TILE_LOAD(5, lower + s * 64, row_bytes);
            TILE_DOT_BF16(1, 5, 6);
        }
        if (!RIGHT) continue;
        TILE_LOAD(7, columns + bytes, 64);
        TILE_DOT_BF16(2, 4, 7);
        TILE_DOT_BF16(3, 5, 7);
    }
    TILE_STORE(0, out, stride * 4);
    if (LOWER) TILE_STORE(1, out + TILE * stride, stride * 4);
    if (RIGHT) TILE_STORE(2, out + LANES, stride * 4);
    if (RIGHT) TILE_STORE(3, out + TILE * stride + LANES, stride * 4);
}

// Rows times panels, of which each has `bytes`; `steps` tiles of their lines are used.
struct AmxColumns {
    const uint8_t* panels;
    int64_t count, bytes, steps;
};

// All rows, as many at a time as there are tiles for: the last of them may be multiplied twice.
inline void amx_attention_rows(const uint8_t* rows, int64_t row_bytes, int64_t count, const AmxColumns& columns,
                               float* out, int64_t stride) {
    constexpr int64_t MOST = 2 * TILE;
    const int64_t each = count < MOST ? count : MOST;
    tiles_begin(each);
    for (int64_t b = 0, part; b < columns.count; b += part) {
        part = each > TILE && b + 2 <= columns.count ? 2 : 1;
        const auto multiply = each <= TILE ? amx_attention<false, false>
                              : part == 2  ? amx_attention<true, true>
                                           : amx_attention<true, false>;
        for (int64_t r = 0; r < count; r += each) {
            const int64_t first = r + each <= count ? r : count - each;
            multiply(rows + first * row_bytes, row_bytes, columns.panels + b * columns.bytes, columns.bytes,
                     columns.steps, out + first * stride + b * LANES, stride);
        }
    }
    tiles_end();
}

struct Bf16OnTiles {
    static constexpr int64_t POSITIONS = 2 * LANES;  // that are weighted at once

    static void score(const AttentionTile& t, const KeyValueBlock& block, int64_t, int64_t limit) {
        const int64_t bytes = t.key_depth * 2;
        amx_attention_rows(t.query, bytes, t.queries, {block.keys, limit / LANES, bytes * LANES, bytes / 64}, t.scores,
                           BLOCK_POSITIONS);
    }
    // Up to 16 queries ask for lines as they multiply (amx_attention); these would hold up those.
    static inline __attribute__((always_inline)) void ask_next(const AttentionTile& t, const KeyValueBlock& block,
                                                               int64_t distance, int32_t q) {
        if (t.queries <= TILE || distance == 0) return;
        ask_share(block.keys + distance, t.key_depth * BLOCK_POSITIONS * 2, q, t.queries);
        ask_share(block.values + distance, t.value_dim * BLOCK_POSITIONS * 2, q, t.queries);
    }
    static void weigh(const AttentionTile& t, const KeyValueBlock& block, int64_t, int64_t used,
                      AttentionPartial* partials) {
        const int64_t stride = t.queries > 1 ? partials[1].output - partials[0].output : 0;
        amx_attention_rows(t.probabilities, ROW_BYTES, t.queries,
                           {block.values, (t.value_dim + LANES - 1) / LANES, ROW_BYTES * LANES, used / POSITIONS},
                           partials[0].output, stride);
    }
    // Of one query, 16 columns whose other positions are zero.
    static void weigh_seen(const AttentionTile& t, int32_t q, const uint8_t* values, int64_t used, float* out) {
        amx_attention_rows(t.probabilities + q * ROW_BYTES, ROW_BYTES, 1,
                           {values, 1, ROW_BYTES * LANES, used / POSITIONS}, out, 0);
    }

private:
    static constexpr int64_t ROW_BYTES = BLOCK_POSITIONS * 2;

    // Inlined: gcc drops calls of functions that do nothing but prefetch.
    static inline __attribute__((always_inline)) void ask_share(const uint8_t* from, int64_t bytes, int64_t part,
                                                                int64_t parts) {
        for (int64_t i = bytes / 64 * part / parts * 64; i < bytes / 64 * (part + 1) / parts * 64; i += 64)
            _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
    }
};

}  // namespace
}  // namespace ipex_assist
