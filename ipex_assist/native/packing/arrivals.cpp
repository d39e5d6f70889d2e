#include "packing/arrivals.h"

#include <algorithm>

namespace ipex_assist {
namespace {

// Whether there are several of a weight.
bool is_numbered(Slot slot) { return slot >= ATTENTION_NORM || slot == INPUT_NORM; }

// The place of a weight in the list.
size_t flag(Slot slot, int32_t index, bool bias) {
    const size_t place = is_numbered(slot) ? size_t(index) : 0;
    return (place * SLOTS + size_t(slot)) * 2 + size_t(bias);
}

}  // namespace

void Arrivals::expect(const ModelWeights& weights) {
    int32_t experts = 0;  // of the layer that has most
    for (const PackedLayer& layer : weights.layers) experts = std::max(experts, layer.mlp.count());
    const int32_t places = std::max(weights.spec.layers * (1 + experts), weights.spec.draft_head.taps);
    missing_.assign(size_t(places) * SLOTS * 2, false);
    count_ = 0;
    for (int32_t number = EMBED_TOKENS; number < SLOTS; number++) {
        const Slot slot = Slot(number);
        for (int32_t index = 0; index < (is_numbered(slot) ? places : 1); index++) {
            for (const bool bias : {false, true}) {
                if (!weights.exists(slot, index, bias)) continue;
                missing_[flag(slot, index, bias)] = true;
                count_++;
            }
        }
    }
}

void Arrivals::arrived(Slot slot, int32_t index, bool bias) {
    const size_t which = flag(slot, index, bias);
    if (which >= missing_.size() || !missing_[which]) return;
    missing_[which] = false;
    count_--;
}

}  // namespace ipex_assist
