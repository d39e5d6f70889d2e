// The table of mixers: what each layer has in the place of attention, or attention itself.
#include "mixers/weights.h"

namespace ipex_assist {
namespace {

ListMixerWeights& weights_of_mixer(const LayerSpec& layer) {
    if (!layer.is_recurrent()) return layer.attention.is_latent() ? list_latent_weights : list_attention_weights;
    return layer.recurrent.kind == SHORT_CONV ? list_short_conv_weights : list_scan_weights;
}

}  // namespace

void list_mixer_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    weights_of_mixer(layer)(list, spec, layer);
}

}  // namespace ipex_assist
