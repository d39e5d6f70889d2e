// The operations of latent attention.
#pragma once
#include "operations/attention.h"

namespace ipex_assist {

// Of the first linear's columns, the first of the row that queries are made of.
inline int64_t row_column(const AttentionSpec& a) {
    return a.index_key_column() - round_up(a.latent.query_rank, LANES);
}

MixerColumns latent_columns(const LayerSpec& layer);
void latent_linear(Pass& pass, const LayerStep& step, int thread);
void normalize_latents(Pass& pass, const LayerStep& step, int thread);
void query_linear(Pass& pass, const LayerStep& step, int thread);
void absorb_queries(Pass& pass, const LayerStep& step, int thread);
void index_queries(Pass& pass, const LayerStep& step, int thread);  // indexer.cpp, as the next
void choose_positions(Pass& pass, const LayerStep& step, int thread);
void expand_values(Pass& pass, const LayerStep& step, int thread);
// The key of an indexer, which is kept of a row, and a block of what a row attends to (AttentionHooks).
void append_index_keys(const AttentionView& v, const RowRange& range, int32_t kv_head);
KeyValueBlock gather_block(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block);
// What pools and entries that are open may need of this pass's rows: of each segment the last ones, by all threads.
void keep_open_rows(const AttentionView& v);
// Layers that choose positions choose as many, and those without an indexer have one before them; and what rows see.
void check_chosen(const LayerSpec* layers, int32_t number);
void shape_chosen(const AttentionSpec& a, AttentionShape& shape);

}  // namespace ipex_assist
