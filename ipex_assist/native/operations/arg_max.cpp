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

// The `top` most likely of a row by descending logit: chunks that hold nothing as likely are skipped.
void find_top(const Pass& pass, int64_t row, const ArgMax& best, const TopTokens& c) {
    if (c.top == 0) return;
    const int64_t columns = vocabulary_columns(pass);
    const float* logits = pass.batch.logits + row * pass.batch.stride;
    const ArgMax* chunk = pass.activations.shared.maxima.row(row);
    int32_t* ids = c.top_tokens + row * c.top;
    float* logs = c.top_logs + row * c.top;
    const auto more = [](float value, float than) { return value > than; };
    int32_t found = 0;
    for (int64_t start = 0; start < columns; start += VOCABULARY_CHUNK, chunk++) {
        if (found == c.top && !(chunk->value > logs[found - 1])) continue;
        for (int64_t i = start; i < std::min(start + VOCABULARY_CHUNK, columns); i++) {
            if (found == c.top && !(logits[i] > logs[found - 1])) continue;
            if (found < c.top) found++;
            const int64_t at = std::upper_bound(logs, logs + found - 1, logits[i], more) - logs;
            std::copy_backward(logs + at, logs + found - 1, logs + found);
            std::copy_backward(ids + at, ids + found - 1, ids + found);
            logs[at] = logits[i], ids[at] = int32_t(i);
        }
    }
    const float log_sum = std::log(best.sum);
    for (int32_t i = 0; i < c.top; i++) logs[i] = logs[i] - best.value - log_sum;
}

void describe_row(const Pass& pass, int64_t row, const TopTokens& c) {
    const ArgMax best = arg_max(pass, row);
    const bool finite = is_finite(best);
    c.tokens[row] = finite ? best.index : -1;
    c.logs[row] = finite ? -std::log(best.sum) : NAN;
    c.log_sums[row] = finite ? best.value + std::log(best.sum) : NAN;
    if (finite) return find_top(pass, row, best, c);
    std::fill_n(c.top_tokens + row * c.top, c.top, -1);
    std::fill_n(c.top_logs + row * c.top, c.top, NAN);
}

}  // namespace

int64_t vocabulary_columns(const Pass& pass) {
    return pass.batch.vocabulary > 0 ? pass.batch.vocabulary : pass.model.spec.lm_head_rows();
}

bool is_finite(const ArgMax& m) { return std::isfinite(m.value) && std::isfinite(m.sum); }

void find_maxima(Pass& pass, int thread) {
    const int64_t chunks = chunks_of(pass), units = int64_t(pass.plan.logit_rows.size()) * chunks;
    const int64_t columns = vocabulary_columns(pass);
    for (int64_t u = share(units, thread, pass.plan.threads); u < share(units, thread + 1, pass.plan.threads); u++) {
        const int64_t first = u % chunks * VOCABULARY_CHUNK;
        ArgMax& found = pass.activations.shared.maxima.data[u];
        found = pass.kernels.argmax(pass.batch.logits + u / chunks * pass.batch.stride + first,
                                    std::min(VOCABULARY_CHUNK, columns - first));
        found.index += int32_t(first);
    }
    pass.wait(thread);
}

ArgMax arg_max(const Pass& pass, int64_t row) {
    const ArgMax *first = pass.activations.shared.maxima.row(row), *last = first + chunks_of(pass);
    ArgMax best = *std::max_element(first, last, [](const ArgMax& a, const ArgMax& b) { return a.value < b.value; });
    best.sum = 0;
    for (const ArgMax* m = first; m < last; m++) best.sum += m->sum * std::exp(m->value - best.value);
    return best;
}

void top_tokens(Pass& pass, const TopTokens& found) {
    const uint64_t started = __rdtsc();
    pass.pool.run(
        [&](int thread) {
            run_layers(pass, thread);
            find_maxima(pass, thread);
            const int64_t count = int64_t(pass.plan.logit_rows.size()),
                          end = share(count, thread + 1, pass.plan.threads);
            for (int64_t r = share(count, thread, pass.plan.threads); r < end; r++) describe_row(pass, r, found);
        },
        pass.plan.threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
