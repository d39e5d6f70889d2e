// The experts of a layer: which of them its rows pass through, and what these compute.
//
// A slot is one row of one expert. An expert's slots lie side by side, so that its weights are read once for all rows
// of the pass that have it; threads share the panels of all experts evenly, whichever these are, or, on several memory
// nodes, each node's threads its panels of them. A row's slots are added in the order of the experts, so that its bits
// depend on nothing but itself.
//
// On the decode path a thread prepares the slots of the experts whose panels it has for itself, and whoever ends a span
// of activated columns prepares it; where it takes less time than a barrier, whoever has the last logits routes all
// rows, and whoever ends a span of outputs adds it up.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "operations/experts.h"
#include "operations/operations.h"
#include "operations/routing.h"
#include "operations/share_work.h"

namespace ipex_assist {
namespace {

constexpr int64_t READING_ROWS = 16;  // rows that a panel is multiplied with in about the time of reading it
constexpr int64_t CHOOSING = 32;      // values that are prepared in the time of choosing from one expert more, of a row

// Columns of an expert's activated rows.
int64_t inner(const PackedLayer& layer, int32_t expert) {
    return layer.experts[size_t(expert)].up.panels / (layer.mlp.gated ? 2 : 1) * LANES;
}

// Spans of activated columns of the expert that has most.
int64_t most_spans(const PackedLayer& layer) {
    return spans_of(std::max(inner(layer, 0), inner(layer, int32_t(layer.experts.size()) - 1)) / LANES);
}

// Whether each node's threads share its own panels of experts: where memory follows the nodes of all of the pool's
// threads.
bool by_node(const Pass& pass) { return pass.panels_by_node; }

}  // namespace

void size_experts(const PackedLayer& layer, const KernelTable& kernels, int64_t rows, ActivationSizes& s) {
    const MlpSpec& spec = layer.mlp;
    const int64_t chosen = rows * spec.experts_per_token, shared = spec.shared_size ? rows : 0;
    const int32_t last = int32_t(layer.experts.size()) - 1;
    // The shared expert's slots come after the others', and have a width of their own.
    const int64_t depth = round_up(layer.experts[0].down.depth, SCALE_COLUMNS);
    const int64_t shared_depth = round_up(layer.experts[size_t(last)].down.depth, SCALE_COLUMNS);
    const int64_t columns = (chosen + PADDED_ROWS) * depth + (shared ? (shared + PADDED_ROWS) * shared_depth : 0);
    s.router_columns = std::max(s.router_columns, layer.router.panels * LANES);
    s.slots = std::max(s.slots, chosen + shared);
    const int64_t up_depth = round_up(layer.experts[0].up.depth, SCALE_COLUMNS);
    if (rows > DECODE_ROWS) s.slot_columns = std::max(s.slot_columns, (chosen + shared + PADDED_ROWS) * up_depth);
    for (const int32_t e : {0, last}) {
        const int64_t each = value_bytes(layer.experts[size_t(e)].up.precision, kernels);
        s.own_slot_columns = std::max(s.own_slot_columns, PADDED_ROWS * up_depth);
        s.own_slot_values = std::max(s.own_slot_values, PADDED_ROWS * up_depth * each);
    }
    s.active = std::max(s.active, chosen * inner(layer, 0) + shared * inner(layer, last));
    s.slot_values = std::max(s.slot_values, s.slot_columns * value_bytes(spec.precision, kernels));
    s.down_values = std::max(s.down_values, columns * value_bytes(spec.precision, kernels));
    s.down_columns = std::max(s.down_columns, columns);
}

void reserve_routes(const PackedLayer& layer, int64_t rows, Routes& routes) {
    if (!layer.mlp.experts) return;
    const size_t slots = size_t(rows * experts_of_row(layer.mlp));
    routes.chosen.resize(std::max(routes.chosen.size(), slots));
    routes.weights.resize(std::max(routes.weights.size(), slots));
    routes.slots.resize(std::max(routes.slots.size(), slots));
    routes.rows.resize(std::max(routes.rows.size(), slots));
    if (layer.mlp.scales_inputs) routes.factors.resize(std::max(routes.factors.size(), slots));
    routes.first.resize(std::max(routes.first.size(), layer.experts.size() + 1));
    routes.used.reserve(layer.experts.size());
}

int64_t counters_of_experts(const PackedLayer& layer, int64_t rows) {
    const int64_t outputs = spans_of(layer.experts[0].down.panels);
    return std::max(outputs, std::min<int64_t>(DECODE_ROWS, rows) * experts_of_row(layer.mlp) * most_spans(layer));
}

namespace {

// A row's experts and their weights, with those of the shared one.
void route_row(Pass& pass, const PackedLayer& layer, int64_t row, RouterScratch& scratch) {
    const MlpSpec& spec = layer.mlp;
    const float* logits = pass.activations.shared.router_logits.data + row * layer.router.panels * LANES;
    int32_t* chosen = pass.routes.chosen.data() + row * experts_of_row(spec);
    float* weights = pass.routes.weights.data() + row * experts_of_row(spec);
    const float* named = layer.expert_table;
    if (named) named += int64_t(pass.plan().tokens[size_t(row)]) * spec.experts_per_token;
    choose_experts(spec, logits, layer.correction_bias, scratch, chosen, weights, named);
    for (int32_t i = 0; layer.expert_scales && i < spec.experts_per_token; i++) {
        weights[i] *= layer.expert_scales[chosen[i]];
    }
    if (!spec.shared_size) return;
    chosen[spec.experts_per_token] = spec.experts;
    weights[spec.experts_per_token] = spec.shared_gate ? sigmoid(logits[(layer.router.panels - 1) * LANES]) : 1;
}

// The slots of all experts, each one's in the order of the rows. Those that are not in memory are read from now on.
void place_slots(Pass& pass, const LayerStep& step, int64_t rows) {
    const PackedLayer& layer = pass.layer(step);
    Routes& routes = pass.routes;
    const int64_t each = experts_of_row(layer.mlp);
    const auto end = routes.first.begin() + int64_t(layer.experts.size()) + 1;
    std::fill(routes.first.begin(), end, 0);
    const size_t choices = size_t(rows * each);
    for (size_t i = 0; i < choices; i++)
        if (routes.chosen[i] != IDENTITY) routes.first[size_t(routes.chosen[i]) + 1]++;
    routes.used.clear();
    for (int32_t e = 0; e < int32_t(layer.experts.size()); e++) {
        if (!routes.first[size_t(e) + 1]) continue;
        routes.used.push_back(e);
        pass.experts_read += e < layer.mlp.experts;
    }
    std::partial_sum(routes.first.begin(), end, routes.first.begin());
    std::vector<int32_t> next(routes.first.begin(), end - 1);
    for (size_t i = 0; i < choices; i++) {
        if (routes.chosen[i] == IDENTITY) continue;
        const int32_t slot = next[size_t(routes.chosen[i])]++;
        routes.slots[i] = slot;
        routes.rows[size_t(slot)] = int32_t(int64_t(i) / each);
        if (!layer.mlp.scales_inputs) continue;
        const bool scaled = routes.chosen[i] < layer.mlp.experts;  // the shared one's is not
        routes.factors[size_t(slot)] = scaled ? std::exchange(routes.weights[i], 1.0f) : 1;
    }
    if (ExpertCache* cache = pass.model.expert_cache.get()) cache->begin(step.index, routes.used);
}

Sharers all_threads(const Pass& pass, int thread) { return {thread, pass.plan().threads}; }

// Who shares the panels of an expert's linear that this thread may have: where memory follows nodes, the threads of its
// own, which share that node's panels; else all.
Sharers sharers_of_panels(const Pass& pass, int thread) {
    if (!by_node(pass)) return all_threads(pass, thread);
    const int node = pass.node(thread), first = pass.pool.first_thread(node);
    return {thread - first, pass.pool.first_thread(node + 1) - first};
}

// And these panels, `each` of them at a time.
Range panels_of_node(const Pass& pass, int thread, const Linear& linear, int64_t each) {
    if (!by_node(pass)) return {0, linear.panels / each};
    const NodePanels* node = linear.nodes + pass.node(thread);
    return {node[0].first / each, node[1].first / each};
}

// f(expert, first, end) for a thread's share of the `items(expert)`, each of which takes as long as `cost(expert)`
// says: of all experts that have rows.
template <class Counted, class Cost, class F>
void share_experts(const Pass& pass, const Sharers& sharers, Counted&& items, Cost&& cost, F&& f) {
    const std::vector<int32_t>& used = pass.routes.used;
    share_work(
        int32_t(used.size()), sharers, [&](int32_t i) { return items(used[size_t(i)]); },
        [&](int32_t i) { return cost(used[size_t(i)]); },
        [&](int32_t i, int64_t first, int64_t end) { f(used[size_t(i)], first, end); });
}

// The rows of an expert in a buffer of slots, in which those of the first expert have `usual` columns. Their bytes are
// those of the layer's precision, as parts that are stored in blocks may differ in theirs.
LinearRows slot_rows(const Pass& pass, const PackedLayer& layer, const PreparedRows& slots, int32_t expert,
                     const Linear& next, int64_t usual) {
    const int64_t start = pass.routes.first[size_t(expert)] * padded_depth(next.precision, usual);
    return {slots.values.data + start * value_bytes(layer.mlp.precision, pass.kernels),
            slots.scales.data + start / SCALE_COLUMNS, slots.negated_sums.data + start / 32, next.depth};
}

LinearRows up_rows(const Pass& pass, const PackedLayer& layer, int32_t expert, int node) {
    const Linear& up = layer.experts[size_t(expert)].up;
    return slot_rows(pass, layer, pass.activations.on(node).expert_inputs, expert, up, up.depth);
}

LinearRows down_rows(const Pass& pass, const PackedLayer& layer, int32_t expert, int node) {
    const int64_t usual = layer.experts[0].down.depth;
    const Linear& down = layer.experts[size_t(expert)].down;
    return slot_rows(pass, layer, pass.activations.on(node).down_inputs, expert, down, usual);
}

float* active_rows(const Pass& pass, const PackedLayer& layer, int32_t expert) {
    return pass.activations.shared.active.data + pass.routes.first[size_t(expert)] * inner(layer, 0);
}

// Whether whoever has the last logits routes all rows.
bool routes_alone(const PassPlan& plan, const MlpSpec& spec) {
    return plan.decode && plan.in_time_of_barrier(rows_of_others(plan.rows(), plan.threads) * spec.experts * CHOOSING);
}

void route_rows(Pass& pass, const PackedLayer& layer, int64_t first, int64_t end) {
    RouterScratch scratch;
    for (int64_t r = first; r < end; r++) route_row(pass, layer, r, scratch);
}

}  // namespace

// The router's logits, then each row's experts; whoever comes last with its rows places the slots of all.
void route(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& router = layer.router;
    const int64_t rows = pass.plan().rows();
    const auto [begin, last] = slice(pass, router, thread);
    float* logits = pass.activations.shared.router_logits.data;
    const uint64_t started = __rdtsc();
    pass.model.multiply(router, pass.inputs(thread, router.depth), rows, begin, last, logits + begin * LANES,
                        router.panels * LANES);
    const bool alone = routes_alone(pass.plan(), layer.mlp);
    if (alone && begin < last && pass.completes(0, last - begin, router.panels)) {
        route_rows(pass, layer, 0, rows);
        place_slots(pass, step, rows);
    }
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
    if (alone) return;
    const int64_t first = share(rows, thread, pass.plan().threads), end = share(rows, thread + 1, pass.plan().threads);
    route_rows(pass, layer, first, end);
    if (first < end && pass.completes(0, end - first, rows)) place_slots(pass, step, rows);
    pass.wait(thread);
}

namespace {

// A row (hidden_size) times a factor, in memory of the thread.
const float* scaled(const Pass& pass, int thread, const float* row, float factor) {
    float* made = pass.activations.own(thread).row.data;
    for (int64_t c = 0; c < pass.model.spec.hidden_size; c++) made[c] = row[c] * factor;
    return made;
}

// What an expert gets in one of its slots: what the router got of the row, or the residual stream through a norm of its
// own; times the weight where this is of inputs.
const float* slot_input(const Pass& pass, const LayerStep& step, int thread, int32_t expert, size_t slot) {
    const PackedLayer& layer = pass.layer(step);
    const int64_t row = pass.routes.rows[slot];
    if (!layer.mlp.own_norms) {
        const float* x = routed_row(pass, layer, thread, row);
        return layer.mlp.scales_inputs ? scaled(pass, thread, x, pass.routes.factors[slot]) : x;
    }
    const ThreadBuffers& own = pass.activations.own(thread);
    const Array<float>& stream = pass.stream(thread);
    const Norm& norm = expert == layer.mlp.experts ? layer.mlp_norm : layer.expert_norms.experts;
    normalize(pass, norm, stream.row(row), own.row.data);
    return layer.mlp.scales_inputs ? scaled(pass, thread, own.row.data, pass.routes.factors[slot]) : own.row.data;
}

// Whether all experts of a layer get the same of a row.
bool is_alike(const PackedLayer& layer) {
    const Linear &first = layer.experts.front().up, &last = layer.experts.back().up;
    return !layer.mlp.own_norms && !layer.mlp.scales_inputs && !first.order && !last.order &&
           first.precision == last.precision && first.group == last.group;
}

// Row `from_row` of a linear's inputs, to be row `row` of another one's that takes the same.
void copy_row(const Pass& pass, const Linear& linear, const LinearRows& from, int64_t from_row, const LinearRows& to,
              int64_t row) {
    const int64_t bytes = linear.depth * value_bytes(linear.precision, pass.kernels);
    std::memcpy(to.values + row * bytes, from.values + from_row * bytes, size_t(bytes));
    if (!has_byte_rows(linear)) return;
    const int64_t spans = linear.depth / SCALE_COLUMNS, groups = linear.depth / linear.group;
    std::copy_n(from.scales + from_row * spans, spans, to.scales + row * spans);
    std::copy_n(from.negated_sums + from_row * groups, groups, to.negated_sums + row * groups);
}

// The inputs of an expert's slots, as this thread reads them.
LinearRows own_up_rows(const Pass& pass, const LayerStep& step, int thread, int32_t e) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& up = layer.experts[size_t(e)].up;
    if (!pass.plan().decode) return up_rows(pass, layer, e, pass.node(thread));
    const LinearRows own = pass.activations.own(thread).slot_inputs.with_depth(up.depth);
    for (int64_t i = 0; i < pass.routes.count(e); i++) {
        const float* row = slot_input(pass, step, thread, e, size_t(pass.routes.first[size_t(e)] + i));
        prepare_row(pass, thread, row, pass.model.spec.hidden_size, 0, up.depth, i, up, own);
    }
    return own;
}

}  // namespace

