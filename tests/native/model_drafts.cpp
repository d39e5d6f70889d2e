// Greedy tokens that are chosen in the core: drafts of several tokens in one call, and the likeliest of a pass.
#include <algorithm>
#include <string>

#include "small_model.h"

namespace check {
namespace {

// Drafting in one call gives the tokens of single greedy passes, across a block's end, and their probabilities.
void check_draft(const KernelTable& k, const Format& f, const Kind& kind, bool int8 = false) {
    Fixture x(k, f, kind, f.precision == INT4 && f.group == SCALE_COLUMNS ? 2 : 1, 1, int8);
    const Table table(x, 300);
    x.append(table, 245 - 40, some_tokens(40, 4));
    std::vector<int32_t> feed = some_tokens(3, 5), expected;
    for (int32_t i = 0, length = 245; i < 20; i++) {
        const std::vector<float> logits = x.append(table, length, feed);
        length += int32_t(feed.size());
        const auto row = logits.end() - VOCAB;
        expected.push_back(int32_t(std::max_element(row, row + 45) - row));
        feed = {expected.back()};
    }
    std::vector<float> probabilities;
    const std::vector<int32_t> drafted = x.draft(table, 245, some_tokens(3, 5), 20, 45, &probabilities);
    CHECK(drafted == expected, "%s, %s", f.name, kind.name);
    for (const float p : probabilities) CHECK(p > 0 && p <= 1.0001f, "%g", double(p));
}

// Three drafts in one call are what each is alone, though they end at different places: one by its count, one behind an
// unsure token, one where its logits hold no number; and they begin with different numbers of rows.
void check_drafts(const KernelTable& k, const Format& f, const Kind& kind) {
    Fixture x(k, f, kind, 2);
    constexpr int32_t MOST = 12;
    const std::vector<std::vector<int32_t>> starts = {some_tokens(1, 7), some_tokens(4, 8), some_tokens(2, 9)};
    const int32_t counts[] = {MOST, MOST - 5, MOST}, at[] = {0, 252, 30};
    std::vector<Table> tables;
    std::vector<std::vector<int32_t>> alone;
    std::vector<std::vector<float>> likely(3);
    for (size_t i = 0; i < 3; i++) {
        tables.emplace_back(x, 280);
        if (at[i]) x.append(tables[i], 0, some_tokens(at[i], 10 + uint32_t(i)));
        alone.push_back(x.draft(tables[i], at[i], starts[i], counts[i], VOCAB, &likely[i]));
    }
    const size_t unsure = size_t(std::min_element(likely[2].begin(), likely[2].end()) - likely[2].begin());
    float least[] = {0, 0, likely[2][unsure] * 1.0001f};
    for (const bool broken : {false, true}) {
        if (broken && !x.model->spec.rotary_width) break;
        std::vector<int32_t> tokens, positions;
        std::vector<const Table*> rows;
        for (size_t i = 0; i < 3; i++) {
            for (const int32_t token : starts[i])
                tokens.push_back(token), positions.push_back(at[i]), rows.push_back(&tables[i]);
        }
        std::vector<float> logits(3 * ((VOCAB + LANES - 1) / LANES * LANES));
        PassRequest pass = x.make_pass(tokens, positions, rows, logits.data());
        pass.logit_rows = {0, 4, 6}, pass.batch.logit_rows = pass.logit_rows.data(), pass.batch.logit_row_count = 3;
        int32_t drafted[3 * MOST], numbers[3];
        float probabilities[3 * MOST];
        const DraftRequest drafts{counts, least, MOST, drafted, probabilities, numbers};
        // The first text's third row is at position 2; those of the others are not.
        if (broken) std::swap(x.cosine[size_t(2 * x.model->spec.rotary_width)], x.poison);
        x.draft(pass.batch, counts, drafts);
        if (broken) std::swap(x.cosine[size_t(2 * x.model->spec.rotary_width)], x.poison);
        const size_t lengths[] = {broken ? 3u : size_t(MOST), size_t(MOST - 5), unsure + 1};
        for (size_t i = 0; i < 3; i++) {
            CHECK(size_t(numbers[i]) == lengths[i], "%s, %s: draft %zu has %d tokens", f.name, kind.name, i,
                  numbers[i]);
            for (size_t j = 0; j < lengths[i]; j++) {
                const bool lost = broken && i == 0 && j == 2;
                CHECK(drafted[i * MOST + j] == (lost ? -1 : alone[i][j]), "%s, %s: draft %zu, token %zu", f.name,
                      kind.name, i, j);
                CHECK(lost ? std::isnan(probabilities[i * MOST + j])
                           : same_bits(&probabilities[i * MOST + j], &likely[i][j], 1),
                      "%s, %s: draft %zu, probability %zu", f.name, kind.name, i, j);
            }
        }
    }
}

// Drafting by a rule in one call gives the tokens that single passes choose, each by its position and with penalties for
// those before it.
void check_drawn(const KernelTable& k, const Format& f, const Kind& kind, int threads) {
    constexpr int32_t COUNT = 9, ROOM = COUNT + 4;
    Fixture x(k, f, kind, threads);
    for (const int32_t top_k : {0, 7}) {
        const Table table(x, 300), again(x, 300);
        const SamplingRule rule{0.9, 0.9, -INFINITY, uint64_t(top_k + 5), top_k, 1.3f, 0.5f, 0.25f};
        std::vector<LogitEdit> edits{{2, 3.0f, 0, 0}, {9, -1.0f, 1, 2}};
        RowChoice choice{&rule, 4, edits.data(), int64_t(edits.size()), nullptr, nullptr, nullptr, 0};
        std::vector<float> logits((VOCAB + LANES - 1) / LANES * LANES);
        const auto pass_of = [&](const Table& of, int32_t start, const std::vector<int32_t>& feed) {
            PassRequest pass = x.make_pass(feed, std::vector<int32_t>(feed.size(), start),
                                           std::vector<const Table*>(feed.size(), &of), logits.data());
            pass.logit_rows = {int32_t(feed.size()) - 1}, pass.batch.logit_rows = pass.logit_rows.data();
            pass.batch.logit_row_count = 1;
            return pass;
        };
        int32_t drafted[ROOM], number = 0;
        float confidence[ROOM];
        const float least = 0;
        const PassRequest whole = pass_of(table, 0, some_tokens(3, 5));
        x.draft(whole.batch, &COUNT, {&COUNT, &least, ROOM, drafted, confidence, &number, nullptr, &choice});
        CHECK(number == COUNT, "%s, %s: %d tokens", f.name, kind.name, number);
        std::vector<int32_t> feed = some_tokens(3, 5);
        for (int32_t i = 0, length = 0; i < number; i++, choice.position++) {
            choice.edits = edits.data(), choice.edit_count = int64_t(edits.size());
            const PassRequest step = pass_of(again, length, feed);
            int32_t token = -1;
            x.sample(step.batch, &choice, &token);
            CHECK(token == drafted[i], "%s, %s: token %d is %d, not %d", f.name, kind.name, i, drafted[i], token);
            CHECK(confidence[i] > 0 && confidence[i] <= 1.0001f, "%g", double(confidence[i]));
            length += int32_t(feed.size()), feed = {token};
            auto at = std::find_if(edits.begin(), edits.end(), [&](const LogitEdit& e) { return e.token >= token; });
            if (at == edits.end() || at->token != token) at = edits.insert(at, {token, 0, 0, 0});
            at->seen = 1, at->generated++;
        }
    }
}

// What is chosen is what the logits of the same pass say, in whatever rows; NaN is told of its row alone.
void check_choices(const KernelTable& k, const Format& f, const Kind& kind) {
    for (int threads = 1; threads <= 3; threads++) {
        Fixture x(k, f, kind, threads);
        const Table table(x, 300), second(x, 20);
        const std::vector<int32_t> tokens = some_tokens(24, 11);
        std::vector<int32_t> positions;
        std::vector<const Table*> tables;
        for (int32_t i = 0; i < 24; i++)
            positions.push_back(i < 20 ? 240 + i : i - 20), tables.push_back(i < 20 ? &table : &second);
        x.append(table, 0, some_tokens(240, 12));
        const std::vector<float> all = x.run(tokens, positions, tables);
        std::vector<float> logits(24 * ((VOCAB + LANES - 1) / LANES * LANES));
        PassRequest pass = x.make_pass(tokens, positions, tables, logits.data());
        pass.logit_rows = {0, 7, 19, 23}, pass.batch.logit_rows = pass.logit_rows.data(),
        pass.batch.logit_row_count = 4;
        int32_t chosen[4], top[4 * 5];
        float logs[4], sums[4], top_logs[4 * 5];
        x.top_tokens(pass.batch, {5, chosen, logs, sums, top, top_logs});
        for (size_t i = 0; i < 4; i++) {
            const float* row = all.data() + size_t(pass.logit_rows[i]) * VOCAB;
            std::vector<int32_t> order(VOCAB);
            for (int32_t t = 0; t < VOCAB; t++) order[size_t(t)] = t;
            std::sort(order.begin(), order.end(),
                      [&](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
            double sum = 0;
            for (int32_t t = 0; t < VOCAB; t++) sum += std::exp(double(row[t]));
            CHECK(chosen[i] == order[0], "%s, %s: row %zu: %d, not %d", f.name, kind.name, i, chosen[i], order[0]);
            CHECK(std::abs(sums[i] - std::log(sum)) < 1e-4, "%g, not %g", double(sums[i]), std::log(sum));
            for (size_t t = 0; t < 5; t++) {
                CHECK(top[i * 5 + t] == order[t], "%s, %s: row %zu, likeliest %zu", f.name, kind.name, i, t);
                CHECK(std::abs(top_logs[i * 5 + t] - (row[order[t]] - std::log(sum))) < 1e-4, "%g",
                      double(top_logs[i * 5 + t]));
            }
            CHECK(logs[i] == top_logs[i * 5], "%g and %g", double(logs[i]), double(top_logs[i * 5]));
        }
        if (!x.model->spec.rotary_width) continue;
        std::swap(x.cosine[size_t(3 * x.model->spec.rotary_width)], x.poison);
        x.top_tokens(pass.batch, {5, chosen, logs, sums, top, top_logs});
        std::swap(x.cosine[size_t(3 * x.model->spec.rotary_width)], x.poison);
        CHECK(
            chosen[3] == -1 && std::isnan(logs[3]) && std::isnan(sums[3]) && top[15] == -1 && std::isnan(top_logs[15]),
            "%d", chosen[3]);
        CHECK(chosen[2] >= 0 && std::isfinite(logs[2]), "another row is lost, too");
    }
}

}  // namespace

void test_model_drafts(const KernelTable& k) {
    for_each_kind([&](const Format& f, const Kind& kind) {
        check_draft(k, f, kind);
        check_drafts(k, f, kind);
        check_choices(k, f, kind);
        for (int threads = 1; threads <= 3; threads++) check_drawn(k, f, kind, threads);
        if (f.precision == FP32 || f.precision == BF16) check_draft(k, f, kind, true);
    });
}

}  // namespace check
