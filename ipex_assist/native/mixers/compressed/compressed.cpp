// Attention over keys that are values (CompressedSpec), around attention itself: queries before it, and after it the
// rotation that values bring along.
#include "mixers/compressed/compressed.h"

#include <algorithm>
#include <cstring>

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
