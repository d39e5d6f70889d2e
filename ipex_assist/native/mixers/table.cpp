// The table of mixers, and what other folders ask of the mixer of a layer.
#include "mixers/mixer.h"

namespace ipex_assist {

extern const Mixer ATTENTION_MIXER, LATENT_MIXER, COMPRESSED_MIXER, SHORT_CONV_MIXER;
extern const Mixer GATED_DELTA_MIXER, KIMI_DELTA_MIXER, MAMBA2_MIXER, MAMBA1_MIXER, RG_LRU_MIXER, NGRAM_ROWS_MIXER;

namespace {

const Mixer& mixer_of(const LayerSpec& layer) {
    switch (layer.recurrent.kind) {
        case NO_RECURRENCE:
            if (layer.attention.latent.is_compressed()) return COMPRESSED_MIXER;
            return layer.attention.is_latent() ? LATENT_MIXER : ATTENTION_MIXER;
        case GATED_DELTA: return GATED_DELTA_MIXER;
        case MAMBA2: return MAMBA2_MIXER;
        case SHORT_CONV: return SHORT_CONV_MIXER;
        case KIMI_DELTA: return KIMI_DELTA_MIXER;
        case MAMBA1: return MAMBA1_MIXER;
        case RG_LRU: return RG_LRU_MIXER;
        case NGRAM_ROWS: return NGRAM_ROWS_MIXER;
    }
    refuse("there is no recurrent mixer %d", layer.recurrent.kind);
}

}  // namespace

void check_mixer(const ModelSpec& spec, const LayerSpec& layer) { mixer_of(layer).check(spec, layer); }

void check_mixer_among(const LayerSpec* layers, int32_t number) {
    const Mixer& mixer = mixer_of(layers[number]);
    if (mixer.check_among) mixer.check_among(layers, number);
}

MixerColumns mixer_columns(const LayerSpec& layer) { return mixer_of(layer).columns(layer); }

void list_mixer_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    mixer_of(layer).list_weights(list, spec, layer);
}

void size_mixer(const PackedLayer& layer, int64_t last, ActivationSizes& sizes) {
    const Mixer& mixer = mixer_of(layer);
    if (mixer.size) mixer.size(layer, last, sizes);
}

KeptByMixer kept_by_mixer(const LayerSpec& layer, Precision precision, Precision attention) {
    const Mixer& mixer = mixer_of(layer);
    return mixer.keep ? mixer.keep(layer.attention, precision, attention) : KeptByMixer{};
}

void shape_mixer(const LayerSpec& layer, AttentionShape& shape) {
    const Mixer& mixer = mixer_of(layer);
    if (mixer.shape) mixer.shape(layer.attention, shape);
}

void list_mixer_operations(const PackedLayer& layer, LayerStep& step, const Operation& prepare) {
    mixer_of(layer).list_operations(layer, step, prepare);
}

}  // namespace ipex_assist
