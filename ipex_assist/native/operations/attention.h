// What the files of attention share.
#pragma once
#include <cstring>

#include "operations/operations.h"

namespace ipex_assist {

// A layer of a pass as one of its threads sees it.
struct AttentionView {
    AttentionView(Pass& pass, const LayerStep& step, int thread);

    KeyValueBlock block(const RowRange& rows, int32_t kv_head, int64_t block) const;
    const Segment& segment(const RowRange& rows) const { return plan.segments[size_t(rows.segment)]; }
    // Whether a KV head's part of a segment's block is on this thread's node.
    bool on_own_node(size_t segment, int64_t block, int32_t kv_head) const;
    // A row of queries, keys and values.
    const float* qkv(int64_t row) const { return pass.activations.shared.qkv.row(row); }
    float* attended(int64_t row, int32_t head) const;
    // The partial that a block belongs to, (group, partial_width), for the queries of a row; a partial is a head's
    // values, then its maximum and its sum.
    float* partial(int64_t block, int32_t kv_head, int64_t row) const;
    // As the plan has them: of latents, parts of the query heads and what each of them has.
    int32_t kv_heads() const { return splits.shape.kv_heads; }
    int32_t group() const { return splits.shape.group(); }
    int64_t partial_width() const { return spec.value_width() + LANES; }

    Pass& pass;
    const KernelTable& k;
    const PassPlan& plan;
    const AttentionPlan& splits;
    const PackedLayer& layer;
    const AttentionSpec& spec;
    const AttentionHooks& hooks;
    const Blocks& blocks;
    const ThreadBuffers& own;
    int32_t number;    // of the layer
    int32_t kv_layer;  // whose keys and values it reads
    int thread;
    int node;  // the thread's
};

// kv_append.cpp: a key, or a value, as a row of a block or a state. scale: of int8.
void keep_row(const AttentionView& v, const float* x, int32_t size, bool key, uint8_t* to, float* scale);
// Rotates and stores the keys and values of a range of rows for one KV head.
void append_rows(const AttentionView& v, const RowRange& range, int32_t kv_head);

// This thread's share of all of a pass's rows.
void append_share(const AttentionView& v);

// split_kv.cpp
// Merges, or begins with what is merged first, which then lies at `to`.
void merge_partial(const AttentionView& v, AttentionPartial& sum, const AttentionPartial& next, float* to);
void add_sink(const AttentionView& v, int32_t head, AttentionPartial& sum);
void keep_partial(const AttentionPartial& partial, float* row, int64_t width);
// Merges the partials of a row and head, and divides.
void merge_head(const AttentionView& v, int64_t row, int32_t head);
// The attended values of a head ÷ its sum, times the sigmoid of their gate.
void finish_head(const AttentionView& v, const AttentionPartial& sum, int64_t row, int32_t head);
// Merges the partials of the heads of a span of columns (AttentionShape), and prepares them for the output linear.
void merge_span(const AttentionView& v, int64_t row, int64_t span);
// This thread has done `blocks` of the blocks that a segment sees of a KV head: who does the last ones merges.
void finish_blocks(const AttentionView& v, int32_t kv_head, size_t segment, int64_t blocks);

}  // namespace ipex_assist
