// Attention over the blocks of a pass's sequences (pass_plan.h says how its rows and blocks are cut).
//
// Split KV: threads share the blocks that rows see evenly; on several memory nodes, those of a node share what it
// has (TeamNodes::home). A thread appends the rows that lie in its blocks, which needs no barrier as it is who reads
// them (latents, which several threads may read, are appended before), and computes its blocks' partials of every row.
// The partials of a head are merged a barrier later, or, where that is little work, by whoever comes last. Else
// threads take query tiles in turn, each through all the blocks that its rows see, or through a range of them,
// first what their own memory node has; whoever ends the last range of a tile merges its partials.
#include "operations/attention.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ipex_assist {

AttentionView::AttentionView(Pass& pass_, const LayerStep& step, int thread_)
    : pass(pass_),
      k(pass_.kernels),
      plan(pass_.plan()),
      splits(pass_.plan().attention_of(step.index)),
      layer(pass_.layer(step)),
      spec(layer.attention),
      hooks(step.hooks),
      blocks(*pass_.batch.blocks),
      own(pass_.activations.own(thread_)),
      number(step.index),
      kv_layer(spec.shares_kv ? spec.kv_layer : step.index),
      thread(thread_),
      node(plan.team.node(thread_)) {}

KeyValueBlock AttentionView::block(const RowRange& rows, int32_t kv_head, int64_t block) const {
    return blocks.at(segment(rows).blocks[block], kv_layer, splits.shape.stored_head(kv_head));
}

bool AttentionView::on_own_node(size_t segment, int64_t block, int32_t kv_head) const {
    return plan.team.home(plan.segments[segment].blocks[block], splits.shape.stored_head(kv_head), spec.kv_heads) ==
           node;
}

float* AttentionView::attended(int64_t row, int32_t head) const {
    return pass.activations.shared.attended.row(row) + int64_t(head) * spec.value_dim();
}

float* AttentionView::partial(int64_t block, int32_t kv_head, int64_t row) const {
    const PartialPlace& place = splits.partial_places[size_t(row)];
    const int64_t split = block / splits.split_blocks - place.first_split;
    const int64_t number = place.first + (split * kv_heads() + kv_head) * place.stride;
    return pass.activations.shared.partials.data + number * group() * partial_width();
}

