// What rows attend to where positions are kept as rows, put side by side as if it were a sequence: all positions before
// them, or chosen ones; or entries, of which some may be chosen, and then a window. What attention then does with it is
// what it does with any.
#include <algorithm>

#include "mixers/latent/choice.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {
namespace {

// An entry, as the key and the value of a position. In int8 it becomes rows of that, behind the block.
PositionRow row_of_entry(const AttentionView& v, const RowRange& tile, int64_t entry, const GatheredBlock& to,
                         int64_t there) {
    const int64_t each = BLOCK_POSITIONS / v.spec.latent.compressed.rate, bytes = element_bytes(entry_type(v));
    const int32_t id = v.segment(tile).blocks[entry / each];
    uint8_t* kept = entries_at(v, id) + entry % each * v.spec.head_dim * bytes;
    if (v.blocks.precision() != INT8) return {kept, nullptr, nullptr, nullptr};
    float* row = v.own.head.data;
    v.k.widen(entry_type(v), kept, v.spec.head_dim, row);
    uint8_t* key = to.rest + there * (key_row(v.spec) + v.spec.value_width());
    const PositionRow made{key, key + key_row(v.spec), to.key_scales + there, to.value_scales + there};
    *made.key_scale = v.k.store_row(row, v.spec.head_dim, true, made.key);
    *made.value_scale = v.k.store_row(row, v.spec.value_dim(), false, made.value);
    return made;
}

// A position of the window of keys that are values.
PositionRow row_of_window(const AttentionView& v, const KeptBeside& kept, const RowRange& tile, int64_t position) {
    const Segment& s = v.segment(tile);
    const int64_t row = v.plan.first_row[size_t(tile.segment)] + position - s.start;
    return window_position(v, position < s.start ? window_row(v, kept, s, position) : window_row(v, row));
}

}  // namespace

KeyValueBlock gather_block(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block) {
    const ChosenSight sight = sight_of(v.spec);
    const int64_t position = v.plan.positions[size_t(tile.first)], entries = sight.seen_entries(position);
    const int64_t first = block * BLOCK_POSITIONS, seen = v.plan.last_seen(tile.end - 1, v.splits.shape) + 1,
                  count = std::min<int64_t>(seen - first, BLOCK_POSITIONS);
    const int32_t* chosen = sight.chooses(position) ? v.pass.activations.shared.notes.row(tile.first) + first : nullptr;
    const int64_t bytes = row_type_bytes(row_type(v.blocks.precision()));
    const GatheredBlock to(v);
    const KeptBeside kept = kept_beside(v);
    PositionRows rows;
    rows.count = count, rows.bytes = bytes, rows.value_width = v.spec.value_width();
    rows.key_width = key_row(v.spec), rows.key_depth = v.spec.key_depth();
    // Without entries a window is part of the sequence: what is before it in its first block is not seen.
    const int64_t least = v.spec.latent.is_compressed() ? v.plan.first_seen(tile.first, v.splits.shape) : 0;
    for (int64_t i = 0; i < count; i++) {
        PositionRow from;
        if (first + i < entries) {
            from = row_of_entry(v, tile, chosen ? chosen[i] : first + i, to, i);
        } else if (v.spec.latent.is_compressed()) {
            const int64_t of = sight.rate ? sight.first_of_window(position) - entries : 0;
            from = row_of_window(v, kept, tile, std::max(of + first + i, least));
        } else {
            const int64_t of = chosen ? chosen[i] : first + i;
            from = v.blocks.row(v.segment(tile).blocks[of / BLOCK_POSITIONS], v.kv_layer,
                                v.splits.shape.stored_head(kv_head), of % BLOCK_POSITIONS);
        }
        rows.keys[i] = from.key;
        rows.values[i] = from.value ? from.value : from.key + (key_row(v.spec) - v.spec.value_width()) * bytes;
        if (from.key_scale) to.key_scales[i] = *from.key_scale, to.value_scales[i] = *from.value_scale;
    }
    for (int64_t i = count; to.key_scales && i < round_up(count, 2 * LANES); i++)
        to.key_scales[i] = to.value_scales[i] = 0;
    v.k.pack_positions(rows, to);
    return to;
}

}  // namespace ipex_assist
