// Which weights of a model have been packed.
#pragma once
#include <vector>

#include "packing/weights.h"

namespace ipex_assist {

class Arrivals {
public:
    // Every weight of a model, none of which has come.
    void expect(const ModelWeights& weights);
    void expect_none() { missing_.clear(), count_ = 0; }
    void arrived(Slot slot, int32_t index, bool bias);
    int64_t missing() const { return count_; }

private:
    std::vector<bool> missing_;  // by slot, index and bias
    int64_t count_ = 0;
};

}  // namespace ipex_assist
