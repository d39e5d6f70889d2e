// Checks of attention and of recurrent mixers.
#include <algorithm>
#include <cmath>

#include "packing/checks.h"

namespace ipex_assist {
namespace {

void check_latent(const AttentionSpec& a) {
    const LatentSpec& l = a.latent;
    check_range("kv_lora_rank", l.rank, 0, LARGEST);
    if (!l.rank) return;
    check_range("qk_rope_head_dim", l.rope_dim, LANES, LARGEST);
    check_range("qk_nope_head_dim", l.nope_dim, 1, LARGEST);
    check_range("v_head_dim", l.value_dim, 1, LARGEST);
    check_range("q_lora_rank", l.query_rank, 0, LARGEST);
    check_range("num_attention_heads x v_head_dim", a.output_width(), 1, LARGEST);
    check_range("num_attention_heads x qk_head_dim", a.latent_query_width(), 1, LARGEST);
    if (l.rank % LANES || l.rope_dim % LANES || l.value_dim % LANES) {
        refuse(
            "latent attention with kv_lora_rank %d, qk_rope_head_dim %d and v_head_dim %d: multiples of %d are "
            "computed",
            l.rank, l.rope_dim, l.value_dim, LANES);
    }
    if (a.kv_heads != 1 || a.head_dim != l.rank + l.rope_dim || a.rotary_dim > l.rope_dim || a.qk_norm || a.sinks ||
        a.output_gate || a.alibi_slopes) {
        refuse("latent attention has one key/value head of its own width, and no norms, sinks, gates or slopes");
    }
    if (!(l.norm_eps > 0)) refuse("the epsilon of a latent's norm is %g", double(l.norm_eps));
}

}  // namespace

void check_attention(const ModelSpec& s, const AttentionSpec& a) {
    check_range("num_attention_heads", a.heads, 1, LARGEST);
    check_range("num_key_value_heads", a.kv_heads, 1, LARGEST);
    check_range("head_dim", a.head_dim, 1, LARGEST);
    check_range("num_attention_heads x head_dim", a.query_width(), 1, LARGEST);
    if (a.heads % a.kv_heads) {
        refuse("%d attention heads cannot share %d key/value heads evenly", a.heads, a.kv_heads);
    }
    check_range("an attention window", a.window, 0, INT32_MAX);
    check_range("a chunk of attention", a.chunk, 0, INT32_MAX);
    check_range("positions by which queries grow sooner", a.growth_shift, 0, LARGEST);
    check_range("rotary_dim", a.rotary_dim, 0, std::min(a.head_dim, s.rope_width));
    check_range("paired_dim", a.paired_dim, 0, a.head_dim);
    if (a.rotary_dim % 2 || a.paired_dim % 2) {
        refuse("%d values of a head are rotated: it must be even, as halves are rotated against each other",
               a.rotary_dim % 2 ? a.rotary_dim : a.paired_dim);
    }
    check_range("the first column of a rotary table", a.rope_column, 0, int64_t(s.rope_width) - a.rotary_dim);
    check_range("qk_norm", a.qk_norm, NO_NORM, UNWEIGHTED);
    if (a.norm_after_rope && a.qk_norm == ALL_HEADS) refuse("a norm of all heads together is before their rotation");
    check_range("positions over which queries grow", a.growth_step, a.growth == 0 ? 0 : 1, INT32_MAX);
    if (!std::isfinite(a.growth) || a.growth < 0)
        refuse("queries grow by %g, which must be from 0 on", double(a.growth));
    if (!std::isfinite(a.scale)) refuse("the attention scale is %g and must be a number", double(a.scale));
    check_cap(a.cap);
    check_latent(a);
    if (a.shares_kv && (a.is_latent() || a.values_are_keys || a.value_norm || a.qk_norm == ALL_HEADS))
        refuse("keys and values of another layer, and what is done to values or to all keys");
    if (a.values_are_keys && (a.is_latent() || a.qk_norm == ALL_HEADS))
        refuse("values that are keys, beside latents or a norm of all keys together");
    for (int32_t i = 0; a.alibi_slopes && i < a.heads; i++) {
        if (!std::isfinite(a.alibi_slopes[i])) {
            refuse("a slope of ALiBi is %g and must be a number", double(a.alibi_slopes[i]));
        }
    }
}

void check_recurrent(const RecurrentSpec& r) {
    check_range("the kind of a recurrent mixer", r.kind, NO_RECURRENCE, MAMBA1);
    if (r.kind == NO_RECURRENCE) return;
    check_range("heads of a recurrent mixer", r.heads, 1, LARGEST);
    check_range("key heads of a recurrent mixer", r.key_heads, 1, r.heads);
    check_range("key_dim of a recurrent mixer", r.key_dim, 1, LARGEST);
    check_range("value_dim of a recurrent mixer", r.value_dim, 1, LARGEST);
    check_range("key_heads x key_dim", r.key_width(), 1, LARGEST);
    check_range("heads x value_dim", r.value_width(), 1, LARGEST);
    check_range("rows of a convolution", r.conv_kernel, 1, MOST_CONV_ROWS);
    check_range("groups of a gated norm", r.norm_groups, 0, r.heads);
    if (r.heads % r.key_heads || (r.norm_groups && r.value_width() % r.norm_groups)) {
        refuse("%d heads of a recurrent mixer in %d groups, and %d of its norm", r.heads, r.key_heads, r.norm_groups);
    }
    if (r.kind == SHORT_CONV && r.key_width() != r.value_width()) {
        refuse("%lld and %lld columns of a short convolution", static_cast<long long>(r.key_width()),
               static_cast<long long>(r.value_width()));
    }
    if (r.is_delta()) check_multiplier(r.beta_scale);
    const bool low = r.kind == KIMI_DELTA || r.kind == MAMBA1;
    check_range("the rank of gates", r.gate_rank, low ? 1 : 0, low ? LARGEST : 0);
    check_range("the norm of a selection", r.selection_norm, NOT_NORMED,
                r.kind == MAMBA1 ? NORMED_AND_WEIGHTED : NOT_NORMED);
    if (r.kind == MAMBA1 && r.heads != 1) refuse("%d heads of channels that have a step each", r.heads);
    if (r.kind == MAMBA1) check_range("key_dim x value_dim", r.key_dim * r.value_width(), 1, LARGEST);
    if (r.kind == KIMI_DELTA && (r.key_heads != r.heads || r.key_dim != r.value_dim)) {
        refuse("decays of each channel of %d key heads of %d, and %d heads of %d", r.key_heads, r.key_dim, r.heads,
               r.value_dim);
    }
    if (!std::isfinite(r.norm_eps) || r.norm_eps < 0) refuse("the epsilon of a gated norm is %g", double(r.norm_eps));
    if (!(r.least_step >= 0) || !(r.most_step >= r.least_step)) {
        refuse("steps from %g to %g", double(r.least_step), double(r.most_step));
    }
}

}  // namespace ipex_assist
