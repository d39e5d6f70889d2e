// Small models with random weights, for tests of whole passes.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "check.h"
#include "operations/pass.h"

namespace check {
namespace {

constexpr int32_t VOCAB = 50, POSITIONS = 400;

struct Kind {
    const char* name;
    int32_t window;
    void (*change)(Spec&);
    bool sloped = false;  // ALiBi's slopes
};

Spec base_spec(const Format& f) {
    Spec spec{};
    spec.precision = spec.outer_precision = spec.expert_precision = f.precision;
    spec.group = f.group;
    spec.vocab_size = VOCAB;
    spec.hidden_size = 40, spec.intermediate_size = 75, spec.layers = 2;
    spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 10, spec.embedding_size = 40;
    spec.rms_norm = spec.norm_weight = spec.final_norm = spec.gated = 1;
    spec.rotary_dim = 10, spec.rotary_tables = 1, spec.embedding_multiplier = spec.residual_multiplier = 1;
    spec.norm_eps = 1e-5f, spec.attention_scale = 0.316f;
    return spec;
}

const Kind KINDS[] = {
    {"grouped queries, gated, rotary, biases", 0, [](Spec& s) { s.qkv_bias = s.output_bias = s.mlp_bias = 1; }},
    {"learned positions, projected, norm behind", 0,
     [](Spec& s) {
         s.positions = POSITIONS + 2, s.position_offset = 2, s.rms_norm = 0, s.norm_bias = 1, s.norm_place = OF_SUM;
         s.rotary_dim = s.rotary_tables = 0, s.final_norm = 0, s.gated = 0, s.activation = RELU, s.tied_head = 1,
         s.projected_embedding = 1;
         s.embedding_size = 24, s.qkv_bias = 1, s.kv_heads = 4;
     }},
    {"one KV head, window, norms of heads, sinks", 30,
     [](Spec& s) {
         s.attention_sinks = 1, s.kv_heads = 1, s.head_dim = s.rotary_dim = 16, s.qk_norm = ONE_FOR_HEADS,
         s.tied_head = 1, s.activation = GELU;
     }},
    {"norms around, soft caps, two rotation tables, a norm of all heads, sinks, a clamped activation", 30,
     [](Spec& s) {
         s.norm_place = AROUND, s.attention_cap = 2, s.logit_cap = 5, s.rotary_tables = 2, s.qk_norm = ALL_HEADS;
         s.attention_sinks = 1, s.activation = CLAMPED_SWIGLU;
         s.embedding_multiplier = 3, s.residual_multiplier = 0.5f, s.tied_head = 1;
     }},
    {"parallel behind one norm, slopes, a norm of each head, a norm of the embedding", 0,
     [](Spec& s) {
         s.parallel = s.shared_norm = s.embedding_norm = s.head_bias = 1, s.rms_norm = 0, s.qk_norm = EACH_HEAD;
         s.rotary_dim = s.rotary_tables = 0;
     },
     true},
    {"norms behind, a part of each head turns", 0,
     [](Spec& s) { s.norm_place = BEHIND, s.rotary_dim = 6, s.gated = 0, s.norm_bias = 1, s.rms_norm = 0; }},
    {"experts, and one that all share", 0,
     [](Spec& s) {
         s.experts = 7, s.experts_per_token = 3, s.shared_size = 45, s.shared_gate = s.router_bias = s.mlp_bias = 1;
     }},
};

struct Shape {
    Slot slot;
    bool layered, bias;
    int64_t rows, columns;
    int32_t expert = -1;
    int32_t index(const Spec& s, int32_t layer) const { return layer + s.layers * (expert + 1); }
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
        if (s.embedding_norm) all.push_back({EMBED_NORM, false, bias, hidden, 1});
        const bool behind = s.norm_place == BEHIND || s.norm_place == AROUND;
        if (s.norm_place != BEHIND) all.push_back({ATTENTION_NORM, true, bias, hidden, 1});
        if (s.norm_place != BEHIND && !s.shared_norm) all.push_back({MLP_NORM, true, bias, hidden, 1});
        if (behind) all.push_back({ATTENTION_OUT_NORM, true, bias, hidden, 1});
        if (behind) all.push_back({MLP_OUT_NORM, true, bias, hidden, 1});
    }
    if (s.head_bias) all.push_back({LM_HEAD, false, true, s.vocab_size, 1});
    const bool one = s.qk_norm == ONE_FOR_HEADS;
    if (s.qk_norm) all.push_back({Q_NORM, true, false, one ? s.head_dim : attended, 1});
    if (s.qk_norm) all.push_back({K_NORM, true, false, one ? s.head_dim : kv, 1});
    if (s.attention_sinks) all.push_back({SINKS, true, false, s.heads, 1});
    const auto linear = [&](Slot slot, int32_t bias, int64_t rows, int64_t columns, int32_t expert = -1) {
        all.push_back({slot, true, false, rows, columns, expert});
        if (bias) all.push_back({slot, true, true, rows, 1, expert});
    };
    linear(Q_PROJ, s.qkv_bias, attended, hidden);
    linear(K_PROJ, s.qkv_bias, kv, hidden);
    linear(V_PROJ, s.qkv_bias, kv, hidden);
    linear(O_PROJ, s.output_bias, hidden, attended);
    const int32_t experts = s.experts + (s.shared_size ? 1 : 0);
    for (int32_t e = s.experts ? 0 : -1; e < (s.experts ? experts : 0); e++) {
        const int64_t size = s.experts && e == s.experts ? s.shared_size : inner;
        if (s.gated) linear(GATE_PROJ, s.mlp_bias, size, hidden, e);
        linear(UP_PROJ, s.mlp_bias, size, hidden, e);
        linear(DOWN_PROJ, s.mlp_bias, hidden, size, e);
    }
    if (s.experts) linear(ROUTER, s.router_bias, s.experts, hidden);
    if (s.shared_gate) linear(SHARED_GATE, 0, 1, hidden);
    return all;
}

struct Fixture;

// A sequence: a table of blocks out of its model's pool, which has them in another order.
struct Table {
    Table(Fixture& x, int64_t positions);
    std::vector<int32_t> ids;
};

// A pass and what its batch points to.
struct PassRequest {
    std::vector<Segment> segments;
    std::vector<int32_t> tokens, logit_rows;
    Batch batch{};
};

// The memory nodes of threads that so many nodes share evenly.
inline std::vector<int32_t> spread(int threads, int nodes) {
    std::vector<int32_t> each;
    for (int i = 0; i < threads && nodes > 1; i++) each.push_back(i * nodes / threads);
    return each;
}

// The image of a model, read in pieces of so many bytes.
inline std::vector<uint8_t> image_of(const Model& model, int64_t piece = 1 << 20) {
    std::vector<uint8_t> image;
    Buffer<uint8_t> buffer{size_t(piece)};
    for (int64_t start = 0; start < model.image_bytes(); start += piece) {
        const int64_t size = std::min(piece, model.image_bytes() - start);
        const uint8_t* from = model.image(start, size, buffer.data());
        image.insert(image.end(), from, from + size);
    }
    return image;
}

struct Fixture {
    static constexpr int32_t BLOCKS = 23;

