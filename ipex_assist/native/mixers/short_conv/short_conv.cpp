// LFM2's short convolution: out = C · conv(B · x), with C, B and x in the places of queries, keys and values.
#include <algorithm>

#include "mixers/mixer.h"
#include "mixers/recurrent_rows.h"

namespace ipex_assist {
namespace {

constexpr int64_t COLUMNS = 256;  // that are convolved together

// Columns first <= c < first + size of the row at a position, to `out`.
void convolve_columns(const Pass& pass, const LayerStep& step, size_t segment, int64_t position, int64_t first,
                      int64_t size, float* out) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& spec = layer.recurrent;
    const MixerColumns& columns = layer.columns;
    const int32_t kernel_size = spec.conv_kernel;
    float products[MOST_CONV_ROWS][COLUMNS];
    const float* rows[MOST_CONV_ROWS];
    for (int32_t t = 0; t < kernel_size; t++) {
        const float* inputs = recurrent_inputs(pass, step, segment, position - (kernel_size - 1) + t);
        rows[t] = inputs ? products[t] : nullptr;
        if (!inputs) continue;
        const float *b = inputs + columns.key + first, *x = inputs + columns.value + first;
        for (int64_t i = 0; i < size; i++) products[t][i] = b[i] * x[i];
    }
    const float* bias = layer.recurrence.v_conv_bias;
    float sums[COLUMNS];
    pass.kernels.convolve(rows, kernel_size, layer.recurrence.v_conv + first, spec.value_width(),
                          bias ? bias + first : nullptr, false, size, sums);
    const float* c = recurrent_inputs(pass, step, segment, position) + first;
    for (int64_t i = 0; i < size; i++) out[i] = c[i] * sums[i];
}

void short_conv(Pass& pass, const LayerStep& step, int thread) {
    const PassPlan& plan = pass.plan();
    const int64_t width = pass.layer(step).recurrent.value_width(), each = (width + COLUMNS - 1) / COLUMNS;
    const int64_t items = plan.rows() * each;
    for (int64_t u = share(items, thread, plan.threads); u < share(items, thread + 1, plan.threads); u++) {
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
    prepare_rows(pass, thread, attended.data, attended.columns, layer.recurrent.value_width(), pass.plan().rows(),
                 layer.output);
    pass.wait(thread);
}

void check(const ModelSpec&, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    if (r.key_width() != r.value_width()) {
        refuse("%lld and %lld columns of a short convolution", static_cast<long long>(r.key_width()),
               static_cast<long long>(r.value_width()));
    }
    check_range("the rank of gates", r.gate_rank, 0, 0);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED, NOT_NORMED);
}

MixerColumns columns(const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    MixerColumns made;
    made.key = round_up(r.key_width(), LANES), made.value = 2 * made.key;
    made.width = made.input_width = made.kept_width = made.value + round_up(r.value_width(), LANES);
    made.out_width = r.value_width();
    return made;
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    const MixerColumns& c = layer.columns;
    list.linear(layer.qkv, {c.input_width, spec.hidden_size, r.input_bias != 0, spec.precision},
                {{"q_in", 0, r.key_width()},
                 {"k_in", c.key / LANES, r.key_width()},
                 {"v_in", c.value / LANES, r.value_width()}});
    list_conv(list, r, "v_conv", layer.recurrence.v_conv, r.value_width());
    if (r.conv_bias) list.vector(layer.recurrence.v_conv_bias, {"v_conv", r.value_width()}, true);
    list_output(list, spec, layer, "mixer_out", r.value_width(), r.output_bias != 0);
}

constexpr Operation SHORT_CONV_OPERATION{"short_conv", short_conv, ATTENDED};
constexpr Operation PREPARE_CONVOLVED{"prepare_convolved", prepare_convolved};

void list_operations(const PackedLayer&, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, QKV_LINEAR, SHORT_CONV_OPERATION});
    add(step.attend_operations, {PREPARE_CONVOLVED, OUTPUT_LINEAR});
}

}  // namespace

extern const Mixer SHORT_CONV_MIXER{check, columns, list_weights, nullptr, list_operations};

}  // namespace ipex_assist
