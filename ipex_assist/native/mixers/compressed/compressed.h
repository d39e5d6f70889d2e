// The operations of attention over keys that are values, and entries.
#pragma once
#include "operations/operations.h"

namespace ipex_assist {

void place_queries(Pass& pass, const LayerStep& step, int thread);
void close_entries(Pass& pass, const LayerStep& step, int thread);  // entries.cpp

}  // namespace ipex_assist