// The input of each slot, in the form that its expert multiplies: of a row's experts that get the same, and for all
// nodes, made once.
void fill_slots(Pass& pass, const LayerStep& step, int thread) {
    if (pass.plan().decode) return;  // own_up_rows
    const PackedLayer& layer = pass.layer(step);
    const int64_t rows = pass.plan().rows(), each = experts_of_row(layer.mlp), threads = pass.plan().threads;
    const bool alike = is_alike(layer);
    for (int64_t choice = share(rows, thread, threads) * each; choice < share(rows, thread + 1, threads) * each;
         choice++) {
        const int32_t e = pass.routes.chosen[size_t(choice)];
        if (e == IDENTITY) continue;
        // Its first one: the shared one, which is the last, where all others give what they read.
        int64_t first_choice = choice / each * each;
        if (pass.routes.chosen[size_t(first_choice)] == IDENTITY) first_choice += each - 1;
        const int32_t first = pass.routes.chosen[size_t(first_choice)];
        const Linear& up = layer.experts[size_t(e)].up;
        const auto row_of = [&](int64_t i, int32_t expert) {
            return int64_t(pass.routes.slots[size_t(i)] - pass.routes.first[size_t(expert)]);
        };
        const bool made = alike && e != first;
        for (int node = 0; node < pass.activations.nodes(); node++) {
            const LinearRows to = up_rows(pass, layer, e, node);
            if (made || node > 0) {
                const int32_t of = alike ? first : e;
                const int64_t from = row_of(alike ? first_choice : choice, of);
                copy_row(pass, up, up_rows(pass, layer, of, 0), from, to, row_of(choice, e));
            } else {
                const float* row = slot_input(pass, step, thread, e, size_t(pass.routes.slots[size_t(choice)]));
                prepare_row(pass, thread, row, pass.model.spec.hidden_size, 0, up.depth, row_of(choice, e), up, to);
            }
        }
    }
    pass.wait(thread);
}

