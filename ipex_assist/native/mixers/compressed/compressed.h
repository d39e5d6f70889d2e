// The operations of attention over keys that are values, and entries.
#pragma once
#include "operations/attention.h"

namespace ipex_assist {

// Of entries of several positions: what is added to gates, (rate, parts · width), and the norm of an entry.
struct EntryWeights {
    const float *bias = nullptr, *norm = nullptr;
};
struct CompressedWeights : OwnWeights {
    EntryWeights entries, index_entries;  // the latter are the keys of an indexer
};

void place_queries(Pass& pass, const LayerStep& step, int thread);
void close_entries(Pass& pass, const LayerStep& step, int thread);  // entries.cpp
void attend_window(Pass& pass, const LayerStep& step, int thread);
// A row's key as later rows read it, and what entries are made of as precise as it is kept; then what later passes need
// of this one's rows, to sequences' states; and what a head attended to, (head_dim), rotated back.
void append_window(const AttentionView& v, const RowRange& range, int32_t kv_head);
void round_entry_rows(const AttentionView& v, const RowRange& range);
void keep_window(const AttentionView& v);
void turn_back(const AttentionView& v, int64_t row, float* attended);

}  // namespace ipex_assist
