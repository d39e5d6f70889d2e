// Gated DeltaNet, Kimi Delta Attention, Mamba-2 and Mamba-1: rows are convolved with those before them, pass over the
// state of their sequence one after the other, and are normalised and gated.
//
// Threads share the state by tiles, 16 columns of a head, always in the same way, so that a tile stays on its thread's
// memory node. A row's bits follow from the rows before it alone: its convolution from their inputs, its state from
// theirs, whether they passed in this pass or in earlier ones.
#include "mixers/scan/scan.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>

#include "mixers/kernels.h"

namespace ipex_assist {
namespace {

constexpr float UNIT_EPSILON = 1e-6f;  // of the length of queries and keys

// A row that is scanned: of a segment, at a position.
struct ScanRow {
    const Pass& pass;
    const LayerStep& step;
    size_t segment;
    int64_t position;
    const RecurrentSpec& spec;
    const ScanKind& kind;
    const RecurrentWeights& weights;
    const MixerColumns& in;      // columns of the inputs
    const ScanColumns& columns;  // of `out`
    const float* inputs;
    float* out;
};

// Columns [column, column + size) of the row, convolved with those of the rows before it, to `out`.
void convolve_row(const ScanRow& row, int64_t column, int64_t size, const float* weights, const float* bias,
                  int64_t stride, float* out) {
    const int32_t kernel_size = row.spec.conv_kernel;
    const float* rows[MOST_CONV_ROWS];
    for (int32_t t = 0; t < kernel_size; t++) {
        const float* inputs = recurrent_inputs(row.pass, row.step, row.segment, row.position - (kernel_size - 1) + t);
        rows[t] = inputs ? inputs + column : nullptr;
    }
    row.pass.kernels.convolve(rows, kernel_size, weights, stride, bias, true, size, out);
}

void prepare_key_head(const ScanRow& row, int64_t head) {
    const RecurrentSpec& s = row.spec;
    const RecurrentWeights& w = row.weights;
    const int64_t at = head * s.key_dim, width = s.key_width();
    float *query = row.out + head * s.key_depth(), *key = query + row.columns.key;
    convolve_row(row, at, s.key_dim, w.q_conv + at, w.q_conv_bias ? w.q_conv_bias + at : nullptr, width, query);
    convolve_row(row, row.in.key + at, s.key_dim, w.k_conv + at, w.k_conv_bias ? w.k_conv_bias + at : nullptr, width,
                 key);
    if (!row.kind.delta) return;
    row.pass.kernels.unit_length(query, s.key_dim, UNIT_EPSILON, 1.0f / std::sqrt(float(s.key_dim)));
    row.pass.kernels.unit_length(key, s.key_dim, UNIT_EPSILON, 1.0f);
    if (!row.kind.decays_by_key) return;
    const int64_t place = head * s.key_depth();
    row.pass.kernels.mixers->scan.decay_keys(row.inputs + row.in.decay + at, w.dt_bias + at, w.decay_rate[head],
                                             s.decay_bound, key, s.key_dim, row.out + row.columns.decay + place,
                                             row.out + row.columns.recall + place);
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

void prepare_value_head(const ScanRow& row, int64_t head) {
    const RecurrentSpec& s = row.spec;
    const RecurrentWeights& w = row.weights;
    const int64_t at = head * s.value_dim;
    convolve_row(row, row.in.value + at, s.value_dim, w.v_conv + at, w.v_conv_bias ? w.v_conv_bias + at : nullptr,
                 s.value_width(), row.out + row.columns.value + head * s.value_depth());
    const auto beta = [&] { return float(s.beta_scale / (1 + std::exp(-double(row.inputs[row.in.beta + head])))); };
    if (row.kind.decays_by_key) {
        row.out[row.columns.beta + head] = beta();
        return;
    }
    double step = softplus(double(row.inputs[row.in.decay + head]) + w.dt_bias[head]);
    if (!row.kind.delta) step = std::min(std::max(step, double(s.step_limit[0])), double(s.step_limit[1]));
    row.out[row.columns.decay + head] = float(std::exp(double(w.decay_rate[head]) * step));
    row.out[row.columns.beta + head] = row.kind.delta ? beta() : float(step);
}

// The rows of one segment over one tile of its state. ahead: the state that is scanned after it.
void scan_tile(const Pass& pass, const LayerStep& step, int thread, size_t segment, int64_t tile, const float* ahead) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& spec = layer.recurrent;
    const Segment& s = pass.plan().segments[segment];
    const ScanColumns columns(spec);
    const int64_t parts = spec.value_depth() / LANES, head = tile / parts, column = tile % parts * LANES;
    const int64_t key_head = head / (spec.heads / spec.key_heads);
    const Array<float>&scanned = pass.activations.shared.scanned, &attended = pass.activations.shared.attended;
    float* state = pass.batch.states->tile(s.state, step.index, tile);
    ScanTile t{};
    t.state = pass.activations.own(thread).state.data;
    t.from = s.settled ? state : nullptr;
    t.ahead = ahead;
    t.to = s.settle > s.settled ? state : nullptr;
    t.settle = s.settle - s.settled;
    t.key_depth = spec.key_depth();
    const ScanKind& kind = scan_kind(spec);
    t.delta = kind.delta, t.by_key = kind.decays_by_key;
    t.skip = layer.recurrence.skip ? layer.recurrence.skip[head] : 0;
    if (kind.steps_by_channel) {
        t.rates = layer.recurrence.decay_rate + column, t.rate_stride = spec.value_width(), t.key_dim = spec.key_dim;
        t.skips = layer.recurrence.skip + column;
    }
    t.rows = scanned.data + pass.plan().first_scan_row[segment] * columns.width, t.stride = columns.width;
    t.count = s.start - s.settled + s.rows;
    t.query = key_head * spec.key_depth(), t.key = columns.key + t.query;
    t.value = columns.value + head * spec.value_depth() + column;
    t.decay = columns.decay + (t.by_key ? t.query : t.rates ? column : head), t.beta = columns.beta + head;
    t.recall = columns.recall + t.query;
    t.first_out = s.start - s.settled;
    t.out = attended.row(pass.plan().first_row[segment]) + head * spec.value_dim + column;
    t.out_stride = attended.columns, t.columns = std::min<int64_t>(LANES, spec.value_dim - column);
    pass.kernels.mixers->scan.scan(t);
}

// Columns of a row that are normalised and prepared for the output linear together: whole groups of the norm, and whole
// scales; or all, where the linear takes them in an order of its own.
int64_t span_columns(const RecurrentSpec& spec, const Linear& output) {
    const int64_t group = std::max<int64_t>(1, norm_size(spec));
    const bool aligned = (SCALE_COLUMNS % group == 0 || group % SCALE_COLUMNS == 0) && !output.order;
    return aligned ? std::max<int64_t>(SCALE_COLUMNS, group) : output.depth;
}

// Gated DeltaNet: a norm of each head, then the gate, of Kimi's a sigmoid; Mamba-2: the gate, then a norm of each
// group; Mamba-1: the gate.
void gate_columns(const Pass& pass, const PackedLayer& layer, int64_t row, int64_t first, int64_t end) {
    const RecurrentSpec& spec = layer.recurrent;
    const ScanKind& kind = scan_kind(spec);
    const float* gates = pass.activations.shared.qkv.row(row) + layer.columns.gate;
    float* x = pass.activations.shared.attended.row(row);
    const int64_t normed = norm_size(spec), size = normed ? normed : end - first;
    const float epsilon = spec.norm_eps > 0 ? spec.norm_eps : pass.model.spec.norm_eps;
    for (int64_t i = first; i < end; i += size) {
        if (kind.gate == SILU_THEN_NORM) pass.kernels.silu_gate(x + i, gates + i, size);
        if (normed) {
            const float* weight = layer.recurrence.norm + (kind.delta ? 0 : i);  // of a head, or of all groups
            pass.kernels.normalize(true, x + i, weight, nullptr, epsilon, size, x + i);
        }
        const bool sigmoid = kind.gate == NORM_THEN_SIGMOID || spec.sigmoid_gate;
        if (kind.gate == NORM_THEN_SILU && !sigmoid) pass.kernels.silu_gate(x + i, gates + i, size);
        if (sigmoid) pass.kernels.multiply_sigmoid(x + i, gates + i, size);
    }
}

}  // namespace

// Decay inputs, and KIMI_DELTA's output gates, each of a row of the low rank.
void gates_linear(Pass& pass, const LayerStep& step, int thread) {
    const RecurrentSpec& s = pass.layer(step).recurrent;
    const MixerColumns& columns = pass.layer(step).columns;
    const Array<float>& qkv = pass.activations.shared.qkv;
    const int64_t width = round_up(columns.decay_inputs, LANES);
    per_head_linear(pass, thread, pass.layer(step).recurrence.gates, width,
                    {qkv.data + columns.low, qkv.columns, s.low_width(), s.gate_rank, pass.plan().rows(),
                     qkv.data + columns.decay, qkv.columns, width});
    pass.wait(thread);
}

// Queries, keys, values, decays and betas of the rows to scan.
void prepare_scan(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& spec = layer.recurrent;
    const ScanColumns columns(spec);
    const int64_t each = spec.key_heads + spec.heads, items = pass.plan().first_scan_row.back() * each;
    size_t segment = 0;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t number = u / each, part = u % each;
        while (number >= pass.plan().first_scan_row[segment + 1]) segment++;
        const int64_t position = pass.plan().segments[segment].settled + number - pass.plan().first_scan_row[segment];
        const ScanRow row{pass,
                          step,
                          segment,
                          position,
                          spec,
                          scan_kind(spec),
                          layer.recurrence,
                          layer.columns,
                          columns,
                          recurrent_inputs(pass, step, segment, position),
                          pass.activations.shared.scanned.data + number * columns.width};
        if (part < spec.key_heads) prepare_key_head(row, part);
        else prepare_value_head(row, part - spec.key_heads);
    }
    pass.wait(thread);
}