namespace {

// Columns [first, end) of an expert's activated slots, in the form of its down linear.
void prepare_activated(const Pass& pass, const PackedLayer& layer, int thread, int32_t e, int64_t slot, int64_t first) {
    const Linear& down = layer.experts[size_t(e)].down;
    const int64_t size = e == layer.mlp.experts ? layer.mlp.shared_size : layer.mlp.intermediate_size;
    const float* row = active_rows(pass, layer, e) + slot * inner(layer, e);
    for (int node = 0; node < pass.activations.nodes(); node++) {
        prepare_row(pass, thread, row, size, first, std::min(first + SCALE_COLUMNS, down.depth), slot, down,
                    down_rows(pass, layer, e, node));
    }
}

}  // namespace

void up_experts(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const int64_t parts = layer.mlp.gated ? 2 : 1;
    const bool in_place = prepares_in_place(pass, layer.experts[0].down);
    const auto items = [&](int32_t e) { return panels_of_node(pass, thread, layer.experts[size_t(e)].up, parts); };
    const auto cost = [&](int32_t e) { return READING_ROWS + pass.routes.count(e); };
    const auto up = [&](int32_t e, int64_t first, int64_t end) {
        activate_block(pass, thread, layer.mlp.of_expert(e), layer.experts[size_t(e)].up,
                       own_up_rows(pass, step, thread, e), {0, pass.routes.count(e), first * parts, end * parts},
                       active_rows(pass, layer, e), inner(layer, e));
        if (!in_place) return;
        const size_t counter = size_t(pass.routes.first[size_t(e)] * most_spans(layer));
        const auto prepare = [&](int64_t column) {
            for (int64_t i = 0; i < pass.routes.count(e); i++) prepare_activated(pass, layer, thread, e, i, column);
        };
        complete_spans(pass, counter, {first, end, inner(layer, e) / LANES, 1}, prepare);
    };
    share_experts(pass, sharers_of_panels(pass, thread), items, cost, up);
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
}

