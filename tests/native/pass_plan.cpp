// The plan of a pass by itself, and the buffers that are placed for it.
#include "operations/pass_plan.h"

#include <algorithm>
#include <numeric>

#include "check.h"
#include "operations/activations.h"
#include "pools.h"

namespace check {
namespace {

AttentionShape shape_of(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window) {
    return {heads, kv_heads, head_dim, window, 128, (int64_t(heads) * head_dim + 127) / 128};
}

// Of latents: one KV head, which any number of query heads read.
AttentionShape shape_of_latents(int32_t heads) { return {heads, 1, 64, 0, 64, heads, true}; }

PassShape model_of(const AttentionShape& attention, int64_t hidden = 64) {
    return {hidden, false, {attention}, {0, 0}};
}

struct SequenceRows {
    int32_t start, count;
};

// Ids of blocks, in the order of a pool of which all have been taken and given back.
const std::vector<int32_t>& block_ids() {
    static const std::vector<int32_t> all = [] {
        std::vector<int32_t> ids(4000);
        for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(i * 1237 % ids.size());
        return ids;
    }();
    return all;
}

PassPlan plan_of(const PassShape& shape, const TeamNodes& team, const std::vector<SequenceRows>& sequences,
                 std::vector<int32_t> logit_rows = {}) {
    std::vector<Segment> segments;
    size_t rows = 0;
    for (const SequenceRows& each : sequences) {
        Segment s{};
        s.start = each.start, s.rows = each.count, s.blocks = block_ids().data() + 300 * segments.size();
        segments.push_back(s), rows += size_t(each.count);
    }
    return {shape, team, segments, std::vector<int32_t>(rows), std::move(logit_rows)};
}

PassPlan plan_of(const PassShape& shape, int threads, const std::vector<SequenceRows>& sequences,
                 std::vector<int32_t> logit_rows = {}) {
    return plan_of(shape, TeamNodes(threads, {}), sequences, std::move(logit_rows));
}

// Every row is in one query tile and one append range of its own segment, in order; an append range has 16 positions of
// one block at most.
void check_ranges(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    std::vector<int> tiled(size_t(plan.rows())), appended(size_t(plan.rows()));
    for (const RowRange& t : a.tiles) {
        CHECK(t.end - t.first >= 1 && t.end - t.first <= a.shape.tile_rows(), "a tile of %d rows", t.end - t.first);
        for (int32_t r = t.first; r < t.end; r++) tiled[size_t(r)]++;
        CHECK(plan.segment_of[size_t(t.first)] == t.segment && plan.segment_of[size_t(t.end) - 1] == t.segment,
              "a tile");
    }
    for (const RowRange& t : plan.append_ranges) {
        for (int32_t r = t.first; r < t.end; r++) appended[size_t(r)]++;
        const int32_t first = plan.positions[size_t(t.first)], last = plan.positions[size_t(t.end) - 1];
        CHECK(first / LANES == last / LANES && last - first == t.end - 1 - t.first, "positions %d to %d", first, last);
    }
    for (int32_t r = 0; r < plan.rows(); r++) {
        CHECK(tiled[size_t(r)] == 1 && appended[size_t(r)] == 1, "row %d: %d and %d times", r, tiled[size_t(r)],
              appended[size_t(r)]);
    }
}

// The blocks of a segment are those that its rows see.
void check_blocks(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    for (size_t i = 0; i < plan.segments.size(); i++) {
        const Segment& s = plan.segments[i];
        int64_t oldest = a.shape.window ? std::max(0, s.start - a.shape.window + 1) : 0;
        if (a.shape.chunk) oldest = std::max<int64_t>(oldest, s.start / a.shape.chunk * a.shape.chunk);
        CHECK(a.first_block[i] == oldest / BLOCK_POSITIONS, "first block %lld", (long long)a.first_block[i]);
        CHECK(a.first_block[i] + a.blocks[i] == (s.start + s.rows - 1) / BLOCK_POSITIONS + 1, "blocks %lld",
              (long long)a.blocks[i]);
    }
}

// The node of each item.
std::vector<int> homes_of(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    std::vector<int> homes;
    for (int32_t h = 0; h < a.shape.kv_heads; h++) {
        for (size_t i = 0; i < plan.segments.size(); i++) {
            for (int64_t b = a.first_block[i]; b < a.first_block[i] + a.blocks[i]; b++)
                homes.push_back(plan.team.home(plan.segments[i].blocks[b], a.shape.stored_head(h),
                                               a.shape.shared ? 1 : a.shape.kv_heads));
        }
    }
    return homes;
}

// Every item is a thread's of its node, and no other's; where partials are of blocks, a node's threads have as many as
// each other, and where they are of runs, threads begin and end at borders of runs.
void check_splits(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    const std::vector<int> homes = homes_of(plan);
    std::vector<int> taken(homes.size());
    std::vector<int64_t> each(size_t(plan.threads));
    CHECK(a.thread_work.size() == size_t(plan.threads), "items of %zu threads", a.thread_work.size());
    for (int t = 0; t < plan.threads; t++) {
        const int node = plan.team.node(t);
        for (int64_t u = a.thread_work[size_t(t)].first; u < a.thread_work[size_t(t)].end; u++) {
            CHECK(a.by_block || homes.at(size_t(u)) == node, "item %lld of node %d", (long long)u, node);
            if (homes.at(size_t(u)) == node) taken[size_t(u)]++, each[size_t(t)]++;
        }
    }
    for (size_t u = 0; u < taken.size(); u++) CHECK(taken[u] == 1, "item %zu is taken %d times", u, taken[u]);
    for (int node = 0; node < plan.team.nodes() && a.split_blocks == 1; node++) {
        const auto [least, most] = std::minmax_element(each.begin() + plan.team.first_thread(node),
                                                       each.begin() + plan.team.first_thread(node + 1));
        CHECK(*most - *least <= 1, "%lld items and %lld", (long long)*least, (long long)*most);
    }
    if (a.split_blocks == 1) return;
    for (const auto& [first, end] : a.thread_work) {
        for (const int64_t border : {first, end}) {
            int64_t within = border;
            size_t i = 0;
            while (within >= a.blocks[i]) within -= a.blocks[i], i = (i + 1) % a.blocks.size();
            CHECK(within == 0 || (a.first_block[i] + within) % SPLIT_BLOCKS == 0,
                  "a thread begins with block %lld of a run", (long long)within);
        }
    }
}

// The most that a thread has ÷ what it had if all had as much.
double worst_load(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    const std::vector<int> homes = homes_of(plan);
    int64_t most = 0;
    for (int t = 0; t < plan.threads; t++) {
        int64_t own = 0;
        for (int64_t u = a.thread_work[size_t(t)].first; u < a.thread_work[size_t(t)].end; u++)
            own += homes[size_t(u)] == plan.team.node(t);
        most = std::max(most, own);
    }
    return double(most) * plan.threads / double(homes.size());
}

// Big machines: of contexts with many blocks for each thread, nobody has far more than others.
void check_loads() {
    struct Case {
        std::vector<int> nodes;
        int32_t kv_heads;
        double limit;
    };
    for (const Case& c : std::vector<Case>{{{64, 64}, 8, 1.01},
                                           {{128, 128}, 8, 1.01},
                                           {{128, 128}, 1, 1.05},
                                           {{60, 60}, 8, 1.1},
                                           {{32, 32, 32, 32}, 2, 1.05},
                                           {{43, 43, 43, 43, 43, 43}, 8, 1.15},
                                           {{56, 4}, 8, 1.2},
                                           {{56, 55}, 8, 1.1}}) {
        const TeamNodes team(std::accumulate(c.nodes.begin(), c.nodes.end(), 0), nodes_of(c.nodes));
        const PassShape shape = model_of(shape_of(c.kv_heads * 4, c.kv_heads, 64, 0));
        const int32_t context = 262144 / c.kv_heads * 2;  // 2,048 items
        const std::vector<SequenceRows> four(4, {context / 4 - 1, 1});
        for (const std::vector<SequenceRows>& sequences : {std::vector<SequenceRows>{{65535, 1}}, four}) {
            const PassPlan plan = plan_of(shape, team, sequences);
            check_splits(plan);
            const double items = double(homes_of(plan).size());
            const double worst = worst_load(plan), whole = team.threads() / items;  // a block that cannot be halved
            CHECK(worst <= c.limit + whole, "%d heads, %d threads on %d nodes: %.2f times its share", c.kv_heads,
                  team.threads(), team.nodes(), worst);
        }
    }
}

// Where blocks lie: on one node each, whichever they are, and the threads' nodes are those of the pool.
void check_homes() {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{3}, {2, 2}, {4, 1}, {2, 2, 2}, {1, 5, 2}}) {
        const std::vector<int32_t> nodes = nodes_of(counts);
        const TeamNodes team(int(nodes.size()), nodes);
        CHECK(team.nodes() == int(counts.size()) && team.threads() == int(nodes.size()), "%d nodes", team.nodes());
        for (int t = 0; t < team.threads(); t++)
            CHECK(team.node(t) == nodes[size_t(t)], "thread %d on node %d", t, team.node(t));
        for (int32_t heads = 1; heads <= 12; heads++) {
            std::vector<int> parts(counts.size());
            const int blocks = 12 * team.threads();
            for (int b = 0; b < blocks; b++) {
                for (int32_t h = 0; h < heads; h++) parts.at(size_t(team.home(b, h, heads)))++;
            }
            for (size_t node = 0; node < counts.size(); node++) {
                const double fair = double(blocks) * heads * counts[node] / team.threads();
                CHECK(parts[node] > 0.99 * fair && parts[node] < 1.01 * fair, "%d of %d parts on node %zu", parts[node],
                      blocks * heads, node);
            }
        }
    }
    const TeamNodes part(3, {0, 0, 1, 1});  // of a pool of four
    CHECK(part.nodes() == 2 && part.threads_of(1) == 1, "the pool's first three threads");
}

