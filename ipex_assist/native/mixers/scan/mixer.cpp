// Gated DeltaNet, Kimi Delta Attention, Mamba-2 and Mamba-1 as mixers: what they are made of (RecurrentSpec).
#include "mixers/mixer.h"

#include <algorithm>
#include <cmath>

#include "mixers/scan/scan.h"

namespace ipex_assist {
namespace {

// Rows of a low rank, which decay inputs (and output gates) are made of, and bounds of decays.
void check_gates(const RecurrentSpec& r, int64_t least_rank, int64_t most_rank) {
    check_range("the rank of gates", r.gate_rank, least_rank, most_rank);
    if (r.decay_bound == 0) return;
    if (r.kind != KIMI_DELTA || !(r.decay_bound < 0) || !std::isfinite(r.decay_bound)) {
        refuse("logarithms of decays above %g", double(r.decay_bound));
    }
}

void check_gated_delta(const ModelSpec&, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    check_multiplier(r.beta_scale);
    check_gates(r, 0, 0);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED, NOT_NORMED);
}

void check_kimi_delta(const ModelSpec&, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    check_multiplier(r.beta_scale);
    check_gates(r, 0, LARGEST);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED, NOT_NORMED);
    if (r.key_heads != r.heads || r.key_dim != r.value_dim) {
        refuse("decays of each channel of %d key heads of %d, and %d heads of %d", r.key_heads, r.key_dim, r.heads,
               r.value_dim);
    }
}

void check_mamba2(const ModelSpec&, const LayerSpec& layer) {
    check_recurrent(layer.recurrent);
    check_gates(layer.recurrent, 0, 0);
    check_range("the norm of a selection", layer.recurrent.selection_norm, NOT_NORMED, NOT_NORMED);
}

void check_mamba1(const ModelSpec&, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    check_gates(r, 1, LARGEST);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED, NORMED_AND_WEIGHTED);
    if (r.heads != 1) refuse("%d heads of channels that have a step each", r.heads);
    check_range("key_dim x value_dim", r.key_dim * r.value_width(), 1, LARGEST);
    check_range("groups of a gated norm", r.norm_groups, 0, 0);
}

// What all of them have: the state, and what its rows have in them.
MixerColumns columns_of_scan(const RecurrentSpec& r) {
    MixerColumns made;
    made.out_width = r.value_width();
    made.scanned = ScanColumns(r).width;
    made.tiles = r.heads * r.value_depth() / LANES, made.tile_floats = r.key_depth() * LANES;
    return made;
}

// Queries, keys, values, decay inputs, betas, output gates.
MixerColumns columns_of_heads(const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    const ScanKind& kind = scan_kind(r);
    MixerColumns made = columns_of_scan(r);
    made.key = round_up(r.key_width(), LANES), made.value = 2 * made.key;
    made.decay = made.value + round_up(r.value_width(), LANES);
    made.decay_inputs = kind.decays_by_key ? r.key_width() : r.heads;
    made.beta = made.decay + round_up(made.decay_inputs, LANES);
    made.gate = made.beta + (kind.delta ? round_up(r.heads, LANES) : 0);
    made.width = made.input_width = made.gate + round_up(r.value_width(), LANES);
    made.kept_width = made.gate;
    return made;
}

// The first linear gives betas and the two rows of the low rank after the values; decay inputs and output gates, which
// another linear makes of those, follow. Without a rank it gives all, as with Gated DeltaNet.
MixerColumns columns_of_kimi_delta(const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    if (!r.gate_rank) return columns_of_heads(layer);
    MixerColumns made = columns_of_scan(r);
    made.key = round_up(r.key_width(), LANES), made.value = 2 * made.key;
    made.beta = made.value + round_up(r.value_width(), LANES);
    made.low = made.beta + round_up(r.heads, LANES);
    made.decay = made.input_width = made.low + 2 * r.low_width(), made.decay_inputs = r.key_width();
    made.gate = made.kept_width = made.decay + round_up(made.decay_inputs, LANES);
    made.width = made.gate + round_up(r.value_width(), LANES);
    return made;
}

