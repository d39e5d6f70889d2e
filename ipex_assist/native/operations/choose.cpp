// What is likeliest by a pass's logits, and drafting: passes that go on with it.
//
// The sum of a row's exponentials is taken over chunks of a fixed size, whose sums are added in their order: so neither
// the number of threads nor the rows beside it can change its bits.
#include <algorithm>
#include <cmath>

#include "operations/forward.h"

#include <x86intrin.h>

namespace ipex_assist {
namespace {

constexpr int64_t CHUNK = 2048;  // columns

}  // namespace

int32_t Forward::choice_columns() const { return batch_.vocabulary > 0 ? batch_.vocabulary : spec_.vocab_size; }

int64_t Forward::choice_chunks() const { return (choice_columns() + CHUNK - 1) / CHUNK; }

// The maximum of each chunk of each row.
void Forward::find_maxima(int thread) {
    const int64_t chunks = choice_chunks(), units = int64_t(wanted_.size()) * chunks;
    for (int64_t u = share(units, thread, threads()); u < share(units, thread + 1, threads()); u++) {
        const int64_t first = u % chunks * CHUNK;
        ArgMax& found = w_.maxima.as<ArgMax>()[u];
        found =
            k_.argmax(batch_.logits + u / chunks * batch_.stride + first, std::min(CHUNK, choice_columns() - first));
        found.index += int32_t(first);
    }
    wait(thread);
}

// That of a row, with the sum over all of it. The sum or the value is no number where a logit is none.
ArgMax Forward::likeliest(int64_t row) const {
    const ArgMax *first = w_.maxima.as<ArgMax>() + row * choice_chunks(), *last = first + choice_chunks();
    ArgMax best = *std::max_element(first, last, [](const ArgMax& a, const ArgMax& b) { return a.value < b.value; });
    best.sum = 0;
    for (const ArgMax* m = first; m < last; m++) best.sum += m->sum * std::exp(m->value - best.value);
    return best;
}

namespace {

bool is_number(const ArgMax& m) { return std::isfinite(m.value) && std::isfinite(m.sum); }

}  // namespace

// The likeliest of a row in their order: chunks that hold nothing as likely are skipped.
void Forward::find_top(int64_t row, const ArgMax& best, const Choices& c) const {
    if (c.top == 0) return;
    const float* logits = batch_.logits + row * batch_.stride;
    const ArgMax* chunk = w_.maxima.as<ArgMax>() + row * choice_chunks();
    int32_t* ids = c.top_tokens + row * c.top;
    float* logs = c.top_logs + row * c.top;
    const auto more = [](float value, float than) { return value > than; };
    int32_t found = 0;
    for (int64_t start = 0; start < choice_columns(); start += CHUNK, chunk++) {
        if (found == c.top && !(chunk->value > logs[found - 1])) continue;
        for (int64_t i = start; i < std::min<int64_t>(start + CHUNK, choice_columns()); i++) {
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

void Forward::choose(const Choices& c) {
    const uint64_t started = __rdtsc();
    w_.maxima.grow(wanted_.size() * size_t(choice_chunks()) * sizeof(ArgMax));
    pool_.run(
        [&](int thread) {
            pass(thread);
            find_maxima(thread);
            const int64_t count = int64_t(wanted_.size());
            for (int64_t r = share(count, thread, threads()); r < share(count, thread + 1, threads()); r++) {
                const ArgMax best = likeliest(r);
                const bool number = is_number(best);
                c.tokens[r] = number ? best.index : -1;
                c.logs[r] = number ? -std::log(best.sum) : NAN;
                c.log_sums[r] = number ? best.value + std::log(best.sum) : NAN;
                if (number) {
                    find_top(r, best, c);
                } else {
                    std::fill_n(c.top_tokens + r * c.top, c.top, -1);
                    std::fill_n(c.top_logs + r * c.top, c.top, NAN);
                }
            }
        },
        threads());
    timing.total += __rdtsc() - started;
}

// Notes what each stretch's logits say, and makes the next pass of those that go on. order: which each of them is.
void Forward::go_on(const Drafts& d, std::vector<int32_t>& order) {
    size_t kept = 0;
    for (size_t i = 0; i < order.size(); i++) {
        const int32_t which = order[i];
        const ArgMax best = likeliest(int64_t(i));
        const bool number = is_number(best);
        const float probability = number ? 1.0f / best.sum : NAN;
        int32_t& drafted = d.drafted[which];
        d.tokens[which * d.stride + drafted] = number ? best.index : -1;
        d.probabilities[which * d.stride + drafted] = probability;
        drafted++;
        if (drafted == d.counts[which] || !(probability >= d.least[which])) continue;
        Stretch next = stretches_[i];
        next.start += next.rows, next.rows = 1;
        stretches_[kept] = next, order[kept] = which;
        tokens_[kept] = best.index, wanted_[kept] = int32_t(kept);
        kept++;
    }
    stretches_.resize(kept), order.resize(kept), tokens_.resize(kept), wanted_.resize(kept);
    done_ = kept == 0;
    if (!done_) place_rows();
}

void Forward::draft(const Drafts& drafts) {
    const uint64_t started = __rdtsc();
    w_.maxima.grow(wanted_.size() * size_t(choice_chunks()) * sizeof(ArgMax));
    std::vector<int32_t> order;
    for (size_t i = 0; i < stretches_.size(); i++) order.push_back(int32_t(i)), drafts.drafted[i] = 0;
    pool_.run(
        [&](int thread) {
            while (!done_) {
                pass(thread);
                find_maxima(thread);
                if (thread == 0) go_on(drafts, order);
                wait(thread);
            }
        },
        threads());
    timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
