// The operations of latent attention.
#pragma once
#include "operations/operations.h"

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

}  // namespace ipex_assist
