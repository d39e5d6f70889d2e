#include "operations/pass_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "threads/pool.h"

namespace ipex_assist {
namespace {

// Of a query tile, where there would be too few tiles of TILE_QUERIES for all threads.
constexpr int64_t LEAST_QUERIES = 16;
// A partial costs another thread about a sixteenth of its block: a query's 600 bytes out of another core's cache, line
// by line, for 130 KB of keys and values (head_dim 128, bf16) that are prefetched.
constexpr int64_t PARTIALS_A_BLOCK = 16;
constexpr int64_t MERGED_IN_PLACE = 80;  // partials of heads that one thread merges in the time of a barrier
// Reading a block takes as long as attending to it with this many queries.
constexpr int64_t BLOCK_QUERIES = 8;
// Tiles are split where a thread would have 1/16 more than its share of the work, into ranges that are at most
// 1/SHARE_PARTS of that, or one run.
constexpr int64_t UNEVEN = 16;
// Of query heads that share one KV head: items that a thread should have at least, and heads of a part that are enough
// to multiply at full speed.
constexpr int64_t PARTS_A_THREAD = 2;
constexpr int32_t PART_HEADS = 8;

// The time of the last thread, where threads take items of these costs in their order, `times` of each.
int64_t taken_in_turns(const std::vector<int64_t>& costs, int32_t times, int threads) {
    std::vector<int64_t> ends(size_t(threads), 0);  // a heap, the earliest first
    for (const int64_t cost : costs) {
        for (int32_t i = 0; i < times; i++) {
            std::pop_heap(ends.begin(), ends.end(), std::greater<>());
            ends.back() += cost;
            std::push_heap(ends.begin(), ends.end(), std::greater<>());
        }
    }
    return *std::max_element(ends.begin(), ends.end());
}

// What a block of each segment takes for one KV head, in units of PassPlan::cost: of all tiles, with merging.
std::vector<int64_t> block_costs(const PassPlan& pass, const AttentionPlan& plan) {
    std::vector<int64_t> costs;
    for (size_t i = 0; i < pass.segments.size(); i++) {
        const int64_t rows = pass.segments[i].rows, group = plan.shape.group();
        const int64_t tiles = int64_t(plan.first_tile[i + 1] - plan.first_tile[i]);
        const int64_t merging = rows * (BLOCK_QUERIES + group) / PARTIALS_A_BLOCK / plan.split_blocks;
        costs.push_back(tiles * BLOCK_QUERIES + rows * group + merging);
    }
    return costs;
}

// And some work items, which are counted by KV head, then segment, then block.
int64_t range_cost(const AttentionPlan& plan, const std::vector<int64_t>& costs, const WorkRange& items) {
    int64_t sum = 0, item = 0;
    for (int32_t h = 0; h < plan.shape.kv_heads; h++) {
        for (size_t i = 0; i < plan.blocks.size(); item += plan.blocks[i++]) {
            const int64_t first = std::max(item, items.first), end = std::min(item + plan.blocks[i], items.end);
            if (first < end) sum += (end - first) * costs[i];
        }
    }
    return sum;
}

// Whether there is room for the partials of this plan.
bool fits(const PassPlan& pass, const AttentionPlan& plan) {
    const int64_t most = *std::max_element(plan.blocks.begin(), plan.blocks.end());
    int64_t partials = 0;
    for (size_t i = 0; i < plan.blocks.size(); i++) partials = std::max(partials, plan.partials(i));
    return pass.decode || partials * pass.rows() <= most_partials(plan.shape, pass.threads, pass.rows(), most);
}

bool is_even(const PassPlan& pass, const AttentionPlan& plan) {
    return plan.last_end * UNEVEN <= even_share(pass, plan) * (UNEVEN + 1);
}

// The border between two runs that is nearest to an item. Items are counted by KV head, then segment, then block.
int64_t run_border(const AttentionPlan& plan, int64_t item) {
    int64_t all = 0;
    for (const int64_t blocks : plan.blocks) all += blocks;
    int64_t within = item % all;
    size_t i = 0;
    for (; within >= plan.blocks[i]; i++) within -= plan.blocks[i];
    const int64_t first = plan.first_block[i], block = first + within, run_end = split_end(block, SPLIT_BLOCKS);
    const int64_t lower = std::max(first, run_end - SPLIT_BLOCKS), upper = std::min(first + plan.blocks[i], run_end);
    return item - block + (block - lower < upper - block ? lower : upper);
}

// f(segment, row of it) for each row.
template <class F>
std::vector<int32_t> each_row(const std::vector<Segment>& segments, F&& f) {
    std::vector<int32_t> made;
    for (size_t i = 0; i < segments.size(); i++) {
        for (int32_t r = 0; r < segments[i].rows; r++) made.push_back(f(i, r));
    }
    return made;
}

std::vector<int32_t> first_rows(const std::vector<Segment>& segments) {
    std::vector<int32_t> first;
    int32_t rows = 0;
    for (const Segment& s : segments) first.push_back(rows), rows += s.rows;
    return first;
}

std::vector<int64_t> first_scan_rows(const std::vector<Segment>& segments, bool recurrent) {
    std::vector<int64_t> first{0};
    for (const Segment& s : segments) first.push_back(first.back() + (recurrent ? s.start - s.settled + s.rows : 0));
    return first;
}

std::vector<RowRange> ranges_to_append(const std::vector<Segment>& segments, bool appends) {
    std::vector<RowRange> ranges;
    int32_t row = 0;  // the segment's first
    for (size_t i = 0; appends && i < segments.size(); row += segments[i++].rows) {
        for (int32_t r = 0; r < segments[i].rows;) {
            const int32_t next = std::min(segments[i].rows, r + LANES - (segments[i].start + r) % LANES);
            ranges.push_back({row + r, row + next, int32_t(i)});
            r = next;
        }
    }
    return ranges;
}

std::vector<size_t> first_ranges(const std::vector<RowRange>& ranges, size_t segments) {
    std::vector<size_t> first(segments + 1);
    for (const RowRange& each : ranges) first[size_t(each.segment) + 1]++;
    std::partial_sum(first.begin(), first.end(), first.begin());
    return first;
}

}  // namespace

int64_t even_share(const PassPlan& pass, const AttentionPlan& tiles) {
    int64_t total = 0;
    for (const TileWork& u : tiles.tile_work) total += pass.cost(tiles, u) * tiles.shape.kv_heads;
    return total / pass.threads;
}

PassPlan::PassPlan(const PassShape& shape, const TeamNodes& team_, std::vector<Segment> segments_,
                   std::vector<int32_t> tokens_, std::vector<int32_t> logit_rows_, bool appends, SeenAhead ahead_)
    : team(team_),
      threads(team.threads()),
      decode(tokens_.size() <= DECODE_ROWS),
      whole_segments(shape.whole_segments),
      reads_before(shape.reads_before),
      segments(std::move(segments_)),
      tokens(std::move(tokens_)),
      logit_rows(std::move(logit_rows_)),
      ahead(std::move(ahead_)),
      each_thread_prepares(decode && !shape.begins_with_linear &&
                           in_time_of_barrier(rows_of_others(rows(), threads) * shape.hidden_size)),
      positions(each_row(segments, [&](size_t i, int32_t r) { return segments[i].start + r; })),
      segment_of(each_row(segments, [](size_t i, int32_t) { return int32_t(i); })),
      first_row(first_rows(segments)),
      first_scan_row(first_scan_rows(segments, shape.recurrent)),
      append_ranges(ranges_to_append(segments, appends)),
      first_append_range(first_ranges(append_ranges, segments.size())),
      with_adapter(segments, segment_of),
      attention_of_layer(shape.attention_of_layer),
      attention(plan_attention(shape)) {}

std::vector<AttentionPlan> PassPlan::plan_attention(const PassShape& shape) const {
    std::vector<AttentionPlan> plans;
    for (const AttentionShape& each : shape.attention) plans.push_back(plan_attention(each));
    return plans;
}

std::unique_ptr<const PassPlan> PassPlan::of_logit_rows(const PassShape& shape) const {
    std::vector<Segment> parts;
    std::vector<int32_t> of_rows, all(logit_rows.size());
    SeenAhead seen{{}, ahead.in_windows_only};
    std::iota(all.begin(), all.end(), 0);
    int32_t before = -1;
    for (const int32_t row : logit_rows) {
        const int32_t segment = segment_of[size_t(row)];
        if (before >= 0 && before + 1 == row && segment_of[size_t(before)] == segment) {
            parts.back().rows++;
        } else {
            parts.push_back(segments[size_t(segment)]);
            parts.back().start = positions[size_t(row)], parts.back().rows = 1;
        }
        of_rows.push_back(tokens[size_t(row)]), before = row;
        if (!ahead.last.empty()) seen.last.push_back(ahead.last[size_t(row)]);
    }
    return std::make_unique<PassPlan>(shape, team, std::move(parts), std::move(of_rows), std::move(all), false,
                                      std::move(seen));
}

int64_t PassPlan::first_seen(int32_t row, const AttentionShape& shape) const {
    const int64_t position = positions[size_t(row)];
    if (!whole_segments) return shape.first_seen(position);
    const int64_t start = segments[size_t(segment_of[size_t(row)])].start;
    return shape.window_of_first ? shape.first_seen(start) : std::min<int64_t>(shape.first_seen(position), start);
}

int64_t PassPlan::last_seen(int32_t row, const AttentionShape& shape) const {
    if (const int64_t gathered = shape.gathering.count(positions[size_t(row)])) return gathered - 1;
    if (!ahead.last.empty() && (shape.window > 0 || !ahead.in_windows_only)) return ahead.last[size_t(row)];
    if (!whole_segments && !reads_before) return positions[size_t(row)];
    const Segment& s = segments[size_t(segment_of[size_t(row)])];
    return int64_t(s.start) + (reads_before ? 0 : s.rows) - 1;
}

// Cuts the query heads that share a KV head into the fewest parts that give each thread its share of blocks, or of
// query tiles. The number of parts changes no bit: queries of a tile are independent of each other.
AttentionShape PassPlan::in_parts(AttentionShape shape, bool splits_kv) const {
    if (!shape.shared) return shape;
    for (int32_t parts = 1;; parts++) {
        if (shape.heads % parts) continue;
        shape.kv_heads = parts;
        int64_t items = 0;
        for (size_t i = 0; i < segments.size(); i++) {
            const int32_t first = first_row[i], last = first + segments[i].rows - 1, step = shape.tile_rows();
            items += splits_kv ? last_seen_block(last, shape) + 1 - first_block(first, shape)
                               : (segments[i].rows + step - 1) / step;
        }
        // More parts than fill a query tile give no more of them.
        const int32_t least = splits_kv ? PART_HEADS : int32_t(TILE_QUERIES);
        if (parts * items >= PARTS_A_THREAD * threads || shape.heads / parts <= least) return shape;
    }
}

AttentionPlan PassPlan::plan_attention(const AttentionShape& shape) const {
    if (decode) return split(shape);
    AttentionPlan tiles = tiled(shape);
    if (rows() > SPLIT_ROWS || is_even(*this, tiles)) return tiles;
    AttentionPlan blocks = split(shape);
    return fits(*this, blocks) && blocks.last_end < tiles.last_end ? blocks : tiles;
}

AttentionPlan PassPlan::split(const AttentionShape& shape_) const {
    const AttentionShape shape = in_parts(shape_, true);
    AttentionPlan plan = cut(shape, shape.tile_rows(), true);
    share_blocks(plan);
    return plan;
}

AttentionPlan PassPlan::tiled(const AttentionShape& shape_) const {
    const AttentionShape shape = in_parts(shape_, false);
    const auto with_tiles = [&](int32_t step) {
        AttentionPlan plan = cut(shape, step, false);
        share_tiles(plan);
        return plan;
    };
    int32_t step = shape.tile_rows();
    AttentionPlan plan = with_tiles(step);
    // Keys are read more often by smaller tiles; they are the better where threads would have nothing to do.
    while (!is_even(*this, plan) && (step /= 2) * shape.group() >= LEAST_QUERIES) {
        AttentionPlan smaller = with_tiles(step);
        if (smaller.last_end >= plan.last_end) break;
        plan = std::move(smaller);
    }
    list_items(plan);
    return plan;
}

// Query tiles of `step` rows, and the blocks that segments see.
AttentionPlan PassPlan::cut(const AttentionShape& shape, int32_t step, bool splits_kv) const {
    AttentionPlan plan;
    plan.shape = shape, plan.splits_kv = splits_kv;
    for (size_t i = 0; i < segments.size(); i++) {
        const int32_t first = first_row[i], end = first + segments[i].rows;
        plan.first_tile.push_back(plan.tiles.size()), plan.blocks.push_back(0);
        for (int32_t r = first, next; r < end; r = next) {
            for (next = std::min(r + step, end); next > r + 1 && shape.gathers(positions[size_t(next - 1)]);) next--;
            plan.tiles.push_back({r, next, int32_t(i)});  // of rows that gather one may see fewer than that before it
            plan.blocks[i] = std::max(plan.blocks[i], last_seen_block(next - 1, shape) + 1);
        }
        plan.first_block.push_back(first_block(first, shape)), plan.blocks[i] -= plan.first_block[i];
    }
    plan.first_tile.push_back(plan.tiles.size());
    return plan;
}

// Which blocks each thread takes, how many share a partial, and who merges.
void PassPlan::share_blocks(AttentionPlan& plan) const {
    const AttentionShape& shape = plan.shape;
    plan.split_blocks = 1;
    plan.by_block = team.several() && (shape.shared || !team.has_whole_heads(shape.kv_heads));
    if (plan.by_block) {
        share_homes(plan);
    } else {
        // Whole runs, where threads that take these all have about their share of the blocks.
        int64_t items = 0, most = 0;
        for (const int64_t blocks : plan.blocks) items += blocks * shape.kv_heads;
        plan.split_blocks = SPLIT_BLOCKS;
        for (int t = 0; t < threads; t++) {
            plan.thread_work.push_back(work_of(plan, t));
            most = std::max(most, plan.thread_work.back().end - plan.thread_work.back().first);
        }
        if (most * threads * PARTIALS_A_BLOCK > items * (PARTIALS_A_BLOCK + 1)) {
            plan.split_blocks = 1;
            if (!fits(*this, plan)) plan.split_blocks = SPLIT_BLOCKS;
            for (int t = 0; t < threads; t++) plan.thread_work[size_t(t)] = work_of(plan, t);
        }
        const std::vector<int64_t> costs = block_costs(*this, plan);
        for (int t = 0; t < threads && !decode; t++)  // few rows are not asked
            plan.last_end = std::max(plan.last_end, range_cost(plan, costs, plan.thread_work[size_t(t)]));
    }
    for (int32_t r = 0; r < rows(); r++) {
        const size_t segment = size_t(segment_of[size_t(r)]);
        plan.partial_places.push_back({r, rows(), plan.first_block[segment] / plan.split_blocks});
        plan.partial_rows = std::max(plan.partial_rows, plan.partials(segment) * rows());
    }
    // Where one thread merges a segment's heads as fast as all threads would after a barrier.
    const int64_t heads = std::max<int64_t>(shape.group(), shape.span_columns / shape.value_dim);
    plan.merges_in_place = true;
    for (size_t i = 0; i < segments.size(); i++) {
        const int64_t merged = segments[i].rows * std::min<int64_t>(heads, shape.heads) * plan.partials(i);
        plan.merges_in_place &= merged <= MERGED_IN_PLACE;
    }
}

// A thread's even share of the items of its node, which has whole heads.
WorkRange PassPlan::work_of(const AttentionPlan& plan, int thread) const {
    const int node = team.node(thread), own = thread - team.first_thread(node), sharers = team.threads_of(node);
    int64_t of_head = 0;
    for (const int64_t blocks : plan.blocks) of_head += blocks;
    const int64_t first = share(plan.shape.kv_heads, node, team.nodes()) * of_head,
                  items = share(plan.shape.kv_heads, node + 1, team.nodes()) * of_head - first;
    const auto border = [&](int64_t item) { return plan.split_blocks == 1 ? item : run_border(plan, item); };
    return {border(first + share(items, own, sharers)), border(first + share(items, own + 1, sharers))};
}

// Where the blocks of a head are on several nodes: an even share of those of its node, for each thread.
void PassPlan::share_homes(AttentionPlan& plan) const {
    std::vector<std::vector<int64_t>> items(size_t(team.nodes())), costs(items);
    const std::vector<int64_t> block = block_costs(*this, plan);
    const int32_t heads = plan.shape.kv_heads;
    int64_t item = 0;
    for (int32_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < segments.size(); i++) {
            const int32_t* ids = segments[i].blocks + plan.first_block[i];
            for (int64_t b = 0; b < plan.blocks[i]; b++) {
                const int node = team.home(ids[b], plan.shape.stored_head(h), plan.shape.shared ? 1 : heads);
                items[size_t(node)].push_back(item++), costs[size_t(node)].push_back(block[i]);
            }
        }
    }
    for (int t = 0; t < threads; t++) {
        const int node = team.node(t), own = t - team.first_thread(node), sharers = team.threads_of(node);
        const std::vector<int64_t>& all = items[size_t(node)];
        const size_t first = size_t(share(int64_t(all.size()), own, sharers)),
                     end = size_t(share(int64_t(all.size()), own + 1, sharers));
        if (first == end) plan.thread_work.push_back({0, 0});
        else plan.thread_work.push_back({all[first], all[end - 1] + 1});
        const auto from = costs[size_t(node)].begin();
        plan.last_end =
            std::max(plan.last_end, std::accumulate(from + int64_t(first), from + int64_t(end), int64_t(0)));
    }
}

