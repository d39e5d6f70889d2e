// What is kept of a block beside its keys and values by layers with an indexer, entries or a choice of blocks: entries,
// as wide as queries are; index keys, in int8 with their scales, but for those of pools and entries; and, of the
// block's last positions, the rows that further pools or entries will be made of (LatentSpec::open_rows). So a sequence
// may be cut by PENDING_ROWS, or at the end of any block.
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
        open = keys + round_up(BLOCK_POSITIONS / each, LANES) * a.index_depth() * element;
        open_row = a.latent.open_width() * (rate ? element : 4);
        scales = open + a.latent.open_rows() * open_row;
        bytes = scales + (a.index_depth() && keys_in == INT8 ? BLOCK_POSITIONS * 4 : 0);
    }
    static constexpr int64_t LINE = 64;
    Precision keys_in;           // of index keys
    int64_t keys, open, scales;  // where these begin, behind the entries
    int64_t open_row, bytes;     // of such a row, and of all
};

// As Mixer::keep.
inline KeptInBlock keep(const AttentionSpec& a, Precision precision, Precision attention) {
    return {KeptBeside(a, precision, attention).bytes, sight_of(a).rows()};
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
// What a pool, in floats, or an entry, in its type, will be made of at one of a block's last positions: (open_width).
inline uint8_t* open_row(const AttentionView& v, int32_t id, int64_t position) {
    const KeptBeside kept = kept_beside(v);
    return v.blocks.beside(id, v.number) + kept.open + position % v.spec.latent.open_rows() * kept.open_row;
}
// Entries, (…, head_dim), and their type.
inline uint8_t* entries_at(const AttentionView& v, int32_t id) { return v.blocks.beside(id, v.number); }
inline SourceType entry_type(const AttentionView& v) {
    return v.blocks.attention_precision() == FP32 ? SOURCE_F32 : SOURCE_BF16;
}

}  // namespace ipex_assist
