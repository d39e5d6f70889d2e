// The experts of a layer where they are read as they are needed: what is there is multiplied while others are read.
//
// An expert's rows are multiplied alone, and a row's slots are added when all are there, in the order of the experts: it
// makes no difference to a bit what was there when.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "operations/operations.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

// The experts that rows (rows, hidden) would be given by a layer if they came to its router as they are.
std::vector<int32_t> experts_of(const PackedModel& model, const PackedLayer& layer, std::vector<float> x) {
    const ModelSpec& spec = model.spec;
    const Linear& router = layer.router;
    const Norm& norm = *layer.into_mlp.pre;
    const int64_t hidden = spec.hidden_size, rows = int64_t(x.size()) / hidden, width = router.panels * LANES;
    std::vector<float> inputs(size_t(rows * router.depth)), logits(size_t(rows * width));
    for (int64_t r = 0; r < rows; r++) {
        float* row = inputs.data() + r * router.depth;
        model.kernels->normalize(spec.rms_norm, x.data() + r * hidden, norm.weight, norm.bias, spec.norm_eps, hidden,
                                 row);
    }
    const LinearRows in{reinterpret_cast<uint8_t*>(inputs.data()), nullptr, nullptr, router.depth};
    model.multiply(router, in, rows, 0, router.panels, logits.data(), width);
    RouterScratch scratch;
    const int32_t each = layer.mlp.experts_per_token;
    std::vector<int32_t> found(size_t(rows * each));
    std::vector<float> weights(static_cast<size_t>(each));
    for (int64_t r = 0; r < rows; r++) {
        choose_experts(layer.mlp, logits.data() + r * width, layer.correction_bias, scratch, found.data() + r * each,
                       weights.data());
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    if (!found.empty() && found.front() == IDENTITY) found.erase(found.begin());
    return found;
}

// Asks for what the next layer will most likely use: the residual stream changes little from a layer to the next.
void expect_next(Pass& pass, const LayerStep& step, int thread) {
    const PackedModel& model = pass.model;
    if (step.last || !pass.plan().decode) return;
    const PackedLayer& next = model.layers[size_t(step.index) + 1];
    if (!next.mlp.experts || !next.into_mlp.pre || next.router.order || next.mlp.by_token) return;
    if (model.spec.streams.gated()) return;  // what a router reads takes linears of their own
    const Array<float>& stream = pass.stream(thread);
    const int64_t rows = pass.plan().rows(), hidden = model.spec.hidden_size;
    std::vector<float> x(size_t(rows * hidden));
    for (int64_t r = 0; r < rows; r++) {
        if (model.spec.streams.several()) read_streams(model.spec, stream.row(r), x.data() + r * hidden);
        else std::memcpy(x.data() + r * hidden, stream.row(r), size_t(hidden) * sizeof(float));
    }
    model.expert_cache->expect(step.index + 1,
                               [&model, &next, x = std::move(x)] { return experts_of(model, next, x); });
}

}  // namespace

void cached_experts(Pass& pass, const LayerStep& step, int thread) {
    std::vector<int32_t>& used = pass.routes.used;
    if (thread == 0) expect_next(pass, step, thread);
    for (;;) {
        if (thread == 0) used = pass.model.expert_cache->next();
        pass.wait(thread);
        if (used.empty()) return;
        up_experts(pass, step, thread);
        prepare_slots(pass, step, thread);
        down_experts(pass, step, thread);
    }
}

}  // namespace ipex_assist
