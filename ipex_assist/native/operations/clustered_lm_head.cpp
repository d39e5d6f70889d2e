// The head of drafts whose tokens are in clusters (Gemma 4's assistants): a linear scores the clusters, and a row has
// logits of the tokens of the best ones alone, cluster by cluster. lm_head has its tokens in this order, too.
#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

int64_t tokens_each(const Pass& pass) {
    const ModelSpec& spec = pass.model.spec;
    return spec.draft_head.tokens_of_cluster(spec.lm_head_rows());
}

// The `count` best of `clusters` by their scores, of equal ones the first, ascending.
void choose_clusters(const float* scores, int32_t clusters, int32_t count, int32_t* chosen) {
    const auto better = [&](int32_t a, int32_t b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    for (int32_t c = 0; c < clusters; c++) {
        if (c < count) {
            chosen[c] = c;
            std::push_heap(chosen, chosen + c + 1, better);  // the worst of them is the first
        } else if (better(c, chosen[0])) {
            std::pop_heap(chosen, chosen + count, better);
            chosen[count - 1] = c;
            std::push_heap(chosen, chosen + count, better);
        }
    }
    std::sort(chosen, chosen + count);
}

// Rows first <= t < end of lm_head for one row, which `in` is, to `to`.
void token_logits(const Pass& pass, const LinearRows& in, const Array<float>& room, int64_t first, int64_t end,
                  float* to) {
    for (int64_t panel = first / LANES, last = (end + LANES - 1) / LANES; panel < last; panel += UP_PANELS) {
        const int64_t next = std::min(panel + UP_PANELS, last), start = panel * LANES;
        pass.model.multiply(pass.head, in, 1, panel, next, room.data, room.columns);
        const int64_t from = std::max(first, start), until = std::min(end, next * LANES);
        std::copy(room.data + (from - start), room.data + (until - start), to + (from - first));
    }
}

// This thread's share of the clusters that rows read.
void cluster_logits(const Pass& pass, int thread) {
    const ThreadBuffers& own = pass.activations.own(thread);
    const Array<int32_t>& chosen = pass.activations.shared.clusters;
    const LinearRows in = own.inputs.with_depth(pass.head.depth);
    const int64_t each = tokens_each(pass), read = chosen.columns, size = pass.model.spec.hidden_size;
    const int64_t items = int64_t(pass.plan().logit_rows.size()) * read;
    int64_t prepared = -1;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t row = u / read, first = chosen.data[u] * each;
        if (row != prepared) {
            const float* x = pass.activations.shared.x.row(pass.plan().logit_rows[size_t(row)]);
            if (pass.model.into_head.pre) normalize(pass, *pass.model.into_head.pre, x, own.row.data);
            else std::copy(x, x + size, own.row.data);
            prepare_row(pass, thread, own.row.data, size, 0, pass.head.depth, 0, pass.head, in);
            prepared = row;
        }
        float* to = pass.batch.logits + row * pass.batch.stride + u % read * each;
        token_logits(pass, in, own.up, first, first + each, to);
    }
}

}  // namespace

void clustered_lm_head(Pass& pass, int thread) {
    const PackedModel& model = pass.model;
    const int32_t clusters = model.spec.draft_head.clusters;
    const Array<float>& scores = pass.activations.shared.cluster_scores;
    const Array<int32_t>& chosen = pass.activations.shared.clusters;
    const int64_t count = int64_t(pass.plan().logit_rows.size());
    residual_norm(pass, thread, model.into_head, &pass.plan().logit_rows, pass.after_layers());
    linear(pass, thread, pass.inputs(thread, model.clusters.depth), model.clusters, count, scores.data, scores.columns);
    for (int64_t i = share(count, thread, pass.plan().threads); i < share(count, thread + 1, pass.plan().threads); i++)
        choose_clusters(scores.row(i), clusters, int32_t(chosen.columns), chosen.row(i));
    pass.wait(thread);
    cluster_logits(pass, thread);
    pass.wait(thread);
}

// Tokens that a row does not read have the least of its logits, - 1, and so have those that are not asked for.
void find_cluster_maxima(Pass& pass, const int32_t* order, int thread) {
    const Array<int32_t>& chosen = pass.activations.shared.clusters;
    const int64_t each = tokens_each(pass), columns = chosen.columns * each,
                  count = int64_t(pass.plan().logit_rows.size());
    const int64_t vocabulary = vocabulary_columns(pass), all = pass.model.spec.lm_head_rows();
    for (int64_t i = share(count, thread, pass.plan().threads); i < share(count, thread + 1, pass.plan().threads);
         i++) {
        float* logits = pass.batch.logits + i * pass.batch.stride;
        const auto row_of = [&](int64_t at) { return int32_t(chosen.row(i)[at / each] * each + at % each); };
        float fill = INFINITY;
        bool finite = true;
        for (int64_t c = 0; c < columns; c++) finite &= std::isfinite(logits[c]), fill = std::min(fill, logits[c]);
        fill -= 1;
        for (int64_t c = 0; vocabulary < all && c < columns; c++) {
            if ((order ? order[row_of(c)] : row_of(c)) >= vocabulary) logits[c] = fill;
        }
        ArgMax& found = *pass.activations.shared.maxima.row(i);
        found = pass.kernels.argmax(logits, columns);
        found.sum += float(vocabulary - columns) * std::exp(fill - found.value);
        if (found.value > fill) found.index = row_of(found.index);
        else found.index = order ? int32_t(std::find(order, order + all, 0) - order) : 0;  // it reads none of them
        if (!finite) found.sum = NAN;
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
