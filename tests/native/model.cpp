// How a model's work and memory are divided, and that a pass has the same bits however many threads run it and whatever
// rows share it, as a prompt or as steps. (That the bits are right is tested against transformers, in Python.)
#include <algorithm>
#include <memory>
#include <set>
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
        if (broken && !x.model->spec.rope_width) break;
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
        const GreedyDraft drafts{counts, least, MOST, drafted, probabilities, numbers};
        // The first text's third row is at position 2; those of the others are not.
        if (broken) std::swap(x.cosine[size_t(2 * x.model->spec.rope_width)], x.poison);
        x.draft(pass.batch, counts, drafts);
        if (broken) std::swap(x.cosine[size_t(2 * x.model->spec.rope_width)], x.poison);
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
        if (!x.model->spec.rope_width) continue;
        std::swap(x.cosine[size_t(3 * x.model->spec.rope_width)], x.poison);
        x.top_tokens(pass.batch, {5, chosen, logs, sums, top, top_logs});
        std::swap(x.cosine[size_t(3 * x.model->spec.rope_width)], x.poison);
        CHECK(
            chosen[3] == -1 && std::isnan(logs[3]) && std::isnan(sums[3]) && top[15] == -1 && std::isnan(top_logs[15]),
            "%d", chosen[3]);
        CHECK(chosen[2] >= 0 && std::isfinite(logs[2]), "another row is lost, too");
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
    const std::vector<std::vector<int32_t>> cases = {{}, {39}, {3, 17, 38}};
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

// Slices and owners: every block of every linear has one thread, gate and up stay together, and only they: one that has
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
            even.blocks = 10;
            for (const Linear* linear :
                 std::vector<const Linear*>{&layer.qkv, &up, &down, &even, &layer.output, &layer.router, &model.head}) {
                const int64_t unit = layer.mlp.gated && linear == &up ? 2 : 1;
                int64_t reached = 0;
                for (int t = 0; t < threads; t++) {
                    const auto [first, last] = ipex_assist::slice(*linear, t, threads);
                    CHECK(first == reached && last >= first, "slice %d of %d", t, threads);
                    CHECK(first % unit == 0, "gate without up");
                    CHECK(last - first <= (linear->blocks / unit + threads - 1) / threads * unit,
                          "%ld blocks for one of %d", long(last - first), threads);
                    reached = last;
                }
                CHECK(reached == linear->blocks, "%ld of %ld blocks", long(reached), long(linear->blocks));
            }
            for (int32_t h = 0; h < layer.attention.kv_heads; h++) {
                for (int32_t b = 0; b < 20; b++) {
                    const int owner = x.blocks->owner(b, 1, h, threads);
                    CHECK(owner >= 0 && owner < threads, "block %ld of head %d belongs to %d of %d", long(b), h, owner,
                          threads);
                }
            }
        }
    }
}

// Blocks are zero at first, lie side by side, hold what is written to their ends, are copied whole, and are zero again
// when they were discarded, while their neighbours are not. Those of int8 have scales beside half the bytes of bf16.
void check_blocks(const Fixture& x, const char* name, Precision stored) {
    const Blocks blocks(x.model, 3, stored);
    CHECK(blocks.count() == 3 && blocks.precision() == stored && blocks.fits(*x.model), "%s: %ld", name,
          long(blocks.count()));
    CHECK(blocks.attention_precision() == (stored == INT8 ? x.model->attention_precision() : stored), "%s", name);
    const int64_t element = stored == FP32   ? 4
                            : stored == BF16 ? 2
                                             : 1,
                  scale_bytes = stored == INT8 ? BLOCK_POSITIONS * 4 : 0;
    const int64_t key_bytes = BLOCK_POSITIONS * x.model->layers[0].attention.key_depth() * element,
                  value_bytes = BLOCK_POSITIONS * x.model->layers[0].attention.value_width() * element;
    const int64_t each = Blocks::bytes_each(*x.model, stored);
    CHECK(each == 4 * (key_bytes + value_bytes + 2 * scale_bytes), "%s: %ld bytes a block", name, long(each));
    std::set<uint8_t*> seen;
    const auto parts = [&](int32_t id, auto&& use) {
        for (int32_t layer = 0; layer < 2; layer++) {
            for (int32_t h = 0; h < 2; h++) {
                const KeyValueBlock block = blocks.at(id, layer, h);
                use(block.keys, size_t(key_bytes)), use(block.values, size_t(value_bytes));
                CHECK(!block.key_scales == (stored != INT8) && !block.value_scales == (stored != INT8), "%s: scales",
                      name);
                if (scale_bytes) use(reinterpret_cast<uint8_t*>(block.key_scales), size_t(scale_bytes));
                if (scale_bytes) use(reinterpret_cast<uint8_t*>(block.value_scales), size_t(scale_bytes));
            }
        }
    };
    const auto holds = [&](int32_t id, uint8_t value) {
        bool all = true;
        parts(id, [&](uint8_t* start, size_t size) {
            all &= std::all_of(start, start + size, [=](uint8_t v) { return v == value; });
        });
        return all;
    };
    for (int32_t id = 0; id < 3; id++) {
        CHECK(holds(id, 0), "%s: block %d is not empty", name, id);
        parts(id, [&](uint8_t* start, size_t size) {
            std::memset(start, 7 + id, size);
            CHECK(seen.insert(start).second, "%s: given twice", name);
        });
    }
    Pool pool(3, nullptr);
    blocks.copy(pool, 0, 2);
    CHECK(holds(0, 7) && holds(1, 8) && holds(2, 7), "%s: a copy", name);
    const int32_t ids[] = {2, 0};
    blocks.discard(ids, 2);
    CHECK(holds(1, 8), "%s: a neighbour of discarded blocks", name);
    const int32_t whole[] = {1, 0, 2};
    blocks.discard(whole, 3);
    CHECK(holds(0, 0) && holds(1, 0), "%s: discarded", name);
}

