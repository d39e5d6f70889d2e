// Where a model's weights lie: in the image, which is the same on every machine, and in memory.
//
// Where all threads are on one memory node, memory is the image. Else the blocks of all linears that the threads of a
// node compute (PackedModel::slice) lie one after the other, from a huge-page boundary on, so that no page holds those
// of two nodes; everything else lies before them, in the order of the image.
#include <utility>

#include "abi/checks.h"
#include "packing/model.h"

namespace ipex_assist {
namespace {

constexpr int64_t WEIGHTS_ALIGNMENT = 4096;
constexpr int64_t HUGE_PAGE = int64_t(2) << 20;
constexpr int64_t MOST_BYTES = int64_t(1) << 60;  // of an image: what one tensor adds is far less, so sums stay exact

size_t whole_pages(size_t bytes) { return size_t(round_up(int64_t(bytes), HUGE_PAGE)); }

}  // namespace

void PackedModel::allocate(const Pool& pool) {
    place(pool);
    writable_ = true;
    expect_weights();
}

// Memory for the image, laid out.
void PackedModel::place(const Pool& pool) {
    divide(pool.several_nodes() ? &pool : nullptr);
    if (node_threads_.empty()) {
        image_ = Memory(size_t(image_bytes_));
        return lay_out();
    }
    image_ = Memory();
    lay_out();  // from address 0, to count the bytes of each node
    size_t bytes = whole_pages(size_t(image_bytes_ - elsewhere_));
    for (size_t node = 0; node < node_at_.size(); node++) {
        node_starts_[node] = bytes;
        bytes += whole_pages(node_at_[node]);
    }
    image_ = Memory::at_border(bytes);
    for (uintptr_t& start : node_starts_) start += reinterpret_cast<uintptr_t>(image_.data());
    lay_out();
}

// Divides memory among the nodes of a pool's threads; null: it stays in one part.
void PackedModel::divide(const Pool* pool) {
    node_threads_.clear(), node_starts_.clear();
    if (!pool) return;
    node_starts_.assign(size_t(pool->nodes()), 0);
    for (int node = 0; node <= pool->nodes(); node++) node_threads_.push_back(pool->first_thread(node));
}

bool PackedModel::follows(const Pool& pool) const {
    if (int(node_threads_.size()) != pool.nodes() + 1) return false;
    for (int node = 0; node <= pool.nodes(); node++) {
        if (node_threads_[size_t(node)] != pool.first_thread(node)) return false;
    }
    return true;
}

const uint8_t* PackedModel::take(int64_t bytes, int64_t alignment) {
    const int64_t at = round_up(image_bytes_, alignment);
    if (bytes > MOST_BYTES - at) refuse("the weights of such a model take more than 2^60 bytes");
    image_bytes_ = at + bytes;
    return reinterpret_cast<const uint8_t*>(base_ + uintptr_t(at - elsewhere_));
}

// Ends the piece of the image that began after the last one.
void PackedModel::end_piece() {
    const int64_t start = pieces_.empty() ? 0 : pieces_.back().start + pieces_.back().bytes;
    if (start == image_bytes_) return;
    pieces_.push_back(
        {start, image_bytes_ - start, reinterpret_cast<uint8_t*>(base_ + uintptr_t(start - elsewhere_)), -1});
}

// Each node's threads' blocks of a linear, after those of the linears before.
void PackedModel::place_on_nodes(Linear& linear) {
    const int64_t each = block_bytes(linear.precision, linear.group, linear.depth);
    const auto pointer = [](uintptr_t address) { return reinterpret_cast<uint8_t*>(address); };
    take(0, WEIGHTS_ALIGNMENT);
    end_piece();
    std::vector<NodeBlocks> parts;
    for (size_t node = 0; node < node_at_.size(); node++) {
        const int64_t first = slice(linear, node_threads_[node], node_threads_.back()).first;
        const int64_t bytes = (slice(linear, node_threads_[node + 1], node_threads_.back()).first - first) * each;
        parts.push_back({first, pointer(node_at_[node] - uintptr_t(first * each))});
        if (bytes) pieces_.push_back({image_bytes_, bytes, pointer(node_at_[node]), int(node)});
        node_at_[node] += uintptr_t(bytes), image_bytes_ += bytes, elsewhere_ += bytes;
    }
    parts.push_back({linear.blocks, nullptr});
    parts_.push_back(std::move(parts));
    linear.nodes = parts_.back().data();
    linear.weights = linear.nodes->weights;
}

Linear PackedModel::make_linear(int64_t columns_padded, int64_t width, bool bias, Precision precision, int64_t unit) {
    Linear linear{};
    linear.unit = unit;
    linear.precision = precision;
    linear.group = precision == INT4 ? spec.group : precision == MXFP4 ? 32 : SCALE_COLUMNS;
    linear.depth = padded_depth(precision, width);
    linear.blocks = columns_padded / LANES;
    if (bias) linear.bias = make_vector(columns_padded);
    if (precision == INT8) linear.scales = make_vector(columns_padded);
    if (spec.ordered) linear.order = reinterpret_cast<const int32_t*>(take(linear.depth * 4, 64));
    const int64_t bytes = linear.blocks * block_bytes(linear.precision, linear.group, linear.depth);
    if (node_threads_.empty()) linear.weights = take(bytes, WEIGHTS_ALIGNMENT);
    else place_on_nodes(linear);
    return linear;
}

const float* PackedModel::make_vector(int64_t size) { return reinterpret_cast<const float*>(take(size * 4, 64)); }

Norm PackedModel::make_norm() {
    Norm norm;
    if (spec.norm_weight) norm.weight = make_vector(spec.hidden_size);
    if (spec.norm_bias) norm.bias = make_vector(spec.hidden_size);
    return norm;
}

// The one place that says what lies where; layout version in executors/packed_cache.py changes with it.
void PackedModel::lay_out() {
    image_bytes_ = elsewhere_ = 0;
    base_ = reinterpret_cast<uintptr_t>(image_.data());
    node_at_ = node_starts_;
    pieces_.clear(), parts_.clear();
    layers.clear();
    layers.reserve(layer_specs_.size());  // norms and linears are pointed to
    for (const LayerSpec& each : layer_specs_) {
        layers.push_back({each});
        lay_out_layer(layers.back());
    }
    if (spec.final_norm) final_norm = make_norm();
    if (spec.embedding_norm) embedding_norm = make_norm();
    make_residual_norms();
    if (spec.projected_embedding) {
        project_in = make_linear(part_width(spec.hidden_size), spec.embedding_size, false, spec.outer_precision);
        project_out = make_linear(part_width(spec.embedding_size), spec.hidden_size, false, spec.outer_precision);
    }
    head = make_linear(part_width(spec.vocab_size), spec.embedding_size, spec.head_bias, spec.outer_precision);
    if (spec.positions) positions_ = make_vector(int64_t(spec.positions) * spec.hidden_size);
    if (!shared_table()) {
        table_ = take(int64_t(spec.vocab_size) * spec.embedding_size * (spec.precision == FP32 ? 4 : 2), 4096);
    }
    take(0, 4096);
    end_piece();
    list_linears();
}

void PackedModel::lay_out_layer(PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const bool first_norms = layer.norm_place != POST;
    if (first_norms) layer.attention_norm = make_norm();
    layer.qkv = make_linear(a.qkv_width(), spec.hidden_size, a.qkv_bias, spec.precision);
    const bool one = a.qk_norm == ONE_FOR_HEADS;
    if (a.qk_norm) layer.q_norm = make_vector(one ? a.head_dim : a.query_width());
    if (a.qk_norm) layer.k_norm = make_vector(one ? a.head_dim : a.kv_width());
    if (a.sinks) layer.sinks = make_vector(a.heads);
    layer.output = make_linear(part_width(spec.hidden_size), a.query_width(), a.output_bias, spec.precision);
    if (layer.has_post_norms()) layer.attention_out_norm = make_norm();
    if (first_norms && !layer.shared_norm) layer.mlp_norm = make_norm();
    lay_out_mlp(layer);
    if (layer.has_post_norms()) layer.mlp_out_norm = make_norm();
}

void PackedModel::lay_out_mlp(PackedLayer& layer) {
    const MlpSpec& mlp = layer.mlp;
    if (!mlp.experts) {
        const Mlp made = make_mlp(mlp, mlp.intermediate_size);
        layer.up = made.up, layer.down = made.down;
        return;
    }
    layer.router =
        make_linear(part_width(mlp.experts) + (mlp.shared_gate ? LANES : 0), spec.hidden_size, mlp.router_bias, FP32);
    for (int32_t e = 0; e < mlp.experts; e++) layer.experts.push_back(make_mlp(mlp, mlp.intermediate_size));
    if (mlp.shared_size) layer.experts.push_back(make_mlp(mlp, mlp.shared_size));
}

Mlp PackedModel::make_mlp(const MlpSpec& mlp, int64_t size) {
    Mlp made;
    made.up = make_linear(part_width(size) * (mlp.gated ? 2 : 1), spec.hidden_size, mlp.bias, mlp.precision,
                          mlp.gated ? 2 : 1);
    made.down = make_linear(part_width(spec.hidden_size), size, mlp.bias, mlp.precision);
    return made;
}

void PackedModel::list_linears() {
    linears_.clear();
    for (const PackedLayer& layer : layers) {
        linears_.insert(linears_.end(), {&layer.qkv, &layer.output});
        if (layer.mlp.experts) linears_.push_back(&layer.router);
        else linears_.insert(linears_.end(), {&layer.up, &layer.down});
        for (const Mlp& expert : layer.experts) linears_.insert(linears_.end(), {&expert.up, &expert.down});
    }
    if (spec.projected_embedding) linears_.insert(linears_.end(), {&project_in, &project_out});
    linears_.push_back(&head);
}

// What a row goes through between linears: see ResidualNorm.
void PackedModel::make_residual_norms() {
    const PackedLayer* last = nullptr;
    const auto after_last = [&](ResidualNorm& join) {
        join.add = last != nullptr;
        if (!last) return;
        join.multiplier = last->residual_multiplier;
        if (last->has_post_norms()) join.post = &last->mlp_out_norm;
        if (last->norm_place == POST_RESIDUAL) join.post_residual = &last->mlp_norm;
    };
    for (PackedLayer& layer : layers) {
        after_last(layer.into_attention);
        layer.into_mlp.late = layer.parallel;
        layer.into_mlp.multiplier = layer.residual_multiplier;
        if (layer.has_post_norms()) layer.into_mlp.post = &layer.attention_out_norm;
        if (layer.norm_place == POST_RESIDUAL) layer.into_mlp.post_residual = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_attention.pre = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_mlp.pre = layer.shared_norm ? &layer.attention_norm : &layer.mlp_norm;
        last = &layer;
    }
    into_head = ResidualNorm{};
    after_last(into_head);
    if (spec.final_norm) into_head.pre = &final_norm;
}

}  // namespace ipex_assist
