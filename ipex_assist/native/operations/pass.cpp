#include "operations/pass.h"

#include <x86intrin.h>

#include <algorithm>

#include "operations/check_batch.h"
#include "operations/operations.h"

namespace ipex_assist {
namespace {

TeamNodes pass_team(const Pool& pool, const Batch& batch) {
    return pool.team_nodes(batch.threads ? std::min(batch.threads, pool.threads()) : pool.threads());
}

bool taps_end(const PackedModel& model, const Batch& b) {
    const int32_t *first = b.taps.layers, *end = first + b.taps.count;
    return std::find(first, end, model.spec.layers) != end;
}

PassPlan plan_of(const Program& program, const Pool& pool, const Batch& b) {
    return {program.shape,
            pass_team(pool, b),
            {b.segments, b.segments + b.segment_count},
            {b.tokens, b.tokens + b.rows},
            {b.logit_rows, b.logit_rows + b.logit_row_count}};
}

std::optional<PassPlan> pruned_plan(const Pass& pass) {
    if (pass.pruning_layer < 0 || pass.plan.logit_rows.empty()) return {};
    return pass.plan.of_logit_rows(pass.program.shape);
}

Linear wanted_head(const PackedModel& model, int32_t vocabulary) {
    Linear head = model.lm_head();
    if (vocabulary > 0 && !model.spec.draft_head.clusters)
        head.blocks = std::min(head.blocks, (int64_t(vocabulary) + LANES - 1) / LANES);
    return head;
}

// Split-KV partials of a head that a draft needs at most: on the decode path each block may come to be a split, on the
// prefill path each tile may come to be split.
int64_t draft_partials(const PassPlan& plan, const int32_t* counts) {
    int64_t blocks = 0, runs = 0;
    for (size_t i = 0; i < plan.segments.size(); i++) {
        const int64_t last = int64_t(plan.segments[i].start) + plan.segments[i].rows - 1 + counts[i];
        blocks = std::max(blocks, last / BLOCK_POSITIONS + 1);
        const int64_t seen = last / BLOCK_POSITIONS / SPLIT_BLOCKS + 1;
        if (seen > 1) runs += plan.segments[i].rows * seen;
    }
    if (plan.decode) return plan.rows() * blocks;
    return std::max(std::min<int64_t>(DECODE_ROWS, int64_t(plan.segments.size())) * blocks, runs);
}

// Floats of split-KV partials.
int64_t partial_floats(const Pass& pass, const int32_t* counts) {
    int64_t floats = 0;
    for (size_t i = 0; i < pass.plan.attention.size(); i++) {
        const AttentionPlan& each = pass.plan.attention[i];
        int64_t partials = counts ? draft_partials(pass.plan, counts) : each.partial_rows;
        if (pass.pruned) partials = std::max(partials, pass.pruned->attention[i].partial_rows);
        const int64_t width = round_up(each.shape.value_dim, LANES) + LANES;
        floats = std::max(floats, partials * each.shape.heads * width);
    }
    return floats;
}

// Of the columns of a plain MLP, or of per-layer embeddings, between two linears.
void size_active(const Pass& pass, int64_t width, const Linear& down, ActivationSizes& s) {
    const int64_t inner = round_up(width, LANES), columns = PADDED_ROWS * round_up(down.depth, SCALE_COLUMNS);
    s.active = std::max(s.active, s.rows * inner);
    s.depth = std::max(s.depth, inner);
    s.down_values = std::max(s.down_values, columns * value_bytes(down.precision, pass.kernels));
    s.down_columns = std::max(s.down_columns, columns);
}

// What the widest attention and MLP of the model need.
void size_layers(const Pass& pass, ActivationSizes& s) {
    const ModelSpec& spec = pass.model.spec;
    int64_t outputs = 0;  // columns of what mixers give, and of what is between their linears
    for (const PackedLayer& layer : pass.model.layers) {
        s.qkv = std::max(s.qkv, layer.mixer_in_width());
        outputs = std::max(outputs, round_up(layer.mixer_out_width(), LANES));
        s.attended = std::max(s.attended, round_up(layer.mixer_out_width(), LANES));
        if (layer.is_recurrent()) {
            s.scan_columns = std::max(s.scan_columns, ScanColumns(layer.recurrent).width);
            s.state = std::max(s.state, layer.recurrent.scans() ? layer.recurrent.tile_floats() : 0);
            s.head_depth = std::max(s.head_depth, layer.recurrence.gates.depth);
            continue;
        }
        const AttentionSpec& a = layer.attention;
        s.key_depth = std::max(s.key_depth, a.key_depth());
        s.value_width = std::max({s.value_width, a.value_width(), round_up(a.head_dim, LANES)});
        if (a.is_latent()) {
            s.attended = std::max(s.attended, a.attended_width());
            s.heads = std::max({s.heads, a.latent_query_width(), a.output_width()});
            s.head_depth = std::max({s.head_depth, layer.latent.keys.depth, layer.latent.values.depth});
            outputs = std::max<int64_t>(outputs, a.latent.query_rank);
        }
        s.queries = std::max<int64_t>(
            s.queries, pass.plan.attention_of(int32_t(&layer - pass.model.layers.data())).shape.most_queries());
    }
    const int64_t fc = spec.draft_head.fc_width(spec.hidden_size);
    s.entering = fc ? std::max<int64_t>(fc, 2 * spec.hidden_size) : 0;
    s.depth = std::max({s.width, outputs, s.entering});
    if (spec.per_layer_size) {
        s.per_layer = round_up(spec.per_layer_width(), LANES);
        size_active(pass, spec.per_layer_size, pass.model.layers[0].per_layer.out, s);
    }
    if (spec.ordered) s.ordered = s.depth;
    s.own_value = std::max(value_bytes(spec.precision, pass.kernels), value_bytes(pass.head.precision, pass.kernels));
    if (pass.head.order) s.ordered = std::max(s.ordered, pass.head.depth);
    for (const int32_t index : pass.program.mlp_kinds) {
        const PackedLayer& layer = pass.model.layers[size_t(index)];
        if (layer.mlp.experts) {
            size_experts(layer, s.rows, s);
            if (spec.ordered) s.ordered = std::max<int64_t>(s.ordered, layer.mlp.shared_size);
            s.own_value = value_bytes(FP32, pass.kernels);  // the router's
        } else {
            size_active(pass, layer.mlp.intermediate_size, layer.down, s);
        }
        if (spec.ordered) s.ordered = std::max<int64_t>(s.ordered, layer.mlp.intermediate_size);
    }
    s.depth = round_up(s.depth, SCALE_COLUMNS), s.ordered = round_up(s.ordered, SCALE_COLUMNS);
    s.head_depth = round_up(s.head_depth, SCALE_COLUMNS);
}

// Of A · x: the passes of a draft may have the windows of each adapter in other places than its first one.
void size_low_rank(const Pass& pass, ActivationSizes& s) {
    const AdapterRows& rows = pass.plan.with_adapter;
    const int64_t windows = (s.rows + WINDOW_ROWS - 1) / WINDOW_ROWS * int64_t(rows.groups.size());
    s.low_rows = windows * WINDOW_ROWS, s.low_columns = rows.low_columns();
}

ActivationSizes sizes_of(const Pass& pass, const int32_t* counts) {
    const ModelSpec& spec = pass.model.spec;
    ActivationSizes s{};
    s.rows = pass.plan.rows(), s.logit_rows = int64_t(pass.plan.logit_rows.size());
    s.vocabulary_chunks = (vocabulary_columns(pass) + VOCABULARY_CHUNK - 1) / VOCABULARY_CHUNK;
    if (spec.draft_head.clusters) s.vocabulary_chunks = 1;  // clustered_lm_head.cpp
    s.threads = pass.plan.threads, s.nodes = pass.pool.node(pass.plan.threads - 1) + 1;
    s.width =
        round_up(std::max({spec.hidden_size, spec.table_width(), spec.embedding_size, spec.per_layer_size}), LANES);
    s.tiles = pass.kernels.tiled && !pass.plan.decode;
    s.scan_rows = pass.plan.first_scan_row.back();
    for (int32_t i = 0; counts && i < pass.batch.segment_count; i++) s.scan_rows += counts[i] - 1;
    s.clusters = round_up(spec.draft_head.clusters, LANES), s.clusters_read = spec.draft_head.clusters_read;
    if (spec.draft_head.conv_taps) {
        s.normed = s.width;
        s.conv_scales = round_up(2 * spec.draft_head.conv_scales(spec.hidden_size), LANES);
    }
    s.candidates = std::min<int64_t>(spec.draft_head.candidates, vocabulary_columns(pass));
    s.selector_rank = round_up(spec.draft_head.selector_rank, LANES);
    s.fed_back_rows = counts && spec.draft_head.feeds_back() ? pass.batch.segment_count : 0;
    size_low_rank(pass, s);
    size_layers(pass, s);
    s.partials = partial_floats(pass, counts);
    return s;
}

// Of the tiles of a plan that are split, for each head: later passes of a draft have no more tiles than its first one.
int64_t split_counters(const PassPlan& plan, bool drafts) {
    int64_t most = 0;
    for (const AttentionPlan& each : plan.attention) {
        const int64_t tiles = drafts ? int64_t(each.tiles.size()) : each.split_tiles;
        if (!plan.decode) most = std::max(most, tiles * (each.shape.shared ? each.shape.heads : each.shape.kv_heads));
    }
    return most;
}

// Of spans of activated columns, of units of attended ones, and of tiles that are split.
size_t counters_of(const Pass& pass, bool drafts) {
    int64_t spans = (pass.model.spec.per_layer_size + SCALE_COLUMNS - 1) / SCALE_COLUMNS + 1, units = 0;
    for (const int32_t index : pass.program.mlp_kinds) {
        const int64_t inner = round_up(pass.model.layers[size_t(index)].mlp.intermediate_size, LANES);
        spans = std::max(spans, (inner + SCALE_COLUMNS - 1) / SCALE_COLUMNS);
    }
    for (const AttentionShape& shape : pass.program.shape.attention) units = std::max(units, shape.units);
    int64_t segments = pass.batch.segment_count, split = split_counters(pass.plan, drafts);
    if (pass.pruned) {
        segments = std::max(segments, int64_t(pass.pruned->segments.size()));
        split = std::max(split, split_counters(*pass.pruned, drafts));
    }
    return size_t(std::max({spans, std::min<int64_t>(DECODE_ROWS, segments) * units, split}));
}

}  // namespace

Pass::Pass(const Program& program_, Pool& pool_, Activations& activations_, const Batch& batch_, const int32_t* counts)
    : program(program_),
      model(program_.model),
      kernels(*model.kernels),
      pool(pool_),
      activations(activations_),
      batch(checked(model, batch_, counts)),
      plan_(plan_of(program, pool, batch)),
      pruning_layer(program.pruning_layer(plan, batch.taps)),
      pruned(pruned_plan(*this)),
      head(wanted_head(model, batch.vocabulary)),
      counters(counters_of(*this, counts)),
      blocks_by_node(plan.threads == pool.threads() && model.follows(pool)),
      own_hidden(batch.own_hidden) {
    activations.place(sizes_of(*this, counts), pool);
    for (const int32_t index : program.mlp_kinds) reserve_routes(model.layers[size_t(index)], plan.rows(), routes);
    const HeadSpec& of = model.spec.draft_head;
    const int64_t columns = own_hidden ? model.spec.hidden_size : of.input_size;
    for (int64_t r = 0; batch.hidden && r < plan.rows(); r++) hidden.push_back(batch.hidden + r * columns);
}

bool Pass::taps_end() const { return ipex_assist::taps_end(model, batch); }

bool Pass::completes(size_t counter, int64_t done, int64_t total) {
    if (done == total) return true;
    auto& sum = counters[counter].done;
    if (sum.fetch_add(done, std::memory_order_acq_rel) + done < total) return false;
    sum.store(0, std::memory_order_relaxed);  // for the next phase, a barrier later
    return true;
}

namespace {

void run(Pass& pass, const LayerStep& step, const std::vector<Operation>& operations, int thread) {
    for (const Operation& each : operations) {
        each.run(pass, step, thread);
        if (pass.program.watch.call) watch(pass, each.name, each.writes, &step, thread);
    }
}

}  // namespace

void run_layers(Pass& pass, int thread) {
    const bool watched = pass.program.watch.call;
    if (pass.hidden.empty()) embed(pass, thread);
    else if (pass.model.spec.draft_head.kind == DFLASH) return append_context(pass, thread);
    else enter_draft_head(pass, thread);
    if (watched) watch(pass, pass.hidden.empty() ? "embed" : "enter_draft_head", RESIDUAL_STREAM, nullptr, thread);
    if (pass.model.spec.per_layer_size) embed_per_layer(pass, thread);
    for (const LayerStep& step : pass.program.layers) {
        run(pass, step, step.append_operations, thread);
        if (step.index == pass.pruning_layer) {
            if (!pass.pruned) return;
            prune_rows(pass, step, thread);
        }
        run(pass, step, step.attend_operations, thread);
    }
    if (pass.taps_end()) tap_end(pass, thread);
    if (pass.plan.logit_rows.empty()) return;
    lm_head(pass, thread);
    if (watched && !pass.model.spec.draft_head.clusters) watch(pass, "head", LOGITS, nullptr, thread);
}

void forward(Pass& pass) {
    const uint64_t started = __rdtsc();
    pass.pool.run([&](int thread) { run_layers(pass, thread); }, pass.plan.threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
