// The choice of a block's tokens, one after the other (ipex_assist/executors/torch/selector.py): the best token c is the
// one with the largest
//
//     logit[c] + Σ (before[last] · projection(row)) · after[c]
//
// where `last` is the token chosen before it. DFlash 2 (arithmetic of speculators 0.9, models/dflash2) chooses among the
// likeliest by the row's logits: those of all rows are found by all threads together, and a block's tokens are then
// chosen by one of them. DSpark (arXiv:2607.05147) has no projection and chooses among all tokens: its `after` is a
// linear, which all threads multiply for one token of each block at a time. It may also say how likely a token is right.
#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// A token's row of one of the tables.
void read_row(const PackedModel& model, const uint8_t* table, int32_t token, float* out) {
    const bool wide = model.spec.precision == FP32;
    const int64_t rank = model.spec.draft_head.selector_rank, first = int64_t(token) * rank;
    model.kernels->widen(wide ? SOURCE_F32 : SOURCE_BF16, table + first * (wide ? 4 : 2), rank, out);
}

// What the confidence head says of the token after the one whose row of `before` this is.
float confidence_of(const Pass& pass, int thread, int64_t row, const float* of_token) {
    const PackedModel& model = pass.model;
    const SelectorWeights& selector = model.selector;
    const int64_t size = model.spec.hidden_size, rest = model.spec.draft_head.confidence_size - size;
    const float* x = pass.activations.shared.x.row(pass.plan().logit_rows[size_t(row)]);
    float* normed = pass.activations.own(thread).row.data;
    if (model.spec.streams.several()) x = read_streams(model.spec, x, normed);  // before the norm
    else if (model.into_head.pre) normalize(pass, *model.into_head.pre, x, normed), x = normed;
    const float logit = pass.kernels.dot(x, selector.confidence, size) +
                        pass.kernels.dot(of_token, selector.confidence + size, rest) +
                        (selector.confidence_bias ? *selector.confidence_bias : 0.0f);
    return 1 / (1 + std::exp(-logit));
}

// This thread's columns of `markov`, of the tokens before, to the logits of the rows that they belong to.
void add_markov(Pass& pass, const std::vector<BlockTurn>& turns, const Linear& markov, int thread) {
    const Array<float>& room = pass.activations.own(thread).up;
    const LinearRows in = pass.inputs(thread, markov.depth);
    const auto [first, last] = slice(pass, markov, thread);
    for (int64_t panel = first; panel < last; panel += UP_PANELS) {
        const int64_t next = std::min(panel + UP_PANELS, last);
        pass.model.multiply(markov, in, int64_t(turns.size()), panel, next, room.data, room.columns);
        for (size_t i = 0; i < turns.size(); i++) {
            float* logits = pass.batch.logits + turns[i].row * pass.batch.stride + panel * LANES;
            pass.kernels.add(logits, room.row(int64_t(i)), (next - panel) * LANES);
        }
    }
}

}  // namespace

void follow_last_tokens(Pass& pass, std::vector<BlockTurn>& turns, int thread) {
    const PackedModel& model = pass.model;
    const HeadSpec& head = model.spec.draft_head;
    const int64_t count = int64_t(turns.size()), threads = pass.plan().threads, rank = head.selector_rank;
    float* of_token = pass.activations.own(thread).of_token.data;
    Linear markov = model.selector.markov;
    markov.panels = std::min(markov.panels, pass.head.panels);  // of the vocabulary that is asked for
    for (int64_t i = share(count, thread, int(threads)); i < share(count, thread + 1, int(threads)); i++) {
        BlockTurn& turn = turns[size_t(i)];
        if (rank) read_row(model, model.selector.before, turn.last, of_token);
        if (head.confidence_size) turn.confidence = confidence_of(pass, thread, turn.row, of_token);
        if (rank) prepare_row(pass, thread, of_token, rank, 0, markov.depth, i, markov, &NodeBuffers::inputs);
    }
    if (rank) {
        pass.wait(thread);
        add_markov(pass, turns, markov, thread);
        pass.wait(thread);
    }
    const int64_t chunks = pass.activations.shared.maxima.columns, items = count * chunks;
    for (int64_t u = share(items, thread, int(threads)); u < share(items, thread + 1, int(threads)); u++)
        describe_chunk(pass, turns[size_t(u / chunks)].row, u % chunks);
    pass.wait(thread);
}

void find_candidates(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const Linear& projection = model.selector.projection;
    const SharedBuffers& shared = pass.activations.shared;
    const int64_t rows = int64_t(pass.plan().logit_rows.size()), size = model.spec.hidden_size;
    const int64_t first = share(rows, thread, pass.plan().threads), end = share(rows, thread + 1, pass.plan().threads);
    float* normed = pass.activations.own(thread).row.data;
    for (int64_t i = first; i < end; i++) {
        const float* x = shared.x.row(pass.plan().logit_rows[size_t(i)]);
        if (model.into_head.pre) normalize(pass, *model.into_head.pre, x, normed);
        prepare_row(pass, thread, model.into_head.pre ? normed : x, size, 0, projection.depth, i, projection,
                    &NodeBuffers::inputs);
        find_top(pass, i, int32_t(shared.candidates.columns), shared.candidates.row(i), shared.scores.row(i));
    }
    pass.wait(thread);
    linear(pass, thread, pass.inputs(thread, projection.depth), projection, rows, shared.contexts.data,
           shared.contexts.columns);
}

ArgMax choose_candidate(const Pass& pass, int thread, int64_t row, int32_t last) {
    const ArgMax likeliest = arg_max(pass, row);
    if (!is_finite(likeliest)) return likeliest;
    const PackedModel& model = pass.model;
    const SharedBuffers& shared = pass.activations.shared;
    const int32_t* candidates = shared.candidates.row(row);
    float *context = shared.contexts.row(row), *scores = shared.scores.row(row);
    float* of_token = pass.activations.own(thread).of_token.data;
    const int64_t rank = model.spec.draft_head.selector_rank, count = shared.candidates.columns;
    read_row(model, model.selector.before, last, of_token);
    for (int64_t k = 0; k < rank; k++) context[k] *= of_token[k];
    for (int64_t c = 0; c < count; c++) {
        read_row(model, model.selector.after, candidates[c], of_token);
        scores[c] += pass.kernels.dot(context, of_token, rank);
    }
    ArgMax best = pass.kernels.argmax(scores, count);
    best.index = candidates[best.index];
    return best;
}

}  // namespace ipex_assist
