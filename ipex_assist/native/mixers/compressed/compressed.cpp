// Attention over keys that are values (CompressedSpec), around attention itself: queries before it, and after it the
// rotation that values bring along.
#include "mixers/compressed/compressed.h"

#include <algorithm>
#include <cstring>

#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {

// Each head's query passes a norm without a weight, to where attention rotates it. Keys are stored meanwhile, and what
// entries are made of.
void place_queries(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const AttentionSpec& a = layer.attention;
    const IndexerSpec& indexer = a.latent.indexer;
    const Array<float>&heads = pass.activations.shared.heads, &qkv = pass.activations.shared.qkv;
    const int64_t rows = pass.plan().rows(), end = share(rows, thread + 1, pass.plan().threads);
    for (int64_t r = share(rows, thread, pass.plan().threads); r < end; r++) {
        for (int64_t h = 0; h < a.heads; h++) {
            const float* from = heads.row(r) + h * a.head_dim;
            pass.kernels.normalize(true, from, nullptr, nullptr, pass.model.spec.norm_eps, a.head_dim,
                                   qkv.row(r) + h * a.head_dim);
        }
        const Segment& segment = pass.plan().segments[size_t(pass.plan().segment_of[size_t(r)])];
        for (int64_t h = 0; h < indexer.heads; h++) {
            rotate_head(pass, layer, nullptr, segment, pass.plan().positions[size_t(r)],
                        heads.row(r) + a.index_query_column() + h * indexer.dim);
        }
    }
    append_share(AttentionView(pass, step, thread));
    if (thread == 0) pass.begin_tiles();
    pass.wait(thread);
}

void append_window(const AttentionView& v, const RowRange& range, int32_t) {
    const AttentionSpec& a = v.spec;
    float* head = v.own.head.data;
    for (int32_t r = range.first; r < range.end; r++) {
        std::copy_n(v.qkv(r) + a.key_column(), a.head_dim, head);
        rotate_head(v.pass, v.layer, nullptr, v.segment(range), v.plan.positions[size_t(r)], head);
        const PositionRow to = window_position(v, window_row(v, r));
        keep_row(v, head, a.head_dim, true, to.key, to.key_scale);
        if (to.value) keep_row(v, head, a.value_dim(), false, to.value, to.value_scale);
    }
    round_entry_rows(v, range);
}

// The last rows of each segment, each to its place.
void keep_window(const AttentionView& v) {
    const KeptBeside kept = kept_beside(v);
    const int64_t rows = v.plan.rows(), end = share(rows, v.thread + 1, v.plan.threads);
    for (int64_t r = share(rows, v.thread, v.plan.threads); r < end; r++) {
        const Segment& s = v.plan.segments[size_t(v.plan.segment_of[size_t(r)])];
        const int64_t position = v.plan.positions[size_t(r)];
        if (position + kept.window_rows < int64_t(s.start) + s.rows) continue;
        std::memcpy(window_row(v, kept, s, position), window_row(v, r), size_t(kept.window_row));
    }
    if (v.spec.latent.has_entries()) keep_open_rows(v);
}

// All rows of the pass attend, and keep what they have, before any of them ends: they read each other's keys. Where none
// goes on, none attends; and of a block of drafted tokens nothing stays.
void attend_window(Pass& pass, const LayerStep& step, int thread) {
    if (step.index != pass.pruning_layer || pass.pruned) attention(pass, step, thread);
    if (!pass.plan().whole_segments) keep_window(AttentionView(pass, step, thread));
}

// Back by the row's own position; then into the order in which a checkpoint has a head's values: those that are rotated
// last, in pairs.
void turn_back(const AttentionView& v, int64_t row, float* attended) {
    const AttentionSpec& a = v.spec;
    const int64_t half = a.latent.rope_dim / 2, others = a.head_dim - 2 * half;
    const Segment& s = v.plan.segments[size_t(v.plan.segment_of[size_t(row)])];
    float* turned = v.own.head.data;
    std::memcpy(turned, attended, size_t(2 * half) * 4);
    if (a.rotary_dim) {
        const int64_t at =
            int64_t(v.plan.positions[size_t(row)] - s.rope_start) * v.pass.model.spec.rotary_width + a.rope_column;
        const float *cosine = s.cosine + at, *sine = s.sine + at;
        for (int64_t i = 0; i < half; i++) {
            turned[i] = attended[i] * cosine[i] - attended[half + i] * sine[i];
            turned[half + i] = attended[half + i] * cosine[half + i] - attended[i] * sine[half + i];
        }
    }
    std::memmove(attended, attended + 2 * half, size_t(others) * 4);
    for (int64_t i = 0; i < half; i++) {
        attended[others + 2 * i] = turned[i];
        attended[others + 2 * i + 1] = turned[half + i];
    }
}

}  // namespace ipex_assist
