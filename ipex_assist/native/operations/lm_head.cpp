// The final norm and the head: logits of the rows with logits.
#include "operations/operations.h"

namespace ipex_assist {
namespace {

// Hidden rows back to the width of the embedding (OPT-350m), in the form that the head multiplies.
void project_out(Pass& pass, int thread, int64_t count) {
    const PackedModel& model = pass.model;
    const Array<float>& delta = pass.delta(thread);
    const LinearRows rows = pass.activations.on(pass.node(thread)).inputs.with_depth(model.project_out.depth);
    linear(pass, thread, rows, model.project_out, count, delta.data, delta.columns, &pass.head);
    for (int64_t r = share(count, thread, pass.plan().threads); r < share(count, thread + 1, pass.plan().threads);
         r++) {
        prepare_row(pass, thread, delta.row(r), model.spec.embedding_size, 0, model.head.depth, r, model.head,
                    &NodeBuffers::inputs);
    }
    pass.wait(thread);
}

void cap_logits(Pass& pass, int thread) {
    const int64_t panels = pass.head.panels, items = int64_t(pass.plan().logit_rows.size()) * panels;
    const float cap = pass.model.spec.logit_cap;
    for (int64_t i = share(items, thread, pass.plan().threads); i < share(items, thread + 1, pass.plan().threads);
         i++) {
        float* logits = pass.batch.logits + i / panels * pass.batch.stride + i % panels * LANES;
        pass.kernels.soft_cap(logits, LANES, 1 / cap, cap);
    }
    pass.wait(thread);
}

}  // namespace

void lm_head(Pass& pass, int thread) {
    if (pass.model.spec.draft_head.clusters) return clustered_lm_head(pass, thread);
    const int64_t count = int64_t(pass.plan().logit_rows.size());
    const NormGate& gate = pass.model.head_gate;
    const int64_t rank = pass.model.spec.streams.gate_rank;
    residual_norm(pass, thread, pass.model.into_head, &pass.plan().logit_rows, rank ? gate.down : pass.after_layers());
    if (rank) gate_rows(pass, thread, gate, rank, count, pass.after_layers());
    if (pass.model.spec.projected_embedding) project_out(pass, thread, count);
    linear(pass, thread, pass.inputs(thread, pass.head.depth), pass.head, count, pass.batch.logits, pass.batch.stride);
    if (pass.model.spec.logit_cap > 0) cap_logits(pass, thread);
}

}  // namespace ipex_assist