static TileWork whole_tile(const PassPlan& pass, const AttentionPlan& plan, int32_t tile) {
    const RowRange& rows = plan.tiles[size_t(tile)];
    return {tile, -1, pass.first_block(rows.first, plan.shape), pass.last_seen_block(rows.end - 1, plan.shape) + 1};
}

// The ranges of a tile, each of `runs` runs, and places for a partial of each run.
void PassPlan::split_tile(AttentionPlan& plan, int32_t tile, int64_t runs) const {
    const TileWork all = whole_tile(*this, plan, tile);
    const RowRange& rows = plan.tiles[size_t(tile)];
    const int64_t count = rows.end - rows.first, first_run = all.first / SPLIT_BLOCKS;
    for (int64_t b = all.first, next; b < all.end; b = next) {
        next = std::min(all.end, (b / SPLIT_BLOCKS + runs) * SPLIT_BLOCKS);
        plan.tile_work.push_back({tile, plan.split_tiles, b, next});
    }
    for (int32_t r = rows.first; r < rows.end; r++) {
        plan.partial_places[size_t(r)] = {plan.partial_rows * plan.shape.kv_heads + r - rows.first, count, first_run};
    }
    plan.partial_rows += count * ((all.end - 1) / SPLIT_BLOCKS + 1 - first_run);
    plan.split_tiles++;
}