// Each block that a tile sees is in one item, whose ranges end at borders of runs; partials of split tiles do not
// overlap, and what is reserved holds them.
void check_units(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    const int64_t kv_heads = a.shape.kv_heads;
    std::vector<int64_t> seen(a.tiles.size());
    std::vector<int> used(size_t(a.partial_rows * kv_heads));
    for (const TileWork& u : a.tile_work) {
        const RowRange& tile = a.tiles[size_t(u.tile)];
        const int64_t first = plan.first_block(tile.first, a.shape), end = plan.last_block(tile.end - 1) + 1;
        CHECK(u.first < u.end && (u.first == first || u.first % SPLIT_BLOCKS == 0), "begins with %lld",
              (long long)u.first);
        CHECK(u.end == end || u.end % SPLIT_BLOCKS == 0, "ends before %lld", (long long)u.end);
        CHECK(u.split >= 0 ? u.split < a.split_tiles : u.first == first && u.end == end, "split %d", u.split);
        seen[size_t(u.tile)] += u.end - u.first;
        for (int64_t b = u.first; u.split >= 0 && b < u.end; b = split_end(b, SPLIT_BLOCKS)) {
            for (int64_t r = tile.first; r < tile.end; r++) {
                const PartialPlace& place = a.partial_places[size_t(r)];
                for (int64_t h = 0; h < kv_heads; h++)
                    used[size_t(place.first +
                                ((b / SPLIT_BLOCKS - place.first_split) * kv_heads + h) * place.stride)]++;
            }
        }
    }
    for (size_t i = 0; i < a.tiles.size(); i++) {
        const RowRange& tile = a.tiles[i];
        CHECK(seen[i] == plan.last_block(tile.end - 1) + 1 - plan.first_block(tile.first, a.shape),
              "%lld blocks of tile %zu", (long long)seen[i], i);
    }
    for (const int times : used) CHECK(times == 1, "a partial is written %d times", times);
}

