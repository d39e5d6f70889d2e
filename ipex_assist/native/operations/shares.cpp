// What each thread gets of a pass's work, without a model or a pass: for benchmarks of machines on paper.
#include "operations/shares.h"

#include <algorithm>
#include <numeric>

#include "operations/share_work.h"
#include "packing/weights.h"

namespace ipex_assist {

std::vector<int64_t> shares_of_linear(int64_t panels, int64_t granularity, int threads) {
    Linear linear{};
    linear.panels = panels, linear.granularity = granularity;
    std::vector<int64_t> shares;
    for (int t = 0; t < threads; t++) {
        const auto [first, last] = slice(linear, t, threads);
        shares.push_back(last - first);
    }
    return shares;
}

std::vector<int64_t> shares_of_experts(int64_t panels, int64_t granularity, int32_t experts, const TeamNodes& team) {
    Linear linear{};
    linear.panels = panels, linear.granularity = granularity;
    std::vector<int64_t> shares(size_t(team.threads()));
    for (int t = 0; t < team.threads(); t++) {
        // As memory is divided (ImageLayout::place_on_nodes), and as its threads then share a node's panels.
        const int node = team.node(t), begin = team.first_thread(node), end = team.first_thread(node + 1);
        const Range own{slice(linear, begin, team.threads()).first / granularity,
                        team.several() ? slice(linear, end, team.threads()).first / granularity : panels / granularity};
        share_work(
            experts, {t - begin, end - begin}, [&](int32_t) { return own; }, [](int32_t) { return 1; },
            [&](int32_t, int64_t first, int64_t last) { shares[size_t(t)] += (last - first) * granularity; });
    }
    return shares;
}

namespace {

// A model of one attention layer.
PassShape one_layer(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window) {
    const int64_t span_columns = std::max<int64_t>(SCALE_COLUMNS, head_dim), columns = int64_t(heads) * head_dim;
    return {columns,
            false,
            {{heads, kv_heads, head_dim, window, span_columns, (columns + span_columns - 1) / span_columns}},
            {0}};
}

// The first blocks, as many as there are up to a position.
std::vector<int32_t> blocks_to(int32_t position) {
    std::vector<int32_t> ids(size_t(position / BLOCK_POSITIONS + 1));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

}  // namespace

std::vector<LinearWork> shares_of_rows(const Linear& linear, int64_t rows, int64_t row_bytes, const TeamNodes& team) {
    const int64_t panel = panel_bytes(linear.precision, linear.group, linear.depth);
    std::vector<LinearWork> works(size_t(team.threads()));
    for (int t = 0; t < team.threads(); t++) {
        for (const LinearBlock& block : LinearBlocks(linear, rows, row_bytes, team, t)) {
            const int64_t panels = block.last - block.first;
            LinearWork& work = works[size_t(t)];
            work.products += block.rows() * panels * LANES * linear.depth;
            work.weight_bytes += panels * panel;
            work.row_bytes += panels ? block.rows() * row_bytes : 0;
        }
    }
    return works;
}

std::vector<int64_t> shares_of_tiles(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window,
                                     int32_t position, int32_t rows, const TeamNodes& team) {
    const std::vector<int32_t> ids = blocks_to(position + rows - 1);
    Segment segment{};
    segment.blocks = ids.data(), segment.start = position, segment.rows = rows;
    const PassPlan plan(one_layer(heads, kv_heads, head_dim, window), team, {segment},
                        std::vector<int32_t>(size_t(rows)), {rows - 1});
    std::vector<int64_t> ends(size_t(team.threads()));
    for (const TileWork& work : plan.attention[0].tile_work) {
        for (int32_t h = 0; h < kv_heads; h++)
            *std::min_element(ends.begin(), ends.end()) += plan.cost(plan.attention[0], work);
    }
    return ends;
}

TextEnds shares_of_texts(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t position, int32_t rows,
                         int32_t texts, const TeamNodes& team) {
    const std::vector<int32_t> ids = blocks_to(position + rows - 1);
    Segment segment{};
    segment.blocks = ids.data(), segment.start = position, segment.rows = rows;
    const PassShape shape = one_layer(heads, kv_heads, head_dim, 0);
    const PassPlan plan(shape, team, std::vector<Segment>(size_t(texts), segment),
                        std::vector<int32_t>(size_t(texts * rows)), {0});
    const AttentionPlan tiles = plan.tiled(shape.attention[0]);
    const AttentionPlan& chosen = plan.attention[0];
    return {even_share(plan, tiles), tiles.last_end, chosen.last_end, chosen.splits_kv};
}

AttentionShares shares_of_attention(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window, int32_t position,
                                    const TeamNodes& team) {
    const std::vector<int32_t> ids = blocks_to(position);
    Segment segment{};
    segment.blocks = ids.data(), segment.start = position, segment.rows = 1;
    const PassPlan plan(one_layer(heads, kv_heads, head_dim, window), team, {segment}, {0}, {0});
    const AttentionPlan& splits = plan.attention[0];
    AttentionShares shares{std::vector<int64_t>(size_t(team.threads())), splits.merges_in_place};
    for (int t = 0; t < team.threads(); t++) {
        for (int64_t u = splits.thread_work[size_t(t)].first; u < splits.thread_work[size_t(t)].end; u++) {
            const int64_t head = u / splits.blocks[0], block = splits.first_block[0] + u % splits.blocks[0];
            const int home = team.home(ids[size_t(block)], int32_t(head), kv_heads);
            shares.blocks[size_t(t)] += home == team.node(t);
        }
    }
    return shares;
}

}  // namespace ipex_assist
