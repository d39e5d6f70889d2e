// What a model's spec can get wrong, refused before any memory is taken.
#pragma once
#include "packing/spec.h"
#include "refuse.h"

namespace ipex_assist {

// Sizes of a model, each and the products of two, stay far below what 64 bits hold; ImageLayout sees to the sum of all.
constexpr int64_t LARGEST = 1 << 24, MOST_LAYERS = 4096;

// The spec, if a model can have it and these layers (spec.layers).
const ModelSpec& checked(const ModelSpec& spec, const LayerSpec* layers);

// Its parts. Those of a layer's mixer are checked by the mixer (mixers/table.cpp).
void check_mixer(const ModelSpec& spec, const LayerSpec& layer);
void check_mixer_among(const LayerSpec* layers, int32_t number);  // the layers before it included
void check_draft_head(const ModelSpec& spec);
void check_draft_head_layers(const ModelSpec& spec, const LayerSpec* layers);
void check_multiplier(float factor);
void check_cap(float cap);

}  // namespace ipex_assist