// The blocks that the thread with most of them has, where threads take items in turn.
int64_t most_blocks(const PassPlan& plan) {
    std::vector<int64_t> taken(size_t(plan.threads));
    for (const TileWork& u : plan.attention[0].tile_work) {
        for (int32_t h = 0; h < plan.attention[0].shape.kv_heads; h++)
            *std::min_element(taken.begin(), taken.end()) += u.end - u.first;
    }
    return *std::max_element(taken.begin(), taken.end());
}

void check_split_tiles() {
    const PassShape one_head = model_of(shape_of(4, 1, 64, 0));
    const int64_t others = SPLIT_ROWS + 4;  // so many that threads share tiles
    std::vector<SequenceRows> sequences(size_t(others), {20, 1});
    sequences.push_back({131000, 1});  // 512 blocks, 64 runs
    for (const int threads : {2, 7, 100}) {
        const PassPlan plan = plan_of(one_head, threads, sequences);
        check_units(plan);
        const int64_t fair = std::max<int64_t>((512 + others) / threads, SPLIT_BLOCKS);
        CHECK(most_blocks(plan) <= fair + fair / 4, "%d threads: %lld of %lld blocks", threads,
              (long long)most_blocks(plan), (long long)(512 + others));
        CHECK(plan.attention[0].split_tiles == 1 && plan.attention[0].partial_rows == 64, "%lld partials",
              (long long)plan.attention[0].partial_rows);
    }
    const PassPlan alone = plan_of(one_head, 1, sequences),
                   heads = plan_of(model_of(shape_of(4, 4, 64, 0)), 4, sequences);
    CHECK(alone.attention[0].split_tiles == 0, "one thread takes whole tiles");
    CHECK(heads.attention[0].split_tiles == 0 && !heads.attention[0].splits_kv,
          "each thread has a head of the context");
    const PassPlan prompt = plan_of(one_head, 2, {{4000, 256}});
    CHECK(prompt.attention[0].split_tiles == 0 && prompt.attention[0].partial_rows == 0, "16 equal tiles of 2 threads");
}