void prepare_slots(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    if (prepares_in_place(pass, layer.experts[0].down)) return;
    const auto spans = [&](int32_t e) {
        return (layer.experts[size_t(e)].down.depth + SCALE_COLUMNS - 1) / SCALE_COLUMNS;
    };
    const auto items = [&](int32_t e) { return Range{0, pass.routes.count(e) * spans(e)}; };
    const auto one = [](int32_t) { return 1; };
    share_experts(pass, all_threads(pass, thread), items, one, [&](int32_t e, int64_t begin, int64_t end) {
        for (int64_t u = begin; u < end; u++)
            prepare_activated(pass, layer, thread, e, u / spans(e), u % spans(e) * SCALE_COLUMNS);
    });
    pass.wait(thread);
}

namespace {

// Whether whoever makes the last panel of a span of outputs adds it up, for all rows. A thread may be the last in all
// the spans of its share.
bool adds_in_place(const Pass& pass, const PackedLayer& layer) {
    const PassPlan& plan = pass.plan();
    if (!plan.decode || layer.mlp.own_norms || pass.model.expert_cache) return false;
    const int64_t panels = layer.experts[0].down.panels, all = panels * int64_t(pass.routes.used.size());
    const int64_t spans = std::min(spans_of(panels), spans_of((all + plan.threads - 1) / plan.threads) + 1);
    return plan.in_time_of_barrier(spans * SCALE_COLUMNS * plan.rows() * experts_of_row(layer.mlp));
}

}  // namespace

