// What layers with an indexer, entries or a choice of blocks keep beside keys and values. Of a block: entries, as wide as
// queries are, and index keys, in int8 with their scales, but for those of pools and entries. Of a sequence, as its state:
// of its last positions the rows that further pools or entries will be made of (LatentSpec::open_rows), and keys that are
// values, as rows, where a window sees them; each at its place in a ring.
#pragma once
#include "mixers/latent/choice.h"

namespace ipex_assist {

struct KeptBeside {
    // precision: of keys and values; attention: of queries.
    KeptBeside(const AttentionSpec& a, Precision precision, Precision attention) {
        const int64_t rate = a.latent.compressed.rate, each = rate ? rate : a.latent.indexer.each();
        keys_in = precision == INT8 && (rate || a.latent.indexer.pools()) ? attention : precision;
        const int64_t element = row_type_bytes(row_type(keys_in));
        keys = rate ? round_up(BLOCK_POSITIONS / rate * a.head_dim * element, LINE) : 0;
        scales = keys + round_up(BLOCK_POSITIONS / each, LANES) * a.index_depth() * element;
        bytes = scales + (a.index_depth() && keys_in == INT8 ? BLOCK_POSITIONS * 4 : 0);
        open_row = a.latent.open_width() * (rate ? element : 4);
        window = a.latent.open_rows() * open_row;
        if (!a.latent.is_compressed()) return;
        window_rows = a.window + PENDING_ROWS - 1;
        const int64_t values = precision == INT8 ? a.value_width() + 2 * 4 : 0;
        window_row = round_up(key_row(a) * row_type_bytes(row_type(precision)) + values, LINE);
    }
    static constexpr int64_t LINE = 64;
    int64_t state() const { return window + window_rows * window_row; }
    Precision keys_in;            // of index keys
    int64_t keys, scales, bytes;  // where these begin, behind the entries, and bytes of all
    // Of a state: bytes of a row that is open, where the window's keys begin, behind these, how many there are, and bytes
    // of each, in int8 with the value and two scales.
    int64_t open_row, window, window_rows = 0, window_row = 0;
};

// As Mixer::keep.
inline KeptByMixer keep(const AttentionSpec& a, Precision precision, Precision attention) {
    const KeptBeside kept(a, precision, attention);
    return {kept.bytes, sight_of(a).rows() || a.latent.is_compressed(), kept.state()};
}
inline KeptBeside kept_beside(const AttentionView& v) {
    return {v.spec, v.blocks.precision(), v.blocks.attention_precision()};
}
inline Precision index_precision(const AttentionView& v) { return kept_beside(v).keys_in; }
inline KeyValueBlock index_at(const AttentionView& v, int32_t id) {
    const KeptBeside kept = kept_beside(v);
    uint8_t* at = v.blocks.beside(id, v.number);
    return {at + kept.keys, nullptr, kept.keys_in == INT8 ? reinterpret_cast<float*>(at + kept.scales) : nullptr,
            nullptr};
}
inline uint8_t* state_of(const AttentionView& v, const Segment& s) {
    return v.pass.batch.states->kept(s.state, v.number);
}
// What a pool, in floats, or an entry, in its type, will be made of at one of the last positions: (open_width).
inline uint8_t* open_row(const AttentionView& v, const Segment& s, int64_t position) {
    return state_of(v, s) + position % v.spec.latent.open_rows() * kept_beside(v).open_row;
}
// The key of a position of the window that a state has; or, of a row of this pass, in the place of what it was made of.
inline uint8_t* window_row(const AttentionView& v, const KeptBeside& kept, const Segment& s, int64_t position) {
    return state_of(v, s) + kept.window + position % kept.window_rows * kept.window_row;
}
inline uint8_t* window_row(const AttentionView& v, int64_t row) {
    return reinterpret_cast<uint8_t*>(v.pass.activations.shared.qkv.row(row) + v.spec.key_column());
}
inline PositionRow window_position(const AttentionView& v, uint8_t* key) {
    if (v.blocks.precision() != INT8) return {key, nullptr, nullptr, nullptr};
    uint8_t* value = key + key_row(v.spec);
    float* scales = reinterpret_cast<float*>(value + v.spec.value_width());
    return {key, value, scales, scales + 1};
}
// Entries, (…, head_dim), and their type.
inline uint8_t* entries_at(const AttentionView& v, int32_t id) { return v.blocks.beside(id, v.number); }
inline SourceType entry_type(const AttentionView& v) {
    return v.blocks.attention_precision() == FP32 ? SOURCE_F32 : SOURCE_BF16;
}

}  // namespace ipex_assist
