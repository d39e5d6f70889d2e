// The rows that sequences keep for recurrent layers (kv_cache/states.h).
#include "mixers/recurrent_rows.h"

#include <algorithm>
#include <cstring>

namespace ipex_assist {

void convolve_value_columns(const Pass& pass, const LayerStep& step, size_t segment, int64_t position, int64_t first,
                            int64_t size, bool silu, float* out) {
    const RecurrentSpec& spec = pass.layer(step).recurrent;
    const RecurrentWeights& w = pass.layer(step).recurrence;
    const MixerColumns& columns = pass.layer(step).columns;
    const int32_t kernel_size = spec.conv_kernel;
    const float* rows[MOST_CONV_ROWS];
    for (int32_t t = 0; t < kernel_size; t++) {
        const float* inputs = recurrent_inputs(pass, step, segment, position - (kernel_size - 1) + t);
        rows[t] = inputs ? inputs + columns.value - columns.kept + first : nullptr;
    }
    pass.kernels.convolve(rows, kernel_size, w.v_conv + first, spec.value_width(),
                          w.v_conv_bias ? w.v_conv_bias + first : nullptr, silu, size, out);
}

void keep_inputs(const Pass& pass, const LayerStep& step, int thread) {
    const RecurrentSpec& spec = pass.layer(step).recurrent;
    for (size_t i = 0; i < pass.plan().segments.size(); i++) {
        const Segment& s = pass.plan().segments[i];
        const int64_t first = std::max<int64_t>(s.start, int64_t(s.settle) - (spec.conv_kernel - 1));
        const int64_t count = int64_t(s.start) + s.rows - first;
        for (int64_t p = share(count, thread, pass.plan().threads); p < share(count, thread + 1, pass.plan().threads);
             p++) {
            std::memcpy(pass.batch.states->inputs(s.state, step.index, first + p),
                        recurrent_inputs(pass, step, i, first + p), size_t(pass.layer(step).columns.kept_width) * 4);
        }
    }
}

}  // namespace ipex_assist
