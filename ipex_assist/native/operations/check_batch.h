// What a batch can get wrong, refused with std::invalid_argument before any memory is touched.
#pragma once
#include "operations/batch.h"
#include "packing/model.h"

namespace ipex_assist {

// The batch, if it fits the model, the blocks and the tables, with `counts` tokens drafted after each segment, if
// given.
const Batch& checked(const PackedModel& model, const Batch& batch, const int32_t* counts);

// That of each segment `counts` rows from the first or the second on have logits, and no other.
void check_draft_blocks(const Batch& batch, const int32_t* counts);

// Which tokens of the vocabulary a draft head's are (lm_head_rows), or null.
void check_target_tokens(const ModelSpec& spec, const int32_t* tokens);

// That a model drafts as it is asked to: segments, the columns of their logits, and how tokens are chosen.
void check_draft_choices(const ModelSpec& spec, const DraftRequest& request, int32_t segments, int64_t columns);

// How tokens are chosen after `count` rows of `columns` logits.
void check_choices(const RowChoice* choices, int32_t count, int64_t columns);

}  // namespace ipex_assist
