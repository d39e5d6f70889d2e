// Hidden states out of passes and into draft heads: the same bits whatever rows pass together.
#include <algorithm>
#include <string>

#include "small_model.h"

namespace check {
namespace {

void make_head(UniformSpec& s, HeadKind kind, int32_t taps) {
    s.draft_head.kind = kind, s.draft_head.taps = taps, s.draft_head.input_size = taps * s.hidden_size;
    s.layers = 2;
}

// Convolutions, and a choice among candidates.
void make_second(UniformSpec& s, int32_t kernel, int32_t group) {
    s.draft_head.conv_kernel = kernel, s.draft_head.conv_group = group;
    s.draft_head.candidates = 7, s.draft_head.selector_rank = 45;
}

// A DSpark: a Markov head, and a confidence head that reads the row, with the token before or without.
void make_dspark(UniformSpec& s, int32_t rank, bool reads_token) {
    make_head(s, DFLASH, 2);
    s.draft_head.selector_rank = rank, s.draft_head.confidence_size = s.hidden_size + (reads_token ? rank : 0);
}

void make_gated(UniformSpec& s) { s.hidden_size = s.embedding_size = 48, s.streams = {3, 0, 0, 2, 0, 0, 20}; }

// A target with gated residuals.
const Kind GATED{"gated residuals", 30, make_gated};

const Kind HEADS[] = {
    {"MTP", 0, [](UniformSpec& s) { make_head(s, MTP, 1), s.draft_head.fed_back_normed = 1; }},
    {"MTP with experts", 0, [](UniformSpec& s) { make_head(s, MTP, 1), s.experts = 5, s.experts_per_token = 2; }},
    {"MTP with three streams", 30,
     [](UniformSpec& s) {
         s.hidden_size = s.embedding_size = 48, s.streams = {3, 2, 1e-6f, 2, 0.1f, 0, 0};
         make_head(s, MTP, 1), s.draft_head.input_size *= 3;
     }},
    {"MTP with gated residuals and experts", 30,
     [](UniformSpec& s) {
         make_gated(s), make_head(s, MTP, 1);
         s.draft_head.input_size *= 3, s.layers = 1, s.experts = 5, s.experts_per_token = 2;
     }},
    {"DSpark with three streams over keys that are values", 30,
     [](UniformSpec& s) {
         s.hidden_size = s.embedding_size = 48, s.streams = {3, 2, 1e-6f, 2, 0.1f, 0, 0};
         make_dspark(s, 21, true);
     },
     false,
     [](LayerSpec& layer) { make_compressed(layer.attention, 4, {48, 16, 32, 16, 20, 0, 1e-6f, {}, {2, 0, 0}}); }},
    {"EAGLE-3 with few tokens", 0, [](UniformSpec& s) { make_head(s, EAGLE3, 3), s.draft_head.lm_head_rows = 21; }},
    {"EAGLE-3 with norms", 30,
     [](UniformSpec& s) {
         make_head(s, EAGLE3, 2), s.draft_head.input_norm = NORM_OF_EACH, s.draft_head.norm_before_residual = 1;
         s.draft_head.fed_back_normed = 1;
     }},
    {"DFlash", 30, [](UniformSpec& s) { make_head(s, DFLASH, 2), s.draft_head.input_norm = NORM_OF_ALL; }},
    {"DFlash 2", 0, [](UniformSpec& s) { make_head(s, DFLASH, 2), make_second(s, 3, 20); }},
    {"DFlash 2, short groups and many candidates", 30,
     [](UniformSpec& s) { make_head(s, DFLASH, 1), make_second(s, 2, 5), s.draft_head.candidates = 60; }},
    {"DSpark", 0, [](UniformSpec& s) { make_dspark(s, 21, true); }},
    {"DSpark, wide tables and few tokens", 30,
     [](UniformSpec& s) { make_dspark(s, 70, false), s.draft_head.lm_head_rows = 21; }},
};

template <class F>
bool refused(F&& f) {
    try {
        f();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void fill(Buffer<float>& rows, uint32_t seed) {
    Random random(seed);
    for (size_t i = 0; i < rows.size(); i++) rows[i] = random.normal();
}

// Rows of one sequence from `start` on, with logits of the last `logit_rows`.
struct Given {
    int32_t start;
    std::vector<int32_t> tokens;
    const float* hidden = nullptr;
    bool own = false;
};

std::vector<float> run_given(Fixture& x, const Table& table, const Given& given, const Taps& taps, int32_t logit_rows) {
    const int32_t rows = int32_t(given.tokens.size());
    const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
    Buffer<float> logits(size_t(std::max(1, logit_rows)) * stride, NAN);
    std::vector<int32_t> positions;
    for (int32_t r = 0; r < rows; r++) positions.push_back(given.start + r);
    PassRequest pass =
        x.make_pass(given.tokens, positions, std::vector<const Table*>(size_t(rows), &table), logits.data());
    pass.logit_rows.clear();
    for (int32_t r = rows - logit_rows; r < rows; r++) pass.logit_rows.push_back(r);
    pass.batch.logit_rows = pass.logit_rows.data(), pass.batch.logit_row_count = logit_rows;
    pass.batch.hidden = given.hidden, pass.batch.own_hidden = given.own, pass.batch.taps = taps;
    x.forward(x.pool, pass.batch);
    std::vector<float> result;
    const size_t columns = size_t(x.model->spec.lm_head_rows());
    for (int32_t r = 0; r < logit_rows; r++) {
        const float* row = logits.data() + size_t(r) * stride;
        result.insert(result.end(), row, row + columns);
    }
    return result;
}

// Taps change no logit, and are the same in passes of any rows, by any number of threads.
void check_taps(const KernelTable& k, const Format& f, const Kind& kind, StreamTaps streams) {
    constexpr int32_t ROWS = 40;
    const int32_t sizes[] = {17, 1, 16, 6};
    std::vector<float> first;
    for (int threads = 1; threads <= 3; threads++) {
        Fixture x(k, f, kind, threads, threads == 3 ? 2 : 1);
        const int32_t layers[] = {2, 0, 1};
        const int32_t count = x.model->spec.streams.several() && !streams ? 1 : 3;  // what the final norm gives, or all
        Taps taps{layers, count, streams == ONE_STREAM, 0, streams, nullptr};
        const int64_t size = taps.width(x.model->spec) * count;
        const auto to = [&](float* rows) { return taps.rows = rows, taps; };
        const std::vector<int32_t> tokens = some_tokens(ROWS, 3);
        const Table plain(x, ROWS), tapped(x, ROWS), apart(x, ROWS);
        Buffer<float> whole(size_t(ROWS * size), NAN), parts(size_t(ROWS * size), NAN);
        const std::vector<float> expected = run_given(x, plain, {0, tokens}, {}, 2);
        const std::vector<float> logits = run_given(x, tapped, {0, tokens}, to(whole.data()), 2);
        CHECK(same_bits(logits.data(), expected.data(), expected.size()), "%s, %s: logits", f.name, kind.name);
        for (int32_t done = 0, i = 0; done < ROWS; done += sizes[i++]) {
            const auto from = tokens.begin() + done;
            run_given(x, apart, {done, {from, from + sizes[i]}}, to(parts.data() + done * size), i % 2);
        }
        CHECK(same_bits(whole.data(), parts.data(), whole.size()), "%s, %s: in parts", f.name, kind.name);
        if (threads == 1) first.assign(whole.data(), whole.data() + whole.size());
        else CHECK(same_bits(whole.data(), first.data(), first.size()), "%s, %s: threads", f.name, kind.name);
    }
}

// Drafts in one call are those of single passes that get the states which the ones before gave.
void check_fed_back(const KernelTable& k, const Format& f, const Kind& kind) {
    constexpr int32_t ROWS = 20, COUNT = 6;
    for (int threads = 1; threads <= 3; threads++) {
        Fixture x(k, f, kind, threads, threads == 3 ? 2 : 1);
        const ModelSpec& spec = x.model->spec;
        Buffer<float> hidden(size_t(ROWS * spec.draft_head.input_size));
        fill(hidden, 8);
        std::vector<int32_t> ids, expected;
        for (int32_t i = 0; i < spec.lm_head_rows(); i++) ids.push_back(i * 2 + 1);
        const bool few = spec.lm_head_rows() < VOCAB;
        const Table single(x, ROWS + COUNT), table(x, ROWS + COUNT);
        Given given{0, some_tokens(ROWS, 6), hidden.data()};
        const int32_t end[] = {spec.layers};
        const StreamTaps streams = spec.streams.several() ? ALL_STREAMS : ONE_STREAM;
        Taps taps{end, 1, spec.draft_head.fed_back_normed, 0, streams, nullptr};
        const int64_t width = taps.width(spec);
        Buffer<float> states(size_t(ROWS * width));
        Buffer<float> last{size_t(width)};
        taps.rows = states.data();
        for (int32_t i = 0; i < COUNT; i++) {
            const std::vector<float> logits = run_given(x, single, given, taps, 1);
            const size_t rows = given.tokens.size();
            const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
            expected.push_back(few ? ids[size_t(best)] : int32_t(best));
            std::copy_n(states.data() + int64_t(rows - 1) * width, width, last.data());
            given = {given.start + int32_t(rows), {expected.back()}, last.data(), spec.draft_head.kind == EAGLE3};
        }
        Buffer<float> logits(LANES * 4);
        std::vector<int32_t> positions(ROWS, 0);
        PassRequest pass =
            x.make_pass(some_tokens(ROWS, 6), positions, std::vector<const Table*>(ROWS, &table), logits.data());
        pass.logit_rows = {ROWS - 1}, pass.batch.logit_rows = pass.logit_rows.data(), pass.batch.logit_row_count = 1;
        pass.batch.hidden = hidden.data();
        int32_t drafted[COUNT], count = COUNT, number = 0;
        float likely[COUNT], least = 0;
        x.draft(pass.batch, &count, {&count, &least, COUNT, drafted, likely, &number, few ? ids.data() : nullptr});
        CHECK(std::equal(expected.begin(), expected.end(), drafted), "%s, %s", f.name, kind.name);
    }
}

// A block after contexts that came together or one by one, in a pass of its own or with another: its tokens, and the
// bits of their probabilities.
std::vector<std::vector<float>> blocks_of(const KernelTable& k, const Format& f, const Kind& kind, int threads) {
    constexpr int32_t ROWS = 250, BLOCK = 9, COUNT = 5;
    Fixture x(k, f, kind, threads, threads == 3 ? 2 : 1);
    const int64_t columns = x.model->spec.draft_head.input_size;
    Buffer<float> hidden(size_t(ROWS * columns));
    fill(hidden, 4);
    std::vector<std::vector<float>> all;
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < x.model->spec.lm_head_rows(); i++) ids.push_back(i * 2 + 1);
    const bool few = x.model->spec.lm_head_rows() < VOCAB;
    const int32_t first_row = kind.window ? 1 : 0;  // from which on a DSpark's blocks draft
    std::vector<Table> tables;
    for (int i = 0; i < 2; i++) tables.emplace_back(x, ROWS + BLOCK);
    run_given(x, tables[0], {0, std::vector<int32_t>(ROWS, 1), hidden.data()}, {}, 0);
    for (int32_t done = 0, size = 1; done < ROWS; done += size, size = std::min(size + 40, ROWS - done)) {
        run_given(x, tables[1], {done, std::vector<int32_t>(size_t(size), 1), hidden.data() + done * columns}, {}, 0);
    }
    for (const std::vector<size_t>& together : {std::vector<size_t>{0}, {1}, {0, 1}}) {
        std::vector<int32_t> tokens, positions, counts(together.size(), COUNT), numbers(together.size());
        std::vector<const Table*> rows;
        std::vector<float> least(together.size(), 0);
        for (const size_t which : together) {
            tokens.push_back(3), tokens.insert(tokens.end(), BLOCK - 1, 0);
            positions.insert(positions.end(), BLOCK, ROWS), rows.insert(rows.end(), BLOCK, &tables[which]);
        }
        Buffer<float> logits(together.size() * COUNT * LANES * 4);
        PassRequest pass = x.make_pass(tokens, positions, rows, logits.data());
        pass.logit_rows.clear();
        for (size_t i = 0; i < together.size(); i++) {
            for (int32_t r = 0; r < COUNT; r++) pass.logit_rows.push_back(int32_t(i) * BLOCK + first_row + r);
        }
        pass.batch.logit_rows = pass.logit_rows.data(), pass.batch.logit_row_count = int32_t(pass.logit_rows.size());
        std::vector<int32_t> drafted(together.size() * COUNT);
        std::vector<float> likely(drafted.size());
        ipex_assist::Pass of_blocks(*x.program, x.pool, x.activations, pass.batch);
        draft_blocks(of_blocks, {counts.data(), least.data(), COUNT, drafted.data(), likely.data(), numbers.data(),
                                 few ? ids.data() : nullptr});
        for (size_t i = 0; i < together.size(); i++) {
            CHECK(numbers[i] == COUNT, "%s, %s: %d tokens", f.name, kind.name, numbers[i]);
            all.emplace_back();
            for (size_t at = i * COUNT; at < (i + 1) * COUNT; at++)
                all.back().push_back(float(drafted[at])), all.back().push_back(likely[at]);
        }
    }
    return all;
}

void check_block(const KernelTable& k, const Format& f, const Kind& kind) {
    std::vector<float> first;
    for (int threads = 1; threads <= 3; threads++) {
        for (const std::vector<float>& each : blocks_of(k, f, kind, threads)) {
            if (first.empty()) first = each;
            CHECK(same_bits(each.data(), first.data(), first.size()), "%s, %s: %d threads", f.name, kind.name, threads);
        }
    }
}

// Sizes that would be read where nothing is.
void check_second_kind(const KernelTable& k) {
    const auto builds = [&](void (*change)(UniformSpec&)) {
        UniformSpec spec = base_spec(FORMATS[0]);
        make_head(spec, DFLASH, 2), make_second(spec, 2, 8);
        change(spec);
        const std::vector<LayerSpec> layers = spec.layer_specs();
        return !refused([&] { PackedModel(spec.model(), layers.data(), &k); });
    };
    CHECK(builds([](UniformSpec&) {}), "none of this kind");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.conv_group = 12; }), "40 columns in groups of 12");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.conv_group = 0; }), "columns in groups of none");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.conv_kernel = -1; }), "a kernel of fewer than no rows");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.selector_rank = 0; }), "tables without columns");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.lm_head_rows = 20; }), "tokens that the tables do not have");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.confidence_size = 40; }), "a confidence head beside candidates");
    CHECK(!builds([](UniformSpec& s) { make_dspark(s, 9, true), s.draft_head.confidence_size++; }), "another width");
    CHECK(!builds([](UniformSpec& s) { s.norm_place = POST; }), "no norm before a convolution");
    CHECK(!builds([](UniformSpec& s) { s.draft_head.kind = EAGLE3; }), "convolutions of another kind");
}

