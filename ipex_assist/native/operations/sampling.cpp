// From logits to tokens in the pass itself: biases, penalties, masks, temperature, top-k, top-p, min-p, Gumbel noise.
//
// The rules are those of ipex_assist/speculative/choosing/sampling.py, and so are the tokens. Threads share the rows by
// chunks of a fixed size, whose sums are added in their order: neither their number nor the rows beside a row change
// its token.
//
// Greedy rows and those with top-k are decided by one thread each, by maxima of small groups of columns. The others are
// searched by all threads for the arg-max of logit ÷ temperature + noise. top-p is then a question about that one
// token: is the sum of what is likelier below p? Mostly it is; else the search goes on among the likelier ones. So
// nothing is sorted, and noise is computed for few tokens.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "operations/logit_row.h"

namespace ipex_assist {
namespace {

// f(row, chunk) for this thread's share of the chunks of all rows.
template <class F>
void for_chunks(const Pass& pass, int thread, F&& f) {
    const int64_t chunks = pass.activations.shared.noisy_tokens.columns;
    const int64_t items = int64_t(pass.plan().logit_rows.size()) * chunks, threads = pass.plan().threads;
    for (int64_t u = share(items, thread, threads); u < share(items, thread + 1, threads); u++)
        f(u / chunks, u % chunks);
}

// f(row) for this thread's share of the rows.
template <class F>
void for_rows(const Pass& pass, int thread, F&& f) {
    const int64_t rows = int64_t(pass.plan().logit_rows.size()), threads = pass.plan().threads;
    for (int64_t r = share(rows, thread, threads); r < share(rows, thread + 1, threads); r++) f(r);
}

void edit(const SamplingRule& rule, const LogitEdit& e, float& logit) {
    logit += e.bias;
    if (!e.seen) return;
    logit = logit < 0 ? logit * rule.repetition_penalty : logit / rule.repetition_penalty;
    logit = logit - rule.frequency_penalty * float(e.generated);
    logit = logit - rule.presence_penalty * float(e.generated > 0);
}

void edit_columns(const RowChoice& choice, float* logits, int64_t first, int64_t end) {
    const auto before = [](const LogitEdit& e, int64_t token) { return e.token < token; };
    const LogitEdit *last = choice.edits + choice.edit_count, *e = std::lower_bound(choice.edits, last, first, before);
    const int32_t *next = choice.following, *last_next = next + choice.following_count;
    for (; e < last && e->token < end; e++) {
        LogitEdit each = *e;
        if (const auto count = std::count(next, last_next, each.token)) each.seen = 1, each.generated += int32_t(count);
        edit(*choice.rule, each, logits[each.token]);
    }
    for (const int32_t* t = next; t < last_next; t++) {
        if (*t < first || *t >= end || std::find(next, t, *t) < t) continue;
        e = std::lower_bound(choice.edits, last, int64_t(*t), before);
        if (e == last || e->token != *t)
            edit(*choice.rule, {*t, 0, 1, int32_t(std::count(next, last_next, *t))}, logits[*t]);
    }
}

// Logits become those that are chosen from; group maxima are NaN where a token that may not be chosen has NaN or
// infinity, too.
void edit_chunk(Pass& pass, const RowChoice& choice, int64_t row, int64_t chunk) {
    const int64_t first = chunk * VOCABULARY_CHUNK, columns = vocabulary_columns(pass);
    const int64_t size = std::min(VOCABULARY_CHUNK, columns - first);
    float* logits = pass.batch.logits + row * pass.batch.stride;
    float* maxima = pass.activations.shared.group_maxima.row(row) + chunk * CHUNK_GROUPS;
    if (choice.logits) std::memcpy(choice.logits + first, logits + first, size_t(size) * sizeof(float));
    if (choice.edit_count || choice.following_count) edit_columns(choice, logits, first, first + size);
    pass.kernels.group_maxima(logits + first, size, maxima);
    if (!choice.mask) return;
    float before[CHUNK_GROUPS];
    const int64_t groups = (size + NOISE_GROUP - 1) / NOISE_GROUP;
    std::copy_n(maxima, groups, before);
    for (int64_t i = first; i < first + size; i++) logits[i] = choice.mask[i] ? logits[i] : -INFINITY;
    pass.kernels.group_maxima(logits + first, size, maxima);
    for (int64_t i = 0; i < groups; i++) maxima[i] = before[i] < INFINITY ? maxima[i] : NAN;
}

// The largest of the groups' maxima; NaN where one is.
float largest_of(const LogitRow& row) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < row.groups; i++) {
        if (std::isnan(row.maxima[i])) return NAN;
        largest = std::max(largest, row.maxima[i]);
    }
    return largest;
}

