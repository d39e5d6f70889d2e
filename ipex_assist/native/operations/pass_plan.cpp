#include "operations/pass_plan.h"

#include <algorithm>
#include <utility>

#include "threads/pool.h"

namespace ipex_assist {
namespace {

constexpr int64_t TILE_QUERIES = 64;  // of a query tile, for all the query heads of a KV head together
// A partial costs another thread about a sixteenth of its block: a query's 600 bytes out of another core's cache, line
// by line, for 130 KB of keys and values (head_dim 128, bf16) that are prefetched.
constexpr int64_t PARTIALS_A_BLOCK = 16;
constexpr int64_t MERGED_IN_PLACE = 80;  // partials of heads that one thread merges in the time of a barrier
constexpr int64_t PREPARED =
    128;  // values, times threads, that are prepared in the time of a barrier of as many threads

}  // namespace

bool AttentionShape::operator==(const AttentionShape& other) const {
    return heads == other.heads && kv_heads == other.kv_heads && head_dim == other.head_dim && window == other.window &&
           unit_columns == other.unit_columns && units == other.units;
}

int32_t AttentionShape::tile_rows() const { return int32_t(std::max<int64_t>(1, TILE_QUERIES / group())); }

PassPlan::PassPlan(const PassShape& shape, const PassTeam& pool, std::vector<Segment> segments_,
                   std::vector<int32_t> tokens_, std::vector<int32_t> logit_rows_)
    : threads(pool.count),
      several_nodes(pool.several_nodes),
      decode(tokens_.size() <= DECODE_ROWS),
      narrows(!decode && logit_rows_.size() < tokens_.size()),
      segments(std::move(segments_)),
      tokens(std::move(tokens_)),
      logit_rows(std::move(logit_rows_)),
      attention_of_layer(shape.attention_of_layer) {
    // Where the rows that a thread would not have to prepare cost less than a barrier.
    const int64_t others = rows() - (rows() + threads - 1) / threads;
    each_thread_prepares = decode && !shape.projected_embedding && others * shape.hidden_size <= PREPARED * threads;
    place_rows();
    for (const AttentionShape& each : shape.attention) attention.push_back(plan_attention(each));
}

void PassPlan::place_rows() {
    for (size_t i = 0; i < segments.size(); i++) {
        const Segment& s = segments[i];
        const int32_t first = int32_t(positions.size()), end = first + s.rows;
        first_row.push_back(first), first_append_range.push_back(append_ranges.size());
        for (int32_t r = 0; r < s.rows; r++) positions.push_back(s.start + r), segment_of.push_back(int32_t(i));
        for (int32_t r = first; r < end;) {
            const int32_t next = std::min(end, r + LANES - positions[size_t(r)] % LANES);
            append_ranges.push_back({r, next, int32_t(i)});
            r = next;
        }
    }
    first_append_range.push_back(append_ranges.size());
}

int64_t PassPlan::first_block(int32_t row, int32_t window) const {
    const int32_t position = positions[size_t(row)];
    return window > 0 && position >= window ? (position - window + 1) / BLOCK_POSITIONS : 0;
}

AttentionPlan PassPlan::plan_attention(const AttentionShape& shape) const {
    AttentionPlan plan;
    plan.shape = shape;
    for (size_t i = 0; i < segments.size(); i++) {
        const int32_t first = first_row[i], end = first + segments[i].rows, step = shape.tile_rows();
        plan.first_tile.push_back(plan.tiles.size());
        for (int32_t r = first; r < end; r += step) plan.tiles.push_back({r, std::min(r + step, end), int32_t(i)});
        plan.first_block.push_back(first_block(first, shape.window));
        plan.blocks.push_back(last_block(end - 1) + 1 - plan.first_block.back());
    }
    plan.first_tile.push_back(plan.tiles.size());
    if (decode) {
        share_blocks(plan);
    } else {
        std::sort(plan.tiles.begin(), plan.tiles.end(), [this](const RowRange& a, const RowRange& b) {
            return last_block(a.end - 1) < last_block(b.end - 1);
        });
    }
    return plan;
}

// Which blocks each thread takes, how many share a partial, and who merges.
void PassPlan::share_blocks(AttentionPlan& plan) const {
    const AttentionShape& shape = plan.shape;
    plan.split_blocks = runs_are_even(plan) ? SPLIT_BLOCKS : 1;
    int64_t units = 0;
    for (const int64_t blocks : plan.blocks) units += blocks * shape.kv_heads;
    for (int t = 0; t <= threads; t++) {
        const int64_t first = share(units, t, threads);
        plan.thread_first.push_back(plan.split_blocks == SPLIT_BLOCKS ? run_border(plan, first) : first);
    }
    // Where one thread merges a segment's heads as fast as all threads would after a barrier.
    const int64_t heads = std::max<int64_t>(shape.group(), shape.unit_columns / shape.head_dim);
    plan.merges_in_place = true;
    for (size_t i = 0; i < segments.size(); i++) {
        const int64_t merged = segments[i].rows * std::min<int64_t>(heads, shape.heads) * plan.partials(i);
        plan.merges_in_place &= merged <= MERGED_IN_PLACE;
    }
}

// The border between two runs that is nearest to a unit. Units are counted by KV head, then segment, then block.
int64_t PassPlan::run_border(const AttentionPlan& plan, int64_t unit) const {
    int64_t all = 0;
    for (const int64_t blocks : plan.blocks) all += blocks;
    int64_t within = unit % all;
    size_t i = 0;
    for (; within >= plan.blocks[i]; i++) within -= plan.blocks[i];
    const int64_t first = plan.first_block[i], block = first + within, run_end = split_end(block, SPLIT_BLOCKS);
    const int64_t lower = std::max(first, run_end - SPLIT_BLOCKS), upper = std::min(first + plan.blocks[i], run_end);
    return unit - block + (block - lower < upper - block ? lower : upper);
}

// Whether threads that take whole runs all have about their share of the blocks.
bool PassPlan::runs_are_even(const AttentionPlan& plan) const {
    if (several_nodes) return plan.shape.kv_heads % threads == 0;  // who owns a block then owns all of its head
    int64_t units = 0, most = 0, from = 0;
    for (const int64_t blocks : plan.blocks) units += blocks * plan.shape.kv_heads;
    for (int t = 1; t <= threads; t++) {
        const int64_t end = run_border(plan, share(units, t, threads));
        most = std::max(most, end - from), from = end;
    }
    return most * threads * PARTIALS_A_BLOCK <= units * (PARTIALS_A_BLOCK + 1);
}

}  // namespace ipex_assist
