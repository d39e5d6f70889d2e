// A model's packed weights: where a checkpoint's go, and how they get there.
#include "packing/model.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "abi/checks.h"

namespace ipex_assist {

PackedModel::PackedModel(const ModelSpec& given, const LayerSpec* layers_, const KernelTable* kernels_)
    : spec(checked(given, layers_)),
      kernels(kernels_),
      layer_specs_(layers_, layers_ + given.layers) {
    for (LayerSpec& each : layer_specs_) {
        AttentionSpec& a = each.attention;
        slopes_.emplace_back();
        for (int32_t h = 0; a.alibi_slopes && h < a.heads; h++) slopes_.back().push_back(a.alibi_slopes[h] / a.scale);
        a.alibi_slopes = slopes_.back().empty() ? nullptr : slopes_.back().data();
    }
    lay_out();  // from address 0: how many bytes it takes
}

std::pair<int64_t, int64_t> PackedModel::slice(const Linear& linear, int thread, int threads) const {
    const int64_t units = linear.blocks / linear.unit;
    return {share(units, thread, threads) * linear.unit, share(units, thread + 1, threads) * linear.unit};
}

PackTarget PackedModel::target(Slot slot, int32_t index) const {
    if (slot >= GATE_PROJ) return mlp_target(slot, index);
    if (slot >= Q_PROJ) return attention_target(slot, index);
    const int64_t hidden = spec.hidden_size;
    switch (slot) {
        case EMBED_TOKENS: return {spec.tied_head ? &head : nullptr, 0, 1, spec.vocab_size, spec.embedding_size};
        case LM_HEAD: return {&head, 0, 1, spec.vocab_size, spec.embedding_size};
        case PROJECT_IN: return {&project_in, 0, 1, hidden, spec.embedding_size};
        case PROJECT_OUT: return {&project_out, 0, 1, spec.embedding_size, hidden};
        default: return {};
    }
}

PackTarget PackedModel::attention_target(Slot slot, int32_t index) const {
    if (size_t(index) >= layers.size()) return {};
    const PackedLayer& layer = layers[size_t(index)];
    const AttentionSpec& a = layer.attention;
    const int64_t hidden = spec.hidden_size;
    switch (slot) {
        case Q_PROJ: return {&layer.qkv, 0, 1, a.query_width(), hidden};
        case K_PROJ: return {&layer.qkv, a.key_column() / LANES, 1, a.kv_width(), hidden};
        case V_PROJ: return {&layer.qkv, a.value_column() / LANES, 1, a.kv_width(), hidden};
        case O_PROJ: return {&layer.output, 0, 1, hidden, a.query_width()};
        default: return {};
    }
}

PackTarget PackedModel::mlp_target(Slot slot, int32_t index) const {
    if (index < 0) return {};
    const PackedLayer& layer = layers[size_t(index % spec.layers)];
    const MlpSpec& mlp = layer.mlp;
    const int32_t expert = index / spec.layers - 1;
    if (expert >= int32_t(layer.experts.size())) return {};
    const int64_t hidden = spec.hidden_size,
                  size = mlp.experts && expert == mlp.experts ? mlp.shared_size : mlp.intermediate_size;
    const Linear& up = expert < 0 ? layer.up : layer.experts[size_t(expert)].up;
    const Linear& down = expert < 0 ? layer.down : layer.experts[size_t(expert)].down;
    switch (slot) {
        case GATE_PROJ: return {mlp.gated ? &up : nullptr, 0, 2, size, hidden};
        case UP_PROJ: return {&up, mlp.gated ? 1 : 0, mlp.gated ? 2 : 1, size, hidden};
        case DOWN_PROJ: return {&down, 0, 1, hidden, size};
        case ROUTER: return {expert < 0 ? &layer.router : nullptr, 0, 1, mlp.experts, hidden};
        case SHARED_GATE:
            return {expert < 0 && mlp.shared_gate ? &layer.router : nullptr, part_width(mlp.experts) / LANES, 1, 1,
                    hidden};
        default: return {};
    }
}

const float* PackedModel::vector(Slot slot, int32_t index, bool bias) const {
    if (slot == FINAL_NORM) return bias ? final_norm.bias : final_norm.weight;
    if (slot == EMBED_NORM) return bias ? embedding_norm.bias : embedding_norm.weight;
    if (slot == EMBED_POSITIONS) return bias ? nullptr : positions_;
    if (size_t(index) >= layers.size()) return nullptr;
    const PackedLayer& layer = layers[size_t(index)];
    switch (slot) {
        case ATTENTION_NORM: return bias ? layer.attention_norm.bias : layer.attention_norm.weight;
        case ATTENTION_OUT_NORM: return bias ? layer.attention_out_norm.bias : layer.attention_out_norm.weight;
        case MLP_NORM: return bias ? layer.mlp_norm.bias : layer.mlp_norm.weight;
        case MLP_OUT_NORM: return bias ? layer.mlp_out_norm.bias : layer.mlp_out_norm.weight;
        case Q_NORM: return bias ? nullptr : layer.q_norm;
        case K_NORM: return bias ? nullptr : layer.k_norm;
        case SINKS: return bias ? nullptr : layer.sinks;
        default: return nullptr;
    }
}

bool PackedModel::pack(Pool& pool, Slot slot, int32_t index, bool bias, SourceType type, const void* data, int64_t rows,
                       int64_t columns) {
    require_memory();
    if (type < SOURCE_F32 || type > SOURCE_BF16) refuse("there is no source type %d", type);
    if (!data || rows < 1 || columns < 1)
        refuse("a weight of %lld rows and %lld columns", (long long)rows, (long long)columns);
    if (!exists(slot, index, bias)) return false;
    const PackTarget where = target(slot, index);
    float* to = const_cast<float*>(vector(slot, index, bias));
    if (to || bias ? rows * columns != (to ? vector_size(slot, index) : where.columns)
                   : rows != where.columns || columns != where.width) {
        return false;
    }
    bool numbers = !to || kernels->widen(type, data, rows * columns, to);
    if (slot == EMBED_TOKENS && !shared_table() && !table_of_) numbers = pack_table(pool, type, data, rows, columns);
    if (where.linear) numbers &= pack_linear(pool, where, bias, type, data);
    if (!numbers) refuse_values(type, data, rows, columns);
    arrived(slot, index, bias);
    return true;
}

// False where NaN or infinity is among the values.
bool PackedModel::pack_linear(Pool& pool, const PackTarget& target, bool bias, SourceType type, const void* data) {
    const Linear& linear = *target.linear;
    const int64_t count = (target.columns + LANES - 1) / LANES, bytes = type == SOURCE_F32 ? 4 : 2;
    const auto source = [&](int64_t column, int64_t width) {
        return static_cast<const uint8_t*>(data) + column * width * bytes;
    };
    const auto columns_of = [&](int64_t i) {
        return target.columns - i * LANES < LANES ? target.columns - i * LANES : LANES;
    };
    std::atomic<bool> numbers{true};
    if (bias) {
        for (int64_t i = 0; i < count; i++) {
            float* to = const_cast<float*>(linear.bias) + (target.first + i * target.step) * LANES;
            if (!kernels->widen(type, source(i * LANES, 1), columns_of(i), to)) numbers = false;
        }
        return numbers;
    }
    pool.run([&](int thread) {
        std::vector<float> scratch(size_t(linear.depth * (LANES + 2)));
        // Whoever writes a block has it on its own node; where there is one node, all have as much to do.
        const bool owned = pool.several_nodes();
        const auto [first, last] = slice(linear, thread, pool.threads());
        const int64_t end = owned ? count : share(count, thread + 1, pool.threads());
        for (int64_t i = owned ? 0 : share(count, thread, pool.threads()); i < end; i++) {
            const int64_t block = target.first + i * target.step;
            if (owned && (block < first || block >= last)) continue;
            float* scales = linear.scales ? const_cast<float*>(linear.scales) + block * LANES : nullptr;
            if (!kernels->pack(linear.precision, linear.group, type, source(i * LANES, target.width), target.width,
                               columns_of(i), target.width, linear.depth,
                               const_cast<uint8_t*>(weights_of(linear, block)), scales, scratch.data())) {
                numbers = false;
            }
        }
    });
    return numbers;
}

namespace {

// One output column of 4-bit values as its 4 bytes of every line of a block: see kernels.h.
void place_int4_column(const uint8_t* values, int64_t width, int64_t depth, int64_t group, uint8_t* block, int lane) {
    const int64_t group_bytes = (group / 8 + 1) * 64;
    const auto value = [&](int64_t k) { return k < width ? values[k] : 0; };
    for (int64_t k = 0; k < depth; k += 32) {
        uint8_t* lines = block + k / group * group_bytes + 64 + k % group / 8 * 64;
        for (int64_t i = 0; i < 16; i++) {
            lines[i / 4 * 64 + lane * 4 + i % 4] = uint8_t(value(k + i) | value(k + 16 + i) << 4);
        }
    }
}

}  // namespace

bool PackedModel::pack_int4(Pool& pool, Slot slot, int32_t index, const uint8_t* values, const float* scales,
                            const uint8_t* zeros, int64_t columns, int64_t width) {
    require_memory();
    const PackTarget where = target(slot, index);
    if (!where.linear || !where.linear->weights || where.linear->precision != INT4) return false;
    if (columns != where.columns || width != where.width) return false;
    const Linear& linear = *where.linear;
    const int64_t groups = (width + linear.group - 1) / linear.group;
    std::atomic<bool> numbers{true};
    pool.run([&](int thread) {
        const auto [first, last] = slice(linear, thread, pool.threads());
        for (int64_t i = 0; i * LANES < columns; i++) {
            const int64_t at = where.first + i * where.step;
            if (at < first || at >= last) continue;
            uint8_t* block = const_cast<uint8_t*>(weights_of(linear, at));
            for (int lane = 0; lane < LANES && i * LANES + lane < columns; lane++) {
                const int64_t column = i * LANES + lane;
                place_int4_column(values + column * width, width, linear.depth, linear.group, block, lane);
                for (int64_t g = 0; g < groups; g++) {
                    uint32_t head;
                    std::memcpy(&head, scales + column * groups + g, 4);
                    if ((head & 0x7f800000) == 0x7f800000) numbers = false;
                    head = ((head + ZERO_BITS / 2) & ~uint32_t(ZERO_BITS)) | zeros[column * groups + g];
                    std::memcpy(block + g * (linear.group / 8 + 1) * 64 + lane * 4, &head, 4);
                }
            }
        }
    });
    if (!numbers) refuse_values(SOURCE_F32, scales, columns, groups);
    if (slot != EMBED_TOKENS || table_of_) arrived(slot, index, false);  // else the table itself is still to come
    return true;
}

const float* PackedModel::arrange(const Linear& linear, const float* row, int64_t width, int64_t first, int64_t last,
                                  float* buffer) {
    if (!linear.order) return row;
    for (int64_t k = first; k < last && k < width; k++) buffer[k] = row[linear.order[k]];
    return buffer;
}

// False where NaN or infinity is among the values.
bool PackedModel::pack_table(Pool& pool, SourceType type, const void* data, int64_t rows, int64_t columns) {
    const int64_t from_bytes = type == SOURCE_F32 ? 4 : 2, to_bytes = spec.precision == FP32 ? 4 : 2;
    const bool same = type == (spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16);
    std::atomic<bool> numbers{true};
    pool.run([&](int thread) {
        std::vector<float> row(static_cast<size_t>(columns));
        for (int64_t r = share(rows, thread, pool.threads()); r < share(rows, thread + 1, pool.threads()); r++) {
            const uint8_t* from = static_cast<const uint8_t*>(data) + r * columns * from_bytes;
            uint8_t* to = const_cast<uint8_t*>(table_) + r * columns * to_bytes;
            if (!kernels->widen(type, from, columns, row.data())) numbers = false;
            if (same) {
                std::memcpy(to, from, size_t(columns * to_bytes));
            } else {
                kernels->narrow(spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16, row.data(), columns, to);
            }
        }
    });
    return numbers;
}

bool PackedModel::share_table(std::shared_ptr<const PackedModel> other) {
    for (const PackedModel* each = other.get(); each; each = each->table_of_.get()) {
        if (each == this) refuse("a model cannot look tokens up in a table that is looked up in its own");
    }
    const bool fits = other->spec.vocab_size == spec.vocab_size && other->spec.embedding_size == spec.embedding_size;
    if (!fits || shared_table()) return fits;
    table_of_ = std::move(other);
    if (!spec.tied_head) arrived(EMBED_TOKENS, 0, false);
    if (!image_.data()) return fits;
    // No other weights that all nodes read come after it; zero from now on, it takes no memory.
    constexpr int64_t PAGE = 4096;
    const int64_t first = round_up(table_ - image_.data(), PAGE), end = image_bytes_ - elsewhere_;
    if (first < end) madvise(image_.data() + first, size_t(end - first), MADV_DONTNEED);
    return fits;
}

void PackedModel::multiply(const Linear& linear, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                           float* out, int64_t stride) const {
    each_part(linear, first, last, [&](const Linear& part, int64_t from, int64_t end) {
        kernels->linear(part, in, rows, from, end, out + (from - first) * LANES, stride);
    });
}

void PackedModel::embed(int32_t token, float* out) const {
    if (table_of_) return table_of_->embed(token, out);
    if (table_) {
        const int64_t bytes = spec.precision == FP32 ? 4 : 2;
        kernels->widen(spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16,
                       table_ + int64_t(token) * spec.embedding_size * bytes, spec.embedding_size, out);
        return;
    }
    // The head's column of this token: 4 bytes in each line of its block.
    const uint8_t* block = weights_of(head, token / LANES);
    const int64_t step = head.precision == FP32 ? 1 : 2;
    for (int64_t k = 0; k < spec.embedding_size; k += step) {
        uint32_t bits;
        std::memcpy(&bits, block + k / step * 64 + token % LANES * 4, 4);
        const uint32_t first = step == 1 ? bits : bits << 16, second = bits & 0xffff0000;
        std::memcpy(out + k, &first, 4);
        if (step == 2 && k + 1 < spec.embedding_size) std::memcpy(out + k + 1, &second, 4);
    }
}

const float* PackedModel::position_row(int32_t position) const {
    return positions_ ? positions_ + int64_t(position + spec.position_offset) * spec.hidden_size : nullptr;
}

}  // namespace ipex_assist