// The first column of that value.
int32_t find(const LogitRow& row, float value) {
    const int64_t group = std::find(row.maxima, row.maxima + row.groups, value) - row.maxima;
    const float *first = row.logits + group * NOISE_GROUP, *end = row.logits + row.columns;
    return int32_t(std::find(first, end, value) - row.logits);
}

struct Candidates {
    std::vector<int32_t> tokens;  // ascending
    std::vector<float> logits;
    // Keeps those for which keep(index) is true.
    template <class F>
    void filter(F&& keep) {
        size_t kept = 0;
        for (size_t i = 0; i < tokens.size(); i++) {
            if (keep(i)) tokens[kept] = tokens[i], logits[kept++] = logits[i];
        }
        tokens.resize(kept), logits.resize(kept);
    }
};

float kth_largest(std::vector<float> values, int64_t k) {
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
    return values[size_t(k - 1)];
}

// Tokens at least as likely as the k-th. That one is in one of the k groups with the largest maxima, or as likely as
// the smallest of these.
Candidates most_likely(const LogitRow& row) {
    const int64_t k = row.rule.top_k;
    const float bound = k <= row.groups ? kth_largest({row.maxima, row.maxima + row.groups}, k) : -INFINITY;
    Candidates found;
    for (int64_t g = 0; g < row.groups; g++) {
        if (row.maxima[g] < bound) continue;
        for (int64_t i = g * NOISE_GROUP; i < std::min(row.columns, (g + 1) * NOISE_GROUP); i++) {
            if (row.logits[i] >= bound && row.logits[i] > -INFINITY)
                found.tokens.push_back(int32_t(i)), found.logits.push_back(row.logits[i]);
        }
    }
    if (int64_t(found.tokens.size()) > k) {
        const float least = kth_largest(found.logits, k);
        found.filter([&](size_t i) { return found.logits[i] >= least; });
    }
    return found;
}

// Keeps the smallest set of the most likely candidates whose probability reaches top_p: a token is kept if those before
// it do not reach it.
void keep_nucleus(const Pass& pass, const LogitRow& row, Candidates& found) {
    const size_t count = found.tokens.size();
    std::vector<float> weights(count);
    pass.kernels.sampling_weights(found.logits.data(), int64_t(count), row.state.largest, float(row.rule.temperature),
                                  weights.data());
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t(0));
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return weights[a] != weights[b] ? weights[a] > weights[b] : a < b; });
    std::vector<bool> kept(count);
    double reached = 0;
    for (size_t i = 0; i < count && (i == 0 || reached < row.rule.top_p * total); i++) {
        kept[order[i]] = true;
        reached += double(weights[order[i]]);
    }
    found.filter([&](size_t i) { return kept[i]; });
}

float least_of_min_p(const LogitRow& row) { return float(double(row.state.largest) + row.rule.min_p_distance); }

int32_t choose_among_most_likely(const Pass& pass, const LogitRow& row) {
    Candidates found = most_likely(row);
    const float least = least_of_min_p(row);
    row.state.kept = std::max(*std::min_element(found.logits.begin(), found.logits.end()), least);
    if (row.rule.top_p < 1) keep_nucleus(pass, row, found);
    NoisyToken best{-INFINITY, -1};
    for (size_t i = 0; i < found.tokens.size(); i++) {
        if (!(found.logits[i] >= least)) continue;
        const NoisyToken each = row.noisy(found.tokens[i]);
        if (better(each, best)) best = each;
    }
    return best.token;
}

