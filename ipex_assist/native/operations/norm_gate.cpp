// Norms whose rows gate themselves (A.X-K2): y becomes y · sigmoid(up · silu(down · y)), where a row between the two
// linears is narrow. Of gated residuals (StreamSpec::gate_rank) y is all streams, down · y is divided by their number,
// and the mean of the streams is what comes next.
#include <algorithm>

#include "operations/operations.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

// Of a row of streams side by side, to `out`.
void mean_of_streams(const ModelSpec& spec, const float* y, float* out) {
    const int64_t size = spec.hidden_size;
    std::fill_n(out, size, 0.0f);
    for (int32_t s = 0; s < spec.streams.count; s++, y += size) {
        for (int64_t i = 0; i < size; i++) out[i] += y[i];
    }
    for (int64_t i = 0; i < size; i++) out[i] /= float(spec.streams.count);
}

}  // namespace

void gate_rows(Pass& pass, int thread, const NormGate& gate, int64_t rank, int64_t rows, const Linear& next) {
    const ModelSpec& spec = pass.model.spec;
    const Array<float>&narrow = pass.activations.shared.gate_rows, &gates = pass.activations.shared.norm_gates;
    const float count = float(spec.streams.gated() ? spec.streams.count : 1);
    float* made = pass.activations.own(thread).row.data;
    linear(pass, thread, pass.inputs(thread, gate.down.depth), gate.down, rows, narrow.data, narrow.columns, &gate.up);
    prepare_made(pass, thread, rank, rows, gate.up, [&](int64_t r) {
        std::transform(narrow.row(r), narrow.row(r) + narrow.columns, made, [&](float x) { return x / count; });
        pass.kernels.activate(SILU, false, made, round_up(rank, LANES) / LANES, made);
        return made;
    });
    linear(pass, thread, pass.inputs(thread, gate.up.depth), gate.up, rows, gates.data, gates.columns, &next);
    prepare_made(pass, thread, spec.hidden_size, rows, next, [&](int64_t r) {
        float* y = pass.normed(thread).row(r);  // of this thread, or the row is its own
        pass.kernels.multiply_sigmoid(y, gates.row(r), spec.norm_width());
        if (spec.streams.gated()) mean_of_streams(spec, y, made);
        return spec.streams.gated() ? made : y;
    });
}

}  // namespace ipex_assist
