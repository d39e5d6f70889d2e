// How a model's work and memory are divided, and that a pass has the same bits however many threads run it and whatever
// rows share it, as a prompt or as steps. (That the bits are right is tested against transformers, in Python.)
#include <algorithm>
#include <memory>
#include <string>

#include "small_model.h"

namespace check {
namespace {

// A prompt up to just before a block's end (the positions before it hold nothing, which is as good as anything), and
// rows across it: one by one, together, and beside another sequence.
void check_passes(const KernelTable& k, const Format& f, const Kind& kind, bool more_threads, bool int8 = false) {
    std::vector<float> first_prompt, one_by_one;
    std::vector<uint8_t> first_image;
    const std::vector<int32_t> prompt = some_tokens(70, 1), steps = some_tokens(16, 2), other = some_tokens(5, 3);
    for (int run = 1; run <= (more_threads ? 5 : 3); run++) {
        const int threads = run < 3 ? run : run - 1;
        Fixture x(k, f, kind, threads, run == 3 || run == 4 ? 2 : 1, int8);
        const std::vector<uint8_t> image = image_of(*x.model);
        if (threads == 1) first_image = image;
        CHECK(image == first_image, "%s, %s: packed by %d threads", f.name, kind.name, threads);

        const Table table(x, 300), second(x, 20);
        if (threads == 1) {
            for (size_t i = 0; i < prompt.size(); i++) {
                const std::vector<float> row = x.append(table, 249 - 70 + int32_t(i), {prompt[i]});
                first_prompt.insert(first_prompt.end(), row.begin(), row.end());
            }
        }
        const std::vector<float> read = x.append(table, 249 - 70, prompt);
        if (threads == 1) {
            for (size_t i = 0; i < steps.size(); i++) {
                const std::vector<float> row = x.append(table, 249 + int32_t(i), {steps[i]});
                one_by_one.insert(one_by_one.end(), row.begin(), row.end());
            }
        }
        CHECK(same_bits(read.data(), first_prompt.data(), read.size()), "%s, %s: a prompt is its rows, by %d threads",
              f.name, kind.name, threads);
        CHECK(std::all_of(read.begin(), read.end(), [](float v) { return std::isfinite(v); }), "%s: finite", f.name);
        const std::vector<float> together = x.append(table, 249, steps);
        CHECK(same_bits(together.data(), one_by_one.data(), together.size()),
              "%s, %s: 16 rows in one pass by %d threads", f.name, kind.name, threads);

        // The same rows behind five of another sequence, the first eleven and the last five in two passes.
        std::vector<int32_t> tokens(other), positions = {0, 1, 2, 3, 4};
        std::vector<const Table*> tables(5, &second);
        for (int32_t i = 0; i < 11; i++)
            tokens.push_back(steps[size_t(i)]), positions.push_back(249 + i), tables.push_back(&table);
        const std::vector<float> beside = x.run(tokens, positions, tables);
        CHECK(same_bits(beside.data() + 5 * VOCAB, one_by_one.data(), 11 * VOCAB), "%s, %s: beside another sequence",
              f.name, kind.name);
        // A chunk of 40 rows across the block's end, behind the other sequence's.
        std::vector<int32_t> chunk(other), places = {0, 1, 2, 3, 4};
        tables.assign(5, &second);
        for (int32_t i = 0; i < 40; i++) {
            const size_t at = size_t(i + 46);
            chunk.push_back(at < prompt.size() ? prompt[at] : steps[at - prompt.size()]);
            places.push_back(249 - 70 + int32_t(at)), tables.push_back(&table);
        }
        const std::vector<float> chunked = x.run(chunk, places, tables);
        CHECK(same_bits(chunked.data() + 5 * VOCAB, first_prompt.data() + 46 * VOCAB, 24 * VOCAB) &&
                  same_bits(chunked.data() + 29 * VOCAB, one_by_one.data(), 16 * VOCAB),
              "%s, %s: a chunk by %d threads", f.name, kind.name, threads);
        const std::vector<float> alone = x.append(second, 0, other);
        CHECK(same_bits(beside.data(), alone.data(), 5 * VOCAB), "%s, %s: the other sequence", f.name, kind.name);
    }
}

// Of many rows, those without wanted logits end early in the last layer: the others have the bits they have without
// that, and so has what later rows see of them.
void check_wanted(const KernelTable& k, const Format& f, const Kind& kind) {
    Fixture x(k, f, kind, 2);
    const std::vector<int32_t> tokens = some_tokens(40, 15), next = some_tokens(1, 16);
    const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < 40; i++) positions.push_back(i);
    const Table whole(x, 50);
    const std::vector<float> all = x.append(whole, 0, tokens), behind = x.append(whole, 40, next);
    const std::vector<std::vector<int32_t>> cases = {
        {}, {39}, {3, 17, 38}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30}};
    for (const std::vector<int32_t>& wanted : cases) {
        const Table table(x, 50);
        Buffer<float> logits(std::max<size_t>(wanted.size(), 1) * stride, NAN);
        PassRequest pass = x.make_pass(tokens, positions, std::vector<const Table*>(40, &table), logits.data());
        pass.logit_rows = wanted, pass.batch.logit_rows = pass.logit_rows.data(),
        pass.batch.logit_row_count = int32_t(wanted.size());
        x.forward(x.pool, pass.batch);
        for (size_t i = 0; i < wanted.size(); i++) {
            CHECK(same_bits(logits.data() + i * stride, all.data() + size_t(wanted[i]) * VOCAB, VOCAB),
                  "%s, %s: row %d of %zu wanted", f.name, kind.name, wanted[i], wanted.size());
        }
        const std::vector<float> got = x.append(table, 40, next);
        CHECK(same_bits(got.data(), behind.data(), VOCAB), "%s, %s: behind %zu wanted", f.name, kind.name,
              wanted.size());
    }
}

