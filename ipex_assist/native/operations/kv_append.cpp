// Appending the keys and values of a pass's rows to their sequences' blocks.
#include <x86intrin.h>

#include <cstring>

#include "operations/attention.h"

namespace ipex_assist {

void keep_row(const AttentionView& v, const float* x, int32_t size, bool key, uint8_t* to, float* scale) {
    const Precision precision = v.blocks.precision();
    if (precision == INT8) *scale = v.k.store_row(x, size, key, to);
    else v.k.narrow(precision == FP32 ? SOURCE_F32 : SOURCE_BF16, x, size, to);
}

namespace {

void append_keys_and_values(const AttentionView& v, const RowRange& range, int32_t kv_head) {
    const AttentionSpec& a = v.spec;
    const Precision precision = v.blocks.precision();
    const int32_t id = v.segment(range).blocks[v.plan.last_block(range.first)];
    const KeyValueBlock block = v.blocks.at(id, v.kv_layer, kv_head);
    const float* factors = v.blocks.key_factors(v.kv_layer, kv_head);
    float* head = v.own.head.data;
    for (int32_t r = range.first; r < range.end; r++) {
        const int32_t position = v.plan.positions[size_t(r)], within = position % BLOCK_POSITIONS;
        const float *key = v.qkv(r) + a.key_column() + int64_t(kv_head) * a.head_dim,
                    *value = v.qkv(r) + a.value_column() + int64_t(kv_head) * a.value_dim();
        std::memcpy(head, key, size_t(a.head_dim) * 4);
        rotate_head(v.pass, v.layer, head_norm(v.spec, v.layer.k_norm, kv_head), v.segment(range), position, head);
        for (int32_t d = 0; factors && d < a.head_dim; d++) head[d] /= factors[d];
        const PositionRow row =
            v.blocks.keeps_rows(v.kv_layer) ? v.blocks.row(id, v.kv_layer, kv_head, within) : PositionRow{};
        if (row.key) keep_row(v, head, a.head_dim, true, row.key, row.key_scale);
        else v.k.store_key(precision, head, a.head_dim, a.key_depth(), within, block);
        if (a.value_norm) {
            v.k.normalize(true, value, nullptr, nullptr, v.pass.model.spec.norm_eps, a.value_dim(), head);
            value = head;
        }
        if (row.value) keep_row(v, value, a.value_dim(), false, row.value, row.value_scale);
        else if (!row.key) v.k.store_value(precision, value, a.value_dim(), within, block);
    }
}

}  // namespace

void append_rows(const AttentionView& v, const RowRange& range, int32_t kv_head) {
    if (!v.spec.shares_kv && !v.spec.latent.is_compressed()) append_keys_and_values(v, range, kv_head);
    if (v.hooks.append) v.hooks.append(v, range, kv_head);
}

void append_share(const AttentionView& v) {
    const int64_t items = int64_t(v.plan.append_ranges.size()) * v.spec.kv_heads;
    const TeamNodes& team = v.plan.team;
    const int own = v.thread - team.first_thread(v.node), sharers = team.threads_of(v.node);
    // Those of this thread's node go round its threads.
    for (int64_t u = 0, turn = 0; u < items; u++) {
        const RowRange& range = v.plan.append_ranges[size_t(u / v.spec.kv_heads)];
        const int32_t kv_head = int32_t(u % v.spec.kv_heads);
        if (!v.on_own_node(size_t(range.segment), v.plan.last_block(range.first), kv_head)) continue;
        if (turn++ % sharers == own) append_rows(v, range, kv_head);
    }
}

// Where threads share blocks attention appends, as it is who reads a block that also writes it; but not where rows end
// before attention, or choose what they read.
void append_keys_values(Pass& pass, const LayerStep& step, int thread) {
    const AttentionPlan& plan = pass.plan().attention_of(step.index);
    if (plan.splits_kv && !plan.shape.gathering.any() && step.index != pass.pruning_layer) return;
    const uint64_t started = __rdtsc();
    append_share(AttentionView(pass, step, thread));
    if (thread == 0) pass.begin_tiles();
    pass.wait(thread);
    if (thread == 0) pass.timing.attention += __rdtsc() - started;
}

}  // namespace ipex_assist
