// Small models with random weights: how work and memory are divided, and that a pass has the same bits however many
// threads run it and whatever rows share it. (That the bits are right is tested against transformers, in Python.)
#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "check.h"
#include "forward.h"

namespace check {
namespace {

constexpr int32_t VOCAB = 50, POSITIONS = 400;

struct Kind {
    const char* name;
    int32_t window;
    void (*change)(Spec&);
};

Spec base_spec(const Format& f) {
    Spec spec{};
    spec.precision = spec.outer_precision = f.precision;
    spec.group = f.group;
    spec.vocab_size = VOCAB;
    spec.hidden_size = 40, spec.intermediate_size = 75, spec.layers = 2;
    spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 10, spec.embedding_size = 40;
    spec.rms_norm = spec.norm_weight = spec.final_norm = spec.gated = 1;
    spec.norm_eps = 1e-5f, spec.attention_scale = 0.316f;
    return spec;
}

const Kind KINDS[] = {
    {"grouped queries, gated, rotary, biases", 0, [](Spec& s) { s.qkv_bias = s.output_bias = s.mlp_bias = 1; }},
    {"learned positions, projected, norm behind", 0,
     [](Spec& s) {
         s.positions = POSITIONS + 2, s.position_offset = 2, s.rms_norm = 0, s.norm_bias = 1, s.post_norm = 1;
         s.final_norm = 0, s.gated = 0, s.activation = RELU, s.tied_head = 1, s.projected_embedding = 1;
         s.embedding_size = 24, s.qkv_bias = 1, s.kv_heads = 4;
     }},
    {"one KV head, window, norms of heads", 30,
     [](Spec& s) { s.kv_heads = 1, s.head_dim = 16, s.qk_norm = 1, s.tied_head = 1, s.activation = GELU; }},
};

struct Shape {
    Slot slot;
    bool layered, bias;
    int64_t rows, columns;
};

// Every weight that a model of any spec may have.
std::vector<Shape> shapes(const Spec& s) {
    const int64_t hidden = s.hidden_size, inner = s.intermediate_size, attended = int64_t(s.heads) * s.head_dim;
    const int64_t kv = int64_t(s.kv_heads) * s.head_dim;
    std::vector<Shape> all = {{EMBED_TOKENS, false, false, s.vocab_size, s.embedding_size}};
    if (!s.tied_head) all.push_back({LM_HEAD, false, false, s.vocab_size, s.embedding_size});
    if (s.positions) all.push_back({EMBED_POSITIONS, false, false, s.positions, hidden});
    if (s.projected_embedding) all.push_back({PROJECT_IN, false, false, hidden, s.embedding_size});
    if (s.projected_embedding) all.push_back({PROJECT_OUT, false, false, s.embedding_size, hidden});
    for (const bool bias : {false, true}) {
        if (bias && !s.norm_bias) continue;
        if (s.final_norm) all.push_back({FINAL_NORM, false, bias, hidden, 1});
        all.push_back({ATTENTION_NORM, true, bias, hidden, 1});
        all.push_back({MLP_NORM, true, bias, hidden, 1});
    }
    if (s.qk_norm) all.push_back({Q_NORM, true, false, s.head_dim, 1});
    if (s.qk_norm) all.push_back({K_NORM, true, false, s.head_dim, 1});
    const auto linear = [&](Slot slot, int32_t bias, int64_t rows, int64_t columns) {
        all.push_back({slot, true, false, rows, columns});
        if (bias) all.push_back({slot, true, true, rows, 1});
    };
    linear(Q_PROJ, s.qkv_bias, attended, hidden);
    linear(K_PROJ, s.qkv_bias, kv, hidden);
    linear(V_PROJ, s.qkv_bias, kv, hidden);
    linear(O_PROJ, s.output_bias, hidden, attended);
    if (s.gated) linear(GATE_PROJ, s.mlp_bias, inner, hidden);
    linear(UP_PROJ, s.mlp_bias, inner, hidden);
    linear(DOWN_PROJ, s.mlp_bias, hidden, inner);
    return all;
}

struct Fixture {
    Fixture(const Kernels& k, const Format& f, const Kind& kind, int threads)
        : pool(threads, nullptr), cosine(POSITIONS * 32), sine(POSITIONS * 32) {
        Spec spec = base_spec(f);
        kind.change(spec);
        const std::vector<int32_t> windows(size_t(spec.layers), kind.window);
        model = std::make_unique<Model>(spec, windows.data(), &k);
        model->allocate();
        Random random(1);
        for (const Shape& shape : shapes(spec)) {
            for (int32_t layer = 0; layer < (shape.layered ? spec.layers : 1); layer++) {
                Buffer<float> tensor(size_t(shape.rows * shape.columns));
                for (size_t i = 0; i < tensor.size(); i++) tensor[i] = random.normal() * (shape.columns > 1 ? 0.2f : 0.5f);
                if (shape.slot == EMBED_TOKENS) table.assign(tensor.data(), tensor.data() + tensor.size());
                CHECK(model->pack(pool, shape.slot, layer, shape.bias, SOURCE_F32, tensor.data(), shape.rows, shape.columns),
                      "%s: no place for weight %d", kind.name, shape.slot);
                const bool matrix = shape.columns > 1 && shape.slot != EMBED_POSITIONS && shape.slot != EMBED_TOKENS;
                CHECK(!matrix || !model->pack(pool, shape.slot, layer, false, SOURCE_F32, tensor.data(), shape.rows, shape.columns - 1),
                      "%s: weight %d may have another shape", kind.name, shape.slot);
            }
        }
        const int32_t dim = spec.head_dim;
        for (int32_t i = 0; i < POSITIONS * dim; i++) {
            const double angle = i / dim * std::pow(1e4, -2.0 * (i % dim % (dim / 2)) / dim);
            cosine[size_t(i)] = float(std::cos(angle)), sine[size_t(i)] = float((i % dim < dim / 2 ? -1 : 1) * std::sin(angle));
        }
    }

