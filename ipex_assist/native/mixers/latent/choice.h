// What mixers have in common whose rows choose what they attend to, positions or blocks, by the scores of index keys.
#pragma once
#include <algorithm>
#include <cstring>

#include "mixers/kernels.h"
#include "operations/attention.h"

namespace ipex_assist {

// What a row attends to where it chooses positions by their scores: `top_k` positions, in whole pools, and those of the
// open pool up to its own. With entries, of `rate` positions each: the entries before it, or the `top_k` that it
// chooses among them, and after them its window.
struct ChosenSight {
    int32_t top_k, pool, rate, window;

    bool rows() const { return top_k > 0 || rate > 0; }  // whether positions are kept as rows
    bool chooses(int64_t position) const {
        return top_k > 0 && (rate > 0 ? keys_before(position) > top_k : position + 1 >= top_k + pool);
    }
    // Positions of an indexer's key, or of an entry; and how many keys or entries a row at this position sees.
    int32_t of_key() const { return rate > 0 ? rate : pool; }
    int64_t keys_before(int64_t position) const { return (position + 1) / of_key(); }
    int64_t first_of_window(int64_t position) const {
        return window > 0 && position >= window ? position - window + 1 : 0;
    }
    // Of what is gathered, how much are entries; and all of it.
    int64_t seen_entries(int64_t position) const {
        return rate == 0 ? 0 : chooses(position) ? top_k : keys_before(position);
    }
    int64_t gathered(int64_t position) const {
        if (rate > 0) return seen_entries(position) + position + 1 - first_of_window(position);
        return chooses(position) ? top_k + (position + 1) % pool : 0;
    }
    int64_t most(int64_t last) const {
        return rate > 0 ? gathered(last) : std::min<int64_t>(last + 1, top_k + pool - 1);
    }
};
inline ChosenSight sight_of(const AttentionSpec& a) {
    return {a.latent.indexer.top_k, a.latent.indexer.each(), a.latent.compressed.rate, a.window};
}

// Buffers of a layer whose rows choose: how many scores a row has, and how many numbers say what it chose; and the
// buffer of a block of what is gathered.
inline void size_choice(int64_t scores, int64_t chosen, ActivationSizes& s) {
    s.work = std::max(s.work, round_up(scores, BLOCK_POSITIONS));
    s.work_rows = std::min(s.rows, std::max<int64_t>(DECODE_ROWS, s.threads));
    s.own_work = std::max(s.own_work, 2 * s.work * int64_t(sizeof(uint64_t)));
    s.notes = std::max(s.notes, chosen);
}
inline void size_gathered(const AttentionSpec& a, ActivationSizes& s) {
    s.own_work = std::max(s.own_work, BLOCK_POSITIONS * (a.key_depth() + a.value_width() + 2) * 4);
}
// Of positions, or entries.
inline void size_chosen(const AttentionSpec& a, int64_t last, ActivationSizes& s) {
    const ChosenSight sight = sight_of(a);
    if (sight.rows()) size_gathered(a, s);
    if (sight.chooses(last)) size_choice(last / sight.of_key() + 1, sight.top_k + sight.pool - 1, s);
}

// What rows attend to, gathered as a block in memory of this thread (size_gathered); and what is left of that.
struct GatheredBlock : KeyValueBlock {
    explicit GatheredBlock(const AttentionView& v) : KeyValueBlock{v.own.work.data, nullptr, nullptr, nullptr} {
        const int64_t bytes = row_type_bytes(row_type(v.blocks.precision()));
        values = keys + BLOCK_POSITIONS * v.spec.key_depth() * bytes;
        rest = values + BLOCK_POSITIONS * v.spec.value_width() * bytes;
        if (v.blocks.precision() != INT8) return;
        key_scales = reinterpret_cast<float*>(rest);
        value_scales = key_scales + BLOCK_POSITIONS;
        rest += 2 * BLOCK_POSITIONS * 4;
    }
    uint8_t* rest;
};

// What index keys are multiplied with, of one row at a time in memory of this thread (index_queries.cpp).
struct IndexQueries {
    AttentionTile tile;
    const float* weights;
};
// Query `number`, (dim), whose products are weighted.
void store_index_query(const AttentionView& v, int32_t number, const float* query, int32_t dim, float weight);
// Those from `first` on that have been stored.
IndexQueries index_queries_from(const AttentionView& v, int32_t first, int32_t count);

// Room of a thread for as many keys (choice_key) as there are scores, twice.
inline Array<uint64_t> choice_keys(const ThreadBuffers& own) {
    return {reinterpret_cast<uint64_t*>(own.work.data), 2, own.work.rows / int64_t(2 * sizeof(uint64_t))};
}
// Orders positions, or blocks, by their scores, and those of equal scores by descending numbers. Keys are unsigned, and
// no two are equal.
inline uint64_t choice_key(const float* scores, int64_t number) {
    uint32_t bits;
    std::memcpy(&bits, scores + number, 4);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | (0xffffffffu - uint32_t(number));
}

}  // namespace ipex_assist
