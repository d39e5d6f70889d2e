// Models with recurrent layers: a row's bits follow from the rows before it alone, however a text is cut into passes,
// what was tried and taken back, copied, or beside it.
#include "workspace.h"

namespace check {
namespace {

constexpr int32_t TOKENS = 70;
// Random texts of each kind; few where every access is looked at.
#ifdef __SANITIZE_ADDRESS__
constexpr int TURNS = 1;
#else
constexpr int TURNS = 6;
#endif

RecurrentSpec mixer(RecurrentKind kind) {
    RecurrentSpec r{};
    r.kind = kind, r.heads = 4, r.key_heads = 2, r.key_dim = 10, r.value_dim = 21, r.conv_kernel = 4;
    r.step_limit[1] = INFINITY;
    if (kind == GATED_DELTA) r.beta_scale = 2, r.norm_eps = 1e-4f;
    if (kind == MAMBA2) r.conv_bias = 1, r.norm_groups = 2, r.step_limit[0] = 0.01f, r.step_limit[1] = 3;
    if (kind == KIMI_DELTA) r.key_heads = 4, r.value_dim = 10, r.beta_scale = 1, r.gate_rank = 7;
    if (kind == MAMBA1) r.heads = r.key_heads = 1, r.value_dim = 43, r.conv_bias = 1, r.gate_rank = 5;
    if (kind == MAMBA1) r.selection_norm = NORMED_AND_WEIGHTED;
    if (kind == RG_LRU) r.key_heads = r.key_dim = 1, r.value_dim = r.gate_rank = 32, r.conv_bias = r.input_bias = 1;
    if (kind == SHORT_CONV) r.heads = r.key_heads = 1, r.key_dim = r.value_dim = 40, r.conv_kernel = 3;
    return r;
}

template <RecurrentKind kind>
void make_recurrent(LayerSpec& layer) {
    layer.attention = {};
    layer.recurrent = mixer(kind);
}

// Gates that are made of the layer's input, and bounded decays.
void make_bounded(LayerSpec& layer) {
    make_recurrent<KIMI_DELTA>(layer);
    layer.recurrent.gate_rank = 0, layer.recurrent.decay_bound = -5;
}

template <SelectionNorm norm>
void make_selective(LayerSpec& layer) {
    make_recurrent<MAMBA1>(layer);
    layer.recurrent.selection_norm = norm;
}

const Kind MIXERS[] = {
    {"attention, then Gated DeltaNet", 30, [](UniformSpec&) {}, false, make_recurrent<GATED_DELTA>},
    {"attention, then Mamba-2", 0, [](UniformSpec&) {}, false, make_recurrent<MAMBA2>},
    {"attention, then Kimi Delta Attention", 0, [](UniformSpec&) {}, false, make_recurrent<KIMI_DELTA>},
    {"attention, then Kimi Delta Attention of bounded decays", 0, [](UniformSpec&) {}, false, make_bounded},
    {"attention, then Mamba-1", 0, [](UniformSpec&) {}, false, make_recurrent<MAMBA1>},
    {"attention, then Mamba-1 without norms", 0, [](UniformSpec&) {}, false, make_selective<NOT_NORMED>},
    {"attention, then Mamba-1 with norms without weights", 0, [](UniformSpec&) {}, false, make_selective<NORMED>},
    {"attention aside, then Mamba-2", 0,
     [](UniformSpec& s) { s.hidden_size = s.embedding_size = 48, s.keeps_embedding = 1; }, false,
     make_recurrent<MAMBA2>},
    {"attention, then an RG-LRU", 0, [](UniformSpec&) {}, false, make_recurrent<RG_LRU>},
    {"attention, and Mamba-2 beside it", 0, [](UniformSpec& s) { s.intermediate_size = 0; }, false,
     [](LayerSpec& layer) { make_recurrent<MAMBA2>(layer), layer.beside = 1; }},
    {"attention, then a short convolution", 0, [](UniformSpec&) {}, false, make_recurrent<SHORT_CONV>},
    {"Gated DeltaNet, and experts", 0,
     [](UniformSpec& s) { s.layers = 1, s.experts = 6, s.experts_per_token = 2, s.rotary_dim = s.rotary_tables = 0; },
     false, make_recurrent<GATED_DELTA>},
};

// A text: what a sequence of it holds.
struct Text {
    Text(Fixture& x, int32_t number) : table(x, TOKENS + 40), slot(number), tokens(some_tokens(TOKENS, 50 + number)) {}
    const Table table;
    int32_t slot, length = 0, settled = 0;
    std::vector<int32_t> tokens;
};

// What a text does in a pass: its next `right` tokens, then `wrong` ones that are taken back; its state moves to
// `settle`.
struct Step {
    Text* text;
    int32_t right, wrong, settle;
};

// Logits (VOCAB) of each right row, in the order of the steps.
std::vector<float> run(Fixture& x, const States& states, const std::vector<Step>& steps, Random& random) {
    std::vector<int32_t> tokens, positions;
    std::vector<const Table*> tables;
    for (const Step& s : steps) {
        for (int32_t i = 0; i < s.right + s.wrong; i++) {
            tokens.push_back(i < s.right ? s.text->tokens[size_t(s.text->length + i)] : random.below(VOCAB));
            positions.push_back(s.text->length + i), tables.push_back(&s.text->table);
        }
    }
    const size_t stride = (VOCAB + LANES - 1) / LANES * LANES;
    Buffer<float> logits(tokens.size() * stride, NAN);
    PassRequest pass = x.make_pass(tokens, positions, tables, logits.data());
    pass.batch.states = &states;
    for (size_t i = 0; i < steps.size(); i++) {
        Segment& s = pass.segments[i];
        s.state = steps[i].text->slot, s.settled = steps[i].text->settled, s.settle = steps[i].settle;
    }
    x.forward(x.pool, pass.batch);
    std::vector<float> found;
    size_t row = 0;
    for (const Step& s : steps) {
        for (int32_t i = 0; i < s.right; i++) {
            const float* from = logits.data() + (row + size_t(i)) * stride;
            found.insert(found.end(), from, from + VOCAB);
        }
        row += size_t(s.right + s.wrong);
        s.text->length += s.right, s.text->settled = s.settle;
    }
    return found;
}

// A step of a text that may be as the core allows them.
Step some_step(Text& text, Random& random) {
    const int32_t left = TOKENS - text.length, right = 1 + random.below(std::min(left, 20));
    const int32_t wrong = random.below(3) ? 0 : 1 + random.below(15);
    const int32_t end = text.length + right + wrong, most = text.length + right;
    const int32_t least = std::max(text.settled, end - PENDING_ROWS);
    if (least > most) return {&text, right, 0, most};
    return {&text, right, wrong, least + random.below(most - least + 1)};
}

void check_recurrent(const KernelTable& k, const Format& f, const Kind& kind, int threads) {
    Random random(9);
    Fixture x(k, f, kind, threads, threads > 2 ? 2 : 1);
    const States states(x.model, 5, x.blocks->precision());
    CHECK(States::bytes_each(*x.model, x.blocks->precision()) > 0 && states.count() == 5, "%s", kind.name);
    check_workspace(x, f, kind.name);
    x.taken = 0;
    std::vector<std::vector<float>> alone;
    for (int32_t number = 0; number < 2; number++) {
        Text text(x, number);
        std::vector<float> rows;
        while (text.length < TOKENS) {
            const std::vector<float> row = run(x, states, {{&text, 1, 0, text.length}}, random);
            rows.insert(rows.end(), row.begin(), row.end());
        }
        for (const float logit : rows) CHECK(std::isfinite(logit), "%s, %s", f.name, kind.name);
        alone.push_back(std::move(rows));
    }
    CHECK(alone[0] != alone[1], "%s: two texts, and the same logits", kind.name);
    for (int turn = 0; turn < TURNS; turn++) {
        x.taken = 4;  // blocks that others held are written again
        Text one(x, 0), two(x, 1);
        one.slot = 2, two.slot = 3;
        while (one.length < TOKENS || two.length < TOKENS) {
            std::vector<Step> steps;
            std::vector<int32_t> starts;
            for (Text* text : {&one, &two}) {
                if (text->length == TOKENS || (random.below(4) == 0 && steps.size() + 1 < 2)) continue;
                steps.push_back(some_step(*text, random)), starts.push_back(text->length);
            }
            if (steps.empty()) continue;
            const std::vector<float> found = run(x, states, steps, random);
            const float* at = found.data();
            for (size_t i = 0; i < steps.size(); i++) {
                const std::vector<float>& expected = alone[steps[i].text == &two];
                const size_t size = size_t(steps[i].right) * VOCAB;
                CHECK(same_bits(at, expected.data() + size_t(starts[i]) * VOCAB, size), "%s, %s: rows from %d on",
                      f.name, kind.name, starts[i]);
                at += size;
            }
            if (random.below(3) == 0) {  // goes on in a copy
                const int32_t slot = one.slot == 2 ? 4 : 2;
                states.copy(x.pool, one.slot, slot);
                states.discard(&one.slot, 1);
                one.slot = slot;
            }
        }
    }
}

}  // namespace

void test_recurrent(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        if (!races_differ(f)) continue;
        for (const Kind& kind : MIXERS) {
            check_recurrent(k, f, kind, 1);
            if (f.precision == BF16) check_recurrent(k, f, kind, 3);  // in one format: they wait for processors
        }
    }
}

}  // namespace check
