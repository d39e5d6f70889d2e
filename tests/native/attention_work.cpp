// How the attention of a pass is divided among threads and nodes.
#include <algorithm>
#include <numeric>

#include "plans.h"
#include "pools.h"

namespace check {
namespace {

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
                CHECK(a.partial_rows <= most_partials(a.shape, threads, pass.rows(), 16), "%lld partials",
                      (long long)a.partial_rows);
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

}  // namespace

void test_attention_work() {
    check_homes();
    check_loads();
    check_split_tiles();
    check_shared_blocks();
    check_tiles_at_home();
}

}  // namespace check