// Blocks of keys and values that are read, and those of them that are on the reader's node.
struct Reads {
    int64_t all = 0, at_home = 0;
    double share() const { return double(at_home) / double(all); }
};

// What threads read where each takes its next item as soon as it is done with the last one; blocks take longer the more
// queries attend to them. Every item is taken once.
Reads read_in_turns(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    if (a.splits_kv) {
        check_splits(plan);  // each block is read by a thread of its node
        const int64_t all = int64_t(homes_of(plan).size());
        return {all, all};
    }
    const int32_t heads = a.shape.kv_heads;
    std::vector<int64_t> busy(size_t(plan.threads)), taken(a.queues.size());
    std::vector<int> times(a.tile_work.size() * size_t(heads));
    Reads reads;
    for (int idle = 0; idle < plan.threads;) {
        const size_t thread = size_t(std::min_element(busy.begin(), busy.end()) - busy.begin());
        const int node = plan.team.node(int(thread));
        const int64_t item = a.next_item(node, [&](size_t queue) { return taken[queue]++; });
        if (item < 0) {
            busy[thread] = INT64_MAX, idle++;
            continue;
        }
        times.at(size_t(item))++;
        const TileWork& work = a.tile_work[size_t(item / heads)];
        const RowRange& rows = a.tiles[size_t(work.tile)];
        const int32_t head = a.shape.stored_head(int32_t(item % heads));
        for (int64_t b = work.first; b < work.end; b++) {
            const int32_t id = plan.segments[size_t(rows.segment)].blocks[b];
            reads.at_home += plan.team.home(id, head, a.shape.shared ? 1 : heads) == node, reads.all++;
        }
        busy[thread] += (work.end - work.first) * (8 + int64_t(rows.end - rows.first) * a.shape.group());
    }
    for (const int each : times) CHECK(each == 1, "an item is taken %d times", each);
    return reads;
}

// 1/nodes of what is read would be at home by chance.
void check_tiles_at_home() {
    std::vector<SequenceRows> streams, drafted, alike;  // 64 texts, four with drafts of four, one prompt
    for (int32_t i = 0; i < 64; i++) streams.push_back({500 + 61 * i, 1});
    for (int32_t i = 0; i < 4; i++) drafted.push_back({8000 + 100 * i, 5});
    alike.push_back({2000, 1024});
    for (const int nodes : {2, 4}) {
        for (const int threads : {56, 112, 224, 256}) {
            const TeamNodes team(threads, nodes_of(std::vector<int>(size_t(nodes), threads / nodes)));
            const PassShape shape = model_of(shape_of(32, 8, 128, 0));
            const double many = read_in_turns(plan_of(shape, team, streams)).share(),
                         prompt = read_in_turns(plan_of(shape, team, alike)).share(),
                         few = read_in_turns(plan_of(shape, team, drafted)).share();
            printf("%d threads of %d nodes read from home: 64 texts %.2f, 4 x 5 rows %.2f, a prompt %.2f\n", threads,
                   nodes, many, few, prompt);
            CHECK(many > 0.95 && prompt > 0.95 && few > 0.85, "%.2f, %.2f and %.2f", many, prompt, few);
        }
    }
}

