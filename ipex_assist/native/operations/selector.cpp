// DFlash 2's choice of a block's tokens, one after the other (ipex_assist/executors/torch/dynamic_conv.py: Selector;
// arithmetic of speculators 0.9, models/dflash2): of the likeliest tokens c by a row's logits, the best is the one with
// the largest
//
//     logit[c] + Σ (before[last] · projection(row)) · after[c]
//
// where `last` is the token chosen before it. The likeliest ones of all rows are found by all threads together; a
// block's tokens are then chosen by one of them.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// A token's row of one of the tables.
void read_row(const PackedModel& model, const uint8_t* table, int32_t token, float* out) {
    const bool wide = model.spec.precision == FP32;
    const int64_t rank = model.spec.draft_head.selector_rank, first = int64_t(token) * rank;
    model.kernels->widen(wide ? SOURCE_F32 : SOURCE_BF16, table + first * (wide ? 4 : 2), rank, out);
}

}  // namespace

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
