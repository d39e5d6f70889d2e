// How a model's work and memory are divided, and that a pass has the same bits however many threads run it and whatever
// rows share it, as a prompt or as steps. (That the bits are right is tested against transformers, in Python.)
#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "small_model.h"

namespace check {
namespace {

// A prompt up to just before a block's end (the positions before it hold nothing, which is as good as anything), and rows
// across it: one by one, together, and beside another sequence.
void check_passes(const Kernels& k, const Format& f, const Kind& kind, bool more_threads) {
    std::vector<float> first_prompt, one_by_one;
    std::vector<uint8_t> first_image;
    const std::vector<int32_t> prompt = some_tokens(70, 1), steps = some_tokens(16, 2), other = some_tokens(5, 3);
    for (int threads = 1; threads <= (more_threads ? 4 : 2); threads++) {
        Fixture x(k, f, kind, threads);
        const std::vector<uint8_t> image(x.model->image(), x.model->image() + x.model->image_bytes());
        if (threads == 1) first_image = image;
        CHECK(image == first_image, "%s, %s: packed by %d threads", f.name, kind.name, threads);

        const Cache cache(*x.model, 300), second(*x.model, 20);
        if (threads == 1) {
            for (size_t i = 0; i < prompt.size(); i++) {
                const std::vector<float> row = x.append(cache, 249 - 70 + int32_t(i), {prompt[i]});
                first_prompt.insert(first_prompt.end(), row.begin(), row.end());
            }
        }
        const std::vector<float> read = x.append(cache, 249 - 70, prompt);
        if (threads == 1) {
            for (size_t i = 0; i < steps.size(); i++) {
                const std::vector<float> row = x.append(cache, 249 + int32_t(i), {steps[i]});
                one_by_one.insert(one_by_one.end(), row.begin(), row.end());
            }
        }
        CHECK(same_bits(read.data(), first_prompt.data(), read.size()), "%s, %s: a prompt is its rows, by %d threads",
              f.name, kind.name, threads);
        CHECK(std::all_of(read.begin(), read.end(), [](float v) { return std::isfinite(v); }), "%s: finite", f.name);
        const std::vector<float> together = x.append(cache, 249, steps);
        CHECK(same_bits(together.data(), one_by_one.data(), together.size()), "%s, %s: 16 rows in one pass by %d threads",
              f.name, kind.name, threads);

        // The same rows behind five of another sequence, the first eleven and the last five in two passes.
        std::vector<int32_t> tokens(other), positions = {0, 1, 2, 3, 4};
        std::vector<const Cache*> caches(5, &second);
        for (int32_t i = 0; i < 11; i++) tokens.push_back(steps[size_t(i)]), positions.push_back(249 + i), caches.push_back(&cache);
        const std::vector<float> beside = x.run(tokens, positions, caches);
        CHECK(same_bits(beside.data() + 5 * VOCAB, one_by_one.data(), 11 * VOCAB), "%s, %s: beside another sequence", f.name, kind.name);
        // A chunk of 40 rows across the block's end, behind the other sequence's.
        std::vector<int32_t> chunk(other), places = {0, 1, 2, 3, 4};
        caches.assign(5, &second);
        for (int32_t i = 0; i < 40; i++) {
            const size_t at = size_t(i + 46);
            chunk.push_back(at < prompt.size() ? prompt[at] : steps[at - prompt.size()]);
            places.push_back(249 - 70 + int32_t(at)), caches.push_back(&cache);
        }
        const std::vector<float> chunked = x.run(chunk, places, caches);
        CHECK(same_bits(chunked.data() + 5 * VOCAB, first_prompt.data() + 46 * VOCAB, 24 * VOCAB) &&
                  same_bits(chunked.data() + 29 * VOCAB, one_by_one.data(), 16 * VOCAB),
              "%s, %s: a chunk by %d threads", f.name, kind.name, threads);
        const std::vector<float> alone = x.append(second, 0, other);
        CHECK(same_bits(beside.data(), alone.data(), 5 * VOCAB), "%s, %s: the other sequence", f.name, kind.name);
    }
}

// Drafting in one call gives the tokens of single greedy passes, across a block's end, and their probabilities.
void check_draft(const Kernels& k, const Format& f, const Kind& kind) {
    Fixture x(k, f, kind, f.precision == INT4 && f.group == SPAN ? 2 : 1);
    const Cache cache(*x.model, 300);
    x.append(cache, 245 - 40, some_tokens(40, 4));
    std::vector<int32_t> feed = some_tokens(3, 5), expected, at = {245, 246, 247};
    for (int32_t i = 0, length = 245; i < 20; i++) {
        const std::vector<float> logits = x.append(cache, length, feed);
        length += int32_t(feed.size());
        const auto row = logits.end() - VOCAB;
        expected.push_back(int32_t(std::max_element(row, row + 45) - row));
        feed = {expected.back()};
    }
    const std::vector<int32_t> start = some_tokens(3, 5);
    const std::vector<const Cache*> caches(3, &cache);
    Buffer<float> logits((VOCAB + LANES - 1) / LANES * LANES);
    Batch batch = x.make_batch(start, at, caches, logits.data());
    batch.last = 1;
    Buffer<int32_t> drafted(20);
    Buffer<float> probabilities(20);
    const int32_t count = Forward(*x.model, x.pool, x.workspace, batch, 20).draft(20, 45, 0, drafted.data(), probabilities.data());
    CHECK(count == 20 && std::equal(expected.begin(), expected.end(), drafted.data()), "%s, %s", f.name, kind.name);
    for (size_t i = 0; i < 20; i++) CHECK(probabilities[i] > 0 && probabilities[i] <= 1.0001f, "%g", double(probabilities[i]));
}

// Slices and owners: every block of every linear has one thread, gate and up stay together.
void check_division(const Kernels& k) {
    for (const Kind& kind : KINDS) {
        const Fixture x(k, FORMATS[3], kind, 1);
        for (int threads = 1; threads <= 9; threads++) {
            for (const Linear* linear : {&x.model->layers[0].qkv, &x.model->layers[1].up, &x.model->layers[0].down, &x.model->head}) {
                int64_t reached = 0;
                for (int t = 0; t < threads; t++) {
                    const auto [first, last] = x.model->slice(*linear, t, threads);
                    CHECK(first == reached && last >= first, "slice %d of %d", t, threads);
                    CHECK(!x.model->spec.gated || linear != &x.model->layers[1].up || first % 2 == 0, "gate without up");
                    reached = last;
                }
                CHECK(reached == linear->blocks, "%ld of %ld blocks", long(reached), long(linear->blocks));
            }
            for (int32_t h = 0; h < x.model->spec.kv_heads; h++) {
                for (int64_t b = 0; b < 20; b++) {
                    const int owner = x.model->owner(h, b, threads);
                    CHECK(owner >= 0 && owner < threads, "block %ld of head %d belongs to %d of %d", long(b), h, owner, threads);
                }
            }
        }
    }
}

// Blocks of a cache are zero at first, lie side by side, and hold what is written to their ends.
void check_cache(const Kernels& k) {
    for (const Format& f : FORMATS) {
        const Fixture x(k, f, KINDS[0], 1);
        const Cache cache(*x.model, 257);
        CHECK(cache.positions() == 512, "%ld", long(cache.positions()));
        const int64_t element = f.precision == FP32 ? 4 : 2;
        const int64_t key_bytes = KEYS * x.model->key_depth() * element, value_bytes = KEYS * x.model->value_width() * element;
        std::set<uint8_t*> seen;
        for (int32_t layer = 0; layer < 2; layer++) {
            for (int32_t h = 0; h < 2; h++) {
                for (int64_t b = 0; b < 2; b++) {
                    const KeyValueBlock block = cache.block(layer, h, b);
                    for (uint8_t* start : {block.keys, block.values}) {
                        const int64_t size = start == block.keys ? key_bytes : value_bytes;
                        CHECK(std::all_of(start, start + size, [](uint8_t v) { return v == 0; }), "%s: block is not empty", f.name);
                        std::memset(start, 7, size_t(size));
                        CHECK(seen.insert(start).second, "%s: given twice", f.name);
                    }
                }
            }
        }
    }
}

void check_embedding(const Kernels& k) {
    for (const Format& f : FORMATS) {
        for (const Kind& kind : KINDS) {
            const Fixture x(k, f, kind, 2);
            const size_t width = size_t(x.model->spec.embedding_size);
            for (int32_t token = 0; token < VOCAB; token++) {
                Buffer<float> row(width);
                x.model->embed(token, row.data());
                for (size_t i = 0; i < width; i++) {
                    const float expected = rounded(f.precision == FP32 ? FP32 : BF16, x.table[size_t(token) * width + i]);
                    CHECK(row[i] == expected, "%s, %s, token %d: %g != %g", f.name, kind.name, token, double(row[i]), double(expected));
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
        CHECK(size == 1 || sum != checksum(one, data.data(), size - 1), "%ld bytes: the last does not count", long(size));
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

void test_model(const Kernels& k) {
    for (const Format& f : FORMATS) {
#ifdef __SANITIZE_THREAD__
        if (f.precision == BF16 || f.group != SPAN) continue;  // the races are the same, and it is slow
#endif
        for (const Kind& kind : KINDS) {
            // Threads that outnumber processors are slow; a few formats show what there is to see.
            check_passes(k, f, kind, std::string(k.name) == "avx512" && f.precision != BF16 && f.group == SPAN);
            check_draft(k, f, kind);
        }
    }
    check_division(k);
    check_cache(k);
    check_embedding(k);
    check_checksum();
}

}  // namespace check
