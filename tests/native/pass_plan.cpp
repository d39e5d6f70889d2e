// The plan of a pass by itself, and the buffers that are placed for it.
#include "operations/pass_plan.h"

#include <algorithm>

#include "check.h"
#include "operations/activations.h"

namespace check {
namespace {

AttentionShape shape_of(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window) {
    return {heads, kv_heads, head_dim, window, 128, (int64_t(heads) * head_dim + 127) / 128};
}

PassShape model_of(const AttentionShape& attention, int64_t hidden = 64) {
    return {hidden, false, {attention}, {0, 0}};
}

struct SequenceRows {
    int32_t start, count;
};

PassPlan plan_of(const PassShape& shape, int threads, const std::vector<SequenceRows>& sequences,
                 std::vector<int32_t> logit_rows = {}, bool several_nodes = false) {
    std::vector<Segment> segments;
    size_t rows = 0;
    for (const SequenceRows& each : sequences) {
        Segment s{};
        s.start = each.start, s.rows = each.count;
        segments.push_back(s), rows += size_t(each.count);
    }
    return {shape, {threads, several_nodes}, segments, std::vector<int32_t>(rows), std::move(logit_rows)};
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
        const int64_t oldest = a.shape.window ? std::max(0, s.start - a.shape.window + 1) : 0;
        CHECK(a.first_block[i] == oldest / BLOCK_POSITIONS, "first block %lld", (long long)a.first_block[i]);
        CHECK(a.first_block[i] + a.blocks[i] == (s.start + s.rows - 1) / BLOCK_POSITIONS + 1, "blocks %lld",
              (long long)a.blocks[i]);
    }
}

// Threads' units follow one another, and where partials are of runs they end at borders of runs.
void check_splits(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    int64_t units = 0;
    for (const int64_t blocks : a.blocks) units += blocks * a.shape.kv_heads;
    CHECK(a.thread_first.size() == size_t(plan.threads) + 1 && a.thread_first.front() == 0 &&
              a.thread_first.back() == units,
          "%zu borders", a.thread_first.size());
    CHECK(std::is_sorted(a.thread_first.begin(), a.thread_first.end()), "units go back");
    if (a.split_blocks == 1) return;
    for (const int64_t border : a.thread_first) {
        int64_t within = border;
        size_t i = 0;
        while (within >= a.blocks[i]) within -= a.blocks[i], i = (i + 1) % a.blocks.size();
        CHECK(within == 0 || (a.first_block[i] + within) % SPLIT_BLOCKS == 0,
              "a thread begins with block %lld of a run", (long long)within);
    }
}

void check_random_plans() {
    Random random(7);
    for (int turn = 0; turn < 400; turn++) {
        const int32_t kv_heads = 1 + random.below(4), window = random.below(3) ? 0 : 1 + random.below(700);
        const PassShape shape = model_of(shape_of(kv_heads * (1 + random.below(3)), kv_heads, 64, window));
        std::vector<SequenceRows> sequences;
        const int32_t most = turn % 2 ? 4 : 90;
        for (int32_t i = 0; i < 1 + random.below(4); i++)
            sequences.push_back({random.below(9000), 1 + random.below(most)});
        const PassPlan plan = plan_of(shape, 1 + random.below(5), sequences);
        check_ranges(plan);
        check_blocks(plan);
        if (plan.decode) check_splits(plan);
    }
}

// What is known of a few plans by hand.
void check_known_plans() {
    const PassPlan prompt = plan_of(model_of(shape_of(8, 2, 64, 0)), 2, {{5, 40}, {250, 10}}, {39, 49});
    CHECK(!prompt.decode && prompt.narrows && prompt.rows_kept(true) && !prompt.rows_kept(false),
          "a prompt of 50 rows");
    CHECK(prompt.attention[0].tiles.size() == 4 && prompt.append_ranges.size() == 5, "%zu tiles, %zu ranges",
          prompt.attention[0].tiles.size(), prompt.append_ranges.size());
    CHECK(prompt.append_ranges[3].end - prompt.append_ranges[3].first == 6,
          "positions 250 to 255 are of the first block");
    CHECK(prompt.attention[0].tiles.back().segment == 1, "the tile that sees most is the last");

    const PassPlan step = plan_of(model_of(shape_of(8, 2, 64, 0)), 2, {{20000, 1}}, {0});
    CHECK(step.decode && !step.narrows && step.each_thread_prepares, "a decode step");
    CHECK(step.attention[0].split_blocks == SPLIT_BLOCKS && step.attention[0].blocks[0] == 79,
          "a long context in runs");
    CHECK(step.attention[0].thread_first[1] == 79, "each thread has a head: %lld",
          (long long)step.attention[0].thread_first[1]);

    // One head whose 3 blocks cannot be shared in whole runs by 2 threads.
    const PassPlan odd = plan_of(model_of(shape_of(1, 1, 64, 0)), 2, {{600, 1}}, {0});
    CHECK(odd.attention[0].split_blocks == 1 && odd.attention[0].partials(0) == 3, "%lld partials",
          (long long)odd.attention[0].partials(0));
    CHECK(odd.attention[0].merges_in_place, "three partials of a head");

    const PassPlan many = plan_of(model_of(shape_of(8, 1, 64, 0)), 3, {{9000, 16}}, {0});
    CHECK(!many.attention[0].merges_in_place, "16 rows of 8 heads after 9,000 positions are everybody's work");
    const PassPlan wide = plan_of(model_of(shape_of(8, 1, 64, 0), 8192), 2, {{0, 16}}, {0});
    CHECK(!wide.each_thread_prepares, "8 rows of 8,192 values take longer than a barrier");

    const PassPlan owned = plan_of(model_of(shape_of(8, 4, 64, 0)), 2, {{5000, 1}}, {0}, true);
    CHECK(owned.attention[0].split_blocks == SPLIT_BLOCKS, "who owns whole heads takes whole runs");
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
    const int64_t counted = Activations::bytes(sizes, 2), huge_pages = 2 * (int64_t(2) << 20);
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
    check_known_plans();
    check_random_plans();
    check_activations();
}

}  // namespace check
