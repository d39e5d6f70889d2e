#include "operations/workspace.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Split-KV partials of a head that a pass of these segments needs at most, with `counts` tokens drafted after each, or
// null, in layers of this shape: of few rows each block may come to be a split, of more some blocks or tiles.
int64_t partials_at_most(const PassPlan& plan, const AttentionShape& shape, const int32_t* counts) {
    int64_t blocks = 0;
    for (size_t i = 0; i < plan.segments.size(); i++) {
        const int64_t rows = plan.segments[i].rows, last = plan.segments[i].start + rows - 1 + (counts ? counts[i] : 0);
        blocks = std::max(blocks, shape.most_blocks(rows, last));
    }
    if (plan.decode) return plan.rows() * blocks;
    const int64_t steps = counts ? std::min<int64_t>(DECODE_ROWS, int64_t(plan.segments.size())) : 0;  // of the draft
    return std::max(steps * blocks, most_partials(shape, plan.threads, plan.rows(), blocks));
}

// Floats of split-KV partials.
int64_t partial_floats(const SizedPass& pass) {
    int64_t floats = 0;
    for (size_t i = 0; i < pass.plan.attention.size(); i++) {
        const AttentionPlan& each = pass.plan.attention[i];
        const AttentionShape& shape = each.shape;
        int64_t partials =
            pass.counts || pass.any_split ? partials_at_most(pass.plan, shape, pass.counts) : each.partial_rows;
        if (const PassPlan* pruned = pass.pruned) {
            const int64_t further =
                pass.any_split ? partials_at_most(*pruned, shape, nullptr) : pruned->attention[i].partial_rows;
            partials = std::max(partials, further);
        }
        const int64_t width = round_up(shape.value_dim, LANES) + LANES;
        floats = std::max(floats, partials * shape.heads * width);
    }
    return floats;
}

// Of the columns of a plain MLP, or of per-layer embeddings, between two linears.
void size_active(const KernelTable& kernels, int64_t width, const Linear& down, ActivationSizes& s,
                 const MlpSpec& mlp = {}) {
    const int64_t inner = round_up(width, LANES), columns = PADDED_ROWS * round_up(down.depth, SCALE_COLUMNS);
    s.active = std::max(s.active, s.rows * (mlp.sparsity > 0 ? sparse_stride(mlp) : inner));
    s.depth = std::max(s.depth, inner);
    s.down_values = std::max(s.down_values, columns * value_bytes(down.precision, kernels));
    s.down_columns = std::max(s.down_columns, columns);
}

// The last position of a row.
int64_t last_position(const SizedPass& pass) {
    int64_t last = 0;
    for (size_t i = 0; i < pass.plan.segments.size(); i++) {
        const Segment& each = pass.plan.segments[i];
        last = std::max(last, int64_t(each.start) + each.rows - 1 + (pass.counts ? pass.counts[i] : 0));
    }
    return last;
}

// What the widest attention and MLP of the model need.
void size_layers(const SizedPass& pass, ActivationSizes& s) {
    const ModelSpec& spec = pass.model().spec;
    const KernelTable& kernels = *pass.model().kernels;
    const int64_t last = last_position(pass);
    const Linear head = vocabulary_head(pass.model(), pass.vocabulary);
    for (const PackedLayer& layer : pass.model().layers) {
        s.qkv = std::max(s.qkv, layer.columns.width);
        for (int64_t* width : {&s.attended, &s.between})
            *width = std::max(*width, round_up(layer.columns.out_width, LANES));
        size_mixer(layer, last, s);
        s.gate_rows = std::max<int64_t>({s.gate_rows, layer.mixer_gate_rank, layer.mlp_gate_rank});
        if (layer.into_attention.kept || layer.into_mlp.kept) s.normed = s.wide;
        if (layer.laurel_rank) s.deferred = s.width, s.head_depth = std::max(s.head_depth, layer.laurel.right.depth);
    }
    s.gate_rows = round_up(s.gate_rows, LANES);
    for (const AttentionShape& each : pass.program.shape.attention)
        s.queries = std::max<int64_t>(s.queries, each.most_queries());
    const int64_t fc = spec.fc_width();
    s.entering = fc || spec.keeps_embedding ? std::max<int64_t>(fc, 2 * spec.hidden_size) : 0;
    s.depth = std::max<int64_t>({s.wide, s.between, s.entering, spec.draft_head.selector_rank});
    if (spec.per_layer_size) {
        s.per_layer = round_up(spec.per_layer_width(), LANES);
        size_active(kernels, spec.per_layer_size, pass.model().layers[0].per_layer.out, s);
    }
    if (spec.ordered) s.ordered = s.depth;
    s.own_value = std::max(value_bytes(spec.precision, kernels), value_bytes(head.precision, kernels));
    if (head.order) s.ordered = std::max(s.ordered, head.depth);
    for (const int32_t index : pass.program.mlp_kinds) {
        const PackedLayer& layer = pass.model().layers[size_t(index)];
        if (layer.mlp.experts) {
            size_experts(layer, kernels, s.rows, s);
            if (layer.defers) s.deferred = s.width;
            if (spec.ordered) s.ordered = std::max<int64_t>(s.ordered, layer.mlp.shared_size);
            s.own_value = value_bytes(FP32, kernels);  // the router's
        } else {
            size_active(kernels, layer.mlp.intermediate_size, layer.down, s, layer.mlp);
        }
        if (spec.ordered) s.ordered = std::max<int64_t>(s.ordered, layer.mlp.intermediate_size);
    }
    s.depth = round_up(s.depth, SCALE_COLUMNS), s.ordered = round_up(s.ordered, SCALE_COLUMNS);
    s.head_depth = round_up(s.head_depth, SCALE_COLUMNS);
}

