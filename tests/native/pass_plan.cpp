// The plan of a pass by itself, and the buffers that are placed for it.
#include <algorithm>

#include "memory/memory.h"
#include "mixers/latent/choice.h"
#include "operations/activations.h"
#include "plans.h"
#include "pools.h"

namespace check {
namespace {

// Every row is in one query tile and one append range of its own segment, in order; an append range has 16 positions of
// one block at most.
void check_ranges(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    std::vector<int> tiled(size_t(plan.rows())), appended(size_t(plan.rows()));
    for (const RowRange& t : a.tiles) {
        CHECK(t.end - t.first >= 1 && t.end - t.first <= a.shape.tile_rows(), "a tile of %d rows", t.end - t.first);
        for (int32_t r = t.first; r < t.end; r++) tiled[size_t(r)]++;
        CHECK(t.end - t.first == 1 || !a.shape.gathers(plan.positions[size_t(t.end) - 1]),
              "a row that chooses positions, beside others");
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
        int64_t oldest = a.shape.window && !a.shape.gathering.any() ? std::max(0, s.start - a.shape.window + 1) : 0;
        if (a.shape.chunk) oldest = std::max<int64_t>(oldest, s.start / a.shape.chunk * a.shape.chunk);
        CHECK(a.first_block[i] == oldest / BLOCK_POSITIONS, "first block %lld", (long long)a.first_block[i]);
        int64_t last = 0;
        for (int32_t r = 0; r < s.rows; r++) last = std::max(last, plan.last_seen(plan.first_row[i] + r, a.shape));
        CHECK(a.first_block[i] + a.blocks[i] == last / BLOCK_POSITIONS + 1, "blocks %lld", (long long)a.blocks[i]);
    }
}

// The plan of some rows of another one: each has its position, its blocks, and sees what it saw; none is appended.
void check_pruned(const PassShape& shape, const PassPlan& plan, Random& random) {
    std::vector<int32_t> chosen;
    for (int32_t r = 0; r < plan.rows(); r++) {
        if (random.below(3) == 0) chosen.push_back(r);
    }
    if (chosen.empty()) return;
    const PassPlan all(shape, plan.team, plan.segments, plan.tokens, chosen, true, plan.ahead);
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
        CHECK(some.first_seen(i, each) == plan.first_seen(r, each), "what row %d sees", r);
        CHECK(some.last_seen(i, each) == plan.last_seen(r, each), "what row %d sees ahead", r);
    }
    check_blocks(some);
    if (some.attention[0].splits_kv) check_splits(some);
    else check_units(some);
}

// What is planned for before positions are known holds what a pass turns out to need.
void check_planned(const PassPlan& plan) {
    const AttentionPlan& a = plan.attention[0];
    int64_t most = 0;
    for (size_t i = 0; i < plan.segments.size(); i++) {
        const Segment& s = plan.segments[i];
        const int64_t last = int64_t(s.start) + s.rows - 1, planned = a.shape.most_blocks(s.rows, last);
        CHECK(a.blocks[i] <= planned, "%lld blocks of %lld", (long long)a.blocks[i], (long long)planned);
        most = std::max(most, planned);
    }
    const int64_t planned = plan.decode ? plan.rows() * most : most_partials(a.shape, plan.threads, plan.rows(), most);
    CHECK(a.partial_rows <= planned, "%lld partials of %lld", (long long)a.partial_rows, (long long)planned);
}

// Images anywhere in these rows, up to the ends of their segments.
SeenAhead images_in(const std::vector<SequenceRows>& sequences, Random& random) {
    SeenAhead ahead{{}, random.below(2) == 0};
    for (const SequenceRows& each : sequences) {
        for (int32_t r = 0; r < each.count;) {
            const int32_t size = std::min(each.count - r, 1 + random.below(3) * random.below(80));
            for (int32_t i = 0; i < size; i++) ahead.last.push_back(each.start + r + size - 1);
            r += size;
        }
    }
    return ahead;
}

// What rows see ahead of them: in windows alone, or in all layers.
void check_seen_ahead(const PassPlan& plan, const SeenAhead& ahead) {
    for (int32_t r = 0; r < plan.rows() && !ahead.last.empty(); r++) {
        const AttentionShape whole = shape_of(4, 2, 64, 0), window = shape_of(4, 2, 64, 30);
        const int64_t own = plan.positions[size_t(r)], last = ahead.last[size_t(r)];
        CHECK(plan.last_seen(r, window) == last && plan.last_seen(r, whole) == (ahead.in_windows_only ? own : last),
              "row %d sees up to %lld", r, (long long)plan.last_seen(r, whole));
        CHECK(plan.first_seen(r, window) == std::max<int64_t>(0, own - 29), "a window ends where it did");
    }
}

void check_random_plans() {
    Random random(7);
    int shared = 0;  // plans of more rows of which threads share blocks
    for (int turn = 0; turn < 400; turn++) {
        const int32_t kv_heads = 1 + random.below(4), window = random.below(3) ? 0 : 1 + random.below(700);
        PassShape shape = model_of(turn % 5 ? shape_of(kv_heads * (1 + random.below(3)), kv_heads, 64, window)
                                            : shape_of_latents(4 << random.below(6)));
        if (random.below(4) == 0) shape.attention[0].chunk = 1 + random.below(2000);
        ChosenSight sight{0, 1, 0, 0};
        if (AttentionShape& a = shape.attention[0]; a.shared && !a.chunk && random.below(2))
            sight.top_k = 1 + random.below(5000);
        if (sight.top_k && random.below(2))
            sight.pool = 1 << random.below(5), sight.top_k = int32_t(round_up(sight.top_k, sight.pool));
        std::vector<SequenceRows> sequences;
        const int32_t most = turn % 2 ? 4 : 90;
        for (int32_t i = 0; i < 1 + random.below(4); i++)
            sequences.push_back({random.below(9000), 1 + random.below(most)});
        const std::vector<std::vector<int>> teams = {{1},    {2},  {3},      {5},       {1, 1},    {2, 2},
                                                     {3, 1}, {40}, {20, 20}, {1, 1, 1}, {2, 2, 2}, {13, 13, 13}};
        const std::vector<int32_t> nodes = nodes_of(teams[size_t(random.below(int32_t(teams.size())))]);
        if (AttentionShape& a = shape.attention[0]; a.shared && !a.chunk && random.below(3) == 0)
            sight = {sight.top_k ? 1 + random.below(700) : 0, 1, 4, a.window = 1 + random.below(128)};
        const bool sparse = sight.top_k || sight.rate;  // its rows see none ahead
        if (sparse) shape.attention[0].gathering = Gathering(sight);
        const SeenAhead ahead = turn % 3 || sparse ? SeenAhead{} : images_in(sequences, random);
        const PassPlan plan = plan_of(shape, TeamNodes(int(nodes.size()), nodes), sequences, {}, ahead);
        check_seen_ahead(plan, ahead);
        check_ranges(plan);
        check_blocks(plan);
        check_planned(plan);
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
    const int64_t counted = Activations::count(sizes).total(3, 2), huge_pages = 2 * HUGE_PAGE;
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
    check_parts();
    check_random_plans();
    check_activations();
}

}  // namespace check
