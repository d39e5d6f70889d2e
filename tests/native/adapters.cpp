// Adapters in passes: the matrices against plain loops, and that a row's bits are its own whatever adapters are beside
// it, by however many threads, as a prompt or as steps.
#include "packing/adapter.h"

#include <memory>

#include "small_model.h"

namespace check {
namespace {

// An adapter of every linear that takes one; layers with experts have none of their MLP.
std::unique_ptr<Adapter> make_adapter(Fixture& x, int64_t rank, uint32_t seed, float size) {
    auto made = std::make_unique<Adapter>(x.model);
    Random random(seed);
    for (int32_t layer = 0; layer < int32_t(x.model->layers.size()); layer++) {
        for (const char* leaf :
             {"q_proj", "k_proj", "v_proj", "o_proj", "g_proj", "gate_proj", "up_proj", "down_proj"}) {
            const std::string name = "layers." + std::to_string(layer) + "." + leaf + ".weight";
            const PackTarget to = x.model->find(name).part;
            if (!to.linear || (leaf == std::string("q_proj") && seed == 7)) continue;
            const std::vector<float> a = normal_row(random, rank * to.width), b = normal_row(random, to.columns * rank);
            CHECK(made->pack(x.pool, name, {a.data(), b.data(), rank, to.columns, to.width, size}), "%s", name.c_str());
        }
    }
    return made;
}

struct Choice {
    const Adapter* adapter;
    float scale;
};

// Logits of rows in sequences, each with an adapter of its own.
std::vector<float> run_with(Fixture& x, const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                            const std::vector<const Table*>& tables, const std::vector<Choice>& choices) {
    const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
    Buffer<float> logits(tokens.size() * stride, NAN);
    PassRequest pass = x.make_pass(tokens, positions, tables, logits.data());
    for (size_t i = 0; i < pass.segments.size(); i++)
        pass.segments[i].adapter = choices[i].adapter, pass.segments[i].adapter_scale = choices[i].scale;
    x.forward(x.pool, pass.batch);
    std::vector<float> result;
    for (size_t r = 0; r < tokens.size(); r++)
        result.insert(result.end(), logits.data() + r * stride, logits.data() + r * stride + VOCAB);
    return result;
}

// Two adapters of different ranks, and none: 37 rows each as prompts, then steps side by side.
void check_bits(const KernelTable& k, const Format& f, const Kind& kind) {
    std::vector<float> prompts[3], all_steps;
    const std::vector<int32_t> prompt = some_tokens(37, 1), steps = some_tokens(3, 2);
    for (const int threads : {1, 3}) {
        Fixture x(k, f, kind, threads, threads == 3 ? 2 : 1);
        const auto one = make_adapter(x, 3, 5, 0.2f), two = make_adapter(x, 24, 7, 0.1f);
        const Choice choices[] = {{one.get(), 1}, {nullptr, 0}, {two.get(), 0.5f}};
        const Table tables[] = {Table(x, 60), Table(x, 60), Table(x, 60)};
        std::vector<int32_t> tokens, places;
        std::vector<const Table*> rows;
        for (size_t i = 0; i < 3; i++) {
            std::vector<float> read;
            for (size_t r = 0; r < prompt.size() && threads == 1; r++) {
                const auto row = run_with(x, {prompt[r]}, {int32_t(r)}, {&tables[i]}, {choices[i]});
                prompts[i].insert(prompts[i].end(), row.begin(), row.end());
            }
            for (size_t r = 0; r < prompt.size(); r++) {
                tokens.push_back(prompt[r]), places.push_back(int32_t(r)), rows.push_back(&tables[i]);
            }
        }
        const auto together = run_with(x, tokens, places, rows, {choices[0], choices[1], choices[2]});
        for (size_t i = 0; i < 3; i++) {
            CHECK(same_bits(together.data() + i * 37 * VOCAB, prompts[i].data(), 37 * VOCAB),
                  "%s, %s: prompts beside each other, adapter %zu, by %d threads", f.name, kind.name, i, threads);
        }
        CHECK(!same_bits(prompts[0].data(), prompts[1].data(), 37 * VOCAB) &&
                  !same_bits(prompts[2].data(), prompts[1].data(), 37 * VOCAB),
              "%s, %s: an adapter that adds nothing", f.name, kind.name);
        const auto side = run_with(x, steps, {37, 37, 37}, {&tables[0], &tables[1], &tables[2]},
                                   {choices[0], choices[1], choices[2]});
        for (size_t i = 0; i < 3; i++) {
            const auto alone = run_with(x, {steps[i]}, {37}, {&tables[i]}, {choices[i]});
            CHECK(same_bits(side.data() + i * VOCAB, alone.data(), VOCAB), "%s, %s: a step beside others' adapters",
                  f.name, kind.name);
        }
        if (threads == 1) all_steps = side;
        CHECK(same_bits(side.data(), all_steps.data(), side.size()), "%s, %s: by %d threads", f.name, kind.name,
              threads);
    }
}

// The kernel against a plain loop, of every precision and row counts around those that it takes together.
void check_expand(const KernelTable& k) {
    Random random(11);
    for (const Precision precision : {FP32, BF16, INT8}) {
        for (const int64_t rank : {1, 5, 16, 256}) {
            const int64_t rows = 9, stride = LANES + 3, low_stride = rank + 2;
            Buffer<uint8_t> values(size_t(rank * LANES * (precision == FP32 ? 4 : precision == BF16 ? 2 : 1)));
            std::vector<float> b(size_t(rank * LANES)), scales(LANES, 1.0f);
            for (int64_t i = 0; i < rank * LANES; i++) {
                float value = random.normal();
                if (precision == INT8)
                    value = float(random.below(255) - 127), values[size_t(i)] = uint8_t(int8_t(value));
                if (precision == BF16) {
                    const uint16_t half = to_bf16(value);
                    value = from_bf16(half), std::memcpy(values.data() + i * 2, &half, 2);
                }
                if (precision == FP32) std::memcpy(values.data() + i * 4, &value, 4);
                b[size_t(i)] = value;
            }
            if (precision == INT8) {
                for (float& scale : scales) scale = random.between(0.001f, 0.02f);
            }
            const std::vector<float> low = normal_row(random, rows * low_stride);
            for (const int64_t count : {1, 3, 4, 9}) {
                std::vector<float> out = normal_row(random, rows * stride), before = out;
                std::vector<LowRankRow> of;
                for (int64_t r = 0; r < count; r++) of.push_back({(r * 5) % rows, (r * 7) % rows, 0.5f + float(r)});
                k.expand({row_type(precision), values.data(), scales.data(), rank}, of.data(), count, low.data(),
                         low_stride, out.data(), stride);
                for (const LowRankRow& row : of) {
                    for (int64_t j = 0; j < LANES; j++) {
                        double sum = 0, size = 0;
                        for (int64_t i = 0; i < rank; i++) {
                            const double term =
                                double(b[size_t(i * LANES + j)]) * low[size_t(row.low * low_stride + i)];
                            sum += term, size += std::abs(term);
                        }
                        float& found = out[size_t(row.row * stride + j)];
                        const double factor = double(row.scale) * scales[size_t(j)];
                        const double expected = before[size_t(row.row * stride + j)] + factor * sum;
                        CHECK(std::abs(found - expected) <=
                                  rounding(rank + 3) * (factor * size + std::abs(before[size_t(row.row * stride + j)])),
                              "rank %lld: %g, not %g", (long long)rank, double(found), expected);
                        found = before[size_t(row.row * stride + j)];
                    }
                }
                CHECK(out == before, "rows or columns of others changed");
            }
        }
    }
}

void check_refusals(const KernelTable& k) {
    Fixture x(k, FORMATS[0], KINDS[0], 1), other(k, FORMATS[0], KINDS[0], 1);
    Adapter adapter(x.model);
    const std::vector<float> values(size_t(300 * 80));
    const PackTarget to = x.model->find("layers.0.o_proj.weight").part;
    const auto pack = [&](const char* name, int64_t rank, int64_t columns, int64_t width) {
        return adapter.pack(x.pool, name, {values.data(), values.data(), rank, columns, width, 1});
    };
    CHECK(!pack("layers.0.o_proj.weight", 4, to.columns + 1, to.width) &&
              !pack("layers.2.o_proj.weight", 4, to.columns, to.width),
          "another shape");
    CHECK(!pack("lm_head.weight", 4, VOCAB, 40) && !pack("layers.0.attention_norm.weight", 4, 40, 1),
          "a weight that takes none");
    CHECK(pack("layers.0.o_proj.weight", 4, to.columns, to.width), "its own shape");
    const auto refused = [&](auto&& act) {
        try {
            act();
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    };
    CHECK(refused([&] { pack("layers.0.o_proj.weight", 4, to.columns, to.width); }), "a part for the same weight");
    CHECK(refused([&] { pack("layers.1.o_proj.weight", 0, to.columns, to.width); }), "rank 0");
    CHECK(refused([&] { pack("layers.1.o_proj.weight", MOST_RANK + 1, to.columns, to.width); }),
          "a rank that is too high");
    const Table mine(x, 20), theirs(other, 20);
    CHECK(refused([&] { run_with(other, {1}, {0}, {&theirs}, {{&adapter, 1}}); }), "the adapter of another model");
    CHECK(refused([&] { run_with(x, {1}, {0}, {&mine}, {{&adapter, NAN}}); }), "a scale that is no number");
}

}  // namespace

void test_adapters(const KernelTable& k) {
    check_expand(k);
    check_refusals(k);
    for_each_kind([&](const Format& f, const Kind& kind) {
        const auto latent = [](const LayerSpec& layer) { return layer.attention.is_latent(); };
        const KindSpec spec(f, kind);
        if (std::none_of(spec.layers.begin(), spec.layers.end(), latent)) check_bits(k, f, kind);
    });
}

}  // namespace check