// A head that takes table and head from a target computes what one with the same of its own does.
void check_shared(const KernelTable& k) {
    const Format f = FORMATS[0];
    Fixture own(k, f, HEADS[0], 1);
    const Kind sharing{"MTP with its target's head", 0, [](UniformSpec& s) {
                           make_head(s, MTP, 1), s.draft_head.fed_back_normed = 1;
                           s.draft_head.shared_embedding = s.draft_head.shared_head = 1;
                       }};
    Fixture x(k, f, sharing, 1);
    CHECK(!x.model->ready(), "ready without its target");
    CHECK(x.model->share_table(own.model), "table");
    CHECK(x.model->share_head(own.model), "head");
    CHECK(x.model->ready(), "not ready");
    CHECK(x.model->image_bytes() < own.model->image_bytes(), "room for what is shared");
    Buffer<float> hidden(3 * 40);
    fill(hidden, 8);
    const Table table(x, 10);
    const std::vector<float> logits = run_given(x, table, {0, some_tokens(3, 6), hidden.data()}, {}, 1);
    CHECK(logits.size() == VOCAB && std::isfinite(logits[0]), "no logits");
}

// A narrower head whose layers read the two layers of a target, the first of them in a window.
void make_reading(UniformSpec& s, int32_t clusters) {
    s.draft_head.kind = SHARED_KV, s.draft_head.taps = 1, s.draft_head.input_size = 40;
    s.draft_head.shared_embedding = s.draft_head.fed_back_normed = 1;
    s.draft_head.clusters = clusters, s.draft_head.clusters_read = clusters ? 3 : 0;
    s.hidden_size = s.embedding_size = 24, s.layers = 2;
}

