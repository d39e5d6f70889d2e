#include "packing/layout.h"

#include <utility>

#include "refuse.h"
#include "memory/round_up.h"

namespace ipex_assist {
namespace {

constexpr int64_t WEIGHTS_ALIGNMENT = 4096;
constexpr int64_t HUGE_PAGE = int64_t(2) << 20;
constexpr int64_t MOST_BYTES = int64_t(1) << 60;  // of an image: what one tensor adds is far less, so sums stay exact

// Columns of a linear, as packed.
int64_t packed(int64_t columns) { return round_up(columns, LANES); }

// What a row goes through between linears: see ResidualNorm.
void place_residual_norms(ModelWeights& w) {
    const PackedLayer* last = nullptr;
    const auto after_mlp = [](ResidualNorm& join, const PackedLayer& layer) {
        join.multiplier = layer.residual_multiplier;
        const bool mlp = layer.has_mlp();
        if (layer.mlp_conv.base) join.left = &layer.mlp_conv;
        if (layer.has_post_norms()) join.post = mlp ? &layer.mlp_out_norm : &layer.attention_out_norm;
        if (layer.norm_place == POST_RESIDUAL) join.post_residual = mlp ? &layer.mlp_norm : &layer.attention_norm;
    };
    const auto after_last = [&](ResidualNorm& join) {
        join.add = last != nullptr;
        if (!last) return;
        join.scalar = last->scalar;
        if (w.spec.per_layer_size) join.post = &last->per_layer.norm;
        else after_mlp(join, *last);
    };
    for (PackedLayer& layer : w.layers) {
        after_last(layer.into_attention);
        layer.into_attention.late = layer.beside;
        if (w.spec.per_layer_size) after_mlp(layer.per_layer.into_gate, layer);
        layer.into_mlp.late = layer.parallel;
        layer.into_mlp.multiplier = layer.residual_multiplier;
        if (layer.has_post_norms()) layer.into_mlp.post = &layer.attention_out_norm;
        if (layer.norm_place == POST_RESIDUAL) layer.into_mlp.post_residual = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_attention.pre = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_mlp.pre = layer.shared_norm ? &layer.attention_norm : &layer.mlp_norm;
        if (layer.mlp.own_norms) layer.into_mlp.pre = &layer.expert_norms.router;
        if (layer.attention_conv.base) layer.into_attention.entered = layer.into_mlp.left = &layer.attention_conv;
        if (layer.mlp_conv.base) layer.into_mlp.entered = &layer.mlp_conv;
        last = &layer;
    }
    w.into_head = ResidualNorm{};
    after_last(w.into_head);
    if (w.spec.final_norm) w.into_head.pre = &w.final_norm;
}

}  // namespace

void ImageLayout::divide(const Pool* pool) {
    node_threads_.clear(), node_offsets_.clear();
    if (!pool) return;
    node_offsets_.assign(size_t(pool->nodes()), 0);
    for (int node = 0; node <= pool->nodes(); node++) node_threads_.push_back(pool->first_thread(node));
}

bool ImageLayout::follows(const Pool& pool) const {
    if (int(node_threads_.size()) != pool.nodes() + 1) return false;
    for (int node = 0; node <= pool.nodes(); node++) {
        if (first_thread(node) != pool.first_thread(node)) return false;
    }
    return true;
}

int64_t ImageLayout::reserve_nodes() {
    int64_t bytes = round_up(common_bytes(), HUGE_PAGE);
    for (size_t node = 0; node < node_at_.size(); node++) {
        const int64_t of_node = int64_t(node_at_[node] - node_offsets_[node]);
        node_offsets_[node] = uintptr_t(bytes);
        bytes += round_up(of_node, HUGE_PAGE);
    }
    return bytes;
}

const uint8_t* ImageLayout::take(int64_t bytes, int64_t alignment) {
    const int64_t at = round_up(bytes_, alignment);
    if (bytes > MOST_BYTES - at) refuse("the weights of such a model take more than 2^60 bytes");
    bytes_ = at + bytes;
    return reinterpret_cast<const uint8_t*>(base_ + uintptr_t(at - elsewhere_));
}

// Ends the piece of the image that began after the last one.
void ImageLayout::end_piece() {
    const int64_t start = pieces_.empty() ? 0 : pieces_.back().start + pieces_.back().bytes;
    if (start == bytes_) return;
    pieces_.push_back({start, bytes_ - start, reinterpret_cast<uint8_t*>(base_ + uintptr_t(start - elsewhere_)), -1});
}

// Each node's threads' blocks of a linear, after those of the linears before.
void ImageLayout::place_on_nodes(Linear& linear) {
    const int64_t each = block_bytes(linear.precision, linear.group, linear.depth);
    const auto pointer = [](uintptr_t address) { return reinterpret_cast<uint8_t*>(address); };
    take(0, WEIGHTS_ALIGNMENT);
    end_piece();
    std::vector<NodeBlocks> parts;
    for (size_t node = 0; node < node_at_.size(); node++) {
        const int64_t first = slice(linear, node_threads_[node], node_threads_.back()).first;
        const int64_t bytes = (slice(linear, node_threads_[node + 1], node_threads_.back()).first - first) * each;
        parts.push_back({first, pointer(node_at_[node] - uintptr_t(first * each))});
        if (bytes) pieces_.push_back({bytes_, bytes, pointer(node_at_[node]), int(node)});
        node_at_[node] += uintptr_t(bytes), bytes_ += bytes, elsewhere_ += bytes;
    }
    parts.push_back({linear.blocks, nullptr});
    node_blocks_.push_back(std::move(parts));
    linear.nodes = node_blocks_.back().data();
    linear.weights = linear.nodes->weights;
}

Linear ImageLayout::linear(const ModelSpec& spec, int64_t columns, int64_t width, bool bias, Precision precision,
                           int64_t unit) {
    Linear linear{};
    linear.unit = unit;
    linear.precision = precision;
    linear.group = group_of(precision, spec.group);
    linear.depth = padded_depth(precision, width);
    linear.blocks = columns / LANES;
    if (bias) linear.bias = vector(columns);
    if (has_column_scales(precision)) linear.scales = vector(columns);
    if (spec.ordered) linear.order = reinterpret_cast<const int32_t*>(take(linear.depth * 4, 64));
    const int64_t bytes = linear.blocks * block_bytes(linear.precision, linear.group, linear.depth);
    if (!divided()) linear.weights = take(bytes, WEIGHTS_ALIGNMENT);
    else place_on_nodes(linear);
    return linear;
}

const float* ImageLayout::vector(int64_t size) { return reinterpret_cast<const float*>(take(size * 4, 64)); }

Norm ImageLayout::norm(const ModelSpec& spec, int64_t size) {
    Norm norm;
    if (spec.norm_weight) norm.weight = vector(size);
    if (spec.norm_bias) norm.bias = vector(size);
    return norm;
}

void ImageLayout::place(ModelWeights& w, const std::vector<LayerSpec>& layers, uint8_t* start) {
    const ModelSpec& spec = w.spec;
    bytes_ = elsewhere_ = 0;
    base_ = reinterpret_cast<uintptr_t>(start);
    node_at_ = node_offsets_;
    for (uintptr_t& at : node_at_) at += base_;
    pieces_.clear(), node_blocks_.clear();
    w.layers.clear();
    w.layers.reserve(layers.size());  // norms and linears are pointed to
    for (const LayerSpec& each : layers) {
        w.layers.emplace_back();
        static_cast<LayerSpec&>(w.layers.back()) = each;
        w.layers.back().input_width = spec.mixer_input_width(int64_t(w.layers.size()) - 1);
        place_layer(spec, w.layers.back());
    }
    if (spec.final_norm) w.final_norm = norm(spec, spec.hidden_size);
    if (spec.embedding_norm) w.embedding_norm = norm(spec, spec.hidden_size);
    place_residual_norms(w);
    if (spec.projected_embedding) {
        w.project_in = linear(spec, packed(spec.hidden_size), spec.embedding_size, false, spec.outer_precision);
        w.project_out = linear(spec, packed(spec.embedding_size), spec.hidden_size, false, spec.outer_precision);
    }
    if (spec.is_draft_head()) place_draft_head(w);
    if (spec.per_layer_size) {
        w.per_layer_in = linear(spec, packed(spec.per_layer_width()), spec.hidden_size, false, spec.outer_precision);
        w.per_layer_norm = vector(spec.per_layer_size);
    }
    if (!spec.draft_head.shared_head) {
        w.head = linear(spec, packed(spec.lm_head_rows()), spec.embedding_size, spec.head_bias, spec.outer_precision);
    }
    if (spec.positions) w.positions = vector(int64_t(spec.positions) * spec.hidden_size);
    const int64_t table_bytes = int64_t(spec.vocab_size) * (spec.precision == FP32 ? 4 : 2);
    if (spec.per_layer_size) w.per_layer_table = take(table_bytes * spec.per_layer_width(), 4096);
    // The last, as a model that shares another one's gives its memory back.
    if (!w.head_is_table() && !spec.draft_head.shared_embedding)
        w.table = take(table_bytes * spec.embedding_size, 4096);
    take(0, 4096);
    end_piece();
}

void ImageLayout::place_draft_head(ModelWeights& w) {
    const ModelSpec& spec = w.spec;
    w.fc = linear(spec, packed(spec.hidden_size), spec.draft_head.fc_width(spec.hidden_size), false, spec.precision);
    if (spec.draft_head.input_norm) w.input_norm = norm(spec, spec.draft_head.input_size);
    if (spec.reads_target()) {
        w.fc_out = linear(spec, packed(spec.draft_head.input_size), spec.hidden_size, false, spec.precision);
        if (spec.draft_head.clusters) {
            const Precision precision = spec.precision == FP32 ? FP32 : BF16;
            w.clusters = linear(spec, packed(spec.draft_head.clusters), spec.hidden_size, false, precision);
        }
        return;
    }
    if (spec.draft_head.candidates) {
        const int64_t rank = spec.draft_head.selector_rank;
        const int64_t table_bytes = spec.vocab_size * rank * (spec.precision == FP32 ? 4 : 2);
        w.selector.projection = linear(spec, packed(rank), spec.hidden_size, false, spec.precision);
        w.selector.before = take(table_bytes, 4096), w.selector.after = take(table_bytes, 4096);
    }
    if (spec.draft_head.feeds_back()) w.head_embedding_norm = norm(spec, spec.hidden_size);
    w.head_hidden_norm = norm(spec, spec.hidden_size);
}

void ImageLayout::place_layer(const ModelSpec& spec, PackedLayer& layer) {
    const bool first_norms = layer.norm_place != POST;
    // That of a token beside a hidden state is the draft head's.
    if (first_norms && layer.input_width == spec.hidden_size) layer.attention_norm = norm(spec, spec.hidden_size);
    if (layer.is_recurrent()) place_recurrent(spec, layer);
    else place_attention(spec, layer);
    if (layer.has_post_norms()) layer.attention_out_norm = norm(spec, spec.hidden_size);
    if (layer.has_mlp()) {
        if (first_norms && !layer.shared_norm) layer.mlp_norm = norm(spec, spec.hidden_size);
        place_mlp(spec, layer);
        if (layer.has_post_norms()) layer.mlp_out_norm = norm(spec, spec.hidden_size);
    }
    if (spec.per_layer_size) {
        layer.per_layer.gate = linear(spec, packed(spec.per_layer_size), spec.hidden_size, false, spec.precision);
        layer.per_layer.out = linear(spec, packed(spec.hidden_size), spec.per_layer_size, false, spec.precision);
        layer.per_layer.norm = norm(spec, spec.hidden_size);
    }
    if (layer.scaled) layer.scalar = vector(1);
    if (!spec.draft_head.conv_taps) return;
    layer.attention_conv = dynamic_conv(spec);
    layer.mlp_conv = dynamic_conv(spec);
}

ConvWeights ImageLayout::dynamic_conv(const ModelSpec& spec) {
    const int64_t hidden = spec.hidden_size, scales = 2 * spec.draft_head.conv_scales(hidden);
    ConvWeights made;
    made.base = vector(2 * spec.draft_head.conv_taps * hidden);
    made.projection = linear(spec, packed(scales), hidden, false, spec.precision);
    return made;
}

void ImageLayout::place_attention(const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    if (a.is_latent()) return place_latent(spec, layer);
    layer.qkv = linear(spec, a.qkv_width(), layer.input_width, a.qkv_bias, spec.precision);
    const bool one = a.qk_norm == ONE_FOR_HEADS;
    if (a.has_norm_weights()) layer.q_norm = vector(one ? a.head_dim : a.query_width());
    if (a.has_norm_weights() && !a.shares_kv) layer.k_norm = vector(one ? a.head_dim : a.kv_width());
    if (a.sinks) layer.sinks = vector(a.heads);
    layer.output = linear(spec, packed(spec.hidden_size), a.query_width(), a.output_bias, spec.precision);
}

void ImageLayout::place_latent(const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    LatentWeights& w = layer.latent;
    const int64_t row = a.latent.query_rank;
    layer.qkv = linear(spec, a.latent_width(), layer.input_width, a.qkv_bias, spec.precision);
    w.norm = vector(a.latent.rank);
    if (row) w.query_norm = vector(row);
    w.query = linear(spec, a.latent_query_width(), row ? row : layer.input_width, false, spec.precision);
    w.keys = linear(spec, a.attended_width(), a.latent.nope_dim, false, spec.precision);
    w.values = linear(spec, a.output_width(), a.latent.rank, false, spec.precision);
    layer.output = linear(spec, packed(spec.hidden_size), a.output_width(), a.output_bias, spec.precision);
}

void ImageLayout::place_recurrent(const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    layer.qkv = linear(spec, r.input_linear_width(), spec.hidden_size, r.input_bias, spec.precision);
    if (r.convolves_keys())
        w.q_conv = vector(r.conv_kernel * r.key_width()), w.k_conv = vector(r.conv_kernel * r.key_width());
    w.v_conv = vector(r.conv_kernel * r.value_width());
    if (r.convolves_keys() && r.conv_bias) w.q_conv_bias = vector(r.key_width()), w.k_conv_bias = vector(r.key_width());
    if (r.conv_bias) w.v_conv_bias = vector(r.value_width());
    if (r.scans()) w.decay_rate = vector(decay_rates(r)), w.dt_bias = vector(r.decay_inputs());
    if (r.gate_rank) w.gates = linear(spec, r.width() - r.decay_column(), r.gate_rank, false, spec.precision);
    if (skips(r)) w.skip = vector(skips(r));
    if (r.kind == MAMBA1) {
        w.low = linear(spec, r.decay_column() - r.low_column(), r.value_width(), false, spec.precision);
        if (r.selection_norm == NORMED_AND_WEIGHTED)
            w.low_norm = vector(r.gate_rank), w.key_norm = vector(r.key_dim), w.query_norm = vector(r.key_dim);
    }
    if (r.norm_weights()) w.norm = vector(r.norm_weights());
    layer.output = linear(spec, packed(spec.hidden_size), r.value_width(), r.output_bias, spec.precision);
}

void ImageLayout::place_mlp(const ModelSpec& spec, PackedLayer& layer) {
    const MlpSpec& mlp = layer.mlp;
    if (!mlp.experts) {
        const Mlp made = this->mlp(spec, mlp, mlp.intermediate_size);
        layer.up = made.up, layer.down = made.down;
        for (const float*& number : layer.xielu) number = mlp.activation == XIELU ? vector(1) : nullptr;
        return;
    }
    layer.router =
        linear(spec, packed(mlp.experts) + (mlp.shared_gate ? LANES : 0), spec.hidden_size, mlp.router_bias, FP32);
    if (mlp.correction_bias) layer.correction_bias = vector(mlp.experts);
    if (mlp.expert_scales) layer.expert_scales = vector(mlp.experts);
    if (mlp.own_norms)
        layer.expert_norms = {norm(spec, spec.hidden_size), norm(spec, spec.hidden_size), norm(spec, spec.hidden_size),
                              norm(spec, spec.hidden_size)};
    for (int32_t e = 0; e < mlp.experts; e++) layer.experts.push_back(this->mlp(spec, mlp, mlp.intermediate_size));
    if (mlp.shared_size) layer.experts.push_back(this->mlp(spec, mlp, mlp.shared_size));
}

Mlp ImageLayout::mlp(const ModelSpec& spec, const MlpSpec& mlp, int64_t size) {
    Mlp made;
    made.up =
        linear(spec, packed(size) * (mlp.gated ? 2 : 1), spec.hidden_size, mlp.bias, mlp.precision, mlp.gated ? 2 : 1);
    made.down = linear(spec, packed(spec.hidden_size), size, mlp.bias, mlp.precision);
    return made;
}

}  // namespace ipex_assist