// Passes of a few texts with drafts: threads share blocks where tiles are fewer than they, and within what is planned.
void check_shared_blocks() {
    const auto plan = [](int threads, int nodes, int32_t texts, int32_t rows, int32_t position) {
        const TeamNodes team(threads, nodes_of(std::vector<int>(size_t(nodes), threads / nodes)));
        return plan_of(model_of(shape_of(32, 8, 128, 0)), team,
                       std::vector<SequenceRows>(size_t(texts), {position, rows}));
    };
    for (const int nodes : {1, 2, 4}) {
        for (const int threads : {56, 112, 256}) {
            for (const int32_t texts : {4, 8, 20}) {
                const PassPlan pass = plan(threads, nodes, texts, 5, 4000);
                const AttentionPlan& a = pass.attention[0];
                const AttentionPlan tiles = pass.tiled(shape_of(32, 8, 128, 0));
                const int64_t even = even_share(pass, tiles);
                const int64_t most = texts < 20 ? 5 : 7;  // blocks of so many rows would be too many partials: runs
                const bool are_even = tiles.last_end * 16 <= even * 17;
                CHECK(a.splits_kv ? a.last_end < tiles.last_end : are_even || a.last_end * 4 <= even * most,
                      "%d texts by %d threads: %lld for %lld", texts, threads, (long long)a.last_end, (long long)even);
                if (!a.splits_kv) continue;
                check_splits(pass);
                CHECK(a.partial_rows <= most_partials(pass.rows(), 16), "%lld partials", (long long)a.partial_rows);
                CHECK(a.last_end * 4 <= even * most, "%d texts by %d threads: %lld for %lld", texts, threads,
                      (long long)a.last_end, (long long)even);
            }
        }
    }
    CHECK(plan(112, 2, 4, 5, 8000).attention[0].splits_kv, "four texts with four drafts each");
    CHECK(!plan(112, 2, 4, 5, 200).attention[0].splits_kv, "one block each");
    CHECK(!plan(1, 1, 4, 5, 8000).attention[0].splits_kv, "one thread");
    CHECK(!plan(112, 1, 80, 5, 8000).attention[0].splits_kv, "more rows than partials are planned for");
    CHECK(plan(112, 1, 16, 1, 200).attention[0].splits_kv, "few rows always");
}

// The plan of some rows of another one: each has its position, its blocks, and sees what it saw; none is appended.
void check_pruned(const PassShape& shape, const PassPlan& plan, Random& random) {
    std::vector<int32_t> chosen;
    for (int32_t r = 0; r < plan.rows(); r++) {
        if (random.below(3) == 0) chosen.push_back(r);
    }
    if (chosen.empty()) return;
    const PassPlan all(shape, plan.team, plan.segments, plan.tokens, chosen);
    const std::unique_ptr<const PassPlan> of_logit_rows = all.of_logit_rows(shape);
    const PassPlan& some = *of_logit_rows;
    CHECK(some.rows() == int32_t(chosen.size()) && some.logit_rows.size() == chosen.size(), "%d rows", some.rows());
    CHECK(some.append_ranges.empty() && some.first_append_range.size() == some.segments.size() + 1, "rows to append");
    for (int32_t i = 0; i < some.rows(); i++) {
        const int32_t r = chosen[size_t(i)];
        CHECK(some.positions[size_t(i)] == plan.positions[size_t(r)] && some.logit_rows[size_t(i)] == i, "row %d", r);
        CHECK(some.segments[size_t(some.segment_of[size_t(i)])].blocks ==
                  plan.segments[size_t(plan.segment_of[size_t(r)])].blocks,
              "blocks of row %d", r);
        const AttentionShape& each = shape.attention[0];
        CHECK(some.first_seen(i, each) == plan.first_seen(r, each) && some.last_seen(i) == plan.last_seen(r),
              "what row %d sees", r);
    }
    check_blocks(some);
    if (some.attention[0].splits_kv) check_splits(some);
    else check_units(some);
}

