// Attention to blocks that a row chooses (BlockChoiceSpec).
#pragma once
#include <algorithm>

#include "operations/attention.h"

namespace ipex_assist {

// First columns of the queries, and of the key, that blocks are chosen by, among those of the QKV linear.
inline int64_t choice_key_column(const AttentionSpec& a) { return a.qkv_width() - a.choice.dim; }
inline int64_t choice_query_column(const AttentionSpec& a) {
    return choice_key_column(a) - int64_t(a.kv_heads) * a.choice.dim;
}

// What a row attends to where it chooses blocks: the last of these is its own, up to its position.
struct BlockSight {
    int32_t positions, size;

    bool chooses(int64_t position) const { return position >= positions; }
    int64_t gathered(int64_t position) const {
        return chooses(position) ? positions - (size - 1) + position % size : 0;
    }
    int64_t most(int64_t last) const { return std::min<int64_t>(last + 1, positions); }
};
inline BlockSight sight_of(const BlockChoiceSpec& choice) { return {choice.positions(), choice.size}; }

// Of pools of means (QSA), too.
struct ChoiceWeights : OwnWeights {
    const float *query_norm = nullptr, *key_norm = nullptr;  // of what blocks, or pools, are chosen by: (dim) each
};

// Of what is kept of a row, and a block of what it attends to (AttentionHooks).
void append_choice_keys(const AttentionView& v, const RowRange& range, int32_t kv_head);
KeyValueBlock gather_choice(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block);
void choose_blocks(Pass& pass, const LayerStep& step, int thread);

}  // namespace ipex_assist