void read_second(LayerSpec& layer) { layer.attention.kv_layer = 1, layer.attention.window = 0; }

const Kind READING[] = {
    {"reads its target", 30, [](UniformSpec& s) { make_reading(s, 0); }, false, read_second},
    {"reads its target, clusters", 30, [](UniformSpec& s) { make_reading(s, 10); }, false, read_second},
};
const Kind TARGET{"target", 0, [](UniformSpec&) {}};

// Texts that a target has read, and drafts after them.
struct Reading {
    static constexpr int32_t LONGEST = 6;

    Reading(const KernelTable& k, const Format& f, const Kind& kind, int threads, int nodes, bool int8)
        : target(k, f, TARGET, threads, nodes, int8),
          head(k, f, kind, threads, nodes),
          hidden(size_t(40)),
          order(size_t(VOCAB)) {
        CHECK(head.model->share_table(target.model), "%s: table", kind.name);
        fill(hidden, 8);
        for (size_t i = 0; i < VOCAB; i++) order[i] = int32_t((i * 7 + 3) % VOCAB);
    }

    void read(int32_t length) {
        tables.emplace_back(target, length);
        lengths.push_back(length);
        for (int32_t done = 0; done < length; done += 100) {
            const int32_t rows = std::min(100, length - done);
            target.append(tables.back(), done, some_tokens(rows, uint32_t(length + done)));
        }
    }