void check_random_plans() {
    Random random(7);
    int shared = 0;  // plans of more rows of which threads share blocks
    for (int turn = 0; turn < 400; turn++) {
        const int32_t kv_heads = 1 + random.below(4), window = random.below(3) ? 0 : 1 + random.below(700);
        PassShape shape = model_of(turn % 5 ? shape_of(kv_heads * (1 + random.below(3)), kv_heads, 64, window)
                                            : shape_of_latents(4 << random.below(6)));
        if (random.below(4) == 0) shape.attention[0].chunk = 1 + random.below(2000);
        std::vector<SequenceRows> sequences;
        const int32_t most = turn % 2 ? 4 : 90;
        for (int32_t i = 0; i < 1 + random.below(4); i++)
            sequences.push_back({random.below(9000), 1 + random.below(most)});
        const std::vector<std::vector<int>> teams = {{1},    {2},  {3},      {5},       {1, 1},    {2, 2},
                                                     {3, 1}, {40}, {20, 20}, {1, 1, 1}, {2, 2, 2}, {13, 13, 13}};
        const std::vector<int32_t> nodes = nodes_of(teams[size_t(random.below(int32_t(teams.size())))]);
        const PassPlan plan = plan_of(shape, TeamNodes(int(nodes.size()), nodes), sequences);
        check_ranges(plan);
        check_blocks(plan);
        if (plan.attention[0].splits_kv) check_splits(plan);
        else check_units(plan);
        shared += !plan.decode && plan.attention[0].splits_kv;
        check_pruned(shape, plan, random);
    }
    CHECK(shared > 4, "of %d plans of more rows threads share blocks", shared);
}

// Query heads that share one KV head are cut into parts where threads would have nothing to do.
void check_parts() {
    const auto parts = [](int32_t heads, int threads, const std::vector<SequenceRows>& sequences) {
        const AttentionPlan plan = plan_of(model_of(shape_of_latents(heads)), threads, sequences).attention[0];
        CHECK(heads % plan.shape.kv_heads == 0, "%d parts of %d heads", plan.shape.kv_heads, heads);
        CHECK(plan.shape.tile_rows() * plan.shape.group() <= plan.shape.most_queries(), "%d rows of a tile",
              plan.shape.tile_rows());
        return plan.shape.kv_heads;
    };
    CHECK(parts(128, 1, {{20, 1}}) == 2 && parts(128, 64, {{20, 1}}) == 16, "a short context");
    CHECK(parts(20, 64, {{20, 1}}) == 4 && parts(5, 64, {{20, 1}}) == 1, "heads that cannot be halved");
    CHECK(parts(128, 4, {{4000, 1}}) == 1 && parts(128, 32, {{4000, 3}}) == 4, "16 blocks");
    CHECK(parts(128, 32, {{0, 256}}) == 1 && parts(128, 32, {{0, 17}}) == 2, "prompts");
}