void check_blocks(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        const Fixture x(k, f, KINDS[0], 2);
        for (const Precision stored : {FP32, BF16, INT8}) {
            if (stored != FP32 || f.precision == FP32) check_blocks(x, f.name, stored);
        }
    }
}

void check_embedding(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const Kind& kind : KINDS) {
            const Fixture x(k, f, kind, 2);
            const size_t width = size_t(x.model->spec.embedding_size);
            for (int32_t token = 0; token < VOCAB; token++) {
                Buffer<float> row(width);
                x.model->embed(token, row.data());
                for (size_t i = 0; i < width; i++) {
                    const float expected =
                        rounded(f.precision == FP32 ? FP32 : BF16, x.table[size_t(token) * width + i]);
                    CHECK(row[i] == expected, "%s, %s, token %d: %g != %g", f.name, kind.name, token, double(row[i]),
                          double(expected));
                }
            }
        }
    }
}

// The checksum does not depend on the threads, and every byte counts.
void check_checksum() {
    Random random(9);
    Pool one(1, nullptr), three(3, nullptr);
    for (const int64_t size : {1L, 31L, 32L, 1000L, (1L << 20) - 1, (3L << 20) + 17}) {
        Buffer<uint8_t> data(static_cast<size_t>(size));
        for (size_t i = 0; i < data.size(); i++) data[i] = uint8_t(random.below(256));
        const uint64_t sum = checksum(one, data.data(), size);
        CHECK(sum == checksum(three, data.data(), size), "%ld bytes by three threads", long(size));
        CHECK(size == 1 || sum != checksum(one, data.data(), size - 1), "%ld bytes: the last does not count",
              long(size));
        for (int round = 0; round < 20; round++) {
            const size_t at = round == 0 ? 0 : round == 1 ? data.size() - 1 : size_t(random.below(int(size)));
            const uint8_t bit = uint8_t(1 << random.below(8));
            data[at] ^= bit;
            CHECK(sum != checksum(one, data.data(), size), "byte %zu of %ld does not count", at, long(size));
            data[at] ^= bit;
        }
        CHECK(sum == checksum(one, data.data(), size), "%ld bytes again", long(size));
    }
}

}  // namespace

void test_model(const KernelTable& k) {
    for (const Format& f : FORMATS) {
#ifdef __SANITIZE_THREAD__
        if (f.precision == BF16 || f.group != SCALE_COLUMNS) continue;  // the races are the same, and it is slow
#endif
        for (const Kind& kind : KINDS) {
            if (&kind >= KINDS + 3 && f.precision != FP32 && f.group == SCALE_COLUMNS)
                continue;  // fewer formats show it
            // Threads that outnumber processors are slow; a few formats show what there is to see.
            check_passes(k, f, kind, std::string(k.name) == "avx2" && f.precision != BF16 && f.group == SCALE_COLUMNS);
            check_draft(k, f, kind);
            check_drafts(k, f, kind);
            check_choices(k, f, kind);
            check_wanted(k, f, kind);
            check_sharing(k, f, kind, &kind == KINDS ? 2 : 1);
            if (std::string(k.name) == "avx2" && (f.precision == FP32 || f.precision == INT8))
                check_threads(k, f, kind, &kind == KINDS ? 2 : 1);
            if (f.precision != FP32 && f.precision != BF16) continue;  // whose attention is that of bf16
            check_passes(k, f, kind, false, true);
            check_draft(k, f, kind, true);
            check_sharing(k, f, kind, &kind == KINDS ? 2 : 1, true);
        }
    }
    check_runs(k);
    check_division(k);
    check_blocks(k);
    check_embedding(k);
    check_checksum();
    test_nodes(k);
}

}  // namespace check
