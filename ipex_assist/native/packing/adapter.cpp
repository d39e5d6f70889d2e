#include "packing/adapter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "refuse.h"

namespace ipex_assist {
namespace {

// Mapped at a time; huge pages of it that nothing was packed into take nothing.
constexpr int64_t MEMORY_BYTES = 32 << 20;

// A is multiplied with the rows that a linear of this precision takes.
Precision a_precision(Precision of) {
    switch (row_type(of)) {
        case FP32_ROWS: return FP32;
        case BF16_ROWS: return BF16;
        case INT8_ROWS:
        case BLOCK_ROWS: return INT8;
    }
    __builtin_unreachable();
}

// The role of the linear, of attention or of a plain MLP, that a weight is part of; LINEAR_ROLES: of none.
int32_t role_of(const PackedLayer& layer, const Weight& weight) {
    int32_t role = layer.is_recurrent() ? UP : layer.attention.is_latent() ? OUTPUT : QKV;
    while (role < LINEAR_ROLES && weight.part.linear != &layer.linear(LinearRole(role))) role++;
    return role;
}

// 16 columns (rank) of b · scale, of which `count` are there, as LowRankPanel has them.
void pack_b_panel(const KernelTable& kernels, RowType rows, const Adapter::Matrices& m, int64_t first, int64_t count,
                  uint8_t* to, float* scales) {
    std::vector<float> values(size_t(m.rank * LANES));  // (rank, 16)
    for (int64_t j = 0; j < count; j++) {
        const float* column = m.b + (first + j) * m.rank;
        for (int64_t k = 0; k < m.rank; k++) values[size_t(k * LANES + j)] = column[k] * m.scale;
    }
    if (rows != INT8_ROWS) {
        kernels.narrow(rows == FP32_ROWS ? SOURCE_F32 : SOURCE_BF16, values.data(), int64_t(values.size()), to);
        return;
    }
    for (int64_t j = 0; j < LANES; j++) {
        float largest = 0;
        for (int64_t k = 0; k < m.rank; k++) largest = std::max(largest, std::abs(values[size_t(k * LANES + j)]));
        scales[j] = largest / 127;
        for (int64_t k = 0; k < m.rank; k++) {
            const float each = values[size_t(k * LANES + j)];
            to[k * LANES + j] = uint8_t(int8_t(largest > 0 ? std::lround(each / largest * 127) : 0));
        }
    }
}

}  // namespace

LowRankPanel AdapterPart::panel(int64_t i) const {
    LowRankPanel at = b;
    at.values += i * low_rank_bytes(b.rows, rank);
    if (at.scales) at.scales += i * LANES;
    return at;
}

std::pair<int64_t, int64_t> AdapterPart::between(int64_t first, int64_t last) const {
    const auto from = [&](int64_t border) {
        return border <= to.first ? 0 : std::min((border - to.first + to.step - 1) / to.step, panels());
    };
    return {from(first), from(last)};
}

Adapter::Adapter(std::shared_ptr<const PackedModel> model) : model_(std::move(model)), layers_(model_->layers.size()) {}

bool Adapter::pack(Pool& pool, std::string_view name, const Matrices& m) {
    if (m.rank < 1 || m.rank > MOST_RANK)
        refuse("an adapter of rank %lld: it may be 1 to %lld", (long long)m.rank, (long long)MOST_RANK);
    const Weight weight = model_->find(name);
    const int32_t layer = weight.layer;
    if (!weight.is_matrix() || layer < 0 || !weight.takes(m.columns, m.width)) return false;
    const PackTarget& to = weight.part;
    const int32_t role = role_of(model_->layers[size_t(layer)], weight);
    if (role == LINEAR_ROLES) return false;
    std::vector<AdapterPart>& parts = layers_[size_t(layer)][size_t(role)];
    int64_t low = 0;
    for (const AdapterPart& part : parts) {
        if (part.to.first == to.first) refuse("an adapter has two parts for one weight of layer %d", layer);
        low = part.first_low + part.a.panels * LANES;
    }
    AdapterPart part;
    part.first_low = low, part.rank = m.rank, part.to = to;
    part.a.precision = a_precision(to.linear->precision), part.a.group = SCALE_COLUMNS;
    part.a.depth = to.linear->depth, part.a.panels = round_up(m.rank, LANES) / LANES;
    part.b.rows = row_type(part.a.precision), part.b.rank = m.rank;
    pack_a(pool, part, m);
    pack_b(pool, part, m);
    low_columns_ = std::max(low_columns_, low + part.a.panels * LANES);
    parts.push_back(std::move(part));
    return true;
}

// Memory for a part. Parts lie beside each other in huge pages: of a mapping of its own each would have small pages,
// and reading little of many parts would wait for their addresses. On several nodes pages lie where their threads are.
uint8_t* Adapter::take(const Pool& pool, int64_t bytes) {
    bytes = round_up(bytes, 64);
    if (bytes > free_bytes_ || pool.several_nodes()) {
        const int64_t mapped = std::max(bytes, MEMORY_BYTES);
        memory_.push_back(pool.several_nodes() ? Memory(size_t(bytes)) : Memory::at_border(size_t(mapped)));
        free_ = memory_.back().data(), free_bytes_ = int64_t(memory_.back().size());
    }
    bytes_ += bytes;
    free_bytes_ -= bytes;
    return std::exchange(free_, free_ + bytes);
}

// Takes the memory of both, and packs A, whose input columns are in the linear's order.
void Adapter::pack_a(const Pool& pool, AdapterPart& part, const Matrices& m) {
    Linear& a = part.a;
    const bool scaled = a.precision == INT8;
    const int64_t each = panel_bytes(a.precision, a.group, a.depth), scales = scaled ? a.panels * LANES * 4 : 0;
    const int64_t b_scales = scaled ? part.panels() * LANES * 4 : 0;
    const int64_t b_bytes = part.panels() * low_rank_bytes(part.b.rows, m.rank);
    uint8_t* at = take(pool, a.panels * each + scales + b_scales + b_bytes);
    a.weights = at, at += a.panels * each;
    if (scaled) a.scales = reinterpret_cast<const float*>(at), at += scales;
    if (scaled) part.b.scales = reinterpret_cast<const float*>(at), at += b_scales;
    part.b.values = at;
    std::vector<float> rows(m.a, m.a + m.rank * m.width), scratch(size_t(a.depth * (LANES + 2)));
    for (int64_t r = 0; part.to.linear->order && r < m.rank; r++) {
        for (int64_t k = 0; k < m.width; k++)
            rows[size_t(r * m.width + k)] = m.a[r * m.width + part.to.linear->order[k]];
    }
    for (int64_t b = 0; b < a.panels; b++) {
        const int64_t columns = std::min<int64_t>(LANES, m.rank - b * LANES);
        float* to_scales = scaled ? const_cast<float*>(a.scales) + b * LANES : nullptr;
        model_->kernels->pack(a.precision, a.group, SOURCE_F32, rows.data() + b * LANES * m.width, m.width, columns,
                              m.width, a.depth, const_cast<uint8_t*>(a.weights) + b * each, to_scales, scratch.data());
    }
}

// By the threads that compute these panels, so that pages lie on their nodes.
void Adapter::pack_b(Pool& pool, AdapterPart& part, const Matrices& m) const {
    pool.run([&](int thread) {
        const auto [first, last] = slice(*part.to.linear, thread, pool.threads());
        for (int64_t i = 0; i < part.panels(); i++) {
            const int64_t at = part.to.first + i * part.to.step,
                          columns = std::min<int64_t>(LANES, m.columns - i * LANES);
            if (at < first || at >= last) continue;
            const LowRankPanel to = part.panel(i);
            pack_b_panel(*model_->kernels, to.rows, m, i * LANES, columns, const_cast<uint8_t*>(to.values),
                         const_cast<float*>(to.scales));
        }
    });
}

}  // namespace ipex_assist
