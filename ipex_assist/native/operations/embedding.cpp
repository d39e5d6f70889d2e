// The embedding of a pass's tokens, which begins the residual stream.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// The rows of the residual stream that a thread begins: its share, or, of its own stream, all.
WorkRange stream_rows(const PassPlan& plan, int thread) {
    if (plan.each_thread_prepares) return {0, plan.rows()};
    return {share(plan.rows(), thread, plan.threads), share(plan.rows(), thread + 1, plan.threads)};
}

// A narrower or wider embedding (OPT-350m), projected to the hidden size.
void project(Pass& pass, int thread, int64_t first, int64_t end, const Array<float>& x) {
    const PackedModel& model = pass.model;
    for (int64_t r = first; r < end; r++) {
        float* row = pass.delta(thread).row(r);
        model.embed(pass.plan().tokens[size_t(r)], row);
        prepare_row(pass, thread, row, model.spec.embedding_size, 0, model.project_in.depth, r, model.project_in,
                    &NodeBuffers::inputs);
    }
    pass.wait(thread);
    linear(pass, thread, pass.inputs(thread, model.project_in.depth), model.project_in, pass.plan().rows(), x.data,
           x.columns);
}

}  // namespace

// Where it is projected, that is done already.
void embed_token(const Pass& pass, int32_t token, int32_t position, float* row) {
    const PackedModel& model = pass.model;
    if (!model.spec.projected_embedding) model.embed(token, row);
    const float factor = model.spec.embedding_multiplier;
    for (int64_t i = 0; factor != 1 && i < model.spec.hidden_size; i++) row[i] *= factor;
    const float* of_position = model.position_row(position);
    if (of_position) pass.kernels.add(row, of_position, model.spec.hidden_size);
    if (model.spec.embedding_norm) normalize(pass, model.embedding_norm, row, row);
}

void embed(Pass& pass, int thread) {
    const PassPlan& plan = pass.plan();
    const auto [first, end] = stream_rows(plan, thread);
    const Array<float>& x = pass.stream(thread);
    const int32_t streams = pass.model.spec.streams.count;
    const int64_t size = pass.model.spec.hidden_size;
    if (pass.model.spec.projected_embedding) project(pass, thread, first, end, x);
    for (int64_t r = first; r < end; r++) {
        const float* given = pass.embeddings ? pass.embeddings[r] : nullptr;
        if (given) std::copy(given, given + size, x.row(r));
        else embed_token(pass, plan.tokens[size_t(r)], plan.positions[size_t(r)], x.row(r));
        for (int32_t s = 1; s < streams; s++) std::copy(x.row(r), x.row(r) + size, x.row(r) + s * size);
        if (pass.model.spec.keeps_embedding) std::copy(x.row(r), x.row(r) + size, x.row(r) + size);
    }
}

// DeepStack (Meng et al. 2024, arXiv:2406.04334).
void add_embeddings(Pass& pass, int32_t layer, int thread) {
    if (!pass.embeddings || layer < 1 || layer > pass.batch.embedding_layers) return;
    const auto [first, end] = stream_rows(pass.plan(), thread);
    const Array<float>& x = pass.stream(thread);
    const int64_t size = pass.model.spec.hidden_size;
    for (int64_t r = first; r < end; r++) {
        if (pass.embeddings[r]) pass.kernels.add(x.row(r), pass.embeddings[r] + layer * size, size);
    }
}

}  // namespace ipex_assist
