#include "mixers/weights.h"

namespace ipex_assist {

void list_latent_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const AttentionSpec& a = layer.attention;
    const LatentSpec& l = a.latent;
    LatentWeights& w = layer.latent;
    const int64_t row = l.query_rank ? l.query_rank : layer.input_width;  // that queries are made of
    list.linear(layer.qkv, {a.latent_width(), layer.input_width, a.qkv_bias != 0, spec.precision},
                {{"k_rope_proj", 0, l.rope_dim},
                 {"kv_a_proj", l.rope_dim / LANES, l.rank},
                 l.query_rank ? LinearPart{"q_a_proj", a.head_dim / LANES, l.query_rank} : LinearPart{}});
    list.vector(w.norm, {"kv_a_norm", l.rank});
    if (l.query_rank) list.vector(w.query_norm, {"q_a_norm", l.query_rank});
    list.linear(w.query, {a.latent_query_width(), row, false, spec.precision},
                {{"q_nope_proj", 0, int64_t(a.heads) * l.nope_dim},
                 {"q_rope_proj", a.rotated_column() / LANES, int64_t(a.heads) * l.rope_dim}});
    list.linear(w.keys, {a.attended_width(), l.nope_dim, false, spec.precision}, {{"k_b_proj", 0, a.attended_width()}});
    list.linear(w.values, {a.output_width(), l.rank, false, spec.precision}, {{"v_b_proj", 0, a.output_width()}});
    list_output(list, spec, layer, "o_proj", a.output_width(), a.output_bias != 0);
}

}  // namespace ipex_assist