namespace {

AttentionTile tile_of(const AttentionView& v, const RowRange& rows) {
    const ThreadBuffers& own = v.own;
    AttentionTile t{};
    t.precision = v.blocks.attention_precision();
    t.queries = (rows.end - rows.first) * v.group();
    t.value_dim = v.spec.value_dim();
    t.key_depth = v.spec.key_depth();
    t.scale = v.spec.scale;
    t.query = own.query.data;
    t.first = own.first.data;
    t.end = own.end.data;
    t.scores = own.scores.data;
    t.probabilities = own.probabilities.data;
    t.query_scales = own.query_scales.data;
    t.query_offsets = own.query_offsets.data;
    t.weight_scales = own.weight_scales.data;
    t.widened = own.widened.data;
    t.cap = v.spec.cap;
    t.slopes = v.spec.alibi_slopes ? own.slopes.data : nullptr;
    t.distances = own.distances.data;
    return t;
}

// What queries at this position are multiplied with (AttentionSpec::growth).
float query_growth(const AttentionSpec& a, int32_t position) {
    const int64_t counted = int64_t(position) + a.growth_shift;
    if (a.growth == 0 || counted < a.growth_step) return 1;
    return float(1 + double(a.growth) * std::log(1 + double(counted / a.growth_step)));
}

// The queries of a tile's rows for one KV head: normalised, rotated, and in the form that keys are multiplied with.
AttentionTile prepare_tile(const AttentionView& v, int32_t kv_head, const RowRange& rows) {
    const AttentionSpec& a = v.spec;
    const ThreadBuffers& own = v.own;
    const AttentionTile t = tile_of(v, rows);
    const float* factors = v.blocks.key_factors(v.kv_layer, v.splits.shape.stored_head(kv_head));
    const int64_t groups = t.key_depth / ATTENTION_GROUP;
    const bool integers = v.blocks.precision() == INT8 && t.precision != FP32;
    const int64_t bytes = t.precision == FP32 ? 4 : integers ? 2 : v.k.bf16_row_bytes;
    float* query = own.head.data;
    for (int32_t q = 0; q < t.queries; q++) {
        const int32_t row = rows.first + q / v.group(), head = kv_head * v.group() + q % v.group();
        std::memcpy(query, v.qkv(row) + int64_t(head) * a.head_dim, size_t(a.head_dim) * 4);
        rotate_head(v.pass, v.layer, head_norm(v.spec, v.layer.q_norm, head), v.segment(rows),
                    v.plan.positions[size_t(row)], query);
        if (t.slopes) own.slopes.data[q] = a.alibi_slopes[head];
        if (const float growth = query_growth(a, v.plan.positions[size_t(row)]); growth != 1) {
            for (int32_t d = 0; d < a.head_dim; d++) query[d] *= growth;
        }
        if (a.log_growth) {
            const float growth = v.layer.growth.at(head, v.plan.positions[size_t(row)]);
            for (int32_t d = 0; d < a.head_dim; d++) query[d] *= growth;
        }
        for (int32_t d = 0; factors && d < a.head_dim; d++) query[d] *= factors[d];
        uint8_t* to = own.query.data + q * t.key_depth * bytes;
        if (integers) {
            v.k.store_query(query, a.head_dim, t.key_depth, to, own.query_scales.data + q * groups,
                            own.query_offsets.data + q * groups);
        } else {
            v.k.convert(t.precision, query, a.head_dim, t.key_depth, to);
        }
    }
    return t;
}

// What each query of a tile sees of a block.
void limit_tile(const AttentionView& v, const RowRange& rows, int64_t block) {
    const int64_t start = block * BLOCK_POSITIONS;
    for (int32_t q = 0; q < (rows.end - rows.first) * v.group(); q++) {
        const int32_t row = rows.first + q / v.group();
        const int64_t position = v.plan.positions[size_t(row)], first = v.plan.first_seen(row, v.splits.shape),
                      last = v.plan.last_seen(row, v.splits.shape);
        v.own.first.data[q] = int32_t(std::clamp<int64_t>(first - start, 0, BLOCK_POSITIONS));
        v.own.end.data[q] = int32_t(std::clamp<int64_t>(last + 1 - start, 0, BLOCK_POSITIONS));
        v.own.distances.data[q] = float(start - position);
    }
}

// Blocks [first, end) of a run, merged for each query in own.runs, whose values are from `to` on; no values where it
// sees none.
void attend_run(const AttentionView& v, const AttentionTile& t, int32_t kv_head, const RowRange& rows, int64_t first,
                int64_t end, float* to) {
    const ThreadBuffers& own = v.own;
    const int64_t width = v.partial_width();
    std::fill_n(own.runs.data, t.queries, AttentionPartial{});
    for (int64_t b = first; b < end; b++) {
        limit_tile(v, rows, b);
        float* results = b == first ? to : own.results.data;
        for (int32_t q = 0; q < t.queries; q++) own.partials.data[q] = {0, 0, results + q * width};
        const bool gathered =
            v.blocks.keeps_rows(v.kv_layer) || v.splits.shape.gathers(v.plan.positions[size_t(rows.first)]);
        const bool more = !gathered && b < v.plan.last_seen_block(rows.end - 1, v.splits.shape);
        const KeyValueBlock block = gathered ? v.hooks.gather(v, rows, kv_head, b) : v.block(rows, kv_head, b);
        const KeyValueBlock next = more ? v.block(rows, kv_head, b + 1) : block;
        v.k.attend(t, block, more ? &next : nullptr, own.partials.data);
        for (int32_t q = 0; q < t.queries; q++) {
            if (own.first.data[q] >= own.end.data[q]) continue;
            merge_partial(v, own.runs.data[q], own.partials.data[q], to + q * width);
        }
    }
}

// The same, with the results among the partials.
void keep_run(const AttentionView& v, const AttentionTile& t, int32_t kv_head, const RowRange& rows, int64_t first,
              int64_t end) {
    attend_run(v, t, kv_head, rows, first, end, v.partial(first, kv_head, rows.first));
    for (int32_t q = 0; q < t.queries; q++) {
        const AttentionPartial& run = v.own.runs.data[q];
        if (run.output) keep_partial(run, run.output, v.partial_width());
    }
}

// Blocks [first, end) of a segment's sequence, for one KV head, or those of them on this thread's node: how many.
int64_t attend_blocks(const AttentionView& v, int32_t kv_head, size_t segment, int64_t first, int64_t end) {
    const auto mine = [&](int64_t block) {
        return block >= first && block < end && (!v.splits.by_block || v.on_own_node(segment, block, kv_head));
    };
    const bool appends = !v.spec.is_latent() && !v.spec.shares_kv && !v.splits.shape.gathering.any();
    for (size_t i = v.plan.first_append_range[segment]; appends && i < v.plan.first_append_range[segment + 1]; i++) {
        const RowRange& range = v.plan.append_ranges[i];
        if (mine(v.plan.last_block(range.first))) append_rows(v, range, kv_head);
    }
    for (size_t i = v.splits.first_tile[segment]; i < v.splits.first_tile[segment + 1]; i++) {
        const RowRange& tile = v.splits.tiles[i];
        const int64_t seen_end = std::min(end, v.plan.last_seen_block(tile.end - 1, v.splits.shape) + 1);
        AttentionTile t{};
        for (int64_t b = std::max(first, v.plan.first_block(tile.first, v.splits.shape)), next; b < seen_end;
             b = next) {
            next = std::min(seen_end, split_end(b, v.splits.split_blocks));
            if (!mine(b)) continue;
            if (!t.queries) t = prepare_tile(v, kv_head, tile);
            keep_run(v, t, kv_head, tile, b, next);
        }
    }
    int64_t number = 0;
    for (int64_t b = first; b < end; b++) number += mine(b);
    return number;
}

// Split KV: this thread's work items, which are counted by KV head, then segment, then block.
void attend_split(const AttentionView& v) {
    const auto [from, to] = v.splits.thread_work[size_t(v.thread)];
    int64_t item = 0;
    for (int32_t h = 0; h < v.kv_heads(); h++) {
        for (size_t i = 0; i < v.plan.segments.size(); i++) {
            const int64_t seen = v.splits.blocks[i], offset = v.splits.first_block[i] - item;
            const int64_t begin = std::max(item, from), end = std::min(item + seen, to);
            if (begin < end) {
                const int64_t done = attend_blocks(v, h, i, offset + begin, offset + end);
                if (v.splits.merges_in_place) finish_blocks(v, h, i, done);
            }
            item += seen;
        }
    }
}

void merge_spans(const AttentionView& v) {
    const int64_t each = v.splits.shape.spans, items = v.plan.rows() * each;
    for (int64_t u = share(items, v.thread, v.plan.threads); u < share(items, v.thread + 1, v.plan.threads); u++) {
        merge_span(v, u / each, u % each);
    }
}

// A query tile with all the blocks that its rows see.
void attend_tile(const AttentionView& v, int32_t kv_head, const TileWork& work) {
    const ThreadBuffers& own = v.own;
    const RowRange& tile = v.splits.tiles[size_t(work.tile)];
    const AttentionTile t = prepare_tile(v, kv_head, tile);
    std::fill_n(own.sums.data, t.queries, AttentionPartial{});
    for (int64_t b = work.first, next; b < work.end; b = next) {
        next = std::min(work.end, split_end(b, SPLIT_BLOCKS));
        attend_run(v, t, kv_head, tile, b, next, b == work.first ? own.totals.data : own.running.data);
        for (int32_t q = 0; q < t.queries; q++) {
            const AttentionPartial& run = own.runs.data[q];
            if (run.output) merge_partial(v, own.sums.data[q], run, own.totals.data + q * v.partial_width());
        }
    }
    for (int32_t q = 0; q < t.queries; q++) {
        const int32_t row = tile.first + q / v.group(), head = kv_head * v.group() + q % v.group();
        add_sink(v, head, own.sums.data[q]);
        finish_head(v, own.sums.data[q], row, head);
    }
}

// A query tile with some of them.
void attend_range(const AttentionView& v, int32_t kv_head, const TileWork& work) {
    const RowRange& tile = v.splits.tiles[size_t(work.tile)];
    const AttentionTile t = prepare_tile(v, kv_head, tile);
    for (int64_t b = work.first, next; b < work.end; b = next) {
        next = std::min(work.end, split_end(b, SPLIT_BLOCKS));
        keep_run(v, t, kv_head, tile, b, next);
    }
    const AttentionShape& shape = v.splits.shape;
    const int64_t seen = v.plan.last_seen_block(tile.end - 1, shape) + 1 - v.plan.first_block(tile.first, shape);
    if (!v.pass.completes(size_t(work.split * v.kv_heads() + kv_head), work.end - work.first, seen)) return;
    for (int32_t q = 0; q < t.queries; q++) {
        merge_head(v, tile.first + q / v.group(), kv_head * v.group() + q % v.group());
    }
}

// Query tiles in turn.
void attend_tiles(const AttentionView& v) {
    const auto take = [&](size_t queue) {
        std::atomic<int64_t>& taken = v.pass.taken_tiles[queue].done;
        const int64_t most = v.splits.queues[queue].end - v.splits.queues[queue].first;
        return taken.load(std::memory_order_relaxed) < most ? taken.fetch_add(1, std::memory_order_relaxed) : most;
    };
    for (int64_t u; (u = v.splits.next_item(v.node, take)) >= 0;) {
        const TileWork& work = v.splits.tile_work[size_t(u / v.kv_heads())];
        const int32_t kv_head = int32_t(u % v.kv_heads());
        if (work.split < 0) attend_tile(v, kv_head, work);
        else attend_range(v, kv_head, work);
    }
}

void end_attention(Pass& pass, int thread, uint64_t started) {
    pass.wait(thread);
    if (thread == 0) pass.timing.attention += __rdtsc() - started;
}

}  // namespace

// Before the linear that gives queries, whose barrier all pass with the counter at 0.
void begin_tiles(Pass& pass, const LayerStep&, int thread) {
    if (thread == 0) pass.begin_tiles();
}

// The rows that go on get into the form of the output linear, but those of latents (latent.cpp).
void attention(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const AttentionView v(pass, step, thread);
    if (v.splits.splits_kv) {
        attend_split(v);
        if (!v.splits.merges_in_place) {
            pass.wait(thread);
            merge_spans(v);
        }
    } else {
        attend_tiles(v);
        if (v.spec.is_latent()) return end_attention(pass, thread, started);
        pass.wait(thread);
        const Array<float>& attended = pass.activations.shared.attended;
        prepare_rows(pass, thread, attended.data, attended.columns, v.spec.attended_width(), v.plan.rows(),
                     v.layer.output);
    }
    end_attention(pass, thread, started);
}

}  // namespace ipex_assist
