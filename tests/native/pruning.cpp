// Where rows without logits end: how many rows each layer has, and that the others have the bits of a pass in which all
// rows go on. (check_wanted of model.cpp shows that of rows of one sequence, in every kind of model.)
#include <algorithm>
#include <string>

#include "operations/operations.h"
#include "small_model.h"

namespace check {
namespace {

// Rows until a layer's keys and values are there, and after them.
struct LayerRows {
    int64_t appending, attending;
    bool operator==(const LayerRows& other) const {
        return appending == other.appending && attending == other.attending;
    }
};

std::vector<LayerRows> counted;

void count_appending(Pass& pass, const LayerStep& step, int thread) {
    if (thread == 0) counted[size_t(step.index)].appending += pass.plan().rows();
}

void count_attending(Pass& pass, const LayerStep& step, int thread) {
    if (thread == 0) counted[size_t(step.index)].attending += pass.plan().rows();
}

// Four layers, the last two of which read the keys and values of the second.
const Kind SHARED = {
    "the last two of four layers share",
    30,
    [](UniformSpec& s) { s.layers = 4, s.per_layer_size = 20, s.norm_place = SANDWICH, s.qk_norm = ONE_FOR_HEADS; },
    false,
    nullptr,
    2};

// A sequence's rows in a pass, and which of them have logits.
struct Part {
    int32_t start, rows;
    std::vector<int32_t> logit_rows;
};

struct Found {
    std::vector<float> logits;
    std::vector<LayerRows> rows;
};

// A layer whose stream a pass gives, -1: none; of all rows or of those with logits.
struct Tap {
    int32_t layer = -1;
    bool of_logit_rows = false;
};

// One pass of these parts, each in a sequence whose positions before it have been appended: logits of the rows that
// have some in the parts, then their states, then those of others where the tap has them.
Found run_parts(Fixture& x, const std::vector<Part>& parts, bool all, const Tap& tap = {}) {
    const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
    std::vector<Table> tables;
    for (const Part& part : parts) {
        tables.emplace_back(x, part.start + part.rows);
        if (part.start) x.append(tables.back(), 0, some_tokens(part.start, 20));
    }
    std::vector<int32_t> tokens, positions, logit_rows, chosen;
    std::vector<const Table*> of_rows;
    for (size_t i = 0; i < parts.size(); i++) {
        const std::vector<int32_t> own = some_tokens(parts[i].rows, 30 + uint32_t(i));
        for (const int32_t row : parts[i].logit_rows) chosen.push_back(int32_t(tokens.size()) + row);
        for (int32_t r = 0; r < parts[i].rows; r++) {
            tokens.push_back(own[size_t(r)]), positions.push_back(parts[i].start + r), of_rows.push_back(&tables[i]);
            logit_rows.push_back(int32_t(logit_rows.size()));
        }
    }
    if (!all) logit_rows = chosen;
    Buffer<float> logits(std::max<size_t>(logit_rows.size(), 1) * stride, NAN);
    Buffer<float> states(tokens.size() * size_t(x.model->spec.hidden_size), NAN);
    PassRequest pass = x.make_pass(tokens, positions, of_rows, logits.data());
    pass.logit_rows = logit_rows, pass.batch.logit_rows = pass.logit_rows.data();
    pass.batch.logit_row_count = int32_t(logit_rows.size());
    if (tap.layer >= 0) pass.batch.taps = {&tap.layer, 1, 0, tap.of_logit_rows, ONE_STREAM, states.data()};
    counted.assign(size_t(x.model->spec.layers), {0, 0});
    x.forward(x.pool, pass.batch);
    Found found{{}, counted};
    for (const int32_t row : chosen) {
        const size_t at = all ? size_t(row) : size_t(std::find(chosen.begin(), chosen.end(), row) - chosen.begin());
        found.logits.insert(found.logits.end(), logits.data() + at * stride, logits.data() + at * stride + VOCAB);
    }
    const bool packed = tap.of_logit_rows && !all;  // a row of states for each of the chosen ones
    for (size_t i = 0; tap.layer >= 0 && i < chosen.size(); i++) {
        const float* row = states.data() + (packed ? i : size_t(chosen[i])) * size_t(x.model->spec.hidden_size);
        found.logits.insert(found.logits.end(), row, row + x.model->spec.hidden_size);
    }
    if (tap.layer >= 0 && !tap.of_logit_rows)
        found.logits.insert(found.logits.end(), states.data(), states.data() + states.size());
    return found;
}

void count_in(Fixture& x) {
    for (LayerStep& step : x.program->layers) {
        step.append_operations.insert(step.append_operations.begin(), {"count_appending", count_appending});
        step.attend_operations.insert(step.attend_operations.begin(), {"count_attending", count_attending});
    }
}

// Layers 2 and 3 read the keys and values of layer 1: nothing of a row without logits is computed after these, unless
// a tap reads it.
void check_counts(const KernelTable& k) {
    Fixture x(k, FORMATS[0], SHARED, 2);
    count_in(x);
    const auto rows = [&](const Part& part, const Tap& tap = {}) { return run_parts(x, {part}, false, tap).rows; };
    const auto is = [](const std::vector<LayerRows>& found, const std::vector<LayerRows>& expected, const char* what) {
        for (size_t i = 0; i < expected.size(); i++) {
            CHECK(found[i] == expected[i], "%s: layer %zu has %lld rows, then %lld", what, i,
                  (long long)found[i].appending, (long long)found[i].attending);
        }
    };
    is(rows({0, 40, {39}}), {{40, 40}, {40, 1}, {1, 1}, {1, 1}}, "one row with logits");
    is(rows({0, 40, {3, 17, 38}}), {{40, 40}, {40, 3}, {3, 3}, {3, 3}}, "three rows with logits");
    is(rows({0, 40, {}}), {{40, 40}, {40, 0}, {0, 0}, {0, 0}}, "no logits");
    is(rows({0, 40, {39}}, {1}), {{40, 40}, {40, 1}, {1, 1}, {1, 1}}, "a tap of the last layer with keys");
    is(rows({0, 40, {39}}, {2}), {{40, 40}, {40, 40}, {40, 1}, {1, 1}}, "a tap of the first layer that shares");
    is(rows({0, 40, {}}, {3}), {{40, 40}, {40, 40}, {40, 40}, {40, 0}}, "a tap of the last layer");
    is(rows({0, 40, {39}}, {4}), {{40, 40}, {40, 40}, {40, 40}, {40, 40}}, "a tap after all layers");
    is(rows({0, 40, {7, 39}}, {4, true}), {{40, 40}, {40, 2}, {2, 2}, {2, 2}}, "a tap of rows with logits");
    is(rows({0, 40, {}}, {4, true}), {{40, 40}, {40, 0}, {0, 0}, {0, 0}}, "a tap of no rows");
}

// Prompts beside steps and drafts, with one and with many rows that go on.
void check_parts_of_a_pass(const KernelTable& k, const Format& f) {
    std::vector<int32_t> most;
    for (int32_t r = 0; r < 40; r++) {
        if (r % 10) most.push_back(r);
    }
    const std::vector<std::vector<Part>> passes = {
        {{0, 40, {39}}, {251, 3, {0, 1, 2}}, {30, 1, {0}}},  // a decode pass goes on
        {{0, 40, most}, {240, 20, {19}}},                    // a prefill pass does
        {{250, 30, {}}, {3, 2, {1}}, {0, 5, {0, 2, 4}}},
    };
    for (size_t i = 0; i < passes.size(); i++) {
        std::vector<float> first;
        for (const int threads : {1, 2}) {
            Fixture x(k, f, SHARED, threads);
            const std::vector<float> all = run_parts(x, passes[i], true).logits;
            if (first.empty()) first = all;
            const std::vector<Tap> taps = {{}, {1}, {2}, {4}, {1, true}, {2, true}, {3, true}, {4, true}};
            for (const Tap& tap : threads == 1 ? std::vector<Tap>{{}} : taps) {
                const std::vector<float> found = run_parts(x, passes[i], false, tap).logits;
                const std::vector<float> tapped = run_parts(x, passes[i], true, tap).logits;
                CHECK(found.size() >= first.size() && same_bits(found.data(), first.data(), first.size()),
                      "%s: pass %zu by %d threads, tap %d", f.name, i, threads, tap.layer);
                CHECK(found.size() == tapped.size() && same_bits(found.data(), tapped.data(), found.size()),
                      "%s: states of pass %zu by %d threads, tap %d, %d", f.name, i, threads, tap.layer,
                      tap.of_logit_rows);
            }
        }
    }
}

// A draft whose first rows are a long text: what it drafts is what it drafts when they came before.
void check_drafts_after_texts(const KernelTable& k, const Format& f) {
    Fixture x(k, f, SHARED, 2);
    const std::vector<int32_t> text = some_tokens(40, 5);
    std::vector<float> likely[2];
    const Table one(x, 300), two(x, 300);
    const std::vector<int32_t> drafted = x.draft(one, 0, text, 8, VOCAB, &likely[0]);
    x.append(two, 0, {text.begin(), text.end() - 1});
    CHECK(x.draft(two, 39, {text.back()}, 8, VOCAB, &likely[1]) == drafted, "%s: tokens", f.name);
    CHECK(same_bits(likely[0].data(), likely[1].data(), likely[0].size()), "%s: probabilities", f.name);
}

}  // namespace

void test_pruning(const KernelTable& k) {
    check_counts(k);
    for (const Format& f : FORMATS) {
        if (!races_differ(f)) continue;
        check_parts_of_a_pass(k, f);
        check_drafts_after_texts(k, f);
    }
}

}  // namespace check