    Fixture(const Kernels& k, const Format& f, const Kind& kind, int threads, int nodes = 1, bool int8 = false)
        : pool(threads, nullptr, spread(threads, nodes)),
          cosine(POSITIONS * 32),
          sine(POSITIONS * 32) {
        Spec spec = base_spec(f);
        kind.change(spec);
        const std::vector<int32_t> windows(size_t(spec.layers), kind.window);
        // The last layer turns by the last table.
        std::vector<int32_t> tables(size_t(spec.layers), spec.rotary_dim ? 0 : -1);
        tables.back() = spec.rotary_tables - 1;
        const std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
        model = std::make_unique<Model>(spec, windows.data(), &k, tables.data(), kind.sloped ? slopes.data() : nullptr);
        model->allocate(pool);
        program = std::make_unique<Program>(*model);
        Random random(1);
        for (const Shape& shape : shapes(spec)) {
            for (int32_t layer = 0; layer < (shape.layered ? spec.layers : 1); layer++) {
                const int32_t index = shape.index(spec, layer);
                Buffer<float> tensor(size_t(shape.rows * shape.columns));
                for (size_t i = 0; i < tensor.size(); i++)
                    tensor[i] = random.normal() * (shape.columns > 1 ? 0.2f : 0.5f);
                if (shape.slot == EMBED_TOKENS) table.assign(tensor.data(), tensor.data() + tensor.size());
                CHECK(model->pack(pool, shape.slot, index, shape.bias, SOURCE_F32, tensor.data(), shape.rows,
                                  shape.columns),
                      "%s: no place for weight %d", kind.name, shape.slot);
                const bool matrix = shape.columns > 1 && shape.slot != EMBED_POSITIONS && shape.slot != EMBED_TOKENS;
                CHECK(!matrix || !model->pack(pool, shape.slot, index, false, SOURCE_F32, tensor.data(), shape.rows,
                                              shape.columns - 1),
                      "%s: weight %d may have another shape", kind.name, shape.slot);
            }
        }
        blocks = std::make_unique<Blocks>(*model, BLOCKS, int8 ? INT8 : model->attention_precision());
        const int32_t dim = spec.rotary_dim, width = int32_t(model->rotation_width());
        for (int32_t i = 0; i < POSITIONS * width; i++) {
            const double base = i % width < dim ? 1e4 : 50,
                         angle = i / width * std::pow(base, -2.0 * (i % dim % (dim / 2)) / dim);
            cosine[size_t(i)] = float(std::cos(angle)),
            sine[size_t(i)] = float((i % dim < dim / 2 ? -1 : 1) * std::sin(angle));
        }
    }

