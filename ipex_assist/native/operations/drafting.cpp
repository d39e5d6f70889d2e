// Drafting: passes that go on with the token that each segment's logits and its rule give.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

bool penalizes(const SamplingRule& r) {
    return r.repetition_penalty != 1 || r.presence_penalty != 0 || r.frequency_penalty != 0;
}

// How the next token of each segment is chosen, where it is not the likeliest one whatever was drafted before.
class DraftChoices {
public:
    DraftChoices(const Pass& pass, const DraftRequest& d) : d_(d), columns_(pass.model.spec.lm_head_rows()) {
        const size_t count = d.choices ? pass.plan().segments.size() : 0;
        rows_.resize(count), chosen_.resize(count), confidence_.resize(count), drafted_.resize(count);
        if (!d.target_tokens) return;
        edits_.resize(count);
        for (size_t i = 0; i < count; i++) {
            for (int64_t e = 0; e < d.choices[i].edit_count; e++) add_edit(edits_[i], d.choices[i].edits[e]);
        }
    }

    bool given() const { return d_.choices; }
    // Chooses after the rows of a pass, of which the i-th is of segment order[i]: by every thread, between `begin` and
    // `column`.
    void begin(const std::vector<int32_t>& order) {
        for (size_t i = 0; given() && i < order.size(); i++) {
            const size_t which = size_t(order[i]);
            rows_[i] = d_.choices[which];
            rows_[i].position += d_.drafted[which], rows_[i].logits = nullptr;
            rows_[i].following = drafted_[which].data(), rows_[i].following_count = int64_t(drafted_[which].size());
            if (edits_.empty()) continue;
            rows_[i].edits = edits_[which].data(), rows_[i].edit_count = int64_t(edits_[which].size());
        }
    }
    void choose(Pass& pass, int thread) {
        sample_rows(pass, {rows_.data(), d_.target_tokens, chosen_.data(), confidence_.data()}, thread);
    }
    int32_t column(size_t row) const { return chosen_[row]; }
    float confidence(size_t row) const { return confidence_[row]; }
    // A column that was drafted is one that penalties are for from now on.
    void count(size_t which, int32_t column) {
        if (given() && penalizes(*d_.choices[which].rule)) drafted_[which].push_back(column);
    }

private:
    // By the column of its token, if it has one.
    void add_edit(std::vector<LogitEdit>& to, LogitEdit edit) const {
        if (d_.target_tokens) {
            const int32_t *end = d_.target_tokens + columns_, *at = std::lower_bound(d_.target_tokens, end, edit.token);
            if (at == end || *at != edit.token) return;
            edit.token = int32_t(at - d_.target_tokens);
        }
        to.push_back(edit);
    }

    const DraftRequest& d_;
    const int32_t columns_;
    std::vector<RowChoice> rows_;  // of a pass, and what was chosen after them
    std::vector<int32_t> chosen_;
    std::vector<float> confidence_;
    std::vector<std::vector<int32_t>> drafted_;  // columns of each segment, where penalties count them
    std::vector<std::vector<LogitEdit>> edits_;  // of each segment by columns, where these have tokens of their own
};

// Notes a column as the next token of a draft, -1: there is none; whether the draft goes on after it.
bool note(const DraftRequest& d, int32_t which, int32_t column, float probability) {
    const int64_t at = which * d.stride + d.drafted[which]++;
    d.tokens[at] = column < 0 ? -1 : d.target_tokens ? d.target_tokens[column] : column;
    d.probabilities[at] = column < 0 ? NAN : probability;
    return column >= 0 && d.drafted[which] < d.counts[which] && probability >= d.min_probability[which];
}

bool note(const DraftRequest& d, int32_t which, const ArgMax& best) {
    return note(d, which, is_finite(best) ? best.index : -1, 1.0f / best.sum);
}

bool note(const Pass& pass, const DraftRequest& d, DraftChoices& choices, size_t row, int32_t which) {
    if (!choices.given()) return note(d, which, arg_max(pass, int64_t(row)));
    choices.count(size_t(which), choices.column(row));
    return note(d, which, choices.column(row), choices.confidence(row));
}