// What is known of a few plans by hand.
void check_known_plans() {
    const PassPlan prompt = plan_of(model_of(shape_of(8, 2, 64, 0)), 2, {{5, 40}, {250, 10}}, {39, 49});
    CHECK(!prompt.decode, "a prompt of 50 rows");
    CHECK(prompt.attention[0].tiles.size() == 4 && prompt.append_ranges.size() == 5, "%zu tiles, %zu ranges",
          prompt.attention[0].tiles.size(), prompt.append_ranges.size());
    CHECK(prompt.append_ranges[3].end - prompt.append_ranges[3].first == 6,
          "positions 250 to 255 are of the first block");
    CHECK(prompt.attention[0].tile_work.front().tile == 3, "the tile that sees most is the first");

    const PassPlan step = plan_of(model_of(shape_of(8, 2, 64, 0)), 2, {{20000, 1}}, {0});
    CHECK(step.decode && step.each_thread_prepares, "a decode step");
    CHECK(step.attention[0].split_blocks == SPLIT_BLOCKS && step.attention[0].blocks[0] == 79,
          "a long context in runs");
    CHECK(step.attention[0].thread_work[0].end == 79, "each thread has a head: %lld",
          (long long)step.attention[0].thread_work[0].end);

    // One head whose 3 blocks cannot be shared in whole runs by 2 threads.
    const PassPlan odd = plan_of(model_of(shape_of(1, 1, 64, 0)), 2, {{600, 1}}, {0});
    CHECK(odd.attention[0].split_blocks == 1 && odd.attention[0].partials(0) == 3, "%lld partials",
          (long long)odd.attention[0].partials(0));
    CHECK(odd.attention[0].merges_in_place, "three partials of a head");

    const PassPlan many = plan_of(model_of(shape_of(8, 1, 64, 0)), 3, {{9000, 16}}, {0});
    CHECK(!many.attention[0].merges_in_place, "16 rows of 8 heads after 9,000 positions are everybody's work");
    const PassPlan wide = plan_of(model_of(shape_of(8, 1, 64, 0), 8192), 2, {{0, 16}}, {0});
    CHECK(!wide.each_thread_prepares, "8 rows of 8,192 values take longer than a barrier");

    const TeamNodes two(2, {0, 1});
    const PassPlan heads = plan_of(model_of(shape_of(8, 4, 64, 0)), two, {{5000, 1}}, {0});
    CHECK(heads.attention[0].split_blocks == SPLIT_BLOCKS && !heads.attention[0].by_block,
          "threads with whole heads take whole runs");
    const PassPlan turns = plan_of(model_of(shape_of(8, 1, 64, 0)), two, {{5000, 1}}, {0});
    CHECK(turns.attention[0].split_blocks == 1 && turns.attention[0].by_block, "the blocks of one head on two nodes");
}

// Buffers neither overlap nor differ from what is counted, and equal sizes place nothing anew.
void check_activations() {
    ActivationSizes sizes{};
    sizes.rows = 19, sizes.logit_rows = 3, sizes.vocabulary_chunks = 2, sizes.threads = 3, sizes.nodes = 2;
    sizes.width = 48, sizes.qkv = 80, sizes.attended = 48, sizes.depth = 128, sizes.active = 19 * 80,
    sizes.partials = 777;
    sizes.down_values = 32 * 128, sizes.down_columns = 32 * 128, sizes.router_columns = 16, sizes.slots = 38;
    sizes.slot_columns = 70 * 128, sizes.ordered = 128, sizes.own_value = 4, sizes.queries = 64, sizes.key_depth = 64;
    sizes.value_width = 48, sizes.tiles = 1;
    Pool pool(3, nullptr, {0, 0, 1});
    Activations activations;
    activations.place(sizes, pool);
    std::vector<std::pair<uintptr_t, uintptr_t>> all;
    int64_t bytes = 0;
    activations.each([&](const char* name, const void* begin, const void* end) {
        CHECK(begin < end || begin == end, "%s", name);
        if (begin != end) all.push_back({uintptr_t(begin), uintptr_t(end)});
        bytes += int64_t(uintptr_t(end) - uintptr_t(begin));
    });
    std::sort(all.begin(), all.end());
    for (size_t i = 1; i < all.size(); i++)
        CHECK(all[i - 1].second <= all[i].first, "buffers %zu and %zu overlap", i - 1, i);
    for (const auto& [begin, end] : all) {
        volatile uint8_t* first = reinterpret_cast<uint8_t*>(begin);
        first[0] = 1, first[end - begin - 1] = 1;  // ends the program where it is not ours
    }
    const int64_t counted = Activations::count(sizes).total(3, 2), huge_pages = 2 * (int64_t(2) << 20);
    CHECK(counted >= bytes && counted <= bytes + huge_pages + 3 * 4096 + int64_t(all.size()) * 64,
          "%lld bytes, counted %lld", (long long)bytes, (long long)counted);
    const float* x = activations.shared.x.data;
    activations.place(sizes, pool);
    CHECK(activations.shared.x.data == x, "placed again");
    sizes.rows = 400;
    activations.place(sizes, pool);
    CHECK(activations.shared.x.rows == 400 && activations.on(1).delta.rows == 400, "they grow");
}

}  // namespace

void test_pass_plan() {
    check_homes();
    check_loads();
    check_known_plans();
    check_parts();
    check_split_tiles();
    check_shared_blocks();
    check_tiles_at_home();
    check_random_plans();
    check_activations();
}

}  // namespace check