// A row of several sequences that share blocks has the bits of sequences of their own; and a copied block is the same.
void check_sharing(const KernelTable& k, const Format& f, const Kind& kind, int nodes, bool int8 = false) {
    Fixture x(k, f, kind, 3, nodes, int8);
    const std::vector<int32_t> text = some_tokens(290, 13), steps = some_tokens(2, 14);
    const Table table(x, 300);
    x.append(table, 0, text);
    Table fork(x, 300);
    const int32_t own = fork.ids[1];
    fork.ids = {table.ids[0], own};
    x.blocks->copy(x.pool, table.ids[1], own);
    const std::vector<float> both = x.run(steps, {290, 290}, {&table, &fork});
    for (size_t i = 0; i < 2; i++) {
        Table fresh(x, 300);
        x.append(fresh, 0, text);
        const std::vector<float> alone = x.append(fresh, 290, {steps[i]});
        CHECK(same_bits(both.data() + i * VOCAB, alone.data(), VOCAB), "%s, %s: text %zu of shared blocks", f.name,
              kind.name, i);
    }
}

// Passes of one text whose number of threads changes: a number that bits depend on, or work that nobody does because it
// is shared among more threads than there are.
void check_threads(const KernelTable& k, const Format& f, const Kind& kind, int nodes) {
    Fixture x(k, f, kind, 3, nodes), one(k, f, kind, 1);
    const std::vector<int32_t> text = some_tokens(30, 15);
    const Table table(x, 60), expected(one, 60);
    const std::pair<int32_t, int32_t> passes[] = {{0, 20}, {20, 21}, {21, 24}, {24, 29}, {29, 30}};
    for (const auto& [first, end] : passes) {
        const std::vector<int32_t> rows(text.begin() + first, text.begin() + end);
        const std::vector<float> all = one.append(expected, first, rows);
        for (const int32_t threads : {2, 0, 1, 9}) {
            x.threads = threads;
            const std::vector<float> few = x.append(table, first, rows);
            CHECK(same_bits(few.data(), all.data(), all.size()), "%s, %s: %d rows by %d threads", f.name, kind.name,
                  end - first, threads);
        }
    }
    std::vector<float> likely, likely_all;
    const std::vector<int32_t> drafted = one.draft(expected, 30, {7}, 3, VOCAB, &likely_all);
    for (const int32_t threads : {2, 1}) {
        x.threads = threads;
        CHECK(x.draft(table, 30, {7}, 3, VOCAB, &likely) == drafted &&
                  same_bits(likely.data(), likely_all.data(), likely.size()),
              "%s, %s: drafted by %d threads", f.name, kind.name, threads);
    }
}