// Notes the token after each segment, and makes the plan of the next pass, of the segments that go on; false where none
// does. order: the number of each of the plan's segments in the request.
bool continue_draft(Pass& pass, const DraftRequest& d, DraftChoices& choices, std::vector<int32_t>& order) {
    std::vector<Segment> segments;
    std::vector<int32_t> next_order, tokens, logit_rows;
    std::vector<const float*> hidden;
    for (size_t i = 0; i < order.size(); i++) {
        const int32_t which = order[i];
        if (!note(pass, d, choices, i, which)) continue;
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
    choices.begin(order);
    pass.hidden = std::move(hidden), pass.own_hidden = true;
    return true;
}

// Notes the tokens of a block, whose rows with logits begin at `row`.
void note_block(const Pass& pass, const DraftRequest& d, int32_t which, int64_t row, int thread) {
    const bool chooses = pass.model.spec.draft_head.candidates > 0;
    int32_t last = pass.plan().tokens[size_t(pass.plan().first_row[size_t(which)])];
    ArgMax best;
    do {
        best = chooses ? choose_candidate(pass, thread, row, last) : arg_max(pass, row);
        row++, last = best.index;
    } while (note(d, which, best));
}

// Notes the next token of each block, and leaves those that go on.
void note_turns(const Pass& pass, const DraftRequest& d, std::vector<BlockTurn>& turns) {
    const bool says = pass.model.spec.draft_head.confidence_size > 0;
    size_t kept = 0;
    for (const BlockTurn& turn : turns) {
        const ArgMax best = arg_max(pass, turn.row);
        const float sure = says ? turn.confidence : 1.0f / best.sum;
        if (!note(d, turn.segment, is_finite(best) ? best.index : -1, sure)) continue;
        const int32_t last = d.tokens[turn.segment * d.stride + d.drafted[turn.segment] - 1];
        turns[kept++] = {turn.segment, last, turn.row + 1, NAN};
    }
    turns.resize(kept);
}

}  // namespace

void draft(Pass& pass, const DraftRequest& request) {
    const uint64_t started = __rdtsc();
    std::vector<int32_t> order;
    for (int32_t i = 0; i < int32_t(pass.plan().segments.size()); i++) order.push_back(i), request.drafted[i] = 0;
    DraftChoices choices(pass, request);
    choices.begin(order);
    const bool clusters = pass.model.spec.draft_head.clusters > 0;
    bool goes_on = true;  // written by thread 0, between two barriers
    pass.pool.run(
        [&](int thread) {
            while (goes_on) {
                run_layers(pass, thread);
                if (pass.model.spec.draft_head.feeds_back()) feed_back(pass, thread);
                if (clusters) find_cluster_maxima(pass, request.target_tokens, thread);
                else if (choices.given()) choices.choose(pass, thread);
                else find_maxima(pass, thread);
                if (thread == 0) goes_on = continue_draft(pass, request, choices, order);
                pass.wait(thread);
            }
        },
        pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

void draft_blocks(Pass& pass, const DraftRequest& request) {
    const uint64_t started = __rdtsc();
    const bool in_turn = pass.model.spec.draft_head.is_dspark();
    std::vector<int64_t> first{0};  // of each block's rows with logits
    std::vector<BlockTurn> turns;   // changed by thread 0, between two barriers
    for (size_t i = 0; i < pass.plan().segments.size(); i++) {
        first.push_back(first.back() + request.counts[i]);
        request.drafted[i] = 0;
        if (in_turn) turns.push_back({int32_t(i), pass.plan().tokens[size_t(pass.plan().first_row[i])], first[i], NAN});
    }
    pass.pool.run(
        [&](int thread) {
            run_layers(pass, thread);
            while (!turns.empty()) {
                follow_last_tokens(pass, turns, thread);
                if (thread == 0) note_turns(pass, request, turns);
                pass.wait(thread);
            }
            if (in_turn) return;
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
