// RG-LRU, the real-gated linear recurrent unit (Griffin, De et al. 2024, arXiv:2402.19427, section 2.4): after a
// convolution, h = a·h + sqrt(1 - a²)·(sigmoid(b)·x), channel by channel, with a = exp(-8·softplus(w)·sigmoid(r)). The
// gates r and b are made of the convolved row, by a matrix for each block of its channels. What comes out is multiplied
// with an activated gate.
//
// Threads share the state by 16 channels, always in the same way, as in scan/. Nothing is summed over channels or rows,
// so that a row's bits are the same wherever a pass begins or ends.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>

#include "mixers/mixer.h"
#include "mixers/recurrent_rows.h"

namespace ipex_assist {
namespace {

constexpr int64_t COLUMNS = 2 * SCALE_COLUMNS;  // that are computed together
constexpr float DECAY_SCALE = -8;               // -c of the paper's equation 3

// Of each thread's share of the rows of this pass, for the gates.
void convolve_rows(Pass& pass, const LayerStep& step, int thread) {
    const PassPlan& plan = pass.plan();
    const int64_t width = pass.layer(step).recurrent.value_width(), each = (width + COLUMNS - 1) / COLUMNS;
    const int64_t items = plan.rows() * each;
    for (int64_t u = share(items, thread, plan.threads); u < share(items, thread + 1, plan.threads); u++) {
        const int64_t row = u / each, first = u % each * COLUMNS;
        convolve_value_columns(pass, step, size_t(plan.segment_of[size_t(row)]), plan.positions[size_t(row)], first,
                               std::min(COLUMNS, width - first), false,
                               pass.activations.shared.attended.row(row) + first);
    }
    pass.wait(thread);
}

void gates_of_blocks(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const int64_t each = layer.recurrent.value_dim;
    const Array<float>&qkv = pass.activations.shared.qkv, &convolved = pass.activations.shared.attended;
    const auto multiply = [&](const Linear& linear, int64_t column) {
        per_head_linear(
            pass, thread, linear, each,
            {convolved.data, convolved.columns, each, each, pass.plan().rows(), qkv.data + column, qkv.columns, each});
    };
    multiply(layer.recurrence.gates, layer.columns.decay);
    multiply(layer.recurrence.low, layer.columns.beta);
    pass.wait(thread);
}

// The state of these channels before the row at a position, as it changes; all on this thread.
struct StateChannels {
    const Pass& pass;
    const LayerStep& step;
    size_t segment;
    int64_t first, size;
    const float* rates;  // -8 · softplus(w)
    float state[COLUMNS];
};

// One row. The first of a text enters the state as a whole.
void advance(StateChannels& c, int64_t position) {
    const MixerColumns& columns = c.pass.layer(c.step).columns;
    const float* inputs = recurrent_inputs(c.pass, c.step, c.segment, position) - columns.kept + c.first;
    float x[COLUMNS], decay[COLUMNS];
    convolve_value_columns(c.pass, c.step, c.segment, position, c.first, c.size, false, x);
    c.pass.kernels.multiply_sigmoid(x, inputs + columns.beta, c.size);
    std::copy(c.rates, c.rates + c.size, decay);
    c.pass.kernels.multiply_sigmoid(decay, inputs + columns.decay, c.size);
    c.pass.kernels.sampling_weights(decay, c.size, 0, 1, decay);  // e^decay
    for (int64_t i = 0; i < c.size; i++) {
        const float a = decay[i], entering = position == 0 ? 1 : std::sqrt((1 - a) * (1 + a));
        c.state[i] = a * c.state[i] + entering * x[i];
    }
}

// The rows of a segment over the state of some channels.
void scan_segment(StateChannels& c) {
    const Segment& s = c.pass.plan().segments[c.segment];
    float* kept = c.pass.batch.states->tile(s.state, c.step.index, c.first / LANES);
    if (s.settled) std::copy(kept, kept + c.size, c.state);
    else std::fill(c.state, c.state + c.size, 0.0f);
    const int64_t row = c.pass.plan().first_row[c.segment] - s.start, end = int64_t(s.start) + s.rows;
    for (int64_t position = s.settled;; position++) {
        if (position == s.settle && s.settle > s.settled) std::copy(c.state, c.state + c.size, kept);
        if (position == end) break;
        advance(c, position);
        if (position < s.start) continue;
        std::copy(c.state, c.state + c.size, c.pass.activations.shared.attended.row(row + position) + c.first);
    }
}

void scan_channels(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const PackedLayer& layer = pass.layer(step);
    const int64_t tiles = layer.columns.tiles, end = share(tiles, thread + 1, pass.plan().threads) * LANES;
    const float none[COLUMNS] = {};
    for (int64_t first = share(tiles, thread, pass.plan().threads) * LANES; first < end; first += COLUMNS) {
        const int64_t size = std::min(COLUMNS, end - first);
        float rates[COLUMNS];
        pass.kernels.steps(layer.recurrence.decay_rate + first, none, size, rates);  // softplus
        for (int64_t i = 0; i < size; i++) rates[i] *= DECAY_SCALE;
        for (size_t segment = 0; segment < pass.plan().segments.size(); segment++) {
            StateChannels channels{pass, step, segment, first, size, rates, {}};
            scan_segment(channels);
        }
    }
    pass.wait(thread);  // all have read what was kept before
    keep_inputs(pass, step, thread);
    if (thread == 0) pass.timing.attention += __rdtsc() - started;
}

// The rows that go on, in the form of the output linear.
void gate_channels(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& output = layer.output;
    const int64_t width = layer.recurrent.value_width(), columns = output.order ? output.depth : COLUMNS;
    const int64_t each = (output.depth + columns - 1) / columns, items = pass.plan().rows() * each;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t row = u / each, first = u % each * columns, end = std::min(first + columns, output.depth);
        float* x = pass.activations.shared.attended.row(row);
        float* gates = pass.activations.shared.qkv.row(row) + layer.columns.gate;
        const int64_t last = std::min(end, width);
        if (first < last) pass.kernels.activate(GELU_TANH, false, gates + first, (last - first) / LANES, gates + first);
        for (int64_t i = first; i < last; i++) x[i] *= gates[i];
        prepare_row(pass, thread, x, width, first, end, row, output, &NodeBuffers::inputs);
    }
    pass.wait(thread);
}

void check(const ModelSpec&, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    check_range("key_dim of an RG-LRU", r.key_dim, 1, 1);
    check_range("the rank of gates", r.gate_rank, r.value_dim, r.value_dim);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED, NOT_NORMED);
    check_range("groups of a gated norm", r.norm_groups, 0, 0);
    if (r.value_dim % LANES)
        refuse("an RG-LRU's blocks of %d channels: multiples of %d are computed", r.value_dim, LANES);
}

