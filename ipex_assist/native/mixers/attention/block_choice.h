// Attention to blocks that a row chooses (BlockChoiceSpec).
#pragma once
#include "operations/operations.h"

namespace ipex_assist {

// First columns of the queries, and of the key, that blocks are chosen by, among those of the QKV linear.
inline int64_t choice_key_column(const AttentionSpec& a) { return a.qkv_width() - a.choice.dim; }
inline int64_t choice_query_column(const AttentionSpec& a) {
    return choice_key_column(a) - int64_t(a.kv_heads) * a.choice.dim;
}

void choose_blocks(Pass& pass, const LayerStep& step, int thread);

}  // namespace ipex_assist