// What may be chosen is at least this: a little less than min_p's least, or than what top-p can keep, as those below it
// have less than 1 - p together.
float least_searched(const LogitRow& row) {
    const float least = least_of_min_p(row);
    if (row.rule.top_p >= 1) return least;
    const double cut = std::log((1 - row.rule.top_p) / double(row.columns)) - 0.01;
    const double largest = double(row.state.largest);
    return std::max(least, float(largest + row.rule.temperature * cut - 1e-6 * std::abs(largest)));
}

// Chooses by the maxima where that is enough; else begins the search.
void begin_row(const Pass& pass, const LogitRow& row, int32_t* token) {
    SampledRow& state = row.state;
    state.largest = largest_of(row), state.open = 0, *token = -1;
    if (!std::isfinite(state.largest)) return;
    if (row.rule.temperature == 0) {
        *token = find(row, state.largest);
    } else if (!row.searched()) {
        *token = choose_among_most_likely(pass, row);
    } else {
        state.least = least_searched(row), state.kept = least_of_min_p(row);
        state.limit = INFINITY, state.rejected = -1, state.open = 1;
        state.likeliest = row.noisy(find(row, state.largest));
    }
}

// The best of a chunk, or `best` where none is better.
NoisyToken search_chunk(const Pass& pass, const LogitRow& row, int64_t chunk, NoisyToken best) {
    const SampledRow& state = row.state;
    const double temperature = row.rule.temperature;
    int32_t found[NOISE_GROUP];
    for (int64_t g = chunk * CHUNK_GROUPS; g < std::min(row.groups, (chunk + 1) * CHUNK_GROUPS); g++) {
        const float maximum = row.maxima[g];
        if (!(maximum >= state.least)) continue;
        if (double(maximum) / temperature + LARGEST_NOISE < best.score) continue;
        const int32_t count = row.find_noise(pass, g, state.least, best.score, found);
        for (int32_t i = 0; i < count; i++) {
            const NoisyToken each = row.noisy(found[i]);
            if (!better(each, best)) continue;
            if (state.rejected >= 0) {  // what is likelier than that one is left
                const float weight = row.weight(pass, each.token);
                if (weight < state.limit || (weight == state.limit && each.token >= state.rejected)) continue;
            }
            best = each;
        }
    }
    return best;
}

NoisyToken best_of(const Pass& pass, int64_t number) {
    const Array<NoisyToken>& chunks = pass.activations.shared.noisy_tokens;
    return *std::min_element(chunks.row(number), chunks.row(number) + chunks.columns, better);
}

// Whether top-p must be asked about a token: the likeliest one it keeps always.
bool in_question(const LogitRow& row, const NoisyToken& best) {
    return row.state.open && row.rule.top_p < 1 && best.token != row.state.likeliest.token;
}

void sum_chunk(const Pass& pass, const LogitRow& row, int64_t number, int64_t chunk, int32_t token) {
    const int64_t first = chunk * VOCABULARY_CHUNK;
    pass.activations.shared.weight_sums.row(number)[chunk] =
        pass.kernels.sum_weights(row.logits + first, std::min(VOCABULARY_CHUNK, row.columns - first), row.state.largest,
                                 float(row.rule.temperature), row.weight(pass, token), int64_t(token) - first);
}

// The row's token, or a further search among those that are likelier.
void decide(const Pass& pass, const LogitRow& row, int64_t number, int32_t* token) {
    SampledRow& state = row.state;
    if (!state.open) return;
    const NoisyToken best = best_of(pass, number);
    if (in_question(row, best)) {
        const Array<WeightSums>& chunks = pass.activations.shared.weight_sums;
        WeightSums sums{0, 0};
        for (int64_t i = 0; i < chunks.columns; i++)
            sums.all += chunks.row(number)[i].all, sums.likelier += chunks.row(number)[i].likelier;
        if (!(sums.likelier < row.rule.top_p * sums.all)) {
            state.limit = row.weight(pass, best.token), state.rejected = best.token;
            // Rounding may give a smaller logit the same weight.
            const double logit = double(row.logits[best.token]), distance = double(state.largest) - logit;
            state.least =
                std::max(state.least, float(logit - 1e-6 * (distance + std::abs(logit) + row.rule.temperature)));
            return;
        }
    }
    state.open = 0, *token = best.token;
}

