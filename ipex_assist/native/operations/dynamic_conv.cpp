// DFlash 2's convolutions (ipex_assist/executors/torch/dynamic_conv.py; arithmetic of speculators 0.9, models/dflash2):
// what attention and MLP read and what they give is mixed with the rows before it in the same draft block, by weights
// that each row scales for itself, group of columns by group of columns.
//
//     normed rows (rows, hidden) ── projection ──► scales (rows, 2, conv_kernel, groups)
//          └── convolution by the first ──► attention or MLP ──► delta ── convolution by the second ──► residual stream
//
// A row's sum runs over these rows in their order and reads rows of its own segment alone, which is one draft block: so its
// bits depend on the rows of this draft, and neither on other drafts nor on threads.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

enum Side : int32_t { ENTERING, LEAVING };

// The sum over t of from[r - t] · (base[t] + scales[r, t]), of the rows that the draft block has, to `to` (hidden).
void convolve_row(const Pass& pass, const ConvWeights& conv, Side side, const Array<float>& from, int64_t r,
                  float* to) {
    const PassPlan& plan = pass.plan();
    const HeadSpec& head = pass.model.spec.draft_head;
    const int64_t size = pass.model.spec.hidden_size;
    const int32_t before = int32_t(r) - plan.first_row[size_t(plan.segment_of[size_t(r)])];
    const float* scales = pass.activations.shared.conv_scales.row(r) + side * head.conv_scales(size);
    pass.kernels.convolve_groups(
        {from.row(r), from.columns, std::min(head.conv_kernel, before + 1), conv.base + side * head.conv_kernel * size,
         scales, head.conv_groups(size), head.conv_group},
        to);
}

// What scales the weights of all rows, of the inputs that a residual norm has prepared.
void scale_weights(Pass& pass, int thread, const ConvWeights& conv, const Linear& next) {
    const Array<float>& scales = pass.activations.shared.conv_scales;
    linear(pass, thread, pass.inputs(thread, conv.projection.depth), conv.projection, pass.plan().rows(), scales.data,
           scales.columns, &next);
}

// The rows that `next` multiplies, in its form.
void convolve_inputs(Pass& pass, int thread, const ConvWeights& conv, const Linear& next) {
    const int64_t rows = pass.plan().rows(), size = pass.model.spec.hidden_size;
    float* made = pass.activations.own(thread).row.data;
    for (int64_t r = share(rows, thread, pass.plan().threads); r < share(rows, thread + 1, pass.plan().threads); r++) {
        convolve_row(pass, conv, ENTERING, pass.activations.shared.normed, r, made);
        prepare_row(pass, thread, made, size, 0, next.depth, r, next, &NodeBuffers::inputs);
    }
    pass.wait(thread);
}

}  // namespace

void convolve_attention(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    scale_weights(pass, thread, layer.attention_conv, layer.qkv);
    convolve_inputs(pass, thread, layer.attention_conv, layer.qkv);
}

void convolve_mlp(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    scale_weights(pass, thread, layer.mlp_conv, layer.up);
    convolve_inputs(pass, thread, layer.mlp_conv, layer.up);
}

const float* convolved_delta(const Pass& pass, int thread, const ConvWeights& conv, int64_t r) {
    float* made = pass.activations.own(thread).entering.data;
    convolve_row(pass, conv, LEAVING, pass.delta(thread), r, made);
    return made;
}

}  // namespace ipex_assist
