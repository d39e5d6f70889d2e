// Where a model's weights lie: in the image, which is the same on every machine, and in memory.
//
// Where all threads are on one memory node, memory is the image. Else the blocks of all linears that the threads of a
// node compute (Model::slice) lie one behind the other, from a border of huge pages on, so that no page has those of
// two nodes; and what is not blocks of linears lies before them, in the order that it has in the image.
#include <utility>

#include "packing/model.h"

namespace ipex_assist {
namespace {

constexpr int64_t WEIGHTS_ALIGNMENT = 4096;
constexpr int64_t HUGE_PAGE = int64_t(2) << 20;

size_t whole_pages(size_t bytes) { return size_t(round_up(int64_t(bytes), HUGE_PAGE)); }

}  // namespace

void Model::allocate(const Pool& pool) {
    place(pool);
    writable_ = true;
    expect_weights();
}

// Memory for the image, laid out.
void Model::place(const Pool& pool) {
    divide(pool.several_nodes() ? &pool : nullptr);
    if (node_threads_.empty()) {
        image_ = Memory(size_t(image_bytes_));
        return lay_out();
    }
    image_ = Memory();
    lay_out();  // from address 0: how many bytes lie on each node
    size_t bytes = whole_pages(size_t(image_bytes_ - elsewhere_));
    for (size_t node = 0; node < node_at_.size(); node++) {
        node_starts_[node] = bytes;
        bytes += whole_pages(node_at_[node]);
    }
    image_ = Memory::at_border(bytes);
    for (uintptr_t& start : node_starts_) start += reinterpret_cast<uintptr_t>(image_.data());
    lay_out();
}

// Whether, and among which threads, memory follows memory nodes: those of a pool, or none.
void Model::divide(const Pool* pool) {
    node_threads_.clear(), node_starts_.clear();
    if (!pool) return;
    node_starts_.assign(size_t(pool->nodes()), 0);
    for (int node = 0; node <= pool->nodes(); node++) node_threads_.push_back(pool->first_thread(node));
}

bool Model::follows(const Pool& pool) const {
    if (int(node_threads_.size()) != pool.nodes() + 1) return false;
    for (int node = 0; node <= pool.nodes(); node++) {
        if (node_threads_[size_t(node)] != pool.first_thread(node)) return false;
    }
    return true;
}

const uint8_t* Model::take(int64_t bytes, int64_t alignment) {
    const int64_t at = round_up(image_bytes_, alignment);
    image_bytes_ = at + bytes;
    return reinterpret_cast<const uint8_t*>(base_ + uintptr_t(at - elsewhere_));
}

// What has come since the last piece.
void Model::end_piece() {
    const int64_t start = pieces_.empty() ? 0 : pieces_.back().start + pieces_.back().bytes;
    if (start == image_bytes_) return;
    pieces_.push_back(
        {start, image_bytes_ - start, reinterpret_cast<uint8_t*>(base_ + uintptr_t(start - elsewhere_)), -1});
}

// Each node's threads' blocks of a linear behind those of the linears before.
void Model::place_on_nodes(Linear& linear) {
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

Linear Model::make_linear(int64_t columns_padded, int64_t width, bool bias, Precision precision, int64_t unit) {
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

const float* Model::make_vector(int64_t size) { return reinterpret_cast<const float*>(take(size * 4, 64)); }

Norm Model::make_norm() {
    Norm norm;
    if (spec.norm_weight) norm.weight = make_vector(spec.hidden_size);
    if (spec.norm_bias) norm.bias = make_vector(spec.hidden_size);
    return norm;
}

// The one place that says what lies where; layout version in ipex_assist/packed_cache.py changes with it.
void Model::lay_out() {
    image_bytes_ = elsewhere_ = 0;
    base_ = reinterpret_cast<uintptr_t>(image_.data());
    node_at_ = node_starts_;
    pieces_.clear(), parts_.clear();
    const int64_t attended = int64_t(spec.heads) * spec.head_dim;
    const bool behind = spec.norm_place == BEHIND || spec.norm_place == AROUND;
    layers.assign(size_t(spec.layers), Layer{});
    for (size_t i = 0; i < layers.size(); i++) {
        Layer& layer = layers[i];
        layer.attention = attention_spec(i);
        layer.mlp = mlp_spec();
        layer.window = windows_[i];
        layer.rotation = tables_[i] < 0 ? -1 : tables_[i] * spec.rotary_dim;
        if (spec.norm_place != BEHIND) layer.attention_norm = make_norm();
        layer.qkv = make_linear(value_column() + value_column() - key_column(), spec.hidden_size, spec.qkv_bias,
                                spec.precision);
        if (spec.qk_norm) {
            layer.q_norm = make_vector(vector_size(Q_NORM));
            layer.k_norm = make_vector(vector_size(K_NORM));
        }
        if (spec.attention_sinks) layer.sinks = make_vector(spec.heads);
        layer.output = make_linear(part_width(spec.hidden_size), attended, spec.output_bias, spec.precision);
        if (behind) layer.attention_out_norm = make_norm();
        if (spec.norm_place != BEHIND && !spec.shared_norm) layer.mlp_norm = make_norm();
        lay_out_mlp(layer);
        if (behind) layer.mlp_out_norm = make_norm();
    }
    if (spec.final_norm) final_norm = make_norm();
    if (spec.embedding_norm) embedding_norm = make_norm();
    make_joins();
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
    linears_.clear();
    for (const Layer& layer : layers) {
        linears_.insert(linears_.end(), {&layer.qkv, &layer.output});
        if (!spec.experts) linears_.insert(linears_.end(), {&layer.up, &layer.down});
        if (spec.experts) linears_.push_back(&layer.router);
        for (const Mlp& expert : layer.experts) linears_.insert(linears_.end(), {&expert.up, &expert.down});
    }
    if (spec.projected_embedding) linears_.insert(linears_.end(), {&project_in, &project_out});
    linears_.push_back(&head);
}

AttentionSpec Model::attention_spec(size_t layer) const {
    AttentionSpec a{};
    a.heads = spec.heads, a.kv_heads = spec.kv_heads, a.head_dim = spec.head_dim;
    a.window = windows_[layer];
    a.rotary_dim = tables_[layer] < 0 ? 0 : spec.rotary_dim;
    a.rope_column = tables_[layer] < 0 ? 0 : tables_[layer] * spec.rotary_dim;
    a.qk_norm = spec.qk_norm;
    a.qkv_bias = spec.qkv_bias, a.output_bias = spec.output_bias, a.sinks = spec.attention_sinks;
    a.scale = spec.attention_scale, a.cap = spec.attention_cap;
    a.alibi_slopes = slopes.empty() ? nullptr : slopes.data();
    return a;
}

MlpSpec Model::mlp_spec() const {
    MlpSpec m{};
    m.intermediate_size = spec.intermediate_size;
    m.activation = spec.activation;
    m.gated = spec.gated, m.bias = spec.mlp_bias;
    m.precision = spec.experts ? spec.expert_precision : spec.precision;
    m.experts = spec.experts, m.experts_per_token = spec.experts_per_token;
    m.experts_normalised = spec.experts_normalised, m.router_bias = spec.router_bias;
    m.shared_size = spec.shared_size, m.shared_gate = spec.shared_gate;
    return m;
}

void Model::lay_out_mlp(Layer& layer) {
    if (!spec.experts) {
        const Mlp mlp = make_mlp(spec.intermediate_size);
        layer.up = mlp.up, layer.down = mlp.down;
        return;
    }
    layer.router = make_linear(part_width(spec.experts) + (spec.shared_gate ? LANES : 0), spec.hidden_size,
                               spec.router_bias, FP32);
    for (int32_t e = 0; e < spec.experts; e++) layer.experts.push_back(make_mlp(spec.intermediate_size));
    if (spec.shared_size) layer.experts.push_back(make_mlp(spec.shared_size));
}

Mlp Model::make_mlp(int64_t size) {
    Mlp mlp;
    const Precision precision = spec.experts ? spec.expert_precision : spec.precision;
    mlp.up = make_linear(part_width(size) * (spec.gated ? 2 : 1), spec.hidden_size, spec.mlp_bias, precision,
                         spec.gated ? 2 : 1);
    mlp.down = make_linear(part_width(spec.hidden_size), size, spec.mlp_bias, precision);
    return mlp;
}

// What a row goes through between linears: see Join.
void Model::make_joins() {
    const bool before = spec.norm_place == BEFORE || spec.norm_place == AROUND, of_sum = spec.norm_place == OF_SUM;
    const bool behind = spec.norm_place == BEHIND || spec.norm_place == AROUND;
    const Layer* last = nullptr;
    const auto behind_last = [&](Join& join) {
        join.add = last != nullptr;
        if (behind && last) join.behind = &last->mlp_out_norm;
        if (of_sum && last) join.sum = &last->mlp_norm;
    };
    for (Layer& layer : layers) {
        behind_last(layer.into_attention);
        layer.into_mlp.late = spec.parallel;
        if (behind) layer.into_mlp.behind = &layer.attention_out_norm;
        if (of_sum) layer.into_mlp.sum = &layer.attention_norm;
        if (before) layer.into_attention.before = &layer.attention_norm;
        if (before) layer.into_mlp.before = spec.shared_norm ? &layer.attention_norm : &layer.mlp_norm;
        last = &layer;
    }
    into_head = Join{};
    behind_last(into_head);
    if (spec.final_norm) into_head.before = &final_norm;
}

}  // namespace ipex_assist