void down_experts(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const Array<float>& outputs = pass.activations.shared.expert_outputs;
    const int64_t panels = layer.experts[0].down.panels, size = pass.model.spec.hidden_size;
    const int64_t each = by_node(pass) || panels % 2 ? 1 : 2;  // panels go in pairs where they can
    const bool in_place = adds_in_place(pass, layer);
    const auto items = [&](int32_t e) { return panels_of_node(pass, thread, layer.experts[size_t(e)].down, each); };
    const auto cost = [&](int32_t e) { return READING_ROWS + pass.routes.count(e); };
    const auto add = [&](int64_t column) {
        for (int64_t r = 0; r < pass.plan().rows(); r++)
            add_span(pass, layer, thread, r, column, std::min(column + SCALE_COLUMNS, size));
    };
    const auto down = [&](int32_t e, int64_t first, int64_t end) {
        float* out = outputs.row(pass.routes.first[size_t(e)]) + first * each * LANES;
        const LinearRows in = down_rows(pass, layer, e, pass.node(thread));
        pass.model.multiply(layer.experts[size_t(e)].down, in, pass.routes.count(e), first * each, end * each, out,
                            outputs.columns);
        const int64_t times = int64_t(pass.routes.used.size());
        if (in_place) complete_spans(pass, 0, {first * each, end * each, panels, times}, add);
    };
    share_experts(pass, sharers_of_panels(pass, thread), items, cost, down);
    if (in_place) prefetch(pass, thread, pass.after_mlp(step));
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
}

// The weighted sum of what a row's experts made of it.
void add_experts(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    if (adds_in_place(pass, layer)) return;
    const int64_t size = pass.model.spec.hidden_size;
    const int64_t span = layer.mlp.own_norms ? size : SCALE_COLUMNS;  // of columns that one thread adds
    const int64_t spans = (size + span - 1) / span, items = pass.plan().rows() * spans;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t first = u % spans * span;
        add_span(pass, layer, thread, u / spans, first, std::min(first + span, size));
    }
    prefetch(pass, thread, pass.after_mlp(step));
    pass.wait(thread);
}

}  // namespace ipex_assist
