// Which weights a model has, which of them have arrived, and what is wrong with those that cannot be used.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "abi/checks.h"
#include "packing/model.h"

namespace ipex_assist {

bool PackedModel::ready() const { return image_.data() && missing_count_ == 0 && (!table_of_ || table_of_->ready()); }

bool PackedModel::exists(Slot slot, int32_t index, bool bias) const {
    if (slot == EMBED_TOKENS) return !bias;
    if (slot == SHARED_GATE && bias) return false;  // the router's
    if (slot == LM_HEAD && spec.tied_head) return false;
    if (vector(slot, index, bias)) return true;
    const PackTarget where = target(slot, index);
    return where.linear && where.linear->weights && (!bias || where.linear->bias);
}

int64_t PackedModel::vector_size(Slot slot, int32_t index) const {
    if (slot == EMBED_POSITIONS) return int64_t(spec.positions) * spec.hidden_size;
    if (slot != Q_NORM && slot != K_NORM && slot != SINKS) return spec.hidden_size;
    const AttentionSpec& a = layers[size_t(index)].attention;
    if (slot == SINKS) return a.heads;
    return a.qk_norm == ONE_FOR_HEADS ? a.head_dim : slot == Q_NORM ? a.query_width() : a.kv_width();
}

size_t PackedModel::flag(Slot slot, int32_t index, bool bias) const {
    const size_t of_layer = slot >= ATTENTION_NORM ? size_t(index) : 0;
    return (of_layer * SLOTS + size_t(slot)) * 2 + size_t(bias);
}

void PackedModel::expect_weights() {
    int32_t experts = 0;  // of the layer that has most
    for (const PackedLayer& layer : layers) experts = std::max(experts, layer.mlp.count());
    const int32_t places = spec.layers * (1 + experts);
    missing_.assign(size_t(places) * SLOTS * 2, false);
    missing_count_ = 0;
    for (int32_t number = EMBED_TOKENS; number < SLOTS; number++) {
        const Slot slot = Slot(number);
        for (int32_t index = 0; index < (slot >= ATTENTION_NORM ? places : 1); index++) {
            for (const bool bias : {false, true}) {
                if (!exists(slot, index, bias)) continue;
                missing_[flag(slot, index, bias)] = true;
                missing_count_++;
            }
        }
    }
    if (table_of_ && !spec.tied_head) arrived(EMBED_TOKENS, 0, false);
    for (const Linear* linear : linears_) {
        int32_t* order = const_cast<int32_t*>(linear->order);
        if (order) std::iota(order, order + linear->depth, 0);
    }
}

void PackedModel::arrived(Slot slot, int32_t index, bool bias) {
    const size_t which = flag(slot, index, bias);
    if (which >= missing_.size() || !missing_[which]) return;
    missing_[which] = false;
    missing_count_--;
}

void PackedModel::require_memory() const {
    if (!image_.data()) refuse("weights are packed into memory that is allocated first");
    if (!writable_) refuse("the weights are those of a mapped file, and cannot be packed over");
}

void PackedModel::refuse_values(SourceType type, const void* data, int64_t rows, int64_t columns) const {
    constexpr int64_t PIECE = 256;
    float values[PIECE];
    const int64_t size = rows * columns, bytes = type == SOURCE_F32 ? 4 : 2;
    for (int64_t start = 0; start < size; start += PIECE) {
        const int64_t count = size - start < PIECE ? size - start : PIECE;
        if (kernels->widen(type, static_cast<const uint8_t*>(data) + start * bytes, count, values)) continue;
        int64_t i = 0;
        while (std::isfinite(values[i])) i++;
        const std::string what = std::isnan(values[i]) ? "NaN" : "infinity",
                          row = std::to_string((start + i) / columns);
        throw NotFinite(what + " in row " + row +
                        (columns > 1 ? ", column " + std::to_string((start + i) % columns) : ""));
    }
    throw NotFinite("NaN or infinity");
}

bool PackedModel::set_order(Slot slot, int32_t index, const int32_t* order, int64_t width) {
    require_memory();
    const PackTarget where = target(slot, index);
    if (!where.linear || !where.linear->order || width != where.width) return false;
    std::vector<bool> seen(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; i++) {
        if (order[i] < 0 || order[i] >= width || seen[size_t(order[i])]) {
            refuse("an order of columns names column %d of %lld twice, or one that is not there", order[i],
                   static_cast<long long>(width));
        }
        seen[size_t(order[i])] = true;
    }
    std::copy(order, order + width, const_cast<int32_t*>(where.linear->order));
    return true;
}

}  // namespace ipex_assist
