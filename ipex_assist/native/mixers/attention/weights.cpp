#include "mixers/weights.h"

namespace ipex_assist {

void list_attention_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const bool values = !a.shares_kv && !a.values_are_keys;
    const auto part = [](const char* name, int64_t column, int64_t columns, bool there) {
        return there ? LinearPart{name, column / LANES, columns} : LinearPart{};
    };
    list.linear(layer.qkv, {a.qkv_width(), layer.input_width, a.qkv_bias != 0, spec.precision},
                {{"q_proj", 0, a.query_width()},
                 part("k_proj", a.key_column(), a.kv_width(), !a.shares_kv),
                 part("v_proj", a.value_column(), a.kv_width(), values),
                 part("g_proj", a.gate_column(), a.query_width(), a.output_gate != 0)});
    const bool one = a.qk_norm == ONE_FOR_HEADS;
    if (a.has_norm_weights()) list.vector(layer.q_norm, {"q_norm", one ? a.head_dim : a.query_width()});
    if (a.has_norm_weights() && !a.shares_kv) list.vector(layer.k_norm, {"k_norm", one ? a.head_dim : a.kv_width()});
    if (a.sinks) list.vector(layer.sinks, {"sinks", a.heads});
    list_output(list, spec, layer, "o_proj", a.query_width(), a.output_bias != 0);
}

}  // namespace ipex_assist
