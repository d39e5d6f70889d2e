// Models whose memory follows several memory nodes: their image, their bits, and where their blocks lie.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "formats/blocks/place.h"
#include "memory/memory.h"
#include "operations/single_linear.h"
#include "small_model.h"

namespace check {
namespace {

constexpr int64_t HEADER = 4096;

// Orders of columns (GPTQ's act-order), without which no linear has one.
const Kind ORDERED = {"orders of columns", 0, [](UniformSpec& s) { s.ordered = s.tied_head = s.qkv_bias = 1; }};

// Bytes in a file behind a page of something else.
int file_of(const void* data, size_t bytes) {
    const int file = memfd_create("image", 0);
    const bool written = file >= 0 && !ftruncate(file, HEADER) && pwrite(file, data, bytes, HEADER) == ssize_t(bytes);
    CHECK(written, "a file of %zu bytes", bytes);
    return file;
}

// A second packing of some weights, by threads that are not those whom memory follows; from a file where there are
// several nodes, and where there is one from memory.
void pack_again(const Fixture& x, Pool& pool) {
    const ModelSpec& s = x.model->spec;
    Random random(5);
    const int64_t queries = x.model->layers[1].attention.query_width();
    const int64_t attended = x.model->layers[0].attention.query_width();
    std::vector<float> values(size_t(queries * s.hidden_size));
    for (float& value : values) value = random.normal() * 0.2f;
    const int file = file_of(values.data(), values.size() * 4);
    const StoredMatrix in_file{SOURCE_F32, nullptr, queries, s.hidden_size, file, HEADER};
    const StoredMatrix in_memory{SOURCE_F32, values.data(), queries, s.hidden_size};
    CHECK(x.model->pack(pool, "layers.1.q_proj.weight", pool.several_nodes() ? in_file : in_memory), "queries");
    close(file);
    if (s.precision == INT4) {
        std::vector<uint8_t> nibbles(size_t(attended * s.hidden_size)), zeros(nibbles.size());
        for (uint8_t& nibble : nibbles) nibble = uint8_t(random.below(16));
        for (uint8_t& zero : zeros) zero = uint8_t(random.below(16));
        std::vector<float> scales(nibbles.size(), 0.03f);
        CHECK(x.model->pack_stored(pool, "layers.0.o_proj.weight",
                                   {nibbles.data(), scales.data(), zeros.data(), (attended + s.group - 1) / s.group,
                                    s.hidden_size, attended}),
              "output");
    }
    std::vector<int32_t> order(static_cast<size_t>(s.hidden_size));
    for (size_t i = 0; i < order.size(); i++) order[i] = int32_t((i * 7 + 3) % order.size());
    CHECK(x.model->set_order("layers.0.q_proj.weight", order.data(), s.hidden_size) == bool(s.ordered), "an order");
}

// Logits of a prompt and of few rows behind it, by a pool of the caller's.
std::vector<float> logits_of(Fixture& x, Pool& pool) {
    const Table table(x, 40);
    std::vector<float> all;
    int32_t start = 0;
    for (const int32_t rows : {20, 3, 1}) {
        Buffer<float> logits(size_t(rows) * 64, NAN);
        std::vector<int32_t> positions;
        for (int32_t i = 0; i < rows; i++) positions.push_back(start + i);
        const std::vector<const Table*> tables(size_t(rows), &table);
        const PassRequest pass = x.make_pass(some_tokens(rows, uint32_t(rows)), positions, tables, logits.data());
        x.forward(pool, pass.batch);
        for (int32_t r = 0; r < rows; r++)
            all.insert(all.end(), logits.data() + r * 64, logits.data() + r * 64 + VOCAB);
        start += rows;
    }
    return all;
}

std::vector<const Linear*> linears_of(const PackedModel& model) {
    std::vector<const Linear*> all = {&model.head, &model.project_in, &model.project_out};
    for (const PackedLayer& layer : model.layers) {
        all.insert(all.end(), {&layer.qkv, &layer.output, &layer.up, &layer.down, &layer.router});
        for (const Mlp& expert : layer.experts) all.insert(all.end(), {&expert.up, &expert.down});
    }
    return all;
}

// Each block lies on the node of the thread whose slice has it, and huge pages have blocks of one node, and nothing
// else.
std::map<uintptr_t, int> check_pages(const Fixture& x, int nodes) {
    const PackedModel& model = *x.model;
    std::map<uintptr_t, int> pages;  // the node of each
    std::set<const uint8_t*> blocks;
    const auto note = [&](const void* from, int64_t bytes, int node) {
        for (uintptr_t page = uintptr_t(from) / HUGE_PAGE; page <= (uintptr_t(from) + uintptr_t(bytes) - 1) / HUGE_PAGE;
             page++) {
            CHECK(pages.emplace(page, node).first->second == node, "a page of nodes %d and %d", pages[page], node);
        }
    };
    for (const Linear* linear : linears_of(model)) {
        for (int t = 0; t < x.pool.threads(); t++) {
            const auto [first, last] = slice(*linear, t, x.pool.threads());
            for (int64_t b = first; b < last; b++) {
                const uint8_t* block = weights_of(*linear, b);
                CHECK(blocks.insert(block).second, "two blocks in one place");
                note(block, panel_bytes(linear->precision, linear->group, linear->depth), x.pool.node(t));
            }
        }
        if (linear->scales) note(linear->scales, linear->panels * LANES * 4, -1);
        if (linear->bias) note(linear->bias, linear->panels * LANES * 4, -1);
        if (linear->order) note(linear->order, linear->depth * 4, -1);
    }
    CHECK(pages.size() >= size_t(nodes), "%zu pages", pages.size());
    return pages;
}

// What memory follows changes neither the image nor any bit, and an image goes from any number of nodes to any other.
void check_image(const KernelTable& k, const Format& f, const Kind& kind) {
    Fixture one(k, f, kind, 2);
    pack_again(one, one.pool);
    const std::vector<uint8_t> image = image_of(*one.model);
    const std::vector<float> expected = logits_of(one, one.pool);
    const uint64_t sum = one.model->checksum(one.pool);
    CHECK(sum == checksum(one.pool, image.data(), int64_t(image.size())), "%s, %s", f.name, kind.name);
    const int file = file_of(image.data(), image.size());
    for (const int nodes : {2, 3}) {
        Fixture x(k, f, kind, 3, nodes);
        Pool other(2, nullptr, spread(2, 2));
        pack_again(x, other);
        const auto same = [&](const char* what, const std::vector<Pool*>& pools) {
            CHECK(image_of(*x.model, 1000) == image, "%s, %s: %s, %d nodes", f.name, kind.name, what, nodes);
            CHECK(x.model->checksum(x.pool) == sum, "%s, %s: %s, %d nodes: checksum", f.name, kind.name, what, nodes);
            for (Pool* pool : pools) {
                CHECK(logits_of(x, *pool) == expected, "%s, %s: %s, %d nodes, by %d threads", f.name, kind.name, what,
                      nodes, pool->threads());
            }
        };
        same("packed", {&x.pool, &other, &one.pool});
        check_pages(x, nodes);
        CHECK(x.model->adopt(x.pool, file, HEADER, PackedModel::MAP), "%s: mapped", f.name);
        same("mapped", {&x.pool});
        CHECK(x.model->adopt(x.pool, file, HEADER, nodes == 2 ? PackedModel::COPY : PackedModel::SETTLE), "%s: copied",
              f.name);
        same("copied", {&x.pool});
        check_pages(x, nodes);
    }
    close(file);
}

// A table that another model has is no longer in memory, and everything else is.
void check_shared_table(const KernelTable& k) {
    Fixture one(k, FORMATS[2], KINDS[0], 1), x(k, FORMATS[2], KINDS[0], 3, 2);
    const std::vector<float> expected = logits_of(one, one.pool);
    CHECK(x.model->share_table(one.model), "shared");
    CHECK(logits_of(x, x.pool) == expected, "other logits by a shared table");
}

// Which weights and copies of rows the threads of a pass read: kernels that look at what they are given.
struct Watch {
    const KernelTable* kernels = nullptr;
    const Activations* activations = nullptr;
    std::map<uintptr_t, int> pages;  // of weights: the node of each
    bool delta = false;              // whether all threads read what all of them made
    std::atomic<long> right{0}, wrong{0}, wrong_weights{0}, of_delta{0};
};
Watch watch;
thread_local int here = 0;  // the node of this thread

// Whether an address is in a buffer.
template <class T>
bool within(const Array<T>& array, const void* at) {
    return array.data && at >= array.data && at < array.data + array.rows * array.columns;
}

bool within(const PreparedRows& rows, const void* at) {
    return within(rows.values, at) || within(rows.scales, at) || within(rows.negated_sums, at) ||
           within(rows.tiles, at);
}

void look(const void* at) {
    for (int node = 0; node < watch.activations->nodes(); node++) {
        const NodeBuffers& b = watch.activations->on(node);
        const bool delta = watch.delta && within(b.delta, at);
        if (delta) watch.of_delta++;
        if (!delta && !within(b.inputs, at) && !within(b.down_inputs, at) && !within(b.expert_inputs, at)) continue;
        (node == here ? watch.right : watch.wrong)++;
    }
}

KernelTable watched(const KernelTable& k) {
    KernelTable looking = k;
    looking.linear = [](const Linear& linear, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                        float* out, int64_t stride) {
        look(in.values), look(in.scales), look(in.negated_sums), look(in.tiles);
        const uintptr_t place = uintptr_t(weights_of(linear, first)) / HUGE_PAGE;
        (watch.pages.at(place) == here ? watch.right : watch.wrong_weights)++;
        watch.kernels->linear(linear, in, rows, first, last, out, stride);
    };
    looking.quantize = [](Precision precision, int32_t group, const float* x, int64_t width, int64_t first,
                          int64_t last, int64_t row, const LinearRows& to) {
        look(x);
        watch.kernels->quantize(precision, group, x, width, first, last, row, to);
    };
    looking.add = [](float* x, const float* y, int64_t size) {
        look(y);
        watch.kernels->add(x, y, size);
    };
    looking.normalize = [](bool rms, const float* x, const float* weight, const float* bias, float epsilon,
                           int64_t size, float* out) {
        look(x);
        watch.kernels->normalize(rms, x, weight, bias, epsilon, size, out);
    };
    return looking;
}

// Threads read the weights and the copies of their own node: of another's, whose bits are the same, nothing else would
// tell.
void check_copies(const KernelTable& k, const Format& f, const Kind& kind) {
    const KernelTable looking = watched(k);
    Fixture x(looking, f, kind, 3, 2);
    watch.kernels = &k, watch.activations = &x.activations;
    watch.pages = check_pages(x, 2);
    watch.right = watch.wrong = watch.wrong_weights = watch.of_delta = 0;
    x.pool.run([&](int thread) { here = x.pool.node(thread); });
    const Table table(x, 40);
    for (const int32_t rows : {20, 3}) {
        // Few rows are prepared by every thread, but those that a projection makes.
        watch.delta = rows <= DECODE_ROWS && !x.model->spec.projected_embedding;
        x.append(table, rows == 20 ? 0 : 20, some_tokens(rows, 4));
    }
    here = 0;
    CHECK(watch.right > 0 && watch.wrong == 0, "%s, %s: %ld reads, %ld of another node", f.name, kind.name,
          watch.right.load(), watch.wrong.load());
    CHECK(watch.wrong_weights == 0, "%s, %s: %ld times another node's weights", f.name, kind.name,
          watch.wrong_weights.load());
    CHECK((watch.of_delta > 0) == watch.delta, "%s, %s: %ld reads of what linears gave", f.name, kind.name,
          watch.of_delta.load());
}

// No huge page has keys and values of two nodes, whoever writes first: with blocks one after the other a fourth of the
// parts was on the wrong node. A block is copied, read and written as on one node, and goes without its neighbours.
void check_blocks_on_nodes(const KernelTable& k, const Format& f, const Kind& kind, int nodes) {
    constexpr int32_t COUNT = 7;
    Fixture x(k, f, kind, 2 * nodes, nodes);
    const Blocks blocks(x.model, COUNT, BF16);
    const TeamNodes team = x.pool.team_nodes(x.pool.threads());
    const BlockLayout layout(*x.model, BF16);
    std::map<uintptr_t, std::set<int>> homes;  // of what lies in each huge page
    std::set<uintptr_t> lines;
    for (int32_t id = 0; id < COUNT; id++) {
        for (int32_t layer = 0; layer < layout.layers(); layer++) {
            for (int32_t h = 0; h < layout.kv_heads(layer); h++) {
                uint8_t* const start = blocks.at(id, layer, h).keys;
                const int64_t bytes = layout.part(layer, h).bytes;
                for (int64_t i = 0; i < bytes; i += 64) {
                    CHECK(lines.insert(uintptr_t(start + i)).second, "%s: a line is given twice", kind.name);
                    homes[uintptr_t(start + i) / HUGE_PAGE].insert(team.home(id, h, layout.kv_heads(layer)));
                }
                std::memset(start, 1 + id * 31 + layer * 7 + h, size_t(bytes));
            }
        }
    }
    for (const auto& [page, found] : homes)
        CHECK(found.size() == 1, "%s: a page of %zu nodes", kind.name, found.size());
    CHECK(int(homes.size()) >= nodes, "%s: %zu pages", kind.name, homes.size());
    std::vector<uint8_t> first(size_t(layout.bytes)), read(first.size());
    blocks.read(0, first.data());
    blocks.copy(x.pool, 0, 4);
    blocks.read(4, read.data());
    CHECK(read == first, "%s: a copy", kind.name);
    blocks.read(3, read.data());
    CHECK(read[0] == 1 + 3 * 31 && read != first, "%s: a neighbour", kind.name);
    blocks.write(x.pool, 3, first.data());
    blocks.read(3, read.data());
    CHECK(read == first, "%s: written", kind.name);
    const int32_t gone[] = {5, 4, 6};
    blocks.discard(gone, 3);
    blocks.read(3, read.data());
    CHECK(read == first, "%s: a neighbour of what was discarded", kind.name);
    const int32_t all[] = {6, 5, 4, 3, 2, 1, 0};
    blocks.discard(all, COUNT);
    blocks.read(2, read.data());
    const int64_t zeros = std::count(read.begin(), read.end(), 0);
    CHECK(zeros * 2 > int64_t(read.size()), "%s: %ld bytes of a discarded block are gone", kind.name, long(zeros));
}

// Linears of blocks, whose parts differ in format and some of which have scales of columns, wherever they lie.
std::vector<float> blocks_by(const KernelTable& k, int nodes) {
    const Kind kind = {"blocks", 0, [](UniformSpec& s) {
                           s.hidden_size = s.embedding_size = 256, s.intermediate_size = 512;
                           s.heads = 8, s.kv_heads = 2, s.head_dim = s.rotary_dim = 32;
                       }};
    const KindSpec spec(FORMATS[1], kind);
    WeightFormats formats;
    const std::pair<const char*, Precision> parts[] = {{"q", Q4_K},    {"k", NVFP4},    {"v", Q6_K},    {"o", IQ3_S},
                                                       {"gate", Q8_0}, {"up", IQ2_XXS}, {"down", TQ2_0}};
    const auto name_of = [](const char* part) { return std::string("layers.1.") + part + "_proj"; };
    for (const auto& [part, format] : parts) formats[name_of(part)] = format;
    Pool pool(3, nullptr, spread(3, nodes));
    PackedModel model(spec.model, spec.layers.data(), &k, formats);
    model.allocate(pool);
    Random random(7);
    for (const Shape& shape : shapes(spec.model, spec.layers)) {
        const auto found = formats.find(shape.name.substr(0, shape.name.rfind('.')));
        if (found == formats.end()) continue;
        const int64_t bytes = file_row_bytes(found->second, shape.columns);
        std::vector<uint8_t> file(size_t(shape.rows * bytes));
        for (uint8_t& byte : file) byte = uint8_t(random.below(256) & 0x3b);  // scales are numbers
        std::vector<int64_t> rows;
        std::vector<float> scales;
        for (int64_t i = 0; i < shape.rows; i++) {
            rows.push_back(int64_t(uintptr_t(file.data())) + i * bytes);
            scales.push_back(random.normal());
        }
        const bool scaled = has_column_scales(found->second);
        CHECK(model.pack_blocks(pool, shape.name,
                                {-1, rows.data(), shape.rows, shape.columns, scaled ? scales.data() : nullptr}),
              "%s", shape.name.c_str());
    }
    std::vector<float> all;
    LinearBuffers buffers;
    for (const auto role : {QKV, OUTPUT, UP, DOWN}) {
        int64_t bytes = 0;
        for (const PackedLayer& layer : model.layers) {
            const Linear& linear = layer.linear(role);
            for (int64_t b = 0; b < linear.panels; b++)
                bytes += panel_bytes(panel_format(linear, b), linear.group, linear.depth);
        }
        CHECK(read_linears(model, pool, role, 0) == bytes, "linear %d", role);
        for (const int64_t rows : {1, 5, 40}) {
            const int64_t width = role == DOWN ? 512 : 256, stride = 1024;
            const std::vector<float> x = normal_row(random, rows * width);
            std::vector<float> out(size_t(rows * stride));
            run_linears(model, pool, buffers, role, x.data(), rows, out.data(), stride);
            all.insert(all.end(), out.begin(), out.end());
        }
    }
    return all;
}

}  // namespace

void test_nodes(const KernelTable& k) {
    for (const Format& f : FORMATS) {
#ifdef __SANITIZE_THREAD__
        if (f.precision != INT8) continue;
#endif
        check_image(k, f, ORDERED);
        check_copies(k, f, ORDERED);
        if (f.precision != INT8 && f.group != 32) continue;  // fewer formats show it
        // One, two and four KV heads: whole ones, blocks in turns, and both.
        for (const int kind : {0, 1, 2}) {
            for (const int nodes : {2, 3, 4}) check_blocks_on_nodes(k, f, KINDS[kind], nodes);
        }
        // Those whose linears differ in kind: of the embedding, and of experts.
        for (const int kind : {1, 6}) check_image(k, f, KINDS[kind]);
        for (const int kind : {0, 1, 3, 6}) check_copies(k, f, KINDS[kind]);
    }
    check_shared_table(k);
    const std::vector<float> expected = blocks_by(k, 1);
    for (const int nodes : {2, 3}) CHECK(blocks_by(k, nodes) == expected, "blocks of files on %d nodes", nodes);
}

}  // namespace check