void scan(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const int64_t tiles = pass.layer(step).columns.tiles;
    const int64_t first = share(tiles, thread, pass.plan().threads),
                  end = share(tiles, thread + 1, pass.plan().threads);
    const std::vector<Segment>& segments = pass.plan().segments;
    for (size_t i = 0; i < segments.size(); i++) {
        for (int64_t tile = first; tile < end; tile++) {
            const bool ends = tile + 1 == end, last = ends && i + 1 == segments.size();
            const int32_t state = segments[ends && !last ? i + 1 : i].state;
            const float* ahead = pass.batch.states->tile(state, step.index, last ? tile : ends ? first : tile + 1);
            scan_tile(pass, step, thread, i, tile, ahead);
        }
    }
    keep_inputs(pass, step, thread);
    pass.wait(thread);
    if (thread == 0) pass.timing.attention += __rdtsc() - started;
}

// The rows that go on, in the form of the output linear.
void gate_scanned(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Linear& output = layer.output;
    const int64_t width = layer.recurrent.value_width(), columns = span_columns(layer.recurrent, output);
    const int64_t each = (output.depth + columns - 1) / columns, items = pass.plan().rows() * each;
    for (int64_t u = share(items, thread, pass.plan().threads); u < share(items, thread + 1, pass.plan().threads);
         u++) {
        const int64_t row = u / each, first = u % each * columns, end = std::min(first + columns, output.depth);
        if (first < width) gate_columns(pass, layer, row, first, std::min(end, width));
        prepare_row(pass, thread, pass.activations.shared.attended.row(row), width, first, end, row, output,
                    &NodeBuffers::inputs);
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