    PassRequest pass_of(const std::vector<size_t>& which) {
        std::vector<int32_t> tokens(which.size(), 3), positions;
        std::vector<const Table*> rows;
        for (const size_t i : which) positions.push_back(lengths[i]), rows.push_back(&tables[i]);
        logits.assign(which.size() * LANES * 4, NAN), states.assign(which.size() * 40, 0);
        PassRequest pass = head.make_pass(tokens, positions, rows, logits.data());
        for (size_t i = 0; i < which.size(); i++) std::copy_n(hidden.data(), 40, states.begin() + int64_t(i) * 40);
        pass.batch.blocks = target.blocks.get(), pass.batch.hidden = states.data(), pass.batch.vocabulary = 45;
        return pass;
    }

    // Of each of these texts the tokens and the bits of their probabilities, `count` and one less by turns.
    std::vector<std::vector<float>> draft(const std::vector<size_t>& which, int32_t count) {
        const PassRequest pass = pass_of(which);
        std::vector<int32_t> counts, drafted(which.size() * LONGEST), numbers(which.size());
        std::vector<float> likely(drafted.size()), least(which.size(), 0);
        for (size_t i = 0; i < which.size(); i++) counts.push_back(count - int32_t(i % 2));
        head.draft(pass.batch, counts.data(),
                   {counts.data(), least.data(), LONGEST, drafted.data(), likely.data(), numbers.data(), order.data()});
        std::vector<std::vector<float>> found(which.size());
        for (size_t i = 0; i < which.size(); i++) {
            CHECK(numbers[i] == counts[i], "%d tokens of %d", numbers[i], counts[i]);
            for (size_t at = i * LONGEST; at < i * LONGEST + size_t(numbers[i]); at++) {
                CHECK(drafted[at] < VOCAB && likely[at] > 0, "token %d", drafted[at]);
                found[i].push_back(float(drafted[at])), found[i].push_back(likely[at]);
            }
        }
        return found;
    }

