#include "mixers/weights.h"

namespace ipex_assist {

void list_short_conv_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    list.linear(layer.qkv, {r.input_linear_width(), spec.hidden_size, r.input_bias != 0, spec.precision},
                {{"q_in", 0, r.key_width()},
                 {"k_in", r.key_column() / LANES, r.key_width()},
                 {"v_in", r.value_column() / LANES, r.value_width()}});
    list_conv(list, r, "v_conv", layer.recurrence.v_conv, r.value_width());
    if (r.conv_bias) list.vector(layer.recurrence.v_conv_bias, {"v_conv", r.value_width()}, true);
    list_output(list, spec, layer, "mixer_out", r.value_width(), r.output_bias != 0);
}

}  // namespace ipex_assist
