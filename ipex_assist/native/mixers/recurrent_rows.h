// What the files of recurrent mixers share.
#pragma once
#include "operations/operations.h"

namespace ipex_assist {

// What the linears of a recurrent layer gave for a position of a segment, from MixerColumns::kept on: of a row of this
// pass, or of one that its sequence keeps. Null before position 0.
inline const float* recurrent_inputs(const Pass& pass, const LayerStep& step, size_t segment, int64_t position) {
    const Segment& s = pass.plan().segments[segment];
    if (position < 0) return nullptr;
    if (position < s.start) return pass.batch.states->inputs(s.state, step.index, position);
    return pass.activations.shared.qkv.row(pass.plan().first_row[segment] + position - s.start) +
           pass.layer(step).columns.kept;
}

// Values first <= c < first + size of the row of a segment at a position, convolved, to `out`, which has room up to a
// multiple of 16.
void convolve_value_columns(const Pass& pass, const LayerStep& step, size_t segment, int64_t position, int64_t first,
                            int64_t size, bool silu, float* out);

// The last rows of each segment to where its sequence keeps them, shared by the threads. After a barrier at which all
// have read what was kept before; ends without one.
void keep_inputs(const Pass& pass, const LayerStep& step, int thread);

}  // namespace ipex_assist
