// What softmax attention can get wrong, over latents as well.
#include <algorithm>
#include <cmath>

#include "mixers/attention/check.h"

namespace ipex_assist {

namespace {

void check_choice(const AttentionSpec& a) {
    const BlockChoiceSpec& c = a.choice;
    check_range("index_topk_blocks", c.blocks, 0, 1 << 16);
    if (!c.blocks) return;
    if (c.size < LANES || c.size > BLOCK_POSITIONS || BLOCK_POSITIONS % c.size || c.size % LANES)
        refuse("blocks of %d positions, of which %d are no multiple, or that are none of %d", c.size,
               int(BLOCK_POSITIONS), LANES);
    check_range("index_topk_blocks x index_block_size", int64_t(c.blocks) * c.size, 1, LARGEST);
    check_range("index_local_blocks", c.local, 1, c.blocks);
    check_range("num_key_value_heads of chosen blocks", a.kv_heads, 1, c.size);
    check_range("index_head_dim", c.dim, std::max(LANES, a.rotary_dim), 4096);
    if (c.dim % LANES) refuse("index_head_dim %d: multiples of %d are computed", c.dim, LANES);
    if (a.is_latent() || a.shares_kv || a.window || a.chunk || a.alibi_slopes || a.qk_norm == UNWEIGHTED)
        refuse("blocks that are chosen beside latents, windows, slopes or norms without weights");
}

void check_means(const AttentionSpec& a) {
    const IndexerSpec& index = a.latent.indexer;
    check_range("whether an indexer's keys are means", index.means, 0, !a.is_latent() && index.top_k > 0);
    if (!index.means) return check_range("indexer_budget", index.top_k, 0, a.is_latent() ? LARGEST : 0);
    check_range("indexer_budget", index.top_k, 1, LARGEST);
    check_range("indexer_n_heads", index.heads, 1, 4096);
    check_range("indexer_head_dim", index.dim, std::max(LANES, a.rotary_dim), 4096);
    check_range("indexer_compress_ratio", index.pool, 1, BLOCK_POSITIONS);
    if (BLOCK_POSITIONS % index.pool || index.top_k % index.pool || index.dim % LANES)
        refuse("means of %d positions, %d that are chosen, and keys of %d", index.pool, index.top_k, index.dim);
    if (!(index.norm_eps > 0) || a.shares_kv || a.window || a.chunk || a.alibi_slopes || a.choice.blocks)
        refuse("positions that are chosen beside windows, slopes or blocks, or norms without an epsilon");
}

}  // namespace

void check_attention(const ModelSpec& s, const AttentionSpec& a) {
    check_range("num_attention_heads", a.heads, 1, LARGEST);
    check_range("num_key_value_heads", a.kv_heads, 1, LARGEST);
    check_range("head_dim", a.head_dim, 1, LARGEST);
    check_range("v_head_dim", a.v_head_dim, 0, a.is_latent() ? 0 : LARGEST);
    check_range("num_attention_heads x head_dim", a.query_width(), 1, LARGEST);
    check_range("num_attention_heads x v_head_dim", a.attended_width(), 1, LARGEST);
    if (a.heads % a.kv_heads) {
        refuse("%d attention heads cannot share %d key/value heads evenly", a.heads, a.kv_heads);
    }
    check_range("an attention window", a.window, 0, INT32_MAX);
    check_range("a chunk of attention", a.chunk, 0, INT32_MAX);
    check_range("positions by which queries grow sooner", a.growth_shift, 0, LARGEST);
    check_range("rotary_dim", a.rotary_dim, 0, std::min(a.head_dim, s.rotary_width));
    check_range("paired_dim", a.paired_dim, 0, a.head_dim);
    if (a.rotary_dim % 2 || a.paired_dim % 2) {
        refuse("%d values of a head are rotated: it must be even, as halves are rotated against each other",
               a.rotary_dim % 2 ? a.rotary_dim : a.paired_dim);
    }
    check_range("the first column of a rotary table", a.rope_column, 0, int64_t(s.rotary_width) - a.rotary_dim);
    check_range("qk_norm", a.qk_norm, NO_NORM, UNWEIGHTED);
    if (a.norm_after_rope && a.qk_norm == ALL_HEADS) refuse("a norm of all heads together is before their rotation");
    if ((a.gate_per_head || a.gate_activation) && !a.output_gate) refuse("the form of a gate that is not there");
    check_range("positions over which queries grow", a.growth_step, a.growth == 0 ? 0 : 1, INT32_MAX);
    if (!std::isfinite(a.growth) || a.growth < 0)
        refuse("queries grow by %g, which must be from 0 on", double(a.growth));
    if (!std::isfinite(a.scale)) refuse("the attention scale is %g and must be a number", double(a.scale));
    check_cap(a.cap);
    if (!std::isfinite(a.value_scale) || (a.is_latent() && a.value_scale != 0))
        refuse("values are scaled by %g, which must be a number, and 0 over latents", double(a.value_scale));
    check_range("kv_lora_rank", a.latent.rank, 0, LARGEST);
    check_choice(a);
    check_means(a);
    check_range("whether queries grow by logarithms", a.log_growth, 0, a.is_latent());
    if (a.shares_kv && (a.values_are_keys || a.value_norm || a.qk_norm == ALL_HEADS))
        refuse("keys and values of another layer, and what is done to values or to all keys");
    if (a.values_are_keys && !a.is_latent() && a.value_dim() != a.head_dim)
        refuse("values of %d that are keys of %d", a.value_dim(), a.head_dim);
    if (a.values_are_keys && (a.is_latent() || a.qk_norm == ALL_HEADS))
        refuse("values that are keys, beside latents or a norm of all keys together");
    for (int32_t i = 0; a.alibi_slopes && i < a.heads; i++) {
        if (!std::isfinite(a.alibi_slopes[i])) {
            refuse("a slope of ALiBi is %g and must be a number", double(a.alibi_slopes[i]));
        }
    }
}

}  // namespace ipex_assist
