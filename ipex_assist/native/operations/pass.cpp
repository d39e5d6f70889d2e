#include "operations/pass.h"

#include <x86intrin.h>

#include <algorithm>

#include "operations/check_batch.h"
#include "operations/operations.h"
#include "operations/workspace.h"

namespace ipex_assist {
namespace {

TeamNodes pass_team(const Pool& pool, const Batch& batch) {
    return pool.team_nodes(batch.threads ? std::min(batch.threads, pool.threads()) : pool.threads());
}

bool taps_end(const PackedModel& model, const Batch& b) {
    const int32_t *first = b.taps.layers, *end = first + b.taps.count;
    return std::find(first, end, model.spec.layers) != end;
}

std::unique_ptr<const PassPlan> plan_of(const Program& program, const Pool& pool, const Batch& b) {
    SeenAhead ahead{{}, b.ahead_in_windows != 0};
    if (b.last_seen) ahead.last.assign(b.last_seen, b.last_seen + b.rows);
    return std::make_unique<PassPlan>(
        program.shape, pass_team(pool, b), std::vector<Segment>(b.segments, b.segments + b.segment_count),
        std::vector<int32_t>(b.tokens, b.tokens + b.rows),
        std::vector<int32_t>(b.logit_rows, b.logit_rows + b.logit_row_count), true, std::move(ahead));
}

std::unique_ptr<const PassPlan> pruned_plan(const Pass& pass) {
    if (pass.pruning_layer < 0 || pass.plan().logit_rows.empty()) return {};
    return pass.plan().of_logit_rows(pass.program.shape);
}

// Of the attended spans of segments where blocks are shared, else of tiles that are split, for each head: later passes
// of a draft may be shared in either way, and have no more segments and tiles than its first one.
int64_t attention_counters(const PassPlan& plan, bool drafts) {
    int64_t most = 0;
    const int64_t segments = std::min(int64_t(plan.segments.size()), SPLIT_ROWS);
    for (const AttentionPlan& each : plan.attention) {
        const int64_t tiles = drafts ? int64_t(each.tiles.size()) : each.split_tiles;
        if (each.splits_kv || drafts) most = std::max(most, segments * each.shape.spans);
        if (!plan.decode) most = std::max(most, tiles * (each.shape.shared ? each.shape.heads : each.shape.kv_heads));
    }
    return most;
}

// Of spans of activated columns, of those of attended ones, and of tiles that are split.
size_t counters_of(const Pass& pass, bool drafts) {
    int64_t spans = (pass.model.spec.per_layer_size + SCALE_COLUMNS - 1) / SCALE_COLUMNS + 1;
    for (const int32_t index : pass.program.mlp_kinds) {
        const int64_t inner = round_up(pass.model.layers[size_t(index)].mlp.intermediate_size, LANES);
        spans = std::max(spans, (inner + SCALE_COLUMNS - 1) / SCALE_COLUMNS);
        const PackedLayer& layer = pass.model.layers[size_t(index)];
        if (layer.mlp.experts) spans = std::max(spans, counters_of_experts(layer, pass.plan().rows()));
    }
    for (const PackedLayer& layer : pass.model.layers) spans = std::max(spans, spans_of(layer.latent.values.panels));
    int64_t attended = attention_counters(pass.plan(), drafts);
    if (pass.pruned) attended = std::max(attended, attention_counters(*pass.pruned, drafts));
    return size_t(std::max(spans, attended));
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
      pruning_layer(program.pruning_layer(*plan_, batch)),
      pruned(pruned_plan(*this)),
      head(vocabulary_head(model, batch.vocabulary)),
      counters(counters_of(*this, counts)),
      taken_tiles(2 * size_t(plan_->team.nodes())),
      panels_by_node(plan_->threads == pool.threads() && model.layout().follows(pool)),
      own_hidden(batch.own_hidden),
      embeddings(batch.embeddings) {
    activations.place(activation_sizes({program, *plan_, pruned.get(), batch.vocabulary, counts}), pool);
    for (const int32_t index : program.mlp_kinds) reserve_routes(model.layers[size_t(index)], plan_->rows(), routes);
    const HeadSpec& of = model.spec.draft_head;
    const int64_t columns = own_hidden ? model.spec.hidden_size : of.input_size;
    for (int64_t r = 0; batch.hidden && r < plan_->rows(); r++) hidden.push_back(batch.hidden + r * columns);
}

bool Pass::taps_end() const { return ipex_assist::taps_end(model, batch); }

void Pass::begin_tiles() {
    for (Counter& queue : taken_tiles) queue.done.store(0, std::memory_order_relaxed);
}

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
    if (pass.model.spec.altup.several()) enter_streams(pass, thread);
    for (const LayerStep& step : pass.program.layers) {
        run(pass, step, step.append_operations, thread);
        if (step.index == pass.pruning_layer) {
            if (!pass.pruned) return;
            prune_rows(pass, step, thread);
        }
        run(pass, step, step.attend_operations, thread);
    }
    if (pass.model.spec.altup.several()) leave_streams(pass, thread);
    if (pass.taps_end()) tap_end(pass, thread);
    if (pass.plan().logit_rows.empty()) return;
    lm_head(pass, thread);
    if (watched && !pass.model.spec.draft_head.clusters) watch(pass, "head", LOGITS, nullptr, thread);
}

void forward(Pass& pass) {
    const uint64_t started = __rdtsc();
    pass.pool.run([&](int thread) { run_layers(pass, thread); }, pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
