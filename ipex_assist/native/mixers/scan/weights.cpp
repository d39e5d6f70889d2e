#include "mixers/weights.h"

namespace ipex_assist {
namespace {

// The first linear, and those that make decay inputs (and output gates) of rows of a low rank: see RecurrentSpec.
void list_input(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    const bool kimi = r.kind == KIMI_DELTA;
    const LinearShape shape{r.input_linear_width(), spec.hidden_size, r.input_bias != 0, spec.precision};
    const auto part = [](const char* name, int64_t column, int64_t columns, bool there = true) {
        return there ? LinearPart{name, column / LANES, columns} : LinearPart{};
    };
    if (r.kind == MAMBA1) {
        list.linear(layer.qkv, shape,
                    {part("z_in", r.gate_column(), r.value_width()), part("v_in", r.value_column(), r.value_width())});
        return;
    }
    list.linear(
        layer.qkv, shape,
        {part("q_in", 0, r.key_width()), part("k_in", r.key_column(), r.key_width()),
         part("v_in", r.value_column(), r.value_width()), part("a_in", r.decay_column(), r.heads, !kimi),
         part("b_in", r.beta_column(), r.heads, r.is_delta()), part("z_in", r.gate_column(), r.value_width(), !kimi),
         part("a_low_in", r.low_column(), r.gate_rank, kimi),
         part("z_low_in", r.low_column() + r.low_width(), r.gate_rank, kimi)});
}

void list_gates(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    const LinearPart steps{"a_in", 0, r.decay_inputs()};
    const LinearPart gates{"z_in", (r.gate_column() - r.decay_column()) / LANES, r.value_width()};
    list.linear(layer.recurrence.gates, {r.width() - r.decay_column(), r.gate_rank, false, spec.precision},
                {steps, r.kind == KIMI_DELTA ? gates : LinearPart{}});
}

// MAMBA1: what is made of convolved values.
void list_selection(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    const int64_t first = r.low_column();
    list.linear(w.low, {r.decay_column() - first, r.value_width(), false, spec.precision},
                {{"a_low_in", 0, r.gate_rank},
                 {"k_in", (r.key_column() - first) / LANES, r.key_dim},
                 {"q_in", (r.query_column() - first) / LANES, r.key_dim}});
    if (r.selection_norm != NORMED_AND_WEIGHTED) return;
    list.vector(w.low_norm, {"a_low_norm", r.gate_rank});
    list.vector(w.key_norm, {"k_in_norm", r.key_dim});
    list.vector(w.query_norm, {"q_in_norm", r.key_dim});
}

}  // namespace

void list_scan_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    list_input(list, spec, layer);
    if (r.convolves_keys()) {
        list_conv(list, r, "q_conv", w.q_conv, r.key_width());
        list_conv(list, r, "k_conv", w.k_conv, r.key_width());
    }
    list_conv(list, r, "v_conv", w.v_conv, r.value_width());
    if (r.convolves_keys() && r.conv_bias) {
        list.vector(w.q_conv_bias, {"q_conv", r.key_width()}, true);
        list.vector(w.k_conv_bias, {"k_conv", r.key_width()}, true);
    }
    if (r.conv_bias) list.vector(w.v_conv_bias, {"v_conv", r.value_width()}, true);
    // Of MAMBA1 a checkpoint has a channel's rates side by side.
    const VectorForm rates = r.kind == MAMBA1 ? VectorForm{r.value_width(), r.key_dim, true} : VectorForm{0, 0, true};
    list.vector(w.decay_rate, {"a_log", decay_rates(r), rates});
    list.vector(w.dt_bias, {"dt_bias", r.decay_inputs()});
    if (r.gate_rank) list_gates(list, spec, layer);
    if (skips(r)) list.vector(w.skip, {"skip", skips(r)});
    if (r.kind == MAMBA1) list_selection(list, spec, layer);
    if (r.norm_weights()) list.vector(w.norm, {"gated_norm", r.norm_weights()});
    list_output(list, spec, layer, "mixer_out", r.value_width(), r.output_bias != 0);
}

}  // namespace ipex_assist
