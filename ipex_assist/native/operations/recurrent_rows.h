// What the files of recurrent mixers share.
#pragma once
#include "operations/operations.h"

namespace ipex_assist {

// What the linears of a recurrent layer gave for a position of a segment, from kept_column() on: of a row of this pass,
// or of one that its sequence keeps. Null before position 0.
inline const float* recurrent_inputs(const Pass& pass, const LayerStep& step, size_t segment, int64_t position) {
    const Segment& s = pass.plan.segments[segment];
    if (position < 0) return nullptr;
    if (position < s.start) return pass.batch.states->inputs(s.state, step.index, position);
    return pass.activations.shared.qkv.row(pass.plan.first_row[segment] + position - s.start) +
           pass.layer(step).recurrent.kept_column();
}

}  // namespace ipex_assist