int64_t PassPlan::cost(const AttentionPlan& plan, const TileWork& work) const {
    const RowRange& rows = plan.tiles[size_t(work.tile)];
    return (work.end - work.first) * (BLOCK_QUERIES + int64_t(rows.end - rows.first) * plan.shape.group());
}

// What threads take that share tiles, and which tiles are split.
void PassPlan::share_tiles(AttentionPlan& plan) const {
    const auto sort = [&] {
        std::vector<TileWork>& items = plan.tile_work;
        std::sort(items.begin(), items.end(), [&](const TileWork& a, const TileWork& b) {
            const int64_t one = cost(plan, a), other = cost(plan, b);
            return one != other ? one > other : std::tie(a.tile, a.first) < std::tie(b.tile, b.first);
        });
        std::vector<int64_t> costs;
        for (const TileWork& u : items) costs.push_back(cost(plan, u));
        plan.last_end = taken_in_turns(costs, plan.shape.kv_heads, threads);
    };
    for (size_t i = 0; i < plan.tiles.size(); i++) plan.tile_work.push_back(whole_tile(*this, plan, int32_t(i)));
    sort();
    if (is_even(*this, plan)) return;
    plan.partial_places.resize(size_t(rows()));
    const int64_t share = even_share(*this, plan);
    int64_t left = split_rows(plan.shape, threads);  // the costliest tiles come first
    const std::vector<TileWork> tiles = std::exchange(plan.tile_work, {});
    for (const TileWork& u : tiles) {
        const int64_t run = cost(plan, u) / (u.end - u.first) * SPLIT_BLOCKS;
        const int64_t most = std::max<int64_t>(1, share / SHARE_PARTS / run);
        const bool few = (u.end - 1) / SPLIT_BLOCKS - u.first / SPLIT_BLOCKS < most;
        const RowRange& tile = plan.tiles[size_t(u.tile)];
        if (few || (left -= tile.end - tile.first) < 0) plan.tile_work.push_back(u);
        else split_tile(plan, u.tile, most);
    }
    sort();
}

