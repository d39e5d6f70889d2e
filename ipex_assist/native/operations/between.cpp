// What saves barriers between the linears of a pass of few rows, where a barrier takes longer than the work between
// two.
//
// - What little work every thread can do by itself (residuals, norms, the form that a linear multiplies) it does, for
// all
//   rows, in memory of its own: nobody waits for anybody.
// - What several threads make a part of, whoever comes last finishes: the spans of 128 columns that share a scale at
// the
//   borders of two threads' columns, and the heads of which several threads have blocks. Each thread adds to a counter
//   what it has done. What is computed is the same, whoever does it.
#include <algorithm>

#include "operations/forward.h"

namespace ipex_assist {
namespace {

constexpr int64_t REPEATED =
    128;                        // values, times threads, that are prepared in the time of a barrier of as many threads
constexpr int64_t MERGED = 80;  // parts of heads that are merged in the time of one
constexpr int64_t PADDED = 32;  // rows that linears may read

// Of a row's value in the form of a precision.
int64_t value_bytes(Precision precision, const Kernels& kernels) {
    return precision == FP32 ? 4 : precision == BF16 ? kernels.bf16_row_bytes : 1;
}

}  // namespace

void Forward::reserve_between() {
    const Layer& layer = model_.layers[0];
    const int64_t depth = round_up(layer.down.depth, SCALE_COLUMNS);
    reserve_copies(w_.down_values, PADDED * depth * value_bytes(layer.down.precision, k_));
    reserve_copies(w_.down_scales, PADDED * depth / SCALE_COLUMNS * 4);
    reserve_copies(w_.down_sums, PADDED * depth / 32 * 4);
    const int64_t units = std::min<int64_t>(DECODE_ROWS, batch_.stretch_count) * attended_units(layer.output).each;
    counters_ = std::vector<Counter>(size_t(std::max((inner_ + SCALE_COLUMNS - 1) / SCALE_COLUMNS, units)));
}

// Whether each thread prepares all rows: where the rows that it would not have to cost less than a barrier.
bool Forward::repeats() const {
    const int64_t rows = this->rows(), threads = this->threads();
    if (!few() || spec_.projected_embedding) return false;
    return (rows - (rows + threads - 1) / threads) * spec_.hidden_size <= REPEATED * threads;
}

// Behind the other buffers of a thread: rows as they were, and in the form that a linear multiplies.
int64_t Forward::own_bytes() const {
    const int64_t depth = round_up(width_, SCALE_COLUMNS);
    int64_t each = std::max(value_bytes(spec_.precision, k_), value_bytes(spec_.outer_precision, k_));
    if (spec_.experts) each = value_bytes(FP32, k_);  // the router's
    return DECODE_ROWS * width_ * 4 + PADDED * (depth * each + depth / SCALE_COLUMNS * 4 + depth / 32 * 4) + 4 * 64;
}

Rows Forward::own_rows(uint8_t* memory) const {
    const int64_t depth = round_up(width_, SCALE_COLUMNS);
    Rows rows{};
    rows.scales = reinterpret_cast<float*>(memory);
    rows.negated_sums = reinterpret_cast<int32_t*>(memory + round_up(PADDED * depth / SCALE_COLUMNS * 4, 64));
    rows.values = reinterpret_cast<uint8_t*>(rows.negated_sums) + round_up(PADDED * depth / 32 * 4, 64);
    return rows;
}

// Adds to what is done of something; whether that is all of it, and this thread the one to go on.
bool Forward::last(size_t counter, int64_t done, int64_t total) {
    if (done == total) return true;
    auto& sum = counters_[counter].done;
    if (sum.fetch_add(done, std::memory_order_acq_rel) + done < total) return false;
    sum.store(0, std::memory_order_relaxed);  // for the next phase, a barrier later
    return true;
}

// The spans whose columns this thread has activated, or has activated the last of.
void Forward::quantize_active(int thread, const Linear& up, const Linear& down) {
    const int64_t parts = spec_.gated ? 2 : 1, blocks = up.blocks / parts, each = SCALE_COLUMNS / LANES;
    const auto [up_first, up_last] = model_.slice(up, thread, threads());
    const int64_t first = up_first / parts, end = up_last / parts;
    for (int64_t s = first / each; s * each < end; s++) {
        const int64_t done = std::min(end, (s + 1) * each) - std::max(first, s * each);
        if (!last(size_t(s), done, std::min(blocks, (s + 1) * each) - s * each)) continue;
        for (int64_t r = 0; r < rows(); r++) {
            quantize(thread, w_.active.as<float>() + r * inner_, spec_.intermediate_size, s * SCALE_COLUMNS,
                     std::min((s + 1) * SCALE_COLUMNS, down.depth), r, down, down_inputs_);
        }
    }
}

// Whole heads and spans, or whole rows where the output linear takes their columns in an order of its own.
Forward::Units Forward::attended_units(const Linear& next) const {
    const int64_t dim = spec_.head_dim;
    const bool aligned = (SCALE_COLUMNS % dim == 0 || dim % SCALE_COLUMNS == 0) && !next.order;
    const int64_t unit = aligned ? std::max<int64_t>(SCALE_COLUMNS, dim) : next.depth;
    return {unit, (next.depth + unit - 1) / unit};
}

// Merges the parts of the heads of a unit, and puts it into the form of the output linear.
void Forward::combine_unit(int thread, int32_t index, int64_t row, int64_t unit) {
    const Linear& next = model_.layers[size_t(index)].output;
    const int64_t dim = spec_.head_dim, columns = int64_t(spec_.heads) * dim, width = attended_units(next).columns;
    const int64_t first = unit * width, end = std::min(first + width, next.depth);
    for (int64_t h = first / dim; h < std::min(end, columns) / dim; h++) combine_head(index, row, int32_t(h));
    quantize(thread, w_.attended.as<float>() + row * attended_width_, columns, first, end, row, next, inputs_);
}

// Of a stretch, from the first that one of its rows sees.
int64_t Forward::seen_blocks(size_t stretch, int32_t window) const {
    const Stretch& s = stretches_[stretch];
    return (s.start + s.rows - 1) / BLOCK_POSITIONS + 1 - first_block(first_row_[stretch], window);
}

// And the partials that are stored of its blocks.
int64_t Forward::seen_parts(size_t stretch, int32_t index) const {
    const int32_t part = part_blocks_[size_t(index)];
    const int64_t first = first_block(first_row_[stretch], model_.layers[size_t(index)].window);
    return last_block(first_row_[stretch] + stretches_[stretch].rows - 1) / part + 1 - first / part;
}

// Whether who comes last with the blocks of a stretch merges them: where one thread does it as fast as all would
// behind a barrier.
bool Forward::combines_in_place(int32_t index) const {
    const Layer& layer = model_.layers[size_t(index)];
    const int64_t heads = std::max<int64_t>(group(), attended_units(layer.output).columns / spec_.head_dim);
    for (size_t i = 0; i < stretches_.size(); i++) {
        if (stretches_[i].rows * std::min<int64_t>(heads, spec_.heads) * seen_parts(i, index) > MERGED) return false;
    }
    return true;
}

// This thread has done so many of the blocks that a stretch sees of a KV head.
void Forward::finish_blocks(int thread, int32_t index, int32_t kv_head, size_t stretch, int64_t blocks) {
    const Layer& layer = model_.layers[size_t(index)];
    const Units units = attended_units(layer.output);
    const int64_t columns = int64_t(spec_.heads) * spec_.head_dim, width = int64_t(group()) * spec_.head_dim;
    const int64_t seen = seen_blocks(stretch, layer.window);
    for (int64_t u = kv_head * width / units.columns; blocks && u * units.columns < (kv_head + 1) * width; u++) {
        const int64_t first = u * units.columns, end = std::min(first + units.columns, columns);
        const int64_t kv_heads = (end - 1) / width - first / width + 1;  // that share the unit
        if (!last(stretch * size_t(units.each) + size_t(u), blocks, kv_heads * seen)) continue;
        const int32_t row = first_row_[stretch];
        for (int32_t r = row; r < row + stretches_[stretch].rows; r++) combine_unit(thread, index, r, u);
    }
}

}  // namespace ipex_assist
