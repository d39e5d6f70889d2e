// Adapters in a pass: rows of several adapters, and of none, pass through the same linears. The threads share A · x of
// the rows that have an adapter; a barrier later each thread adds B · (A · x) to its own panels of the linear.
#include <xmmintrin.h>

#include <algorithm>

#include "operations/operations.h"
#include "packing/adapter.h"

namespace ipex_assist {
namespace {

constexpr int64_t PREFETCHED = 128 << 10;  // bytes of B, of all parts together
constexpr int64_t LATE_PANELS = 4;         // that are at least multiplied while B is on its way

// Rows from `first` on of a linear's inputs, as A takes them: sums of int8 rows are of 128 columns there.
LinearRows window_inputs(const Pass& pass, int thread, const Linear& linear, LinearRows in, int64_t first,
                         int64_t rows) {
    in = rows_from(linear, pass.kernels, in, first);
    const RowType type = row_type(linear.precision);
    if (!has_byte_rows(linear) || sums_of_span(linear) == 1) return in;
    const int64_t spans = in.depth / SCALE_COLUMNS, groups = sums_of_span(linear);
    int32_t* sums = pass.activations.own(thread).window_sums.data;
    for (int64_t i = 0; i < rows * spans; i++) {
        sums[i] = 0;
        for (int64_t g = 0; g < groups; g++) {
            const int32_t sum = in.negated_sums[i * groups + g];
            sums[i] += type == BLOCK_ROWS ? int16_t(sum) + (sum >> 16) : sum;
        }
    }
    in.negated_sums = sums;
    return in;
}

int64_t low_panels(const std::vector<AdapterPart>& parts) {
    int64_t panels = 0;
    for (const AdapterPart& part : parts) panels += part.a.panels;
    return panels;
}

void prefetch_bytes(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(from) + i, _MM_HINT_T1);
}

// What `expand` reads of adapters for these panels.
void prefetch_expand(const AdapterTerm& term, int64_t first, int64_t last) {
    int64_t left = PREFETCHED;
    for (const AdapterRows::Group& group : term.rows->groups) {
        for (const AdapterPart& part : group.adapter->parts(term.layer, term.role)) {
            const auto [begin, end] = part.between(first, last);
            if (begin >= end) continue;
            const LowRankPanel from = part.panel(begin), to = part.panel(end);
            const int64_t bytes = std::min<int64_t>(left, to.values - from.values);
            prefetch_bytes(from.values, bytes);
            if (from.scales) prefetch_bytes(from.scales, (end - begin) * LANES * 4);
            left -= bytes;
        }
    }
}

}  // namespace

AdapterRows::AdapterRows(const std::vector<Segment>& segments, const std::vector<int32_t>& segment_of) {
    for (size_t r = 0; r < segment_of.size(); r++) {
        const Segment& segment = segments[size_t(segment_of[r])];
        if (!segment.adapter) continue;
        const int64_t first = int64_t(r) / WINDOW_ROWS * WINDOW_ROWS;
        const auto here = [&](const Window& w) { return w.adapter == segment.adapter && w.first == first; };
        auto window = std::find_if(windows.begin(), windows.end(), here);
        if (window == windows.end()) {
            const int64_t rows = std::min(WINDOW_ROWS, int64_t(segment_of.size()) - first);
            window = windows.insert(windows.end(), {segment.adapter, first, rows});
        }
        const auto same = [&](const Group& g) { return g.adapter == segment.adapter; };
        auto group = std::find_if(groups.begin(), groups.end(), same);
        if (group == groups.end()) group = groups.insert(groups.end(), {segment.adapter, {}});
        const int64_t low = (window - windows.begin()) * WINDOW_ROWS + int64_t(r) - first;
        group->rows.push_back({low, int64_t(r), segment.adapter_scale});
    }
}

int64_t AdapterRows::low_columns() const {
    int64_t columns = 0;
    for (const Group& group : groups) columns = std::max(columns, group.adapter->low_columns());
    return columns;
}

AdapterTerm adapter_term(const Pass& pass, const LayerStep& step, LinearRole role) {
    const AdapterRows& rows = pass.plan().with_adapter;
    const auto has = [&](const AdapterRows::Group& g) { return !g.adapter->parts(step.index, role).empty(); };
    const bool any = std::any_of(rows.groups.begin(), rows.groups.end(), has);
    return {any ? &rows : nullptr, step.index, role};
}

void shrink(const Pass& pass, int thread, const AdapterTerm& term, const Linear& linear, const LinearRows& inputs) {
    if (!term.rows) return;
    const Array<float>& low = pass.activations.shared.low_rank;
    int64_t items = 0, at = 0;
    for (const AdapterRows::Window& w : term.rows->windows)
        items += low_panels(w.adapter->parts(term.layer, term.role));
    const int64_t begin = share(items, thread, pass.plan().threads),
                  end = share(items, thread + 1, pass.plan().threads);
    for (size_t i = 0; i < term.rows->windows.size(); i++) {
        const AdapterRows::Window& w = term.rows->windows[i];
        for (const AdapterPart& part : w.adapter->parts(term.layer, term.role)) {
            const int64_t first = std::max<int64_t>(0, begin - at), last = std::min(part.a.panels, end - at);
            at += part.a.panels;
            if (first >= last) continue;
            const LinearRows in = window_inputs(pass, thread, linear, inputs, w.first, w.rows);
            float* to = low.row(int64_t(i) * WINDOW_ROWS) + part.first_low + first * LANES;
            pass.kernels.linear(part.a, in, w.rows, first, last, to, low.columns);
        }
    }
}

void expand(const Pass& pass, const AdapterTerm& term, const LinearBlock& block, float* out, int64_t stride) {
    if (!term.rows) return;
    const auto before = [](const LowRankRow& each, int64_t row) { return each.row < row; };
    const Array<float>& low = pass.activations.shared.low_rank;
    for (const AdapterRows::Group& group : term.rows->groups) {
        const auto from = std::lower_bound(group.rows.begin(), group.rows.end(), block.row, before),
                   to = std::lower_bound(from, group.rows.end(), block.end_row, before);
        if (from == to) continue;
        for (const AdapterPart& part : group.adapter->parts(term.layer, term.role)) {
            const auto [begin, end] = part.between(block.first, block.last);
            if (begin >= end) continue;
            LowRankPanel panels = part.panel(begin);
            panels.count = end - begin, panels.step = part.to.step;
            const int64_t at = part.to.first + begin * part.to.step - block.first;
            pass.kernels.expand(panels, &*from, to - from, low.data + part.first_low, low.columns,
                                out + at * LANES - block.row * stride, stride);
        }
    }
}

void multiply_before_expand(const Pass& pass, const AdapterTerm& term, const Linear& linear, const LinearRows& in,
                            const LinearBlock& block, float* out, int64_t stride) {
    const auto [row, end_row, first, last] = block;
    const LinearRows from = rows_from(linear, pass.kernels, in, row);
    int64_t late = first;
    if (term.rows && pass.plan().decode) {
        late = std::max(first, last - std::max(LATE_PANELS, (last - first) / 8));
        if (late > first) pass.model.multiply(linear, from, block.rows(), first, late, out, stride);
        prefetch_expand(term, first, last);
    }
    pass.model.multiply(linear, from, block.rows(), late, last, out + (late - first) * LANES, stride);
}

}  // namespace ipex_assist
