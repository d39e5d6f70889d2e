// Mamba-1's selection: keys, queries and the step of each channel are made of the convolved values, by linears between
// the convolution and the scan.
#include <algorithm>

#include "mixers/scan/scan.h"

namespace ipex_assist {
namespace {

constexpr int64_t COLUMNS = 16 * LANES;  // that are convolved together

// Keys and queries of a row to scan, zero up to a multiple of 16.
void copy_keys(const PackedLayer& layer, const ScanColumns& columns, const float* inputs, float* out) {
    const RecurrentSpec& spec = layer.recurrent;
    const MixerColumns& in = layer.columns;
    const float *key = inputs + in.key - in.kept, *query = inputs + in.query - in.kept;
    std::fill(out, out + columns.value, 0.0f);
    std::copy(query, query + spec.key_dim, out);
    std::copy(key, key + spec.key_dim, out + columns.key);
}

}  // namespace

// The rows of this pass, in the form of the linear that reads them.
void convolve_values(Pass& pass, const LayerStep& step, int thread) {
    const PassPlan& plan = pass.plan();
    const PackedLayer& layer = pass.layer(step);
    const Linear& low = layer.recurrence.low;
    const int64_t width = layer.recurrent.value_width(), each = (low.depth + COLUMNS - 1) / COLUMNS;
    const int64_t items = plan.rows() * each;
    for (int64_t u = share(items, thread, plan.threads); u < share(items, thread + 1, plan.threads); u++) {
        const int64_t row = u / each, first = u % each * COLUMNS, end = std::min(first + COLUMNS, low.depth);
        float* to = pass.activations.shared.attended.row(row);
        if (first < width)
            convolve_value_columns(pass, step, size_t(plan.segment_of[size_t(row)]), plan.positions[size_t(row)], first,
                                   std::min(COLUMNS, width - first), true, to + first);
        prepare_row(pass, thread, to, width, first, end, row, low, &NodeBuffers::inputs);
    }
    pass.wait(thread);
}

void low_linear(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& low = layer.recurrence.low;
    const Array<float>& qkv = pass.activations.shared.qkv;
    linear(pass, thread, pass.activations.on(pass.node(thread)).inputs.with_depth(low.depth), low, pass.plan().rows(),
           qkv.data + layer.columns.low, qkv.columns, &layer.recurrence.gates);
}

// The row of the low rank, keys and queries by a norm each (Jamba; without weights Falcon Mamba).
void normalize_low(Pass& pass, const LayerStep& step, int thread) {
    const RecurrentSpec& s = pass.layer(step).recurrent;
    const RecurrentWeights& w = pass.layer(step).recurrence;
    const MixerColumns& columns = pass.layer(step).columns;
    const float epsilon = s.norm_eps > 0 ? s.norm_eps : pass.model.spec.norm_eps;
    const int64_t rows = pass.plan().rows();
    for (int64_t r = share(rows, thread, pass.plan().threads); r < share(rows, thread + 1, pass.plan().threads); r++) {
        float* row = pass.activations.shared.qkv.row(r);
        float *low = row + columns.low, *key = row + columns.key, *query = row + columns.query;
        pass.kernels.normalize(true, low, w.low_norm, nullptr, epsilon, s.gate_rank, low);
        pass.kernels.normalize(true, key, w.key_norm, nullptr, epsilon, s.key_dim, key);
        pass.kernels.normalize(true, query, w.query_norm, nullptr, epsilon, s.key_dim, query);
    }
    pass.wait(thread);
}

// Queries, keys, values and steps of the rows to scan.
void prepare_channels(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& spec = layer.recurrent;
    const ScanColumns columns(spec);
    const float* bias = layer.recurrence.dt_bias;
    const int64_t width = spec.value_width(), each = (width + COLUMNS - 1) / COLUMNS;
    const int64_t items = pass.plan().first_scan_row.back() * each;
    size_t segment = 0;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t number = u / each, first = u % each * COLUMNS, size = std::min(COLUMNS, width - first);
        while (number >= pass.plan().first_scan_row[segment + 1]) segment++;
        const int64_t position = pass.plan().segments[segment].settled + number - pass.plan().first_scan_row[segment];
        const float* inputs = recurrent_inputs(pass, step, segment, position);
        float* out = pass.activations.shared.scanned.data + number * columns.width;
        if (first == 0) copy_keys(layer, columns, inputs, out);
        convolve_value_columns(pass, step, segment, position, first, size, true, out + columns.value + first);
        const float* in = inputs + layer.columns.decay - layer.columns.kept + first;
        pass.kernels.steps(in, bias + first, size, out + columns.decay + first);
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