// The first linear gives output gates, then values; of the convolved values two others make decay inputs, and the gates
// of what enters the state.
MixerColumns columns(const LayerSpec& layer) {
    const int64_t width = layer.recurrent.value_width();
    MixerColumns made;
    made.value = made.kept = width;
    made.decay = made.input_width = 2 * width, made.decay_inputs = width;
    made.beta = 3 * width;
    made.width = 4 * width, made.kept_width = 3 * width, made.out_width = width;
    made.tiles = width / LANES, made.tile_floats = LANES;
    return made;
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    const int64_t width = r.value_width();
    list.linear(layer.qkv, {layer.columns.input_width, spec.hidden_size, r.input_bias != 0, spec.precision},
                {{"z_in", 0, width}, {"v_in", layer.columns.value / LANES, width}});
    list_conv(list, r, "v_conv", w.v_conv, width);
    if (r.conv_bias) list.vector(w.v_conv_bias, {"v_conv", width}, true);
    list.vector(w.decay_rate, {"a_param", width});
    list.linear(w.gates, {width, r.gate_rank, true, spec.precision}, {{"a_in", 0, width}});
    list.linear(w.low, {width, r.gate_rank, true, spec.precision}, {{"b_in", 0, width}});
    list_output(list, spec, layer, "mixer_out", width, r.output_bias != 0);
}

void size(const PackedLayer& layer, int64_t, ActivationSizes& s) {
    s.head_depth = std::max(s.head_depth, layer.recurrence.gates.depth);
}

constexpr Operation CONVOLVE_ROWS{"convolve_values", convolve_rows, ATTENDED};
constexpr Operation GATES_OF_BLOCKS{"gates_linear", gates_of_blocks, PROJECTED};
constexpr Operation SCAN_CHANNELS{"scan", scan_channels, ATTENDED};
constexpr Operation GATE_CHANNELS{"gate_scanned", gate_channels, ATTENDED};

// All rows change the state, so that rows which end with this layer are dropped after the scan.
void list_operations(const PackedLayer&, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, QKV_LINEAR, CONVOLVE_ROWS, GATES_OF_BLOCKS, SCAN_CHANNELS});
    add(step.attend_operations, {GATE_CHANNELS, OUTPUT_LINEAR});
}

}  // namespace

extern const Mixer RG_LRU_MIXER{check, columns, list_weights, size, list_operations};

}  // namespace ipex_assist
