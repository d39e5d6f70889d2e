#include "packing/expert_slots.h"

#include <algorithm>
#include <cmath>

namespace ipex_assist {
namespace {

constexpr double HALF_LIFE = 256;  // passes after which a use counts half

int64_t bytes_of(const Linear& linear) { return panel_offset(linear, linear.panels); }

}  // namespace

ExpertSlots::ExpertSlots(PackedLayer& layer) : layer_(&layer), experts_(size_t(layer.mlp.experts)) {
    for (int32_t e = 0; e < layer.mlp.experts; e++) {
        const Mlp& expert = layer.experts[size_t(e)];
        bytes_ = std::max(bytes_, bytes_of(expert.up) + bytes_of(expert.down));
    }
}

double ExpertSlots::uses(int32_t expert) const {
    const CachedExpert& e = experts_[size_t(expert)];
    return e.uses * std::exp2(-double(passes_ - e.last) / HALF_LIFE);
}

int64_t ExpertSlots::want(const std::vector<int32_t>& experts) {
    passes_++;
    int64_t guessed = 0;
    want_nothing();
    for (const int32_t e : experts) {
        if (e >= most()) continue;
        CachedExpert& expert = experts_[size_t(e)];
        expert.uses = uses(e) + 1, expert.last = passes_, expert.wanted = true;
        guessed += expert.ahead;
    }
    for (CachedExpert& each : experts_) each.expected = each.ahead = each.fresh = false;
    return guessed;
}

bool ExpertSlots::wants() const {
    return std::any_of(experts_.begin(), experts_.end(), [](const CachedExpert& each) { return each.wanted; });
}

void ExpertSlots::want_nothing() {
    for (CachedExpert& each : experts_) each.wanted = false;
}

void ExpertSlots::forget_unread() {
    for (int32_t e = 0; e < most(); e++) {
        if (experts_[size_t(e)].chunks) release(e);
    }
}

int64_t ExpertSlots::free_slot() const {
    int64_t found = -1;
    double least = 0;
    for (int64_t slot = 0; slot < slots(); slot++) {
        const int32_t holds = held_[size_t(slot)];
        if (holds < 0) return slot;
        const CachedExpert& expert = experts_[size_t(holds)];
        if (expert.wanted || expert.expected || expert.chunks) continue;
        const double used = uses(holds);
        if (found < 0 || used < least) found = slot, least = used;
    }
    return found;
}

int32_t ExpertSlots::expert_of(const Linear* linear) const {
    for (int32_t e = 0; is_cached() && e < most(); e++) {
        const Mlp& of = layer_->experts[size_t(e)];
        if (linear == &of.up || linear == &of.down) return e;
    }
    return -1;
}

bool ExpertSlots::assign(int32_t expert) {
    const int64_t slot = free_slot();
    if (slot < 0) return false;
    const int32_t holds = held_[size_t(slot)];
    const auto fresh = [](const CachedExpert& each) { return each.wanted && each.fresh; };
    if (holds >= 0 && uses(holds) > uses(expert) && std::count_if(experts_.begin(), experts_.end(), fresh) >= some())
        return false;
    if (holds >= 0) release(holds);
    held_[size_t(slot)] = expert;
    experts_[size_t(expert)].slot = int32_t(slot);
    point(expert, memory_ + slot * bytes_);
    return true;
}

void ExpertSlots::release(int32_t expert) {
    CachedExpert& e = experts_[size_t(expert)];
    held_[size_t(e.slot)] = -1, e.slot = -1;
    e.chunks = 0, e.failed = false;
    point(expert, nullptr);
}

void ExpertSlots::point(int32_t expert, uint8_t* at) {
    Mlp& of = layer_->experts[size_t(expert)];
    of.up.weights = at;
    of.down.weights = at ? at + bytes_of(of.up) : nullptr;
}

}  // namespace ipex_assist
