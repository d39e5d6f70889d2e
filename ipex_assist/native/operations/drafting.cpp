// Greedy drafting: passes that go on with the arg-max of each segment.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Notes the best token of a row with logits as the next of a draft; whether the draft goes on after it.
bool note(const GreedyDraft& d, int32_t which, const ArgMax& best) {
    const bool finite = is_finite(best);
    const float probability = finite ? 1.0f / best.sum : NAN;
    const int64_t at = which * d.stride + d.drafted[which]++;
    d.tokens[at] = !finite ? -1 : d.target_tokens ? d.target_tokens[best.index] : best.index;
    d.probabilities[at] = probability;
    return d.drafted[which] < d.counts[which] && probability >= d.min_probability[which];
}

// Notes the token that each segment's logits say, and makes the plan of the next pass, of the segments that go on;
// false where none does. order: the number of each of the plan's segments in the request.
bool continue_draft(Pass& pass, const GreedyDraft& d, std::vector<int32_t>& order) {
    std::vector<Segment> segments;
    std::vector<int32_t> next_order, tokens, logit_rows;
    std::vector<const float*> hidden;
    for (size_t i = 0; i < order.size(); i++) {
        const int32_t which = order[i];
        if (!note(d, which, arg_max(pass, int64_t(i)))) continue;
        Segment next = pass.plan().segments[i];
        next.start += pass.plan().reads_before ? 0 : next.rows, next.rows = 1, next.settled = next.settle;
        next.settle = std::max(next.settle, next.start + 1 - PENDING_ROWS);
        logit_rows.push_back(int32_t(segments.size()));
        segments.push_back(next), next_order.push_back(which),
            tokens.push_back(d.tokens[which * d.stride + d.drafted[which] - 1]);
        if (pass.model.spec.draft_head.feeds_back()) hidden.push_back(pass.activations.shared.fed_back.row(int64_t(i)));
    }
    if (segments.empty()) return false;
    pass.continue_with(std::make_unique<PassPlan>(pass.program.shape, pass.plan().team, std::move(segments),
                                                  std::move(tokens), std::move(logit_rows)));
    order = std::move(next_order);
    pass.hidden = std::move(hidden), pass.own_hidden = true;
    return true;
}

// Notes the tokens of a block, whose rows with logits begin at `row`.
void note_block(const Pass& pass, const GreedyDraft& d, int32_t which, int64_t row, int thread) {
    const bool chooses = pass.model.spec.draft_head.candidates > 0;
    int32_t last = pass.plan().tokens[size_t(pass.plan().first_row[size_t(which)])];
    ArgMax best;
    d.drafted[which] = 0;
    do {
        best = chooses ? choose_candidate(pass, thread, row, last) : arg_max(pass, row);
        row++, last = best.index;
    } while (note(d, which, best));
}

}  // namespace

void draft(Pass& pass, const GreedyDraft& request) {
    const uint64_t started = __rdtsc();
    std::vector<int32_t> order;
    for (int32_t i = 0; i < int32_t(pass.plan().segments.size()); i++) order.push_back(i), request.drafted[i] = 0;
    const bool clusters = pass.model.spec.draft_head.clusters > 0;
    bool goes_on = true;  // written by thread 0, between two barriers
    pass.pool.run(
        [&](int thread) {
            while (goes_on) {
                run_layers(pass, thread);
                if (pass.model.spec.draft_head.feeds_back()) feed_back(pass, thread);
                if (clusters) find_cluster_maxima(pass, request.target_tokens, thread);
                else find_maxima(pass, thread);
                if (thread == 0) goes_on = continue_draft(pass, request, order);
                pass.wait(thread);
            }
        },
        pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

void draft_blocks(Pass& pass, const GreedyDraft& request) {
    const uint64_t started = __rdtsc();
    std::vector<int64_t> first{0};  // of each block's rows with logits
    for (size_t i = 0; i < pass.plan().segments.size(); i++) first.push_back(first.back() + request.counts[i]);
    pass.pool.run(
        [&](int thread) {
            run_layers(pass, thread);
            find_maxima(pass, thread);
            if (pass.model.spec.draft_head.candidates) find_candidates(pass, thread);
            const int64_t blocks = int64_t(pass.plan().segments.size()), threads = pass.plan().threads;
            for (int64_t i = share(blocks, thread, threads); i < share(blocks, thread + 1, threads); i++)
                note_block(pass, request, int32_t(i), first[size_t(i)], thread);
        },
        pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
