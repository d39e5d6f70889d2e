// A model's packed weights: where a checkpoint's go, and how they get there.
#include "packing/model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "formats/blocks/place.h"
#include "packing/checks.h"
#include "packing/panels.h"

namespace ipex_assist {

PackedModel::PackedModel(const ModelSpec& given, const LayerSpec* layers_, const KernelTable* kernels_,
                         WeightFormats formats_, int64_t most_bytes)
    : ModelWeights(checked(given, layers_), layers_, std::move(formats_)),
      kernels(kernels_) {
    for (PackedLayer& each : layers) {
        AttentionSpec& a = each.attention;
        slopes_.emplace_back();
        for (int32_t h = 0; a.alibi_slopes && h < a.heads; h++) slopes_.back().push_back(a.alibi_slopes[h] / a.scale);
        a.alibi_slopes = slopes_.back().empty() ? nullptr : slopes_.back().data();
        NgramSpec& hashes = each.recurrent.hashes;
        if (!hashes.numbers) continue;
        hash_numbers_.emplace_back(hashes.numbers, hashes.numbers + hashes.size + hashes.tables());
        hashes.numbers = hash_numbers_.back().data();
    }
    caches_experts = most_bytes > 0;
    layout_.place(*this, nullptr);  // to count its bytes
    if (caches_experts) expert_cache = std::make_unique<ExpertCache>(layers, most_bytes - image_bytes());
}

void PackedModel::allocate(const Pool& pool) {
    if (expert_cache && pool.several_nodes()) refuse("experts are read as they are needed on one memory node only");
    layout_.divide(pool.several_nodes() ? &pool : nullptr);
    if (!layout_.divided()) {
        image_ = Memory(size_t(image_bytes()));
    } else {
        image_ = Memory();
        layout_.place(*this, nullptr);  // to count the bytes of each node
        image_ = Memory::at_border(size_t(layout_.reserve_nodes()));
        nodes_refused = !layout_.prefer_nodes(image_.data(), int64_t(image_.size()));
    }
    layout_.place(*this, image_.data());
    if (expert_cache) expert_cache->allocate();
    writable_ = true;
    missing_ = names();
    if (table_of_ && !spec.tied_head) arrived("embed_tokens.weight");
    for (const Linear* linear : linears()) {
        int32_t* order = const_cast<int32_t*>(linear->order);
        if (order) std::iota(order, order + linear->depth, 0);
    }
}

bool PackedModel::ready() const {
    if (!image_.data() || missing()) return false;
    const auto has = [](int32_t shared, const std::shared_ptr<const PackedModel>& of) {
        return of ? of->ready() : !shared;
    };
    return has(spec.draft_head.shared_embedding, table_of_) && has(spec.draft_head.shared_head, head_of_);
}

void PackedModel::require_memory() const {
    if (!image_.data()) refuse("weights are packed into memory that is allocated first");
    if (!writable_) refuse("the weights are those of a mapped file, and cannot be packed over");
}

namespace {

void require_matrix(const StoredMatrix& matrix) {
    if (matrix.type < SOURCE_F32 || matrix.type > SOURCE_BF16) refuse("there is no source type %d", matrix.type);
    if (!matrix.is_somewhere() || matrix.rows < 1 || matrix.columns < 1)
        refuse("a weight of %lld rows and %lld columns", (long long)matrix.rows, (long long)matrix.columns);
}

// Throws NotFinite for the first value that is NaN or infinity. first: the number of the matrix's first row.
[[noreturn]] void refuse_values(const KernelTable& kernels, const StoredMatrix& matrix, int64_t first = 0) {
    std::vector<float> values(size_t(matrix.columns));
    RowReader reader(matrix);
    for (int64_t row = 0; row < matrix.rows; row++) {
        if (kernels.widen(matrix.type, reader.rows(row, 1), matrix.columns, values.data())) continue;
        size_t i = 0;
        while (std::isfinite(values[i])) i++;
        const std::string what = std::isnan(values[i]) ? "NaN" : "infinity";
        throw NotFinite(what + " in row " + std::to_string(first + row) +
                        (matrix.columns > 1 ? ", column " + std::to_string(i) : ""));
    }
    throw NotFinite("NaN or infinity");
}

int64_t columns_of_panel(const PackTarget& target, int64_t i) {
    return std::min(target.columns - i * LANES, int64_t(LANES));
}

// False where NaN or infinity is among the values.
bool pack_bias(const KernelTable& kernels, const PackTarget& target, const StoredMatrix& matrix) {
    const auto* values = static_cast<const uint8_t*>(matrix.data);
    bool numbers = true;
    for (int64_t i = 0; i * LANES < target.columns; i++) {
        float* to = const_cast<float*>(target.linear->bias) + (target.first + i * target.step) * LANES;
        const uint8_t* from = values + i * LANES * matrix.element_bytes();
        numbers &= kernels.widen(matrix.type, from, columns_of_panel(target, i), to);
    }
    return numbers;
}

// False where NaN or infinity is among the values.
bool pack_linear(const KernelTable& kernels, Pool& pool, const PackTarget& target, const StoredMatrix& matrix) {
    const Linear& linear = *target.linear;
    const int64_t count = (target.columns + LANES - 1) / LANES;
    std::atomic<bool> numbers{true};
    pool.run([&](int thread) {
        std::vector<float> scratch(size_t(linear.depth * (LANES + 2)));
        RowReader reader(matrix);
        each_panel(pool, thread, target, count, [&](int64_t i, int64_t panel) {
            float* scales = linear.scales ? const_cast<float*>(linear.scales) + panel * LANES : nullptr;
            const int64_t columns = columns_of_panel(target, i);
            const uint8_t* from = reader.rows(i * LANES, columns);
            uint8_t* to = const_cast<uint8_t*>(weights_of(linear, panel));
            if (!kernels.pack(linear.precision, linear.group, matrix.type, from, target.width, columns, target.width,
                              linear.depth, to, scales, scratch.data())) {
                numbers = false;
            }
        });
    });
    return numbers;
}

// Into the table's rows from `first` on. False where NaN or infinity is among the values.
bool pack_table(const PackedModel& model, Pool& pool, const StoredMatrix& matrix, uint8_t* table, int64_t first) {
    const int64_t rows = matrix.rows, columns = matrix.columns, to_bytes = model.spec.precision == FP32 ? 4 : 2;
    const bool same = matrix.type == (model.spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16);
    std::atomic<bool> numbers{true};
    pool.run([&](int thread) {
        std::vector<float> row(static_cast<size_t>(columns));
        RowReader reader(matrix);
        for (int64_t r = share(rows, thread, pool.threads()); r < share(rows, thread + 1, pool.threads()); r++) {
            const uint8_t* from = reader.rows(r, 1);
            uint8_t* to = table + (first + r) * columns * to_bytes;
            if (!model.kernels->widen(matrix.type, from, columns, row.data())) numbers = false;
            if (same) {
                std::memcpy(to, from, size_t(columns * to_bytes));
            } else {
                model.kernels->narrow(model.spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16, row.data(), columns, to);
            }
        }
    });
    return numbers;
}

void transpose(float* values, int64_t rows, int64_t columns) {
    const std::vector<float> stored(values, values + rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) values[i % columns * rows + i / columns] = stored[size_t(i)];
}

// A vector as a checkpoint has it in the form that passes read.
void arrange(const Weight& weight, float* values) {
    const VectorForm& form = weight.form;
    for (int64_t i = 0; form.negated_logarithms && i < weight.rows; i++)
        values[i] = float(-std::exp(double(values[i])));
    if (form.rows) transpose(values, form.rows, form.columns);
}

}  // namespace

bool PackedModel::pack(Pool& pool, std::string_view name, const StoredMatrix& matrix) {
    require_memory();
    require_matrix(matrix);
    const Weight weight = find(name);
    if (!weight.takes(matrix.rows, matrix.columns)) return false;
    if (!weight.is_matrix() && !matrix.data) {
        std::vector<uint8_t> read(size_t(matrix.rows * matrix.row_bytes()));
        read_file(matrix.file, matrix.offset, read.data(), int64_t(read.size()));
        return pack(pool, name, {matrix.type, read.data(), matrix.rows, matrix.columns});
    }
    bool numbers = true;
    if (weight.vector) {
        numbers = kernels->widen(matrix.type, matrix.data, weight.rows, weight.vector);
        arrange(weight, weight.vector);
    } else if (weight.is_bias) {
        numbers = pack_bias(*kernels, weight.part, matrix);
    } else {
        numbers = pack_matrix(pool, weight, 0, matrix);
    }
    if (!numbers) refuse_values(*kernels, matrix);
    arrived(name);
    return true;
}

bool PackedModel::pack_rows(Pool& pool, std::string_view name, int64_t first, const StoredMatrix& matrix) {
    require_memory();
    require_matrix(matrix);
    const Weight weight = find(name);
    const int64_t end = first + matrix.rows;
    if (!weight.is_matrix() || first < 0 || first % LANES != 0) return false;
    if (matrix.rows > weight.rows - first || matrix.columns != weight.columns) return false;
    if (end % LANES != 0 && end != weight.rows) return false;
    if (!pack_matrix(pool, weight, first, matrix)) refuse_values(*kernels, matrix, first);
    if (end == weight.rows) arrived(name);
    return true;
}

// Rows from `first` on of a matrix. False where NaN or infinity is among the values.
bool PackedModel::pack_matrix(Pool& pool, const Weight& weight, int64_t first, const StoredMatrix& matrix) {
    const Linear* linear = weight.part.linear;
    if (linear && (is_blocks(linear->precision) || is_cached(*this, weight)))
        refuse("a matrix in floats where blocks of a file are expected");
    bool numbers = true;
    if (weight.table && !skips_table(weight)) numbers = pack_table(*this, pool, matrix, weight.table, first);
    const PackTarget& part = weight.part;
    if (!part.linear) return numbers;
    const int64_t begins = part.first + first / LANES * part.step;
    return pack_linear(*kernels, pool, {part.linear, begins, part.step, matrix.rows, part.width}, matrix) && numbers;
}

bool PackedModel::set_order(std::string_view name, const int32_t* order, int64_t width) {
    require_memory();
    const Weight weight = find(name);
    const PackTarget& where = weight.part;
    if (!weight.is_matrix() || !where.linear || !where.linear->order || width != where.width) return false;
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

const float* arrange(const Linear& linear, const float* row, int64_t width, int64_t first, int64_t last,
                     float* buffer) {
    if (!linear.order) return row;
    for (int64_t k = first; k < last && k < width; k++) buffer[k] = row[linear.order[k]];
    return buffer;
}

bool PackedModel::share_table(std::shared_ptr<const PackedModel> other) {
    for (const PackedModel* each = other.get(); each; each = each->table_of_.get()) {
        if (each == this) refuse("a model cannot look tokens up in a table that is looked up in its own");
    }
    const bool fits = other->spec.vocab_size == spec.vocab_size && other->spec.embedding_size == spec.table_width();
    if (!fits || head_is_table()) return fits;
    table_of_ = std::move(other);
    if (!spec.tied_head) arrived("embed_tokens.weight");
    if (!image_.data() || !table) return fits;
    // No other weights that all nodes read come after it; zero from now on, it takes no memory.
    constexpr int64_t PAGE = 4096;
    const int64_t first = round_up(table - image_.data(), PAGE), end = layout_.common_bytes();
    if (first < end) madvise(image_.data() + first, size_t(end - first), MADV_DONTNEED);
    return fits;
}

bool PackedModel::share_head(std::shared_ptr<const PackedModel> other) {
    if (!spec.draft_head.shared_head || other.get() == this || other->spec.draft_head.shared_head)
        refuse("a model that takes its head from another, or from one without");
    if (other->kernels != kernels) refuse("a head for other kernels");
    const bool fits =
        other->spec.lm_head_rows() == spec.lm_head_rows() && other->spec.embedding_size == spec.embedding_size;
    if (fits) target_head = &other->head, head_of_ = std::move(other);
    return fits;
}

namespace {

constexpr int64_t TILED_ROWS = 32;            // blocks of rows are of whole tiles of any kernel
constexpr int64_t CACHED_PANELS = 512 << 10;  // bytes: half of a core's own cache, or less; rows have the rest
constexpr int64_t LEAST_PANELS = 8;           // that kernels take together

int64_t panels_in_cache(const Linear& linear) {
    const int64_t some = CACHED_PANELS / panel_bytes(linear.precision, linear.group, linear.depth);
    return std::max(LEAST_PANELS, some / LEAST_PANELS * LEAST_PANELS);
}

}  // namespace

void PackedModel::multiply(const Linear& linear, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                           float* out, int64_t stride) const {
    const int64_t tiles = (rows + TILED_ROWS - 1) / TILED_ROWS, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    const int64_t panels = blocks == 1 ? last - first : panels_in_cache(linear);
    each_part(linear, first, last, [&](const Linear& part, int64_t from, int64_t end) {
        for (int64_t b = from; b < end; b += panels) {
            for (int64_t block = 0; block < blocks; block++) {
                const int64_t row = tiles * block / blocks * TILED_ROWS,
                              next = std::min(rows, tiles * (block + 1) / blocks * TILED_ROWS);
                kernels->linear(part, rows_from(part, *kernels, in, row), next - row, b, std::min(b + panels, end),
                                out + row * stride + (b - first) * LANES, stride);
            }
        }
    });
}

void PackedModel::embed(int32_t token, float* out) const {
    if (table_of_) return table_of_->embed(token, out);
    if (table) {
        const int64_t bytes = spec.precision == FP32 ? 4 : 2;
        kernels->widen(spec.precision == FP32 ? SOURCE_F32 : SOURCE_BF16,
                       table + int64_t(token) * spec.embedding_size * bytes, spec.embedding_size, out);
        return;
    }
    if (const Linear& from = table_is_linear() ? table_linear : head; is_blocks(from.precision)) {
        std::vector<float> values(size_t(from.depth));
        each_part(from, token / LANES, token / LANES + 1,
                  [&](const Linear& part, int64_t, int64_t) { kernels->look_up(part, token, values.data()); });
        std::copy_n(values.data(), spec.embedding_size, out);
        return;
    }
    // The head's column of this token: 4 bytes in each line of its panel.
    const uint8_t* panel = weights_of(head, token / LANES);
    const int64_t step = head.precision == FP32 ? 1 : 2;
    for (int64_t k = 0; k < spec.embedding_size; k += step) {
        uint32_t bits;
        std::memcpy(&bits, panel + k / step * 64 + token % LANES * 4, 4);
        const uint32_t first = step == 1 ? bits : bits << 16, second = bits & 0xffff0000;
        std::memcpy(out + k, &first, 4);
        if (step == 2 && k + 1 < spec.embedding_size) std::memcpy(out + k + 1, &second, 4);
    }
}

void PackedModel::embed_for_layer(int32_t token, int64_t layer, float* out) const {
    const bool wide = spec.precision == FP32;
    const int64_t row = token < spec.per_layer_tokens ? token : 0;
    const int64_t first = row * spec.per_layer_width() + layer * spec.per_layer_size;
    kernels->widen(wide ? SOURCE_F32 : SOURCE_BF16, per_layer_table + first * (wide ? 4 : 2), spec.per_layer_size, out);
}

}  // namespace ipex_assist
