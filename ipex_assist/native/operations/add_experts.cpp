// What the experts of a row gave becomes one row.
#include <algorithm>

#include "operations/experts.h"
#include "operations/operations.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

// Columns [first, end) of the weighted sum of `count` slots of a row, the first of them of number `choice`. given: what
// the router got of the row.
void add_slots(const Pass& pass, const float* given, int64_t choice, int64_t count, int64_t first, int64_t end,
               float* to) {
    std::fill(to + first, to + end, 0.0f);
    for (int64_t i = choice; i < choice + count; i++) {
        const float weight = pass.routes.weights[size_t(i)];
        const bool identity = pass.routes.chosen[size_t(i)] == IDENTITY;
        const int32_t slot = pass.routes.slots[size_t(i)];
        const float* from = identity ? given : pass.activations.shared.expert_outputs.row(slot);
        for (int64_t c = first; c < end; c++) to[c] += weight * from[c];
    }
}

// A row's experts, and the shared one, each through a norm of their own.
void add_normalized(const Pass& pass, const PackedLayer& layer, int thread, int64_t row, float* to) {
    const int64_t size = pass.model.spec.hidden_size, each = experts_of_row(layer.mlp), routed = each - 1;
    float* sum = pass.activations.own(thread).row.data;
    add_slots(pass, nullptr, row * each, routed, 0, size, sum);
    normalize(pass, layer.expert_norms.experts_out, sum, sum);
    const int32_t slot = pass.routes.slots[size_t(row * each + routed)];
    normalize(pass, layer.expert_norms.shared_out, pass.activations.shared.expert_outputs.row(slot), to);
    pass.kernels.add(to, sum, size);
}

}  // namespace

void add_span(const Pass& pass, const PackedLayer& layer, int thread, int64_t row, int64_t first, int64_t end) {
    const int64_t each = experts_of_row(layer.mlp);
    float* to = pass.delta(thread).row(row);
    const float* given = layer.mlp.identity ? routed_row(pass, layer, thread, row) : nullptr;
    if (layer.mlp.own_norms) add_normalized(pass, layer, thread, row, to);
    else if (!layer.defers) add_slots(pass, given, row * each, each, first, end, to);
    if (layer.defers) {
        add_slots(pass, given, row * each, each - 1, first, end, pass.activations.shared.deferred.row(row));
        add_slots(pass, given, row * each + each - 1, 1, first, end, to);
    }
    share_delta(pass, thread, row, row + 1, first, end);
}

}  // namespace ipex_assist