    Fixture target, head;
    Buffer<float> hidden;
    std::vector<int32_t> order, lengths;
    std::vector<Table> tables;
    std::vector<float> logits, states;
};

bool begins(const std::vector<float>& whole, const std::vector<float>& part) {
    return part.size() <= whole.size() && same_bits(whole.data(), part.data(), part.size());
}

// Drafts are the same bits alone and beside others, on the decode path and on the prefill path, by any threads.
void check_reading(const KernelTable& k, const Format& f, const Kind& kind, bool int8) {
    std::vector<std::vector<float>> first;
    for (int threads = 1; threads <= 3; threads++) {
        Reading x(k, f, kind, threads, threads == 3 ? 2 : 1, int8);
        for (const int32_t length : {300, 256, 20, 1}) x.read(length);
        std::vector<std::vector<float>> alone;
        for (size_t i = 0; i < 4; i++) alone.push_back(x.draft({i}, Reading::LONGEST)[0]);
        std::vector<size_t> many;
        for (size_t i = 0; i < 19; i++) many.push_back(i % 4);
        for (const std::vector<size_t>& which : {std::vector<size_t>{0, 1, 2, 3}, {3, 0}, many}) {
            const auto found = x.draft(which, 4);
            for (size_t i = 0; i < which.size(); i++)
                CHECK(begins(alone[which[i]], found[i]), "%s, %s: text %zu", f.name, kind.name, which[i]);
        }
        if (threads == 1) first = alone;
        for (size_t i = 0; i < 4; i++)
            CHECK(begins(first[i], alone[i]), "%s, %s: %d threads", f.name, kind.name, threads);
    }
}

