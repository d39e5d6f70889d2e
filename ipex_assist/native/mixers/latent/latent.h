// The operations of latent attention.
#pragma once
#include "operations/operations.h"

namespace ipex_assist {

void latent_linear(Pass& pass, const LayerStep& step, int thread);
void normalize_latents(Pass& pass, const LayerStep& step, int thread);
void query_linear(Pass& pass, const LayerStep& step, int thread);
void absorb_queries(Pass& pass, const LayerStep& step, int thread);
void choose_positions(Pass& pass, const LayerStep& step, int thread);  // indexer.cpp
void expand_values(Pass& pass, const LayerStep& step, int thread);

}  // namespace ipex_assist
