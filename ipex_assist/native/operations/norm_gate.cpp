// Norms whose rows gate themselves (A.X-K2): y becomes y · sigmoid(up · silu(down · y)), where a row between the two
// linears is narrow.
#include <algorithm>

#include "operations/operations.h"
#include "operations/routing.h"

namespace ipex_assist {

void gate_rows(Pass& pass, int thread, const NormGate& gate, int64_t rank, const Linear& next) {
    const Array<float>&narrow = pass.activations.shared.gate_rows, &gates = pass.activations.shared.norm_gates;
    const int64_t rows = pass.plan().rows(), size = pass.model.spec.hidden_size;
    float* made = pass.activations.own(thread).row.data;
    linear(pass, thread, pass.inputs(thread, gate.down.depth), gate.down, rows, narrow.data, narrow.columns, &gate.up);
    prepare_made(pass, thread, rank, gate.up, [&](int64_t r) {
        pass.kernels.activate(SILU, false, narrow.row(r), round_up(rank, LANES) / LANES, made);
        return made;
    });
    linear(pass, thread, pass.inputs(thread, gate.up.depth), gate.up, rows, gates.data, gates.columns, &next);
    prepare_made(pass, thread, size, next, [&](int64_t r) {
        const float* y = pass.normed(thread).row(r);
        std::copy(y, y + size, made);
        pass.kernels.multiply_sigmoid(made, gates.row(r), size);
        return made;
    });
}

}  // namespace ipex_assist
