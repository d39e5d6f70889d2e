// LAuReL (Menghani et al. 2024, arXiv:2411.07501), as Gemma 3n has it: beside attention its input passes through a pair
// of linears of a low rank, of which the first is a part of queries, keys and values. `add_delta` adds what they give.
#include "operations/operations.h"

namespace ipex_assist {

void laurel(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Array<float>&qkv = pass.activations.shared.qkv, &out = pass.activations.shared.deferred;
    const Linear& linear = layer.laurel.right;
    per_head_linear(pass, thread, linear, linear.panels * LANES,
                    {qkv.data + layer.columns.low, qkv.columns, 0, layer.laurel_rank, pass.plan().rows(), out.data,
                     out.columns, 0});
    pass.wait(thread);
}

}  // namespace ipex_assist