// Rows behind 16 blocks, which are merged in runs of 8, are the same where threads take whole runs and where each
// takes the blocks that it has on its own memory node: whole heads, or some of each.
void check_runs(const KernelTable& k) {
    const Kind kind = {"no rotation", 0, [](UniformSpec& s) { s.rotary_dim = s.rotary_tables = 0; }};
    const std::vector<int32_t> text = some_tokens(20, 17);
    std::vector<float> first;
    for (const auto& [threads, nodes] : {std::pair{1, 1}, {2, 2}, {3, 2}}) {
        Fixture x(k, FORMATS[0], kind, threads, nodes);
        const Table table(x, 4110);
        for (int32_t b = 0; b < 16; b++) x.append(table, b * BLOCK_POSITIONS + b, some_tokens(20, uint32_t(b)));
        const std::vector<float> prompt = x.append(table, 4090, text);
        const std::vector<float> few = x.append(table, 4090, {text.begin(), text.begin() + 16});
        if (first.empty()) first = prompt;
        CHECK(same_bits(prompt.data(), first.data(), first.size()), "a prompt by %d threads", threads);
        CHECK(same_bits(few.data(), first.data(), few.size()), "16 rows by %d threads", threads);
    }
}

// Slices: every block of every linear has one thread, gate and up stay together, and only they: one that has
// more blocks than it must is who all others wait for.
void check_division(const KernelTable& k) {
    for (const Kind& kind : KINDS) {
        const Fixture x(k, FORMATS[3], kind, 1);
        for (int threads = 1; threads <= 9; threads++) {
            const PackedModel& model = *x.model;
            const PackedLayer& layer = model.layers[1];
            const bool experts = layer.mlp.experts;
            const Linear &up = experts ? layer.experts[1].up : layer.up,
                         &down = experts ? layer.experts[1].down : layer.down;
            Linear even = down;  // of as many blocks as make pairs
            even.panels = 10;
            for (const Linear* linear :
                 std::vector<const Linear*>{&layer.qkv, &up, &down, &even, &layer.output, &layer.router, &model.head}) {
                const int64_t granularity = layer.mlp.gated && linear == &up ? 2 : 1;
                int64_t reached = 0;
                for (int t = 0; t < threads; t++) {
                    const auto [first, last] = ipex_assist::slice(*linear, t, threads);
                    CHECK(first == reached && last >= first, "slice %d of %d", t, threads);
                    CHECK(first % granularity == 0, "gate without up");
                    CHECK(last - first <= (linear->panels / granularity + threads - 1) / threads * granularity,
                          "%ld blocks for one of %d", long(last - first), threads);
                    reached = last;
                }
                CHECK(reached == linear->panels, "%ld of %ld panels", long(reached), long(linear->panels));
            }
        }
    }
}

}  // namespace

void test_model(const KernelTable& k) {
    const bool avx2 = std::string(k.name) == "avx2";
    for_each_kind([&](const Format& f, const Kind& kind) {
        // The first kind, and one whose heads read one part of a block together.
        const bool latent = KindSpec(f, kind).layers.back().attention.is_latent();
        const int nodes = &kind == KINDS || latent ? 2 : 1;
        // Threads that outnumber processors are slow; a few formats show what there is to see.
        check_passes(k, f, kind, avx2 && f.precision != BF16 && f.group == SCALE_COLUMNS);
        check_wanted(k, f, kind);
        check_sharing(k, f, kind, nodes);
        if (avx2 && (f.precision == FP32 || f.precision == INT8)) check_threads(k, f, kind, nodes);
        if (f.precision != FP32 && f.precision != BF16) return;  // whose attention is that of bf16
        check_passes(k, f, kind, false, true);
        check_sharing(k, f, kind, nodes, true);
    });
    check_runs(k);
    check_division(k);
    test_model_drafts(k);
    test_model_memory(k);
    test_nodes(k);
}

}  // namespace check
