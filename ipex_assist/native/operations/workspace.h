// How large the buffers of a pass are, and those of the largest passes that a caller will run.
#pragma once
#include "operations/pass.h"

namespace ipex_assist {

// What of a pass the sizes of its buffers depend on.
struct SizedPass {
    const Program& program;
    const PassPlan& plan;
    const PassPlan* pruned = nullptr;  // of the rows that go on after some layer; null: none, or all do
    int32_t vocabulary = 0;            // Batch::vocabulary
    const int32_t* counts = nullptr;   // tokens that will be drafted after each segment, or null
    bool any_split = false;  // whether it stands for all passes of such segments, however their partials are split

    const PackedModel& model() const { return program.model; }
    int64_t logit_columns() const { return vocabulary > 0 ? vocabulary : model().spec.lm_head_rows(); }
};

ActivationSizes activation_sizes(const SizedPass& pass);
// The head, as far as a batch asks for its vocabulary.
Linear vocabulary_head(const PackedModel& model, int32_t vocabulary);

// The largest passes that a caller will run: rows, rows with logits, and positions.
struct LargestPass {
    int32_t rows, logit_rows, context;
};

// Bytes that Activations take for such passes, by these threads.
int64_t workspace_bytes(const Program& program, const LargestPass& largest, const TeamNodes& team);

}  // namespace ipex_assist
