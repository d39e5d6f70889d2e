// The plan of a pass: everything about its rows that does not depend on their values, computed once and then only read.
//
// A segment's rows are cut in two ways. A *query tile* is a few rows that attend together, so that a block of keys is
// read once for all of them. An *append range* is the rows whose keys go into the same 16 positions of a block.
//
// Threads share attention in one of two ways (AttentionPlan::splits_kv). For few rows they share the blocks of keys and
// values ("split KV"); the result of some blocks is a *partial*, and partials are merged later. They are merged in the
// order of their blocks within *runs* of SPLIT_BLOCKS blocks, then the runs in their order: which run a block belongs
// to follows from its position alone. So it changes no bit whether a split covers one block or a whole run, nor who
// merges.
//
//     blocks   0  1  2  3  4  5  6  7 | 8  9 10 11 12 …       a segment of a sequence, one KV head
//     runs     └────────── 0 ───────┘   └────── 1 ──── …
//     splits   one partial for each run, or one for each block where threads would share runs unevenly
//
// Where there are many, a thread takes a query tile through all the blocks that it sees. Where tiles are so few or so
// uneven that threads would wait for one of them (a long context among many rows), tiles of up to SPLIT_ROWS rows are
// split into ranges of runs, each run of them with its partial.
//
// Passes of up to DECODE_ROWS rows always split; larger ones do where the last thread finishes earlier that way: texts
// with a few drafts each, which have fewer tiles than there are threads.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "operations/adapter_rows.h"
#include "operations/batch.h"
#include "threads/team_nodes.h"

namespace ipex_assist {

constexpr int64_t TILE_QUERIES = 64;  // of a query tile, for all the query heads of a KV head together

// What rows attend to where that is not their sequence as it is: positions that a mixer gathers side by side, as if
// they were the sequence. The mixer counts them in a plain structure of its own (Mixer::shape) with two functions of a
// position: `gathered`, by a row at that position, 0 where it attends to its sequence; and `most`, the most that any
// row up to that position attends to.
class Gathering {
public:
    Gathering() = default;
    template <class Sight>
    explicit Gathering(const Sight& sight) : count_(ask<Sight, &Sight::gathered>),
                                             most_(ask<Sight, &Sight::most>) {
        static_assert(std::is_trivially_copyable_v<Sight> && sizeof sight <= sizeof numbers_);
        std::memcpy(numbers_.data(), &sight, sizeof sight);
    }
    bool any() const { return count_; }
    int64_t count(int64_t position) const { return count_ ? count_(numbers_, position) : 0; }
    int64_t most(int64_t last) const { return most_(numbers_, last); }
    bool operator==(const Gathering& other) const { return count_ == other.count_ && numbers_ == other.numbers_; }

private:
    using Numbers = std::array<int32_t, 4>;
    template <class Sight, int64_t (Sight::*FUNCTION)(int64_t) const>
    static int64_t ask(const Numbers& numbers, int64_t position) {
        Sight sight;
        std::memcpy(&sight, numbers.data(), sizeof sight);
        return (sight.*FUNCTION)(position);
    }
    int64_t (*count_)(const Numbers&, int64_t position) = nullptr, (*most_)(const Numbers&, int64_t last) = nullptr;
    Numbers numbers_{};
};

// What a plan needs to know of an attention layer; layers that are alike share one.
struct AttentionShape {
    int32_t heads, kv_heads, value_dim;
    int32_t window;  // positions a row may see, 0: all
    // Attended values are merged and put into the output linear's form by spans of whole heads and whole scales.
    int64_t span_columns, spans;
    // All query heads have one KV head. The plan of a pass then cuts them into parts, which it takes for KV heads, so
    // that there is work for all threads: each reads the same keys and values.
    bool shared = false;
    int32_t chunk = 0;  // positions of a chunk, of which a row sees its own alone; 0: all
    Gathering gathering = {};
    bool window_of_first = false;  // where rows see all of their segment: whether the window of its first row is theirs
    bool operator==(const AttentionShape& other) const;
    // Whether a row at this position attends to what is gathered. It is then a query tile by itself.
    bool gathers(int64_t position) const { return gathering.count(position) > 0; }
    // The first position that a row at this one sees.
    int64_t first_seen(int64_t position) const {
        if (gathers(position)) return 0;
        const int64_t in_window = window > 0 && position >= window ? position - window + 1 : 0;
        return chunk > 0 && position - position % chunk > in_window ? position - position % chunk : in_window;
    }
    // The most positions that a row up to this one sees; and the most blocks that this many neighbouring rows see.
    int64_t most_seen(int64_t last) const;
    int64_t most_blocks(int64_t rows, int64_t last) const;
    int32_t group() const { return heads / kv_heads; }
    int32_t tile_rows() const;     // of a query tile
    int32_t most_queries() const;  // of a query tile, whatever the parts
    // Where the keys and values of one of kv_heads lie.
    int32_t stored_head(int32_t kv_head) const { return shared ? 0 : kv_head; }
};

// And of a model.
struct PassShape {
    int64_t hidden_size = 0;
    bool begins_with_linear = false;  // between the tokens' embedding and the first layer
    std::vector<AttentionShape> attention;
    std::vector<int32_t> attention_of_layer;  // which of these each layer has, -1: none
    bool recurrent = false;                   // whether any layer is
    bool whole_segments = false;              // whether each row sees all rows of its segment (DFLASH)
    bool reads_before = false;                // or what is before its segment alone (SHARED_KV)
};

struct WorkRange {  // first <= item < end
    int64_t first, end;
};

struct RowRange {  // rows first <= r < end of one segment
    int32_t first, end, segment;
};

// What a thread that shares query tiles takes at a time, for one KV head: blocks first <= b < end of a tile.
struct TileWork {
    int32_t tile;
    int32_t split;  // the number of the tile among those that are split; -1 where these are all of its blocks
    int64_t first, end;
};

// Where the partials of a row are: of split s and KV head h at first + ((s - first_split) · kv_heads + h) · stride,
// each with the queries of a group.
struct PartialPlace {
    int64_t first, stride, first_split;
};

// The last position that each row sees, where that is not its own (Batch::last_seen).
struct SeenAhead {
    std::vector<int32_t> last;     // (rows), or none
    bool in_windows_only = false;  // in layers without a window it is
};

// How a kind of attention layer goes through a pass.
struct AttentionPlan {
    AttentionShape shape;
    bool splits_kv = false;          // whether threads share blocks of keys and values; else query tiles
    std::vector<RowRange> tiles;     // query tiles
    std::vector<size_t> first_tile;  // of each segment, and the number of tiles
    // Of each segment: the first block that one of its rows sees, and how many from it on.
    std::vector<int64_t> first_block, blocks;
    int32_t split_blocks = SPLIT_BLOCKS;       // blocks of a partial: SPLIT_BLOCKS or 1
    std::vector<PartialPlace> partial_places;  // of each row; where tiles are shared, only where its tile is split
    int64_t partial_rows = 0;                  // partials of each head, of all rows
    // When the last thread ends, in units of PassPlan::cost. Not known for blocks in passes of up to DECODE_ROWS rows.
    int64_t last_end = 0;
    // Where query tiles are shared: the costliest first, so that none of them is left over at the end.
    std::vector<TileWork> tile_work;
    int32_t split_tiles = 0;
    // Its work items, each the place of one of tile_work · kv_heads + KV head: in the order of tile_work, first those
    // whose keys and values are on memory node 0, or most of them. Each node has two queues of its items: one for each
    // of its threads, which no other takes, and the rest, with which others help.
    std::vector<int64_t> items;
    std::vector<WorkRange> queues;
    // Where blocks are shared:
    bool merges_in_place = false;  // whether whoever ends a segment's blocks merges them, without a barrier before
    // Of work items, each a block of a segment for a KV head, counted by head, then segment, then block: what each
    // thread takes, of one node's or, where `by_block`, those among these that its node has (TeamNodes::home).
    std::vector<WorkRange> thread_work;
    bool by_block = false;

