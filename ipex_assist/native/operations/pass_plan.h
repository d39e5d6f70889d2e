// The plan of a pass: everything about its rows that does not depend on their values, computed once and then only read.
//
// A segment's rows are cut in two ways. A *query tile* is a few rows that attend together, so that a block of keys is
// read once for all of them. An *append range* is the rows whose keys go into the same 16 positions of a block.
//
// In passes of up to DECODE_ROWS rows (the decode path) threads share the blocks of keys and values ("split KV"), and
// what a thread finds for some blocks is a *partial*, which is merged with the others later. Partials are merged in the
// order of their blocks within *runs* of SPLIT_BLOCKS blocks, then the runs in their order: which run a block belongs
// to follows from its position alone. So it changes no bit whether a split covers one block or a whole run, nor who
// merges.
//
//     blocks   0  1  2  3  4  5  6  7 | 8  9 10 11 12 …       a segment of a sequence, one KV head
//     runs     └────────── 0 ───────┘   └────── 1 ──── …
//     splits   one partial for each run, or one for each block where threads would share runs unevenly
//
// Larger passes (the prefill path) have no splits: a thread takes a query tile through all the blocks that it sees.
#pragma once
#include <cstdint>
#include <vector>

#include "operations/batch.h"

namespace ipex_assist {

// What a plan needs to know of an attention layer; layers that are alike share one.
struct AttentionShape {
    int32_t heads, kv_heads, head_dim;
    int32_t window;  // positions a row may see, 0: all
    // Attended values are merged and put into the output linear's form by units of whole heads and whole scales.
    int64_t unit_columns, units;
    bool operator==(const AttentionShape& other) const;
    int32_t group() const { return heads / kv_heads; }
    int32_t tile_rows() const;  // of a query tile
};

// And of a model.
struct PassShape {
    int64_t hidden_size = 0;
    bool projected_embedding = false;
    std::vector<AttentionShape> attention;
    std::vector<int32_t> attention_of_layer;  // which of these each layer has
};

// The threads that run a pass.
struct PassTeam {
    int count;
    bool several_nodes;  // then each block of keys and values is written and read by its owner (Blocks::owner)
};

struct RowRange {  // rows first <= r < end of one segment
    int32_t first, end, segment;
};

// How a kind of attention layer goes through a pass.
struct AttentionPlan {
    AttentionShape shape;
    std::vector<RowRange> tiles;  // query tiles; of the prefill path those that see most come last, and are taken first
    std::vector<size_t> first_tile;  // of each segment, and the number of tiles
    std::vector<int64_t> first_block,
        blocks;  // of each segment: the first that one of its rows sees, and how many from it on
    // Of the decode path:
    int32_t split_blocks = 1;      // blocks of a partial: SPLIT_BLOCKS or 1
    bool merges_in_place = false;  // whether whoever ends a segment's blocks merges them, without a barrier before
    std::vector<int64_t>
        thread_first;  // each thread's first unit, a block of a segment for a KV head, and how many units

    int64_t partials(size_t segment) const {  // of a segment for each head
        const int64_t end = first_block[segment] + blocks[segment];
        return (end - 1) / split_blocks + 1 - first_block[segment] / split_blocks;
    }
};

struct PassPlan {
    PassPlan(const PassShape& shape, const PassTeam& threads, std::vector<Segment> segments,
             std::vector<int32_t> tokens, std::vector<int32_t> logit_rows);

    int32_t rows() const { return int32_t(tokens.size()); }
    int64_t last_block(int32_t row) const { return positions[size_t(row)] / BLOCK_POSITIONS; }
    // The first block that a row of a layer with this window sees.
    int64_t first_block(int32_t row, int32_t window) const;
    // Rows of the last layer that go on after its keys and values, null: all of them. In prefill passes only
    // those with logits do.
    const std::vector<int32_t>* rows_kept(bool last_layer) const {
        return last_layer && narrows ? &logit_rows : nullptr;
    }
    const AttentionPlan& attention_of(int32_t layer) const {
        return attention[size_t(attention_of_layer[size_t(layer)])];
    }

    int threads;
    bool several_nodes;
    bool decode;                // up to DECODE_ROWS rows
    bool narrows;               // whether rows without logits end with the last layer's keys and values
    bool each_thread_prepares;  // all rows by itself, in memory of its own, because that takes less time than a barrier
    std::vector<Segment> segments;
    std::vector<int32_t> tokens, positions, segment_of;  // of each row
    std::vector<int32_t> logit_rows;
    std::vector<int32_t> first_row;  // of each segment
    std::vector<RowRange> append_ranges;
    std::vector<size_t> first_append_range;  // of each segment, and how many there are
    std::vector<AttentionPlan> attention;    // as PassShape has them
    std::vector<int32_t> attention_of_layer;

private:
    void place_rows();
    AttentionPlan plan_attention(const AttentionShape& shape) const;
    void share_blocks(AttentionPlan& plan) const;
    int64_t run_border(const AttentionPlan& plan, int64_t unit) const;
    bool runs_are_even(const AttentionPlan& plan) const;
};

// The first block after those that share a partial, or, of size SPLIT_BLOCKS, a run.
inline int64_t split_end(int64_t block, int64_t size) { return (block / size + 1) * size; }

}  // namespace ipex_assist