    // Logits (rows, VOCAB) of `tokens` appended at `start`, each row in the cache given for it.
    std::vector<float> run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                           const std::vector<const Cache*>& caches) {
        const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
        Buffer<float> logits(tokens.size() * stride, NAN);
        const Batch batch = make_batch(tokens, positions, caches, logits.data());
        Forward(*model, pool, workspace, batch).run();
        std::vector<float> result;
        for (size_t r = 0; r < tokens.size(); r++) {
            result.insert(result.end(), logits.data() + r * stride, logits.data() + r * stride + VOCAB);
        }
        return result;
    }

    Batch make_batch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                     const std::vector<const Cache*>& caches, float* logits) {
        Batch batch{};
        batch.rows = batch.last = int32_t(tokens.size());
        batch.tokens = tokens.data(), batch.positions = positions.data(), batch.caches = caches.data();
        batch.cosine = model->spec.positions ? nullptr : cosine.data();
        batch.sine = model->spec.positions ? nullptr : sine.data();
        batch.logits = logits, batch.stride = (VOCAB + LANES - 1) / LANES * LANES;
        return batch;
    }

    std::vector<float> append(const Cache& cache, int32_t start, const std::vector<int32_t>& tokens) {
        std::vector<int32_t> positions;
        for (size_t i = 0; i < tokens.size(); i++) positions.push_back(start + int32_t(i));
        return run(tokens, positions, std::vector<const Cache*>(tokens.size(), &cache));
    }

    Pool pool;
    Workspace workspace;
    std::unique_ptr<Model> model;
    std::vector<float> table;
    Buffer<float> cosine, sine;
};

std::vector<int32_t> some_tokens(int32_t count, uint32_t seed) {
    Random random(seed);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; i++) tokens.push_back(random.below(VOCAB));
    return tokens;
}

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
        const std::vector<float> read = x.append(cache, 249 - 70, prompt);
        if (threads == 1) {
            first_prompt = read;
            for (size_t i = 0; i < steps.size(); i++) {
                const std::vector<float> row = x.append(cache, 249 + int32_t(i), {steps[i]});
                one_by_one.insert(one_by_one.end(), row.begin(), row.end());
            }
        }
        CHECK(same_bits(read.data(), first_prompt.data(), read.size()), "%s, %s: prompt by %d threads", f.name, kind.name, threads);
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
