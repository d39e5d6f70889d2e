// Rows in the form that a linear multiplies: bf16, or integers with a scale for every 128 columns.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {

void prepare_row(const Pass& pass, int thread, const float* from, int64_t width, int64_t first, int64_t last,
                 int64_t row, const Linear& next, LinearRows to) {
    to.depth = next.depth;
    if (next.order) from = arrange(next, from, width, first, last, pass.activations.own(thread).ordered.data);
    pass.kernels.quantize(next.precision, next.group, from, width, first, last, row, to);
}

void prepare_row(const Pass& pass, int thread, const float* from, int64_t width, int64_t first, int64_t last,
                 int64_t row, const Linear& next, PreparedRows NodeBuffers::* to) {
    for (int node = 0; node < pass.activations.nodes(); node++) {
        const LinearRows rows = (pass.activations.on(node).*to).with_depth(next.depth);
        prepare_row(pass, thread, from, width, first, last, row, next, rows);
    }
}

void prepare_rows(const Pass& pass, int thread, const float* from, int64_t stride, int64_t width, int64_t rows,
                  const Linear& next) {
    const int64_t spans = (next.depth + SCALE_COLUMNS - 1) / SCALE_COLUMNS, items = rows * spans;
    const int64_t end = share(items, thread + 1, pass.plan().threads);
    for (int64_t u = share(items, thread, pass.plan().threads); u < end; u++) {
        const int64_t row = u / spans, first = u % spans * SCALE_COLUMNS;
        const float* x = from + row * stride;
        prepare_row(pass, thread, x, width, first, std::min(first + SCALE_COLUMNS, next.depth), row, next,
                    &NodeBuffers::inputs);
    }
}

void share_delta(const Pass& pass, int thread, int64_t row, int64_t end_row, int64_t first, int64_t end) {
    const Activations& a = pass.activations;
    if (a.nodes() == 1 || !pass.plan().each_thread_prepares || first >= end) return;
    const Array<float>& from = pass.delta(thread);
    for (int node = 0; node < a.nodes(); node++) {
        if (node == pass.node(thread)) continue;
        const Array<float>& to = a.on(node).delta;
        for (int64_t r = row; r < end_row; r++) std::copy(from.row(r) + first, from.row(r) + end, to.row(r) + first);
    }
}

}  // namespace ipex_assist