// The node that has most of the keys and values of a work item.
static int home_of(const PassPlan& pass, const AttentionPlan& plan, const TileWork& work, int32_t kv_head) {
    const TeamNodes& team = pass.team;
    const int32_t head = plan.shape.stored_head(kv_head), heads = plan.shape.shared ? 1 : plan.shape.kv_heads;
    if (team.has_whole_heads(heads)) return team.home(0, head, heads);
    const int32_t* blocks = pass.segments[size_t(plan.tiles[size_t(work.tile)].segment)].blocks;
    std::vector<int64_t> counts(size_t(team.nodes()));
    for (int64_t b = work.first; b < work.end; b++) counts[size_t(team.home(blocks[b], head, heads))]++;
    return int(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

void PassPlan::list_items(AttentionPlan& plan) const {
    std::vector<std::vector<int64_t>> of_node(size_t(team.nodes()));
    for (size_t i = 0; i < plan.tile_work.size(); i++) {
        for (int32_t h = 0; h < plan.shape.kv_heads; h++) {
            const int node = team.several() ? home_of(*this, plan, plan.tile_work[i], h) : 0;
            of_node[size_t(node)].push_back(int64_t(i) * plan.shape.kv_heads + h);
        }
    }
    for (int node = 0; node < team.nodes(); node++) {
        const std::vector<int64_t>& each = of_node[size_t(node)];
        const int64_t first = int64_t(plan.items.size()), end = first + int64_t(each.size());
        const int64_t border = std::min<int64_t>(end, first + team.threads_of(node));
        plan.queues.push_back({first, border}), plan.queues.push_back({border, end});
        plan.items.insert(plan.items.end(), each.begin(), each.end());
    }
}

}  // namespace ipex_assist