    // What a thread of a node takes next: what its own node has, and then what others have; -1: nothing is left.
    // take(queue): how many of its items are taken already.
    template <class Take>
    int64_t next_item(int node, Take&& take) const {
        const size_t own = 2 * size_t(node), count = queues.size();
        for (size_t i = 0; i < count; i++) {
            const size_t queue = (own + i) % count;
            if (i > 0 && queue % 2 == 0) continue;  // of another node's threads alone
            const int64_t at = queues[queue].first + take(queue);
            if (at < queues[queue].end) return items[size_t(at)];
        }
        return -1;
    }
    int64_t partials(size_t segment) const {  // of a segment for each head
        const int64_t end = first_block[segment] + blocks[segment];
        return (end - 1) / split_blocks + 1 - first_block[segment] / split_blocks;
    }
};

// Values, times threads, that are prepared in the time of a barrier of as many threads.
constexpr int64_t PREPARED = 128;

// Complete when it is made: rows that go on, and the next pass of a draft, have a plan of their own.
struct PassPlan {
    // appends: whether rows append keys and values, or have them there already.
    PassPlan(const PassShape& shape, const TeamNodes& team, std::vector<Segment> segments, std::vector<int32_t> tokens,
             std::vector<int32_t> logit_rows, bool appends = true, SeenAhead ahead = {});
    PassPlan(const PassPlan&) = delete;
    PassPlan& operator=(const PassPlan&) = delete;

    // Of the rows with logits alone, which see the same and have their keys and values appended already. Those of a
    // segment at consecutive positions become one of its segments.
    std::unique_ptr<const PassPlan> of_logit_rows(const PassShape& shape) const;

