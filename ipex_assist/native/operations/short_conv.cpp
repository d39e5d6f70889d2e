// LFM2's short convolution: out = C · conv(B · x), with C, B and x in the places of queries, keys and values.
#include <algorithm>

#include "operations/recurrent_rows.h"

namespace ipex_assist {
namespace {

constexpr int64_t COLUMNS = 256;  // that are convolved together

// Columns first <= c < first + size of the row at a position, to `out`.
void convolve_columns(const Pass& pass, const LayerStep& step, size_t segment, int64_t position, int64_t first,
                      int64_t size, float* out) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& spec = layer.recurrent;
    const int32_t taps = spec.conv_kernel;
    float products[MOST_CONV_ROWS][COLUMNS];
    const float* rows[MOST_CONV_ROWS];
    for (int32_t t = 0; t < taps; t++) {
        const float* inputs = recurrent_inputs(pass, step, segment, position - (taps - 1) + t);
        rows[t] = inputs ? products[t] : nullptr;
        if (!inputs) continue;
        const float *b = inputs + spec.key_column() + first, *x = inputs + spec.value_column() + first;
        for (int64_t i = 0; i < size; i++) products[t][i] = b[i] * x[i];
    }
    const float* bias = layer.recurrence.v_conv_bias;
    float sums[COLUMNS];
    pass.kernels.convolve(rows, taps, layer.recurrence.v_conv + first, spec.value_width(),
                          bias ? bias + first : nullptr, false, size, sums);
    const float* c = recurrent_inputs(pass, step, segment, position) + first;
    for (int64_t i = 0; i < size; i++) out[i] = c[i] * sums[i];
}

}  // namespace

void short_conv(Pass& pass, const LayerStep& step, int thread) {
    const PassPlan& plan = pass.plan;
    const int64_t width = pass.layer(step).recurrent.value_width(), each = (width + COLUMNS - 1) / COLUMNS;
    const int64_t units = plan.rows() * each;
    for (int64_t u = share(units, thread, plan.threads); u < share(units, thread + 1, plan.threads); u++) {
        const size_t row = size_t(u / each);
        const int64_t first = u % each * COLUMNS;
        convolve_columns(pass, step, size_t(plan.segment_of[row]), plan.positions[row], first,
                         std::min(COLUMNS, width - first), pass.activations.shared.attended.row(int64_t(row)) + first);
    }
    pass.wait(thread);
    keep_inputs(pass, step, thread);
}

void prepare_convolved(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Array<float>& attended = pass.activations.shared.attended;
    prepare_rows(pass, thread, attended.data, attended.columns, layer.recurrent.value_width(), pass.plan.rows(),
                 layer.output);
    pass.wait(thread);
}

}  // namespace ipex_assist
