// The experts of a layer: which of them its rows pass through, and what these make of them.
//
// A slot is one row of one expert. An expert's slots lie side by side, so that its weights are read once for all rows
// of the pass that have it; threads share the blocks of all experts evenly, whichever these are, or, on several memory
// nodes, each node's threads its blocks of them. A row's slots are added in the order of the experts, so that its bits
// depend on nothing but itself.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "operations/forward.h"

namespace ipex_assist {
namespace {

constexpr int64_t PADDED = 32;   // rows that linears may read
constexpr int64_t READING = 16;  // rows that a block is multiplied with in the time of reading it, or so

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

// Columns of an expert's activated rows.
int64_t Forward::inner(const Layer& layer, int32_t expert) {
    return layer.experts[size_t(expert)].up.blocks / 2 * LANES;
}

void Forward::reserve_experts() {
    if (!spec_.experts) return;
    const Layer& layer = model_.layers[0];
    const int64_t rows = batch_.rows, chosen = rows * spec_.experts_per_token, shared = spec_.shared_size ? rows : 0;
    const int64_t slots = chosen + shared, last = int64_t(layer.experts.size()) - 1;
    const int64_t columns = layer.experts[0].up.depth;
    // The shared expert's slots are behind the others', and have its own width.
    const int64_t inner_depth = round_up(layer.experts[0].down.depth, SCALE_COLUMNS),
                  shared_depth = round_up(layer.experts[size_t(last)].down.depth, SCALE_COLUMNS);
    const int64_t deep = (chosen + PADDED) * inner_depth + (shared ? (shared + PADDED) * shared_depth : 0);
    w_.routed.grow(size_t(rows * layer.router.blocks * LANES * 4));
    reserve_copies(w_.slot_values, (slots + PADDED) * columns * 4);
    reserve_copies(w_.slot_scales, (slots + PADDED) * round_up(columns, SCALE_COLUMNS) / SCALE_COLUMNS * 4);
    reserve_copies(w_.slot_sums, (slots + PADDED) * round_up(columns, SCALE_COLUMNS) / 32 * 4);
    w_.active.grow(size_t((chosen * inner(layer, 0) + shared * inner(layer, int32_t(last))) * 4));
    reserve_copies(w_.down_values, deep * 4);
    reserve_copies(w_.down_scales, deep / SCALE_COLUMNS * 4);
    reserve_copies(w_.down_sums, deep / 32 * 4);
    w_.made.grow(size_t(slots * width_ * 4));
    slot_inputs_ = copies(w_.slot_values, w_.slot_scales, w_.slot_sums);
    by_node_ = threads() == pool_.threads() && model_.follows(pool_);
    routes_.each = spec_.experts_per_token + (shared ? 1 : 0);
    routes_.chosen.resize(size_t(slots)), routes_.weights.resize(size_t(slots));
    routes_.slots.resize(size_t(slots)), routes_.rows.resize(size_t(slots));
    routes_.first.resize(layer.experts.size() + 1);
}

// A row's experts, ascending, and their weights: of equal logits the lower number is chosen. Where a logit is no
// number, no weight is.
void Forward::route_row(const Layer& layer, int64_t row, std::vector<int32_t>& order) {
    const int32_t count = spec_.experts, each = spec_.experts_per_token;
    const float* logits = w_.routed.as<float>() + row * layer.router.blocks * LANES;
    int32_t* chosen = routes_.chosen.data() + row * routes_.each;
    float* weights = routes_.weights.data() + row * routes_.each;
    const bool numbers = std::all_of(logits, logits + count, [](float x) { return std::isfinite(x); });
    const auto before = [logits](int32_t a, int32_t b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    order.resize(size_t(count));
    std::iota(order.begin(), order.end(), 0);
    if (numbers) std::partial_sort(order.begin(), order.begin() + each, order.end(), before);
    const float most = logits[order[0]];
    std::sort(order.begin(), order.begin() + each);
    float sum = 0;
    for (int32_t i = 0; i < (spec_.experts_normalised ? each : count); i++) {
        sum += std::exp(logits[spec_.experts_normalised ? order[size_t(i)] : i] - most);
    }
    for (int32_t i = 0; i < each; i++) {
        chosen[i] = order[size_t(i)];
        weights[i] = numbers ? std::exp(logits[chosen[i]] - most) / sum : NAN;
    }
    if (!spec_.shared_size) return;
    chosen[each] = count;
    weights[each] = spec_.shared_gate ? sigmoid(logits[(layer.router.blocks - 1) * LANES]) : 1;
}

// The slots of all experts, each one's in the order of the rows.
void Forward::place_slots(int64_t rows) {
    std::fill(routes_.first.begin(), routes_.first.end(), 0);
    const size_t choices = size_t(rows * routes_.each);
    for (size_t i = 0; i < choices; i++) routes_.first[size_t(routes_.chosen[i]) + 1]++;
    for (int32_t e = 0; e < spec_.experts; e++) experts_read += routes_.first[size_t(e) + 1] > 0;
    std::partial_sum(routes_.first.begin(), routes_.first.end(), routes_.first.begin());
    std::vector<int32_t> next(routes_.first.begin(), routes_.first.end() - 1);
    for (size_t i = 0; i < choices; i++) {
        const int32_t slot = next[size_t(routes_.chosen[i])]++;
        routes_.slots[i] = slot;
        routes_.rows[size_t(slot)] = int32_t(int64_t(i) / routes_.each);
    }
}

// Whoever comes last with its rows places the slots of all.
void Forward::choose_experts(int thread, const Layer& layer, int64_t rows) {
    const int64_t first = share(rows, thread, threads()), end = share(rows, thread + 1, threads());
    std::vector<int32_t> order;
    for (int64_t r = first; r < end; r++) route_row(layer, r, order);
    if (first < end && last(0, end - first, rows)) place_slots(rows);
    wait(thread);
}

// Who shares the blocks of an expert's linear that this thread may have: where memory follows nodes, the threads of its
// own, which share that node's blocks; else all.
Forward::Sharers Forward::sharers_of_blocks(int thread) const {
    if (!by_node_) return {thread, threads()};
    const int node = pool_.node(thread), first = pool_.first_thread(node);
    return {thread - first, pool_.first_thread(node + 1) - first};
}

// And these blocks, `each` of them at a time.
Forward::Range Forward::blocks_of_node(int thread, const Linear& linear, int64_t each) const {
    if (!by_node_) return {0, linear.blocks / each};
    const NodeBlocks* node = linear.nodes + pool_.node(thread);
    return {node[0].first / each, node[1].first / each};
}

// f(expert, first, end) for a thread's share of the `units(expert)`, each of which takes as long as `cost(expert)`
// says: of all experts that have rows.
template <class Counted, class Cost, class F>
void Forward::share_experts(const Sharers& sharers, Counted&& units, Cost&& cost, F&& f) const {
    const int32_t count = int32_t(routes_.first.size()) - 1;
    int64_t total = 0, at = 0;
    for (int32_t e = 0; e < count; e++) total += routes_.count(e) ? units(e).size() * cost(e) : 0;
    const int64_t low = share(total, sharers.thread, sharers.threads),
                  high = share(total, sharers.thread + 1, sharers.threads);
    for (int32_t e = 0; e < count && at < high; e++) {
        if (!routes_.count(e)) continue;
        const Range all = units(e);
        const int64_t each = cost(e);
        const auto from = [&](int64_t border) {
            return all.first + std::min(all.size(), (std::max<int64_t>(0, border - at) + each - 1) / each);
        };
        if (from(low) < from(high)) f(e, from(low), from(high));
        at += all.size() * each;
    }
}

// The rows of an expert in one of the two buffers, where rows have `depth` columns, and those of the first expert
// `usual`.
Rows Forward::slot_rows(const Copies& all, int node, int32_t expert, const Linear& next, int64_t usual) const {
    const Rows& rows = all[size_t(node)];
    const int64_t start = int64_t(routes_.first[size_t(expert)]) *
                          round_up(usual, next.precision == FP32 || next.precision == BF16 ? 32 : SCALE_COLUMNS);
    return {rows.values + start * 4, rows.scales + start / SCALE_COLUMNS, rows.negated_sums + start / 32, next.depth};
}

Rows Forward::up_rows(const Layer& layer, int32_t expert, int node) const {
    const Linear& up = layer.experts[size_t(expert)].up;
    return slot_rows(slot_inputs_, node, expert, up, up.depth);
}

Rows Forward::down_rows(const Layer& layer, int32_t expert, int node) const {
    return slot_rows(down_inputs_, node, expert, layer.experts[size_t(expert)].down, layer.experts[0].down.depth);
}

float* Forward::active_rows(const Layer& layer, int32_t expert) const {
    return w_.active.as<float>() + routes_.first[size_t(expert)] * inner(layer, 0);
}

// What each slot gets of its row, in the form that its expert multiplies.
void Forward::fill_slots(int thread, const Layer& layer) {
    const float* x = reinterpret_cast<const float*>(inputs(thread).values);
    const auto rows = [&](int32_t e) { return Range{0, routes_.count(e)}; };
    share_experts(
        {thread, threads()}, rows, [](int32_t) { return 1; },
        [&](int32_t e, int64_t first, int64_t end) {
            const Linear& up = layer.experts[size_t(e)].up;
            for (int64_t i = first; i < end; i++) {
                const int64_t row = routes_.rows[size_t(routes_.first[size_t(e)] + i)];
                for (int node = 0; node < nodes(); node++) {
                    quantize(thread, x + row * layer.router.depth, spec_.hidden_size, 0, up.depth, i, up,
                             up_rows(layer, e, node));
                }
            }
        });
    wait(thread);
}

void Forward::up_experts(int thread, const Layer& layer) {
    const uint64_t started = __rdtsc();
    const auto pairs = [&](int32_t e) { return blocks_of_node(thread, layer.experts[size_t(e)].up, 2); };
    const auto cost = [&](int32_t e) { return READING + routes_.count(e); };
    share_experts(sharers_of_blocks(thread), pairs, cost, [&](int32_t e, int64_t first, int64_t end) {
        activate_blocks(thread, layer.experts[size_t(e)].up, up_rows(layer, e, pool_.node(thread)), routes_.count(e),
                        first * 2, end * 2, active_rows(layer, e), inner(layer, e));
    });
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
}

void Forward::quantize_slots(int thread, const Layer& layer) {
    const auto spans = [&](int32_t e) {
        return (layer.experts[size_t(e)].down.depth + SCALE_COLUMNS - 1) / SCALE_COLUMNS;
    };
    const auto units = [&](int32_t e) { return Range{0, routes_.count(e) * spans(e)}; };
    share_experts(
        {thread, threads()}, units, [](int32_t) { return 1; },
        [&](int32_t e, int64_t begin, int64_t end) {
            const Linear& down = layer.experts[size_t(e)].down;
            const int64_t size = e == spec_.experts ? spec_.shared_size : spec_.intermediate_size;
            for (int64_t u = begin; u < end; u++) {
                const int64_t i = u / spans(e), first = u % spans(e) * SCALE_COLUMNS;
                for (int node = 0; node < nodes(); node++) {
                    quantize(thread, active_rows(layer, e) + i * inner(layer, e), size, first,
                             std::min(first + SCALE_COLUMNS, down.depth), i, down, down_rows(layer, e, node));
                }
            }
        });
    wait(thread);
}

void Forward::down_experts(int thread, const Layer& layer) {
    const uint64_t started = __rdtsc();
    const int64_t each = by_node_ || layer.experts[0].down.blocks % 2 ? 1 : 2;  // blocks go in pairs where they can
    const auto units = [&](int32_t e) { return blocks_of_node(thread, layer.experts[size_t(e)].down, each); };
    const auto cost = [&](int32_t e) { return READING + routes_.count(e); };
    share_experts(sharers_of_blocks(thread), units, cost, [&](int32_t e, int64_t first, int64_t end) {
        float* out = w_.made.as<float>() + routes_.first[size_t(e)] * width_ + first * each * LANES;
        const Rows in = down_rows(layer, e, pool_.node(thread));
        model_.multiply(layer.experts[size_t(e)].down, in, routes_.count(e), first * each, end * each, out, width_);
    });
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
}

// The weighted sum of what a row's experts made of it.
void Forward::add_experts(int thread, int64_t rows, const Linear& next) {
    const int64_t pieces = round_up(spec_.hidden_size, SCALE_COLUMNS) / SCALE_COLUMNS, units = rows * pieces;
    for (int64_t u = share(units, thread, threads()); u < share(units, thread + 1, threads()); u++) {
        const int64_t row = u / pieces, first = u % pieces * SCALE_COLUMNS,
                      end = std::min<int64_t>(first + SCALE_COLUMNS, spec_.hidden_size);
        float* to = delta(thread) + row * width_;
        std::fill(to + first, to + end, 0.0f);
        for (int64_t i = row * routes_.each; i < (row + 1) * routes_.each; i++) {
            const float weight = routes_.weights[size_t(i)];
            const float* from = w_.made.as<float>() + routes_.slots[size_t(i)] * width_;
            for (int64_t c = first; c < end; c++) to[c] += weight * from[c];
        }
        share_delta(thread, row, row + 1, first, end);
    }
    ask_for(thread, next);
    wait(thread);
}

void Forward::run_experts(int thread, const Layer& layer, int64_t rows, const Linear& next) {
    linear(thread, inputs(thread), layer.router, rows, w_.routed.as<float>(), layer.router.blocks * LANES);
    choose_experts(thread, layer, rows);
    fill_slots(thread, layer);
    up_experts(thread, layer);
    quantize_slots(thread, layer);
    down_experts(thread, layer);
    add_experts(thread, rows, next);
}

}  // namespace ipex_assist