// What would read memory that is not there.
void check_not_read(const KernelTable& k) {
    Reading x(k, FORMATS[0], READING[0], 1, 1, false);
    x.read(20);
    CHECK(refused([&] { x.head.forward(x.head.pool, x.pass_of({0}).batch); }), "a pass without drafts");
    x.lengths[0] = 0;
    CHECK(refused([&] { x.draft({0}, 2); }), "no position before it");
    x.lengths[0] = 257;
    CHECK(refused([&] { x.draft({0}, 2); }), "positions that the table lacks");
    x.lengths[0] = 256;
    x.draft({0}, 2);  // of its last position but one nothing is written, nor is a block after it needed
    const Kind other{"wider heads", 0, [](UniformSpec& s) { s.head_dim = s.rotary_dim = 12; }};
    Fixture wide(k, FORMATS[0], other, 1);
    PassRequest pass = x.pass_of({0});
    pass.batch.blocks = wide.blocks.get();
    const int32_t count = 1;
    CHECK(refused([&] { ipex_assist::Pass(*x.head.program, x.head.pool, x.head.activations, pass.batch, &count); }),
          "blocks of another target");
}

}  // namespace

void test_draft_heads(const KernelTable& k) {
    const auto taps = [&](const Format& f, const Kind& kind) {
        const ModelSpec model = KindSpec(f, kind).model;
        if (model.altup.several() || (f.precision != FP32 && f.precision != INT8)) return;
        if (!model.streams.gated()) check_taps(k, f, kind, ONE_STREAM);
        if (!model.streams.several()) return;
        for (const StreamTaps each : {MEAN_OF_STREAMS, ALL_STREAMS}) check_taps(k, f, kind, each);
    };
    for_each_kind(taps);
    for (const Format& f : FORMATS) {
        if (!races_differ(f)) continue;
        taps(f, GATED);
        for (const Kind& kind : HEADS) {
            if (KindSpec(f, kind).model.draft_head.kind == DFLASH) check_block(k, f, kind);
            else check_fed_back(k, f, kind);
        }
        for (const Kind& kind : READING) {
            // What it reads is in fp32, bf16 or int8, whatever its linears are in.
            if (!everything && f.precision != FP32 && f.precision != BF16 && f.precision != INT8) continue;
            for (const bool int8 : {false, true}) check_reading(k, f, kind, int8);
        }
    }
    check_shared(k);
    check_not_read(k);
    check_second_kind(k);
}

}  // namespace check