    void forward(Pool& by, const Batch& batch) {
        ipex_assist::Pass pass(*program, by, activations, batch);
        ipex_assist::forward(pass);
    }
    void top_tokens(const Batch& batch, const TopTokens& found) {
        ipex_assist::Pass pass(*program, pool, activations, batch);
        ipex_assist::top_tokens(pass, found);
    }
    void draft(const Batch& batch, const int32_t* counts, const GreedyDraft& request) {
        ipex_assist::Pass pass(*program, pool, activations, batch, counts);
        ipex_assist::draft(pass, request);
    }

    // Logits (rows, VOCAB) of `tokens`, each row in the sequence given for it; rows of one sequence are side by side.
    std::vector<float> run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                           const std::vector<const Table*>& tables) {
        const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
        Buffer<float> logits(tokens.size() * stride, NAN);
        const PassRequest pass = make_pass(tokens, positions, tables, logits.data());
        forward(this->pool, pass.batch);
        std::vector<float> result;
        for (size_t r = 0; r < tokens.size(); r++) {
            result.insert(result.end(), logits.data() + r * stride, logits.data() + r * stride + VOCAB);
        }
        return result;
    }

    Segment make_segment(const Table& table, int32_t start, int32_t rows) const {
        Segment s{};
        s.blocks = table.ids.data(), s.block_count = int32_t(table.ids.size());
        s.start = start, s.rows = rows;
        s.cosine = model->spec.rotary_dim ? cosine.data() : nullptr;
        s.sine = model->spec.rotary_dim ? sine.data() : nullptr;
        s.rope_rows = model->spec.rotary_dim ? POSITIONS : 0;
        return s;
    }

    PassRequest make_pass(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                          const std::vector<const Table*>& tables, float* logits) const {
        PassRequest pass;
        pass.tokens = tokens;
        for (size_t r = 0; r < tokens.size(); r++) {
            if (r == 0 || tables[r] != tables[r - 1])
                pass.segments.push_back(make_segment(*tables[r], positions[r], 0));
            pass.segments.back().rows++;
            pass.logit_rows.push_back(int32_t(r));
        }
        Batch& batch = pass.batch;
        batch.rows = batch.logit_row_count = int32_t(tokens.size()),
        batch.segment_count = int32_t(pass.segments.size());
        batch.segments = pass.segments.data(), batch.tokens = pass.tokens.data(),
        batch.logit_rows = pass.logit_rows.data();
        batch.blocks = blocks.get();
        batch.threads = threads;
        batch.logits = logits, batch.stride = (VOCAB + LANES - 1) / LANES * LANES;
        return pass;
    }

    std::vector<float> append(const Table& table, int32_t start, const std::vector<int32_t>& tokens) {
        std::vector<int32_t> positions;
        for (size_t i = 0; i < tokens.size(); i++) positions.push_back(start + int32_t(i));
        return run(tokens, positions, std::vector<const Table*>(tokens.size(), &table));
    }

    // Up to `count` tokens drafted behind `tokens` at `start`, out of the first `vocabulary`.
    std::vector<int32_t> draft(const Table& table, int32_t start, const std::vector<int32_t>& tokens, int32_t count,
                               int32_t vocabulary, std::vector<float>* likely = nullptr) {
        std::vector<float> logits((VOCAB + LANES - 1) / LANES * LANES);
        PassRequest pass = make_pass(tokens, std::vector<int32_t>(tokens.size(), start),
                                     std::vector<const Table*>(tokens.size(), &table), logits.data());
        pass.logit_rows = {int32_t(tokens.size()) - 1}, pass.batch.logit_rows = pass.logit_rows.data(),
        pass.batch.logit_row_count = 1;
        pass.batch.vocabulary = vocabulary;
        Buffer<int32_t> drafted(static_cast<size_t>(count));
        Buffer<float> probabilities(static_cast<size_t>(count));
        const float least = 0;
        int32_t number = 0;
        draft(pass.batch, &count, {&count, &least, count, drafted.data(), probabilities.data(), &number});
        if (likely) likely->assign(probabilities.data(), probabilities.data() + number);
        return {drafted.data(), drafted.data() + number};
    }

    Pool pool;
    int32_t threads = 0;  // of its passes; 0: all
    Activations activations;
    std::unique_ptr<Model> model;
    std::unique_ptr<Program> program;
    std::unique_ptr<Blocks> blocks;
    int32_t taken = 0;  // of them
    std::vector<float> table;
    Buffer<float> cosine, sine;
    float poison = NAN;  // for a place in a rotation table: rows at that position become NaN
};

inline Table::Table(Fixture& x, int64_t positions) {
    for (int64_t i = 0; i < (positions + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS; i++)
        ids.push_back(x.taken++ * 7 % Fixture::BLOCKS);
}

std::vector<int32_t> some_tokens(int32_t count, uint32_t seed) {
    Random random(seed);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; i++) tokens.push_back(random.below(VOCAB));
    return tokens;
}

}  // namespace
}  // namespace check
