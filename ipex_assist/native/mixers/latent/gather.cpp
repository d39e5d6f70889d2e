// What a row attends to where that is not all before it, put side by side as if it were a sequence: chosen positions; or
// entries, of which some may be chosen, and then its window. What attention then does with it is what it does with any.
#include <algorithm>
#include <cstring>

#include "mixers/latent/choice.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {
namespace {

// How wide keys and values are, and where the latent begins in the key: after what is rotated. Of keys and values of
// heads nothing is in both: then all of the key is as what is rotated.
struct Widths {
    explicit Widths(const AttentionSpec& a)
        : key_depth(a.key_depth()),
          head_dim(a.is_latent() ? a.head_dim : key_depth),
          rope_dim(a.is_latent() ? head_dim - a.latent.rank : key_depth),
          rank(a.value_width()),
          both(a.is_latent()) {}
    int64_t key_depth, head_dim, rope_dim, rank;
    bool both;
};

// A position of a block, from here to there. BYTES: of an element. In a key's panel of 16 positions it has a lane of each
// line; of values it has, in each panel of 16 columns, one place in the lanes of a line. But for int8, where both have a
// scale of their own, the latent is the same in both, and is read where it lies closer together: in the value.
template <int64_t BYTES>
void copy_position(const KeyValueBlock& from, int64_t here, const KeyValueBlock& to, int64_t there, const Widths& w) {
    constexpr int64_t EACH = 4 / BYTES;  // elements of a lane
    constexpr int BITS = 8 * BYTES;
    constexpr uint32_t MASK = 0xffffffffu >> (32 - BITS);
    const int64_t lines = w.key_depth / EACH;
    const auto lanes = [](uint8_t* panels, int64_t line) { return reinterpret_cast<uint32_t*>(panels) + line * LANES; };
    const uint32_t* key_from = lanes(from.keys, here / LANES * lines) + here % LANES;
    uint32_t* key_to = lanes(to.keys, there / LANES * lines) + there % LANES;
    for (int64_t i = 0; i < (BYTES == 1 ? lines : w.rope_dim / EACH); i++) key_to[i * LANES] = key_from[i * LANES];
    for (int64_t i = w.head_dim / EACH; i < lines; i++) key_to[i * LANES] = 0;
    const int from_bits = int(here % EACH) * BITS, to_bits = int(there % EACH) * BITS;
    for (int64_t d = 0; d < w.rank; d += LANES) {
        const int64_t panel = d / LANES * (BLOCK_POSITIONS / EACH);
        const uint32_t* value_from = lanes(from.values, panel + here / EACH);
        uint32_t* value_to = lanes(to.values, panel + there / EACH);
        uint32_t values[LANES];
        for (int64_t i = 0; i < LANES; i++) {
            values[i] = value_from[i] >> from_bits & MASK;
            value_to[i] = (value_to[i] & ~(MASK << to_bits)) | values[i] << to_bits;
        }
        for (int64_t i = 0; BYTES > 1 && w.both && i < LANES; i += EACH)
            key_to[(w.rope_dim + d + i) / EACH * LANES] =
                EACH == 1 ? values[i] : values[i] | values[i + 1] << BITS % 32;
    }
}

// An entry, as the key and the value of a position. Columns behind the key meet a query's zeros.
void put_entry(const AttentionView& v, const RowRange& tile, int64_t entry, const KeyValueBlock& to, int64_t there) {
    const int64_t each = BLOCK_POSITIONS / v.spec.latent.compressed.rate, bytes = element_bytes(v.blocks.entry_type());
    const Precision precision = v.blocks.precision();
    float* row = v.own.head.data;
    const int32_t id = v.segment(tile).blocks[entry / each];
    v.k.widen(v.blocks.entry_type(), v.blocks.entries(id, v.kv_layer) + entry % each * v.spec.head_dim * bytes,
              v.spec.head_dim, row);
    v.k.store_key(precision, row, v.spec.head_dim, v.spec.key_depth(), int32_t(there), to);
    v.k.store_value(precision, row, v.spec.value_dim(), int32_t(there), to);
    const int64_t values = 4 / row_type_bytes(row_type(precision)), lines = v.spec.key_depth() / values;
    uint32_t* key = reinterpret_cast<uint32_t*>(to.keys) + there / LANES * lines * LANES + there % LANES;
    for (int64_t i = v.spec.head_dim / values; i < lines; i++) key[i * LANES] = 0;
}

}  // namespace

KeyValueBlock gather_block(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block) {
    const Widths widths(v.spec);
    const ChosenSight shape = sight_of(v.spec);
    const int64_t position = v.plan.positions[size_t(tile.first)];
    const int64_t first = block * BLOCK_POSITIONS, entries = shape.seen_entries(position),
                  count = std::min<int64_t>(shape.gathered(position) - first, BLOCK_POSITIONS);
    const int32_t* chosen = shape.chooses(position) ? v.pass.activations.shared.notes.row(tile.first) + first : nullptr;
    const Precision precision = v.blocks.precision();
    const int64_t bytes = row_type_bytes(row_type(precision));
    KeyValueBlock to{v.own.work.data, v.own.work.data + BLOCK_POSITIONS * widths.key_depth * bytes, nullptr, nullptr};
    if (precision == INT8) {
        to.key_scales = reinterpret_cast<float*>(to.values + BLOCK_POSITIONS * widths.rank);
        to.value_scales = to.key_scales + BLOCK_POSITIONS;
    }
    for (int64_t i = 0; i < count; i++) {
        if (first + i < entries) {
            put_entry(v, tile, chosen ? chosen[i] : first + i, to, i);
            continue;
        }
        const int64_t of = shape.rate ? shape.first_of_window(position) + first + i - entries : chosen[i];
        const int64_t here = of % BLOCK_POSITIONS;
        const KeyValueBlock from = v.block(tile, kv_head, of / BLOCK_POSITIONS);
        switch (bytes) {
            case 4: copy_position<4>(from, here, to, i, widths); break;
            case 2: copy_position<2>(from, here, to, i, widths); break;
            default: copy_position<1>(from, here, to, i, widths);
        }
        if (precision != INT8) continue;
        to.key_scales[i] = from.key_scales[here], to.value_scales[i] = from.value_scales[here];
    }
    return to;
}

}  // namespace ipex_assist