// The first linear gives output gates, then values; a second one makes of the convolved values the row of the low rank,
// keys and queries, which are never convolved, and a third one of that row the decay inputs, which follow them.
MixerColumns columns_of_mamba1(const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    MixerColumns made = columns_of_scan(r);
    made.value = made.kept = round_up(r.value_width(), LANES);
    made.low = made.input_width = made.value + round_up(r.value_width(), LANES);
    made.key = made.low + r.low_width(), made.query = made.key + r.key_depth();
    made.decay = made.query + r.key_depth(), made.decay_inputs = r.value_width();
    made.width = made.decay + round_up(made.decay_inputs, LANES);
    made.kept_width = made.width - made.kept;
    return made;
}

LinearPart part(const char* name, int64_t column, int64_t columns) { return {name, column / LANES, columns}; }

LinearShape first_linear(const ModelSpec& spec, const PackedLayer& layer) {
    return {layer.columns.input_width, spec.hidden_size, layer.recurrent.input_bias != 0, spec.precision};
}

void list_convs(WeightList& list, PackedLayer& layer, bool keys) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    if (keys) {
        list_conv(list, r, "q_conv", w.q_conv, r.key_width());
        list_conv(list, r, "k_conv", w.k_conv, r.key_width());
    }
    list_conv(list, r, "v_conv", w.v_conv, r.value_width());
    if (!r.conv_bias) return;
    if (keys) {
        list.vector(w.q_conv_bias, {"q_conv", r.key_width()}, true);
        list.vector(w.k_conv_bias, {"k_conv", r.key_width()}, true);
    }
    list.vector(w.v_conv_bias, {"v_conv", r.value_width()}, true);
}

// What makes decay inputs, and output gates where `gates`, of rows of the low rank.
void list_low_rank(WeightList& list, const ModelSpec& spec, PackedLayer& layer, bool gates) {
    const MixerColumns& c = layer.columns;
    const LinearShape shape{c.width - c.decay, layer.recurrent.gate_rank, false, spec.precision};
    const LinearPart steps = part("a_in", 0, c.decay_inputs);
    const LinearPart of_gates = part("z_in", c.gate - c.decay, layer.recurrent.value_width());
    list.linear(layer.recurrence.gates, shape, {steps, gates ? of_gates : LinearPart{}});
}

void list_end(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    if (const int64_t size = norm_weights(r)) list.vector(layer.recurrence.norm, {"gated_norm", size});
    list_output(list, spec, layer, "mixer_out", r.value_width(), r.output_bias != 0);
}

void list_weights_of_heads(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    const MixerColumns& c = layer.columns;
    const bool delta = scan_kind(r).delta;
    list.linear(layer.qkv, first_linear(spec, layer),
                {part("q_in", c.query, r.key_width()), part("k_in", c.key, r.key_width()),
                 part("v_in", c.value, r.value_width()), part("a_in", c.decay, c.decay_inputs),
                 delta ? part("b_in", c.beta, r.heads) : LinearPart{}, part("z_in", c.gate, r.value_width())});
    list_convs(list, layer, true);
    list.vector(layer.recurrence.decay_rate, {"a_log", r.heads, {0, 0, true}});
    list.vector(layer.recurrence.dt_bias, {"dt_bias", c.decay_inputs});
    if (!delta) list.vector(layer.recurrence.skip, {"skip", r.heads});
    list_end(list, spec, layer);
}

void list_weights_of_kimi_delta(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    if (!r.gate_rank) return list_weights_of_heads(list, spec, layer);
    const MixerColumns& c = layer.columns;
    list.linear(layer.qkv, first_linear(spec, layer),
                {part("q_in", c.query, r.key_width()), part("k_in", c.key, r.key_width()),
                 part("v_in", c.value, r.value_width()), part("b_in", c.beta, r.heads),
                 part("a_low_in", c.low, r.gate_rank), part("z_low_in", c.low + r.low_width(), r.gate_rank)});
    list_convs(list, layer, true);
    list.vector(layer.recurrence.decay_rate, {"a_log", r.heads, {0, 0, true}});
    list.vector(layer.recurrence.dt_bias, {"dt_bias", c.decay_inputs});
    list_low_rank(list, spec, layer, true);
    list_end(list, spec, layer);
}