// Of A · x: the passes of a draft may have the windows of each adapter in other places than its first one.
void size_low_rank(const SizedPass& pass, ActivationSizes& s) {
    const AdapterRows& rows = pass.plan.with_adapter;
    const int64_t windows = (s.rows + WINDOW_ROWS - 1) / WINDOW_ROWS * int64_t(rows.groups.size());
    s.low_rows = windows * WINDOW_ROWS, s.low_columns = rows.low_columns();
}

}  // namespace

Linear vocabulary_head(const PackedModel& model, int32_t vocabulary) {
    Linear head = model.lm_head();
    if (vocabulary > 0 && !model.spec.draft_head.clusters)
        head.panels = std::min(head.panels, (int64_t(vocabulary) + LANES - 1) / LANES);
    return head;
}

ActivationSizes activation_sizes(const SizedPass& pass) {
    const ModelSpec& spec = pass.model().spec;
    ActivationSizes s{};
    s.rows = pass.plan.rows(), s.logit_rows = int64_t(pass.plan.logit_rows.size());
    s.vocabulary_chunks = (pass.logit_columns() + VOCABULARY_CHUNK - 1) / VOCABULARY_CHUNK;
    if (spec.draft_head.clusters) s.vocabulary_chunks = 1;  // clustered_lm_head.cpp
    s.threads = pass.plan.threads, s.nodes = pass.plan.team.nodes();
    s.width =
        round_up(std::max({spec.hidden_size, spec.table_width(), spec.embedding_size, spec.per_layer_size}), LANES);
    s.wide = std::max({s.width, spec.norm_width(), spec.keeps_embedding ? 2 * int64_t(spec.hidden_size) : 0});
    s.stream = std::max(s.width, spec.stream_width());
    // Of prompts, too: the rows that go on after the others have ended may be few.
    if (spec.streams.several())
        s.stream_rows = std::min<int64_t>(s.rows, DECODE_ROWS), s.stream_parts = stream_parts(spec);
    if (spec.altup.several()) s.projected = int64_t(spec.altup.count - 1) * spec.hidden_size;
    s.tiles = pass.model().kernels->tiled && !pass.plan.decode;
    s.scan_rows = pass.plan.first_scan_row.back();
    for (size_t i = 0; pass.counts && i < pass.plan.segments.size(); i++) s.scan_rows += pass.counts[i] - 1;
    s.clusters = round_up(spec.draft_head.clusters, LANES), s.clusters_read = spec.draft_head.clusters_read;
    if (spec.draft_head.conv_kernel) {
        s.normed = s.width;
        s.conv_scales = round_up(2 * spec.draft_head.conv_scales(spec.hidden_size), LANES);
    }
    s.candidates = std::min<int64_t>(spec.draft_head.candidates, pass.logit_columns());
    s.selector_rank = round_up(spec.draft_head.selector_rank, LANES);
    s.fed_back_rows = pass.counts && spec.draft_head.feeds_back() ? int64_t(pass.plan.segments.size()) : 0;
    size_low_rank(pass, s);
    size_layers(pass, s);
    s.partials = partial_floats(pass);
    return s;
}

namespace {

// Segments of `rows` rows each, up to position `context`, `pending` of the rows before them behind their states.
// blocks: of each of them.
PassPlan plan_on_paper(const Program& program, const TeamNodes& team, int32_t segments, int32_t rows,
                       const LargestPass& largest, int32_t pending, const std::vector<int32_t>& blocks) {
    Segment segment{};
    segment.blocks = blocks.data(), segment.block_count = int32_t(blocks.size());
    segment.rows = rows;
    segment.start = std::max(largest.context - rows, program.shape.reads_before ? 1 : 0);
    segment.settled = std::max(segment.start - pending, 0);
    const int32_t all = segments * rows, first = all - std::min(largest.logit_rows, all);
    std::vector<int32_t> logit_rows;
    for (int32_t row = first; row < all; row++) logit_rows.push_back(row);
    return {program.shape, team, std::vector<Segment>(size_t(segments), segment), std::vector<int32_t>(size_t(all)),
            std::move(logit_rows)};
}

}  // namespace

int64_t workspace_bytes(const Program& program, const LargestPass& largest, const TeamNodes& team) {
    const bool drafts = program.model.spec.draft_head.feeds_back();
    std::vector<int32_t> blocks(size_t(std::max(largest.context, largest.rows) / BLOCK_POSITIONS + 1));
    std::iota(blocks.begin(), blocks.end(), 0);  // on all memory nodes in turn
    ActivationBytes most;
    const auto add = [&](int32_t segments, int32_t rows, int32_t pending) {
        if (segments < 1 || rows < 1) return;
        const PassPlan plan = plan_on_paper(program, team, segments, rows, largest, pending, blocks);
        std::unique_ptr<const PassPlan> pruned;
        if (program.pruning_layer(plan, {}) >= 0 && !plan.logit_rows.empty())
            pruned = plan.of_logit_rows(program.shape);
        const std::vector<int32_t> counts(size_t(segments), 1);
        SizedPass pass{program, plan, pruned.get(), 0, drafts ? counts.data() : nullptr, true};
        most.include(Activations::count(activation_sizes(pass)));
    };
    const int32_t rows = std::min(largest.rows, largest.context), steps = std::min(largest.rows, DECODE_ROWS);
    add(1, program.shape.reads_before ? 1 : rows, PENDING_ROWS);                   // a prompt
    add(largest.rows / PENDING_ROWS, std::min(rows, PENDING_ROWS), PENDING_ROWS);  // texts with the longest drafts each
    add(largest.rows, 1, 0);                                                       // many texts, a token each
    add(steps, 1, PENDING_ROWS);                                                   // few texts
    return most.total(team.threads(), team.nodes());
}

}  // namespace ipex_assist
