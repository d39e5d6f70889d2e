// Norms of queries and keys, and rotary position embedding (Su et al. 2021, arXiv:2104.09864).
#include "operations/operations.h"

namespace ipex_assist {

void normalize_queries_and_keys(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const AttentionSpec& a = layer.attention;
    const float epsilon = pass.model.spec.norm_eps;
    const int64_t rows = pass.plan().rows(), end = share(rows, thread + 1, pass.plan().threads);
    for (int64_t r = share(rows, thread, pass.plan().threads); r < end; r++) {
        float *query = pass.activations.shared.qkv.row(r), *key = query + a.key_column();
        pass.kernels.normalize(true, query, layer.q_norm, nullptr, epsilon, a.query_width(), query);
        pass.kernels.normalize(true, key, layer.k_norm, nullptr, epsilon, a.key_width(), key);
    }
    pass.wait(thread);
}

void rotate_head(const Pass& pass, const PackedLayer& layer, const float* norm, const Segment& s, int32_t position,
                 float* head) {
    const AttentionSpec& a = layer.attention;
    const auto normalize_head = [&] {
        const bool rms = a.qk_norm != EACH_HEAD;
        pass.kernels.normalize(rms, head, norm, nullptr, pass.model.spec.norm_eps, a.head_dim, head);
    };
    const bool normed = norm || a.qk_norm == UNWEIGHTED;
    if (normed && !a.norm_after_rope) normalize_head();
    if (a.rotary_dim) {
        const int64_t at = int64_t(position - s.rope_start) * pass.model.spec.rotary_width + a.rope_column;
        pass.kernels.apply_rotary(head, a.rotary_dim, s.cosine + at, s.sine + at);
    }
    if (normed && a.norm_after_rope) normalize_head();
}

}  // namespace ipex_assist