    int32_t rows() const { return int32_t(tokens.size()); }
    // Where a row's keys and values go.
    int64_t last_block(int32_t row) const { return positions[size_t(row)] / BLOCK_POSITIONS; }
    // The positions that a row of a layer of this shape sees: up to its own, or as `ahead` says, or, of whole segments,
    // also all of its segment; or what is before it; or, where positions are gathered, their numbers among these.
    int64_t first_seen(int32_t row, const AttentionShape& shape) const;
    int64_t last_seen(int32_t row, const AttentionShape& shape) const;
    int64_t last_seen_block(int32_t row, const AttentionShape& shape) const {
        return last_seen(row, shape) / BLOCK_POSITIONS;
    }
    // The first block that a row of a layer of this shape sees.
    int64_t first_block(int32_t row, const AttentionShape& shape) const {
        return first_seen(row, shape) / BLOCK_POSITIONS;
    }
    // The time that each of a tile's work items takes for one KV head, in that of a query's block.
    int64_t cost(const AttentionPlan& plan, const TileWork& work) const;
    const AttentionPlan& attention_of(int32_t layer) const {
        return attention[size_t(attention_of_layer[size_t(layer)])];
    }

    // In the order in which they are made, each of those before it.
    const TeamNodes team;  // the threads that run the pass
    const int threads;     // how many they are
    const bool decode;     // up to DECODE_ROWS rows: prepared where they are made, and multiplied as a linear reads
    const bool whole_segments, reads_before;  // as PassShape has them
    const std::vector<Segment> segments;
    const std::vector<int32_t> tokens;  // of each row
    const std::vector<int32_t> logit_rows;
    const SeenAhead ahead;
    const bool each_thread_prepares;  // all rows by itself, in memory of its own: that takes less time than a barrier
    const std::vector<int32_t> positions, segment_of;  // of each row
    const std::vector<int32_t> first_row;              // of each segment
    // Rows that recurrent layers scan: of each segment those after its state that have stayed, then its own; of each
    // segment the first, and how many there are.
    const std::vector<int64_t> first_scan_row;
    const std::vector<RowRange> append_ranges;
    const std::vector<size_t> first_append_range;  // of each segment, and how many there are
    const AdapterRows with_adapter;                // the rows that have one
    const std::vector<int32_t> attention_of_layer;
    const std::vector<AttentionPlan> attention;  // as PassShape has them

    // Whether a thread prepares this number of values in the time of a barrier.
    bool in_time_of_barrier(int64_t values) const { return values <= PREPARED * threads; }

    // Attention as it is where threads share blocks, or query tiles; of each kind of layer the plan has one of the two.
    AttentionPlan split(const AttentionShape& shape) const;
    AttentionPlan tiled(const AttentionShape& shape) const;

private:
    std::vector<AttentionPlan> plan_attention(const PassShape& shape) const;
    AttentionShape in_parts(AttentionShape shape, bool splits_kv) const;
    AttentionPlan plan_attention(const AttentionShape& shape) const;
    AttentionPlan cut(const AttentionShape& shape, int32_t rows, bool splits_kv) const;
    void share_blocks(AttentionPlan& plan) const;
    WorkRange work_of(const AttentionPlan& plan, int thread) const;
    void share_tiles(AttentionPlan& plan) const;
    void list_items(AttentionPlan& plan) const;
    void split_tile(AttentionPlan& plan, int32_t tile, int64_t runs) const;
    void share_homes(AttentionPlan& plan) const;
};

// The time of each thread that takes query tiles, if all had the same.
int64_t even_share(const PassPlan& pass, const AttentionPlan& tiles);

// Rows that a thread would not have to prepare, if they were shared.
inline int64_t rows_of_others(int64_t rows, int threads) { return rows - (rows + threads - 1) / threads; }

// Rows of tiles that are split, at most: bounds the memory of their partials. Where many more rows see as much, there
// are tiles enough.
constexpr int64_t SPLIT_ROWS = 256;

// The same for this many threads. Tiles are split that are more than 1 / SHARE_PARTS of a thread's share: there are at
// most SHARE_PARTS of them for each thread.
constexpr int64_t SHARE_PARTS = 4;
inline int64_t split_rows(const AttentionShape& shape, int threads) {
    return std::min(SPLIT_ROWS, (SHARE_PARTS * threads * shape.most_queries() - 1) / shape.heads + 1);
}

// Partials of a head that a pass of more than DECODE_ROWS rows has at most, where no segment sees more blocks.
inline int64_t most_partials(const AttentionShape& shape, int threads, int64_t rows, int64_t blocks) {
    if (blocks < 2) return 0;
    const int64_t runs = (blocks - 1) / SPLIT_BLOCKS + 1;
    return std::min(rows * blocks, split_rows(shape, threads) * (runs + 1));
}

// The first block after those that share a partial, or, of size SPLIT_BLOCKS, a run.
inline int64_t split_end(int64_t block, int64_t size) { return (block / size + 1) * size; }

}  // namespace ipex_assist