class Sampler {
public:
    Sampler(Pass& pass, const SampledTokens& s) : pass_(pass), s_(s) {}

    // By every thread of the pass.
    void run(int thread) {
        for_chunks(pass_, thread, [&](int64_t r, int64_t c) {
            edit_chunk(pass_, s_.choices[r], r, c);
            if (s_.confidence) describe_chunk(pass_, r, c);
        });
        pass_.wait(thread);
        for_rows(pass_, thread, [&](int64_t r) { begin_row(pass_, row(r), s_.columns + r); });
        if (!s_.confidence && !searches()) return;
        pass_.wait(thread);
        while (any_open()) {
            search(thread);
            pass_.wait(thread);
            if (asks_top_p()) {
                sum(thread);
                pass_.wait(thread);
            }
            for_rows(pass_, thread, [&](int64_t r) { decide(pass_, row(r), r, s_.columns + r); });
            pass_.wait(thread);
        }
        if (!s_.confidence) return;
        for_rows(pass_, thread,
                 [&](int64_t r) { s_.confidence[r] = draft_confidence(pass_, row(r), r, s_.columns[r]); });
        pass_.wait(thread);
    }

private:
    LogitRow row(int64_t number) const { return {pass_, s_.choices[number], number, s_.target_tokens}; }
    int64_t rows() const { return int64_t(pass_.plan().logit_rows.size()); }
    bool searches() const {
        for (int64_t r = 0; r < rows(); r++) {
            if (row(r).searched()) return true;
        }
        return false;
    }
    bool asks_top_p() const {
        for (int64_t r = 0; r < rows(); r++) {
            if (row(r).searched() && s_.choices[r].rule->top_p < 1) return true;
        }
        return false;
    }
    bool any_open() const {
        for (int64_t r = 0; r < rows(); r++) {
            if (pass_.activations.shared.sampled_rows.row(r)->open) return true;
        }
        return false;
    }

    void search(int thread) {
        int64_t number = -1;
        NoisyToken best{};  // of this thread's chunks of a row: what one has found spares work in the next
        for_chunks(pass_, thread, [&](int64_t r, int64_t chunk) {
            const LogitRow each = row(r);
            if (!each.state.open) return;
            if (r != number) number = r, best = each.state.likeliest;
            best = search_chunk(pass_, each, chunk, best);
            pass_.activations.shared.noisy_tokens.row(r)[chunk] = best;
        });
    }

    void sum(int thread) {
        int64_t number = -1;
        NoisyToken best{};
        for_chunks(pass_, thread, [&](int64_t r, int64_t chunk) {
            const LogitRow each = row(r);
            if (!each.state.open) return;
            if (r != number) number = r, best = best_of(pass_, r);
            if (in_question(each, best)) sum_chunk(pass_, each, r, chunk, best.token);
        });
    }

    Pass& pass_;
    const SampledTokens s_;
};

}  // namespace

void sample_rows(Pass& pass, const SampledTokens& s, int thread) { Sampler(pass, s).run(thread); }

void sample(Pass& pass, const RowChoice* choices, int32_t* tokens) {
    const uint64_t started = __rdtsc();
    pass.pool.run(
        [&](int thread) {
            run_layers(pass, thread);
            if (!pass.plan().logit_rows.empty()) sample_rows(pass, {choices, nullptr, tokens, nullptr}, thread);
        },
        pass.plan().threads);
    pass.timing.total += __rdtsc() - started;
}

}  // namespace ipex_assist
