#include "packing/layout.h"

#include <algorithm>
#include <utility>

#include "formats/blocks/place.h"
#include "memory/memory.h"
#include "memory/numa_nodes.h"
#include "refuse.h"
#include "memory/round_up.h"

namespace ipex_assist {
namespace {

constexpr int64_t WEIGHTS_ALIGNMENT = 4096;
constexpr int64_t MOST_BYTES = int64_t(1) << 60;  // of an image: what one tensor adds is far less, so sums stay exact

// What a row goes through between linears: see ResidualNorm.
void place_residual_norms(ModelWeights& w) {
    const PackedLayer *last = nullptr, *before_last = nullptr;
    const auto after_mlp = [](ResidualNorm& join, const PackedLayer& layer) {
        join.multiplier = layer.residual_multiplier;
        const bool mlp = layer.has_mlp();
        if (layer.mlp_conv.base) join.left = &layer.mlp_conv;
        if (layer.has_mlp_out_norm()) join.post = &layer.mlp_out_norm;
        if (!mlp && layer.has_attention_out_norm()) join.post = &layer.attention_out_norm;
        if (layer.norm_place == POST_RESIDUAL) join.post_residual = mlp ? &layer.mlp_norm : &layer.attention_norm;
    };
    const auto after_last = [&](ResidualNorm& join) {
        join.add = last && !last->recurrent.reads_streams();  // which adds by itself
        if (!join.add) return;
        join.scalar = last->scalar;
        join.deferred = before_last && before_last->defers;
        if (w.spec.per_layer_size) join.post = &last->per_layer.norm;
        else after_mlp(join, *last);
    };
    for (PackedLayer& layer : w.layers) {
        after_last(layer.into_attention);
        layer.into_attention.late = layer.beside;
        if (w.spec.per_layer_size) after_mlp(layer.per_layer.into_gate, layer);
        layer.into_mlp.late = layer.parallel;
        layer.into_mlp.multiplier = layer.residual_multiplier;
        if (layer.has_attention_out_norm()) layer.into_mlp.post = &layer.attention_out_norm;
        if (layer.norm_place == POST_RESIDUAL) layer.into_mlp.post_residual = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_attention.pre = &layer.attention_norm;
        if (layer.has_pre_norms()) layer.into_mlp.pre = layer.shared_norm ? &layer.attention_norm : &layer.mlp_norm;
        if (layer.mlp.own_norms) layer.into_mlp.pre = &layer.expert_norms.router;
        if (layer.attention_conv.base) layer.into_mlp.left = &layer.attention_conv;
        layer.into_attention.kept =
            layer.attention_conv.base || layer.mixer_gate_rank || layer.attention.latent.indexer.reads_input;
        layer.into_mlp.kept = layer.mlp_conv.base || layer.mlp_gate_rank;
        if (w.spec.streams.several()) {
            layer.into_attention.streams = &layer.attention_streams;
            layer.into_mlp.streams = &layer.mlp_streams;
        }
        if (layer.laurel_rank) {
            layer.into_mlp.laurel = &layer.laurel.norm;
            layer.into_mlp.laurel_input = &layer.attention_norm;
        }
        if (w.spec.altup.several()) {
            layer.into_attention.altup = layer.per_layer.into_gate.altup = &layer.altup;
            layer.per_layer.into_gate.corrects = true;
        }
        layer.into_attention.with_embedding = layer.into_mlp.instead = layer.aside != 0;
        if (layer.aside) layer.into_mlp.add = false;
        if (last && last->aside) layer.into_attention.add = false, layer.into_attention.passing = true;
        before_last = last, last = &layer;
    }
    w.into_head = w.after_layers = ResidualNorm{};
    after_last(w.into_head);
    if (w.spec.altup.several()) {
        std::swap(w.into_head, w.after_layers);
        w.after_layers.altup = &last->altup, w.into_head.add = false;
    }
    if (w.spec.final_norm) w.into_head.pre = &w.final_norm;
    w.into_head.kept = w.spec.streams.gated();
    if (w.spec.streams.several()) w.into_head.streams = &w.head_streams;
}

// Whether a panel of a linear has scales of its columns.
bool scales_columns(const Linear& linear) {
    if (!linear.mixed) return has_column_scales(linear.precision);
    return std::any_of(linear.mixed->formats, linear.mixed->formats + linear.panels, has_column_scales);
}

}  // namespace

void ImageLayout::divide(const Pool* pool) {
    node_threads_.clear(), node_offsets_.clear(), node_numbers_.clear();
    if (!pool) return;
    node_offsets_.assign(size_t(pool->nodes()), 0);
    for (int node = 0; node <= pool->nodes(); node++) node_threads_.push_back(pool->first_thread(node));
    for (int node = 0; node < pool->nodes(); node++)
        node_numbers_.push_back(node_of_cpu(pool->cpu(pool->first_thread(node))));
}

TeamNodes ImageLayout::team() const {
    std::vector<int32_t> nodes;
    for (int32_t node = 0; node + 1 < int32_t(node_threads_.size()); node++) {
        nodes.insert(nodes.end(), size_t(first_thread(node + 1) - first_thread(node)), node);
    }
    return {std::max(1, int(nodes.size())), nodes};
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

bool ImageLayout::prefer_nodes(uint8_t* start, int64_t bytes) const {
    bool granted = true;
    for (size_t node = 0; node < node_offsets_.size(); node++) {
        const int64_t from = int64_t(node_offsets_[node]);
        const int64_t end = node + 1 < node_offsets_.size() ? int64_t(node_offsets_[node + 1]) : bytes;
        granted &= prefer_node(start + from, end - from, node_number(int(node)));
    }
    return granted;
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

// Each node's threads' panels of a linear, after those of the linears before.
void ImageLayout::place_on_nodes(Linear& linear) {
    const auto pointer = [](uintptr_t address) { return reinterpret_cast<uint8_t*>(address); };
    take(0, WEIGHTS_ALIGNMENT);
    end_piece();
    std::vector<NodePanels> parts;
    for (size_t node = 0; node < node_at_.size(); node++) {
        const int64_t first = slice(linear, node_threads_[node], node_threads_.back()).first;
        const int64_t end = slice(linear, node_threads_[node + 1], node_threads_.back()).first;
        const int64_t before = panel_offset(linear, first), bytes = panel_offset(linear, end) - before;
        parts.push_back({first, pointer(node_at_[node] - uintptr_t(before))});
        if (bytes) pieces_.push_back({bytes_, bytes, pointer(node_at_[node]), int(node)});
        node_at_[node] += uintptr_t(bytes), bytes_ += bytes, elsewhere_ += bytes;
    }
    parts.push_back({linear.panels, nullptr});
    node_panels_.push_back(std::move(parts));
    linear.nodes = node_panels_.back().data();
    linear.weights = linear.nodes->weights;
}

bool ImageLayout::enter(const char* place, int32_t number) {
    const std::string before = places_.empty() ? "" : places_.back();
    places_.push_back(before + place + (number < 0 ? "." : "." + std::to_string(number) + "."));
    return true;
}

// The format that each part's name has, or the usual one; this one for all parts where they take different rows.
void ImageLayout::choose_formats(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts) {
    const auto chosen = [&](const LinearPart& part) {
        if (!part.name) return shape.precision;
        const std::string before = places_.empty() ? "" : places_.back();
        return weights_->format_of(before + part.name, shape.precision);
    };
    to.precision = parts.size() ? chosen(*parts.begin()) : shape.precision;
    const auto differs = [&](const LinearPart& part) {
        return part.name && row_type(chosen(part)) != row_type(to.precision);
    };
    const bool usual = std::any_of(parts.begin(), parts.end(), differs);
    if (usual) to.precision = shape.precision;
    bool mixed = false;
    for (const LinearPart& part : parts) {
        if (!part.name) continue;
        const Precision format = usual ? shape.precision : chosen(part);
        if (is_blocks(format) && !file_row_bytes(format, shape.width))
            refuse("%s of %lld columns in blocks that do not divide them", part.name, (long long)shape.width);
        mixed = mixed || format != to.precision;
    }
    to.group = group_of(to.precision, weights_->spec.group);
    to.depth = padded_depth(to.precision, shape.width);
    if (!mixed) return;
    auto list = std::make_unique<PanelList>();
    list->formats.assign(size_t(to.panels), to.precision);
    for (const LinearPart& part : parts) {
        if (!part.name) continue;
        const Precision format = usual ? shape.precision : chosen(part);
        for (int64_t i = 0; i * LANES < part.columns; i++) list->formats[size_t(part.first + i * part.step)] = format;
    }
    list->offsets.push_back(0);
    for (const Precision format : list->formats)
        list->offsets.push_back(list->offsets.back() + panel_bytes(format, to.group, to.depth));
    list->panels = {list->formats.data(), list->offsets.data()};
    to.mixed = &list->panels;
    mixed_.push_back(std::move(list));
}

// Whether what is placed is a routed expert's, and these are in a cache.
bool ImageLayout::is_cached() const {
    return weights_->caches_experts && !places_.empty() && places_.back().find(".experts.") != std::string::npos;
}

void ImageLayout::linear(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts) {
    to = Linear{};
    to.granularity = shape.granularity;
    to.panels = shape.columns / LANES;
    choose_formats(to, shape, parts);
    if (shape.bias) to.bias = floats(shape.columns);
    if (scales_columns(to)) to.scales = floats(shape.columns);
    if (weights_->spec.ordered) to.order = reinterpret_cast<const int32_t*>(take(to.depth * 4, 64));
    if (is_cached()) return;
    if (divided()) return place_on_nodes(to);
    to.weights = take(panel_offset(to, to.panels), WEIGHTS_ALIGNMENT);
}

void ImageLayout::table(const uint8_t*& to, const char*, int64_t rows, int64_t columns) {
    to = take(rows * columns * (weights_->spec.precision == FP32 ? 4 : 2), 4096);
}

void ImageLayout::place(ModelWeights& w, uint8_t* start) {
    weights_ = &w;
    mixed_.clear();
    bytes_ = elsewhere_ = 0;
    base_ = reinterpret_cast<uintptr_t>(start);
    node_at_ = node_offsets_;
    for (uintptr_t& at : node_at_) at += base_;
    pieces_.clear(), node_panels_.clear();
    list_weights(*this, w);
    place_residual_norms(w);
    take(0, 4096);
    end_piece();
}

}  // namespace ipex_assist
