// Plans of passes, and what is true of the work of each.
#pragma once
#include <algorithm>
#include <vector>

#include "check.h"
#include "operations/pass_plan.h"

namespace check {

inline AttentionShape shape_of(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window) {
    return {heads, kv_heads, head_dim, window, 128, (int64_t(heads) * head_dim + 127) / 128};
}

// Of latents: one KV head, which any number of query heads read.
inline AttentionShape shape_of_latents(int32_t heads) { return {heads, 1, 64, 0, 64, heads, true}; }

inline PassShape model_of(const AttentionShape& attention, int64_t hidden = 64) {
    return {hidden, false, {attention}, {0, 0}};
}

struct SequenceRows {
    int32_t start, count;
};

// Ids of blocks, in the order of a pool of which all have been taken and given back.
inline const std::vector<int32_t>& block_ids() {
    static const std::vector<int32_t> all = [] {
        std::vector<int32_t> ids(4000);
        for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(i * 1237 % ids.size());
        return ids;
    }();
    return all;
}

inline PassPlan plan_of(const PassShape& shape, const TeamNodes& team, const std::vector<SequenceRows>& sequences,
                        std::vector<int32_t> logit_rows = {}, SeenAhead ahead = {}) {
    std::vector<Segment> segments;
    size_t rows = 0;
    for (const SequenceRows& each : sequences) {
        Segment s{};
        s.start = each.start, s.rows = each.count, s.blocks = block_ids().data() + 300 * segments.size();
        segments.push_back(s), rows += size_t(each.count);
    }
    return {shape, team, segments, std::vector<int32_t>(rows), std::move(logit_rows), true, std::move(ahead)};
}

inline PassPlan plan_of(const PassShape& shape, int threads, const std::vector<SequenceRows>& sequences,
                        std::vector<int32_t> logit_rows = {}) {
    return plan_of(shape, TeamNodes(threads, {}), sequences, std::move(logit_rows));
}

// The node of each item.
inline std::vector<int> homes_of(const PassPlan& plan) {
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
inline void check_splits(const PassPlan& plan) {
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

// Each block that a tile sees is in one item, whose ranges end at borders of runs; partials of split tiles do not
// overlap, and what is reserved holds them.
inline void check_units(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    const int64_t kv_heads = a.shape.kv_heads;
    std::vector<int64_t> seen(a.tiles.size());
    std::vector<int> used(size_t(a.partial_rows * kv_heads));
    for (const TileWork& u : a.tile_work) {
        const RowRange& tile = a.tiles[size_t(u.tile)];
        const int64_t first = plan.first_block(tile.first, a.shape);
        const int64_t end = plan.last_seen_block(tile.end - 1, a.shape) + 1;
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
        CHECK(seen[i] == plan.last_seen_block(tile.end - 1, a.shape) + 1 - plan.first_block(tile.first, a.shape),
              "%lld blocks of tile %zu", (long long)seen[i], i);
    }
    for (const int times : used) CHECK(times == 1, "a partial is written %d times", times);
}

}  // namespace check