void list_weights_of_mamba1(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    const MixerColumns& c = layer.columns;
    list.linear(layer.qkv, first_linear(spec, layer),
                {part("z_in", c.gate, r.value_width()), part("v_in", c.value, r.value_width())});
    list_convs(list, layer, false);
    // A checkpoint has a channel's rates side by side.
    list.vector(w.decay_rate, {"a_log", r.key_dim * r.value_width(), {r.value_width(), r.key_dim, true}});
    list.vector(w.dt_bias, {"dt_bias", c.decay_inputs});
    list_low_rank(list, spec, layer, false);
    list.vector(w.skip, {"skip", r.value_width()});
    list.linear(w.low, {c.decay - c.low, r.value_width(), false, spec.precision},
                {part("a_low_in", 0, r.gate_rank), part("k_in", c.key - c.low, r.key_dim),
                 part("q_in", c.query - c.low, r.key_dim)});
    if (r.selection_norm == NORMED_AND_WEIGHTED) {
        list.vector(w.low_norm, {"a_low_norm", r.gate_rank});
        list.vector(w.key_norm, {"k_in_norm", r.key_dim});
        list.vector(w.query_norm, {"q_in_norm", r.key_dim});
    }
    list_end(list, spec, layer);
}

void size(const PackedLayer& layer, int64_t, ActivationSizes& s) {
    s.scan_columns = std::max(s.scan_columns, layer.columns.scanned);
    s.state = std::max(s.state, layer.columns.tile_floats);
    s.head_depth = std::max(s.head_depth, layer.recurrence.gates.depth);
}

constexpr Operation CONVOLVE_VALUES{"convolve_values", convolve_values, ATTENDED};
constexpr Operation LOW_LINEAR{"low_linear", low_linear, PROJECTED};
constexpr Operation NORMALIZE_LOW{"normalize_low", normalize_low, PROJECTED};
constexpr Operation GATES_LINEAR{"gates_linear", gates_linear, PROJECTED};
constexpr Operation PREPARE_CHANNELS{"prepare_channels", prepare_channels, SCANNED};
constexpr Operation PREPARE_SCAN{"prepare_scan", prepare_scan, SCANNED};
constexpr Operation SCAN{"scan", scan, ATTENDED};
constexpr Operation GATE_SCANNED{"gate_scanned", gate_scanned, ATTENDED};

// All rows change the state, so that rows which end with this layer are dropped after the scan.
void list_operations(const PackedLayer&, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, QKV_LINEAR, PREPARE_SCAN, SCAN});
    add(step.attend_operations, {GATE_SCANNED, OUTPUT_LINEAR});
}

void list_operations_of_kimi_delta(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    if (!layer.recurrent.gate_rank) return list_operations(layer, step, prepare);
    add(step.append_operations, {prepare, QKV_LINEAR, GATES_LINEAR, PREPARE_SCAN, SCAN});
    add(step.attend_operations, {GATE_SCANNED, OUTPUT_LINEAR});
}

void list_operations_of_mamba1(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    add(step.append_operations, {prepare, QKV_LINEAR, CONVOLVE_VALUES, LOW_LINEAR});
    if (layer.recurrent.selection_norm != NOT_NORMED) add(step.append_operations, {NORMALIZE_LOW});
    add(step.append_operations, {GATES_LINEAR, PREPARE_CHANNELS, SCAN});
    add(step.attend_operations, {GATE_SCANNED, OUTPUT_LINEAR});
}

}  // namespace

extern const Mixer GATED_DELTA_MIXER{check_gated_delta, columns_of_heads, list_weights_of_heads, size, list_operations};
extern const Mixer MAMBA2_MIXER{check_mamba2, columns_of_heads, list_weights_of_heads, size, list_operations};
extern const Mixer KIMI_DELTA_MIXER{check_kimi_delta, columns_of_kimi_delta, list_weights_of_kimi_delta, size,
                                    list_operations_of_kimi_delta};
extern const Mixer MAMBA1_MIXER{check_mamba1, columns_of_mamba1, list_weights_of_mamba1, size,
                                list_operations_of_mamba1};

}  // namespace ipex_assist
