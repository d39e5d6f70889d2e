// The slots of a layer's experts, where not all of them are in memory: which expert each slot has, and which goes next.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "packing/expert_source.h"

namespace ipex_assist {

struct CachedExpert {
    std::vector<ExpertSource> sources;
    int32_t slot = -1;      // -1: it is in none
    int64_t chunks = 0;     // that are still to be read into it
    bool failed = false;    // or that are not read any more: its slot is free after the last one that is being read
    bool wanted = false;    // by the pass, of the layer that it is in
    bool fresh = false;     // and read for it
    bool expected = false;  // likewise, of a layer that it is not in yet
    bool ahead = false;     // and then it was not in memory
    double uses = 0;        // by passes, each worth less the longer it is ago
    uint64_t last = 0;      // the number of the last pass that used it

    bool is_there() const { return slot >= 0 && !chunks; }
};

class ExpertSlots {
public:
    ExpertSlots() = default;
    explicit ExpertSlots(PackedLayer& layer);

    int64_t expert_bytes() const { return bytes_; }  // of a slot
    int64_t slots() const { return int64_t(held_.size()); }
    int64_t most() const { return int64_t(experts_.size()); }  // slots that are of any use
    bool is_cached() const { return !experts_.empty(); }
    CachedExpert& expert(int32_t number) { return experts_[size_t(number)]; }
    const std::vector<CachedExpert>& experts() const { return experts_; }

    void resize(int64_t slots) { held_.assign(size_t(slots), -1); }
    void place(uint8_t* memory) { memory_ = memory; }
    // A pass begins, which wants these and nothing else; an expert's number past the last one is of one that is always
    // there. Returns how many of them were expected and not in memory then.
    int64_t want(const std::vector<int32_t>& experts);
    bool wants() const;  // whether it still does
    void want_nothing();
    void forget_unread();  // what was being read has no slot
    // Gives an expert a slot: a free one, or that of the one that was used least, of those that neither are wanted or
    // expected nor are being read. False where there is none, or none that was used as little as this one and some
    // slots have others that were read for this pass: what a prompt reads goes through these, and leaves the rest alone.
    bool assign(int32_t expert);
    int64_t some() const { return std::max<int64_t>(1, slots() / 4); }
    void release(int32_t expert);                   // its slot is free
    int32_t expert_of(const Linear* linear) const;  // -1: of none that is cached
    double uses(int32_t expert) const;

private:
    int64_t free_slot() const;  // -1: none
    void point(int32_t expert, uint8_t* at);

    PackedLayer* layer_ = nullptr;
    int64_t bytes_ = 0;
    uint8_t* memory_ = nullptr;
    std::vector<CachedExpert> experts_;
    std::vector<int32_t> held_;  // the expert in each slot, -1: none
    uint64_t passes_ = 0;
};

}  // namespace ipex_assist
