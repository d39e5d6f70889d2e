#include "operations/activations.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "memory/memory.h"

namespace ipex_assist {
namespace {

constexpr int64_t LINE = 64, PAGE = 4096;

// Gives each buffer the next bytes from a start, which may be null to count them.
struct Placer {
    uint8_t* start;
    int64_t bytes = 0;

    template <class T>
    void operator()(const char*, Array<T>& array, int64_t rows, int64_t columns) {
        array = {start ? reinterpret_cast<T*>(start + bytes) : nullptr, rows, columns};
        bytes += round_up(rows * columns * int64_t(sizeof(T)), LINE);
    }
};

struct Reporter {
    const std::function<void(const char*, const void*, const void*)>& f;

    template <class T>
    void operator()(const char* name, const Array<T>& array, int64_t, int64_t) {
        if (array.data) f(name, array.data, array.data + array.rows * array.columns);
    }
};

template <class List>
void list_prepared(List& list, PreparedRows& rows, int64_t value_bytes, int64_t scales, int64_t sums, int64_t tiles) {
    list("values", rows.values, value_bytes, 1);
    list("scales", rows.scales, scales, 1);
    list("negated_sums", rows.negated_sums, sums, 1);
    if (tiles) list("tiles", rows.tiles, tiles, 1);
    else rows.tiles = {};
}

template <class List>
void list_shared(List& list, SharedBuffers& b, const ActivationSizes& s) {
    list("x", b.x, s.rows, s.stream);
    list("stream_parts", b.stream_parts, s.stream_rows, s.stream_parts);
    list("qkv", b.qkv, s.rows, s.qkv);
    list("attended", b.attended, s.rows, s.attended);
    list("heads", b.heads, s.rows, s.heads);
    list("per_layer", b.per_layer, s.rows, s.per_layer);
    list("active", b.active, s.active, 1);
    list("scanned", b.scanned, s.scan_rows, s.scan_columns);
    list("partials", b.partials, s.partials, 1);
    list("fed_back", b.fed_back, s.fed_back_rows, s.stream);
    list("low_rank", b.low_rank, s.low_rows, s.low_columns);
    list("normed", b.normed, s.rows, s.normed);
    list("gate_rows", b.gate_rows, s.rows, s.gate_rows);
    list("norm_gates", b.norm_gates, s.rows, s.gate_rows ? s.wide : 0);
    list("deferred", b.deferred, s.rows, s.deferred);
    list("projected", b.projected, s.rows, s.projected);
    list("conv_scales", b.conv_scales, s.rows, s.conv_scales);
    list("contexts", b.contexts, s.logit_rows, s.selector_rank);
    list("candidate scores", b.scores, s.logit_rows, s.candidates);
    list("candidates", b.candidates, s.logit_rows, s.candidates);
    list("cluster_scores", b.cluster_scores, s.logit_rows, s.clusters);
    list("clusters", b.clusters, s.logit_rows, s.clusters_read);
    list("router_logits", b.router_logits, s.rows, s.router_columns);
    list("expert_outputs", b.expert_outputs, s.slots, s.width);
    list("notes", b.notes, s.rows, s.notes);
    list("work", b.work, s.work_rows, s.work);
    list("maxima", b.maxima, s.logit_rows, s.vocabulary_chunks);
    list("group_maxima", b.group_maxima, s.logit_rows, s.vocabulary_chunks * CHUNK_GROUPS);
    list("noisy_tokens", b.noisy_tokens, s.logit_rows, s.vocabulary_chunks);
    list("weight_sums", b.weight_sums, s.logit_rows, s.vocabulary_chunks);
    list("sampled_rows", b.sampled_rows, s.logit_rows, 1);
}

template <class List>
void list_node(List& list, NodeBuffers& b, const ActivationSizes& s) {
    constexpr int64_t TILE_VALUE = 2;  // bytes: of bf16, or else int8
    const int64_t values = round_up(s.rows, PADDED_ROWS) * s.depth;
    list("delta", b.delta, s.rows, s.width);
    list_prepared(list, b.inputs, values * 4, values / SCALE_COLUMNS, values / 32, s.tiles ? values * TILE_VALUE : 0);
    list_prepared(list, b.down_inputs, s.down_values, s.down_columns / SCALE_COLUMNS, s.down_columns / 32, 0);
    list_prepared(list, b.expert_inputs, s.slot_values, s.slot_columns / SCALE_COLUMNS, s.slot_columns / 32, 0);
}

template <class List>
void list_thread(List& list, ThreadBuffers& b, const ActivationSizes& s) {
    const int64_t depth = round_up(s.wide, SCALE_COLUMNS), values = PADDED_ROWS * depth;
    const int64_t partial = s.value_width + LANES, groups = s.key_depth / ATTENTION_GROUP;
    list("row", b.row, 1, s.width);
    list("entering", b.entering, 1, s.entering);
    list("of_token", b.of_token, 1, s.selector_rank);
    list("ordered", b.ordered, 1, s.ordered);
    list("up", b.up, std::min(s.rows, ROW_BLOCK), UP_PANELS * LANES);
    list("state", b.state, 1, s.state);
    list("window_sums", b.window_sums, s.low_rows ? WINDOW_ROWS : 0, s.depth / SCALE_COLUMNS);
    list("head", b.head, 1, s.value_width);
    list("scores", b.scores, s.queries, BLOCK_POSITIONS);
    list("results", b.results, s.queries, partial);
    list("running", b.running, s.queries, partial);
    list("totals", b.totals, s.queries, partial);
    list("slopes", b.slopes, s.queries, 1);
    list("distances", b.distances, s.queries, 1);
    list("query_scales", b.query_scales, s.queries, groups);
    list("weight_scales", b.weight_scales, s.queries, BLOCK_POSITIONS / ATTENTION_GROUP);
    list("query_offsets", b.query_offsets, s.queries, groups);
    list("query", b.query, s.queries, s.key_depth * 4);
    list("probabilities", b.probabilities, s.queries, BLOCK_POSITIONS * 4);
    list("widened", b.widened, widened_bytes(s.key_depth), 1);
    list("first", b.first, s.queries, 1);
    list("end", b.end, s.queries, 1);
    list("partials", b.partials, s.queries, 1);
    list("runs", b.runs, s.queries, 1);
    list("sums", b.sums, s.queries, 1);
    list("own work", b.work, s.own_work, 1);
    list("own x", b.x, DECODE_ROWS, s.stream);
    list("own normed", b.normed, DECODE_ROWS, s.normed);
    list_prepared(list, b.inputs, values * s.own_value, values / SCALE_COLUMNS, values / 32, 0);
    const int64_t of_slots = s.own_slot_columns;
    list_prepared(list, b.slot_inputs, s.own_slot_values, of_slots / SCALE_COLUMNS, of_slots / 32, 0);
    const int64_t of_heads = round_up(std::min(s.rows, ROW_BLOCK), PADDED_ROWS) * s.head_depth;
    list_prepared(list, b.head_inputs, of_heads * s.own_value, of_heads / SCALE_COLUMNS, of_heads / 32, 0);
}

bool same(const ActivationSizes& a, const ActivationSizes& b) {
    static_assert(std::has_unique_object_representations_v<ActivationSizes>);
    return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

void ActivationBytes::include(const ActivationBytes& other) {
    shared = std::max(shared, other.shared), node = std::max(node, other.node);
    thread = std::max(thread, other.thread);
}

int64_t ActivationBytes::total(int threads, int nodes) const {
    return shared + (nodes > 1 ? nodes * round_up(node, HUGE_PAGE) : node) + threads * thread;
}

ActivationBytes Activations::count(const ActivationSizes& sizes) {
    Placer shared{nullptr}, node{nullptr}, thread{nullptr};
    SharedBuffers shared_buffers;
    NodeBuffers node_buffers;
    ThreadBuffers thread_buffers;
    list_shared(shared, shared_buffers, sizes);
    list_node(node, node_buffers, sizes);
    list_thread(thread, thread_buffers, sizes);
    return {shared.bytes, node.bytes, round_up(thread.bytes, PAGE)};
}

void Activations::place(const ActivationSizes& sizes, Pool& pool) {
    if (same(sizes, sizes_) && pool_nodes_ == pool.nodes()) return;
    const ActivationBytes counted = count(sizes);
    const auto [shared_bytes, node_bytes, thread_bytes] = counted;
    // Twice what is needed: passes grow with their context, and memory that is never written is never taken.
    const auto grow = [](Memory& memory, int64_t bytes) {
        if (int64_t(memory.size()) < bytes) memory.grow(size_t(2 * bytes));
    };
    sizes_ = {};  // in case memory runs out
    grow(shared_memory_, shared_bytes);
    grow(thread_memory_, thread_bytes * sizes.threads);
    int64_t each = node_bytes;
    if (pool.nodes() == 1) {
        grow(node_memory_, node_bytes);
    } else {
        each = int64_t(node_memory_.size()) / pool.nodes() / HUGE_PAGE * HUGE_PAGE;
        if (each < node_bytes || pool_nodes_ != pool.nodes()) {
            each = round_up(node_bytes, HUGE_PAGE);
            node_memory_ = Memory::at_border(size_t(pool.nodes() * each));
            pool.run([&](int thread) {
                // A page lands on the node of its first writer.
                const int node = pool.node(thread);
                if (thread == pool.first_thread(node)) std::memset(node_memory_.data() + node * each, 0, size_t(each));
            });
        }
    }
    Placer shared_placer{shared_memory_.data()};
    list_shared(shared_placer, shared, sizes);
    nodes_.grow(size_t(sizes.nodes) * sizeof(NodeBuffers));
    for (int64_t node = 0; node < sizes.nodes; node++) {
        Placer placer{node_memory_.data() + node * each};
        list_node(placer, nodes_.as<NodeBuffers>()[node], sizes);
    }
    threads_.grow(size_t(sizes.threads) * sizeof(ThreadBuffers));
    for (int64_t thread = 0; thread < sizes.threads; thread++) {
        Placer placer{thread_memory_.data() + thread * thread_bytes};
        list_thread(placer, threads_.as<ThreadBuffers>()[thread], sizes);
    }
    sizes_ = sizes, pool_nodes_ = pool.nodes();
    most_.include(counted);
}

void Activations::each(const std::function<void(const char*, const void*, const void*)>& f) const {
    Reporter report{f};
    SharedBuffers all = shared;
    list_shared(report, all, sizes_);
    for (int64_t i = 0; i < sizes_.nodes; i++) list_node(report, nodes_.as<NodeBuffers>()[i], sizes_);
    for (int64_t i = 0; i < sizes_.threads; i++) list_thread(report, threads_.as<ThreadBuffers>()[i], sizes_);
}

}  // namespace ipex_assist
