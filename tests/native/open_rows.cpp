// Sparse attention in passes: a text has the same bits however it is cut, whatever is beside it, by any threads and nodes,
// with rows that were taken back in between; what pools and entries that are open will be made of is kept of the last
// rows. (That the bits are right is tested against transformers, in Python.)
#include "small_model.h"

namespace check {
namespace {

void rotary(UniformSpec& s) { s.rotary_tables = 1; }

const Kind SPARSE[] = {
    {"chosen positions of latents", 0, rotary, false,
     [](LayerSpec& layer) {
         make_latent(layer.attention, 5, {48, 16, 24, 32, 20, 0, 1e-6f, {20, 2, 16, 1e-6f, 0, 0, 0}, {}});
     }},
    {"chosen pools", 0, rotary, false,
     [](LayerSpec& layer) {
         make_latent(layer.attention, 5, {48, 16, 24, 32, 20, 0, 1e-6f, {32, 2, 16, 1e-6f, 0, 16, 0}, {}});
     }},
    {"chosen entries of two windows", 30, rotary, false,
     [](LayerSpec& layer) {
         make_compressed(layer.attention, 4, {48, 16, 32, 16, 20, 0, 1e-6f, {8, 2, 16, 1e-6f, 0, 0, 0}, {2, 4, 1}});
     }},
    {"a window of keys that are values", 30, rotary, false,
     [](LayerSpec& layer) { make_compressed(layer.attention, 4, {48, 16, 32, 16, 20, 0, 1e-6f, {}, {2, 0, 0}}); }},
    {"entries of many tokens", 30, rotary, false,
     [](LayerSpec& layer) { make_compressed(layer.attention, 4, {48, 16, 32, 16, 20, 0, 1e-6f, {}, {2, 128, 0}}); }},
};

constexpr int32_t LENGTH = 300;

void check_cuts(const KernelTable& k, const Format& f, const Kind& kind, int threads, int nodes, bool int8,
                std::vector<float>& expected) {
    Fixture x(k, f, kind, threads, nodes, int8);
    const std::vector<int32_t> text = some_tokens(LENGTH, 21), other = some_tokens(40, 22);
    const std::vector<int32_t> ends[] = {{300}, {17, 33, 34, 50, 251, 262, 300}, {3, 127, 128, 200, 201, 300}};
    const auto part = [&](int32_t first, int32_t end) {
        return std::vector<int32_t>(text.begin() + first, text.begin() + end);
    };
    const auto same = [&](const std::vector<float>& got, int32_t first, const char* what) {
        CHECK(same_bits(got.data(), expected.data() + first * VOCAB, got.size()), "%s, %s: %s, from %d, by %d threads",
              f.name, kind.name, what, first, threads);
    };
    if (expected.empty()) {
        const Table table(x, LENGTH);
        for (int32_t at = 0; at < LENGTH; at++) {
            const std::vector<float> row = x.append(table, at, part(at, at + 1));
            expected.insert(expected.end(), row.begin(), row.end());
        }
    }
    for (const std::vector<int32_t>& cut : ends) {
        const Table table(x, LENGTH + 16), second(x, 40);
        int32_t at = 0;
        for (const int32_t end : cut) {
            same(x.append(table, at, part(at, end)), at, "a part");
            // As many tokens as a draft has at most, which do not stay.
            if (end < LENGTH) x.append(table, end, {other.begin(), other.begin() + 16});
            at = end;
        }
        x.append(table, LENGTH - 9, {other.begin(), other.begin() + 9});
        same(x.append(table, LENGTH - 9, part(LENGTH - 9, LENGTH)), LENGTH - 9, "taken back");
    }
    // Its last rows beside those of another sequence.
    const Table table(x, LENGTH), second(x, 40);
    x.append(table, 0, part(0, 250));
    std::vector<int32_t> tokens(other), positions;
    std::vector<const Table*> tables(other.size(), &second);
    for (int32_t i = 0; i < int32_t(other.size()); i++) positions.push_back(i);
    for (int32_t i = 250; i < LENGTH; i++)
        tokens.push_back(text[size_t(i)]), positions.push_back(i), tables.push_back(&table);
    const std::vector<float> beside = x.run(tokens, positions, tables);
    same({beside.begin() + int64_t(other.size()) * VOCAB, beside.end()}, 250, "beside another sequence");
}

}  // namespace

void test_open_rows(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        if (!races_differ(f)) continue;
        for (const Kind& kind : SPARSE) {
            for (const bool int8 : {false, true}) {
                std::vector<float> expected;
                check_cuts(k, f, kind, 1, 1, int8, expected);
                if (f.precision != BF16) continue;  // in one format: they wait for processors
                check_cuts(k, f, kind, 3, 1, int8, expected), check_cuts(k, f, kind, 4, 2, int8, expected);
            }
        }
    }
}

}  // namespace check
