// The most likely tokens by a pass's logits.
//
// The sum of a row's exponentials is taken over chunks of a fixed size, whose sums are added in their order: so neither
// the number of threads nor the rows beside it can change its bits.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

int64_t chunks_of(const Pass& pass) { return pass.activations.shared.maxima.columns; }

// The likeliest tokens so far, by descending logit.
struct TopList {
    int32_t count;
    int32_t* tokens;
    float* logits;
    int32_t found = 0;

    bool takes(float logit) const { return found < count || logit > logits[found - 1]; }
    void add(int32_t token, float logit) {
        if (found < count) found++;
        const auto more = [](float value, float than) { return value > than; };
        const int64_t at = std::upper_bound(logits, logits + found - 1, logit, more) - logits;
        std::copy_backward(logits + at, logits + found - 1, logits + found);
        std::copy_backward(tokens + at, tokens + found - 1, tokens + found);
        logits[at] = logit, tokens[at] = token;
    }
};

void describe_top(const Pass& pass, int64_t row, const ArgMax& best, const TopTokens& c) {
    float* logs = c.top_logs + row * c.top;
    find_top(pass, row, c.top, c.top_tokens + row * c.top, logs);
    const float log_sum = std::log(best.sum);
    for (int32_t i = 0; i < c.top; i++) logs[i] = logs[i] - best.value - log_sum;
}

void describe_row(const Pass& pass, int64_t row, const TopTokens& c) {
    const ArgMax best = arg_max(pass, row);
    const bool finite = is_finite(best);
    c.tokens[row] = finite ? best.index : -1;
    c.logs[row] = finite ? -std::log(best.sum) : NAN;
    c.log_sums[row] = finite ? best.value + std::log(best.sum) : NAN;
    if (finite) return describe_top(pass, row, best, c);
    std::fill_n(c.top_tokens + row * c.top, c.top, -1);
    std::fill_n(c.top_logs + row * c.top, c.top, NAN);
}

}  // namespace

int64_t vocabulary_columns(const Pass& pass) {
    return pass.batch.vocabulary > 0 ? pass.batch.vocabulary : pass.model.spec.lm_head_rows();
}

bool is_finite(const ArgMax& m) { return std::isfinite(m.value) && std::isfinite(m.sum); }

void describe_chunk(Pass& pass, int64_t row, int64_t chunk) {
    const int64_t first = chunk * VOCABULARY_CHUNK, size = std::min(VOCABULARY_CHUNK, vocabulary_columns(pass) - first);
    ArgMax& found = pass.activations.shared.maxima.row(row)[chunk];
    found = pass.kernels.argmax(pass.batch.logits + row * pass.batch.stride + first, size);
    found.index += int32_t(first);
    if (found.value == -INFINITY) found.sum = 0;  // all of them are masked
}

void find_maxima(Pass& pass, int thread) {
    const int64_t chunks = chunks_of(pass), items = int64_t(pass.plan().logit_rows.size()) * chunks;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads); u++)
        describe_chunk(pass, u / chunks, u % chunks);
    pass.wait(thread);
}

ArgMax arg_max(const Pass& pass, int64_t row) {
    const ArgMax *first = pass.activations.shared.maxima.row(row), *last = first + chunks_of(pass);
    ArgMax best = *std::max_element(first, last, [](const ArgMax& a, const ArgMax& b) { return a.value < b.value; });
    best.sum = 0;
    for (const ArgMax* m = first; m < last; m++) best.sum += m->sum * std::exp(m->value - best.value);
    return best;
}

// Chunks, and groups of their columns, that hold nothing as likely are skipped.
void find_top(const Pass& pass, int64_t row, int32_t count, int32_t* tokens, float* logits) {
    if (count == 0) return;
    const int64_t columns = vocabulary_columns(pass);
    const float* all = pass.batch.logits + row * pass.batch.stride;
    const ArgMax* chunk = pass.activations.shared.maxima.row(row);
    TopList top{count, tokens, logits};
    for (int64_t start = 0; start < columns; start += VOCABULARY_CHUNK, chunk++) {
        if (!top.takes(chunk->value)) continue;
        const int64_t end = std::min(start + VOCABULARY_CHUNK, columns);
        float maxima[CHUNK_GROUPS];
        pass.kernels.group_maxima(all + start, end - start, maxima);
        for (int64_t from = start, group = 0; from < end; from += NOISE_GROUP, group++) {
            if (!top.takes(maxima[group])) continue;
            for (int64_t i = from; i < std::min(from + NOISE_GROUP, end); i++) {
                if (top.takes(all[i])) top.add(int32_t(i), all[i]);
            }
        }
    }
}

void top_tokens(Pass& pass, const TopTokens& found) {
    const uint64_t started = __rdtsc();
    pass.pool.run(
        [&](int thread) {
            run_layers(pass, thread);
            find_maxima(pass, thread);
            const int64_t count = int64_t(pass.plan().logit_rows.size()),
                          end = share(count, thread + 1, pass.plan().threads);
            for (int64_t r = share(count, thread, pass.plan().threads); r < end; r++) describe_row(pass, r, found);
        },
        pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
