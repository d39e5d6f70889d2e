// What callers can get wrong, refused with std::invalid_argument before any memory is touched.
#include "abi/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>

#include "packing/adapter.h"

namespace ipex_assist {

void refuse(const char* format, ...) {
    char message[400];
    va_list values;
    va_start(values, format);
    std::vsnprintf(message, sizeof message, format, values);
    va_end(values);
    throw std::invalid_argument(message);
}

namespace {

// Sizes of a model, each and the products of two, stay far below what 64 bits hold; PackedModel::take sees to the sum
// of all.
constexpr int64_t LARGEST = 1 << 24, MOST_LAYERS = 4096;

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        refuse("%s is %lld and must be from %lld to %lld", name, static_cast<long long>(value),
               static_cast<long long>(least), static_cast<long long>(most));
    }
}

void check_multiplier(float factor) {
    if (!std::isfinite(factor) || factor == 0) refuse("a multiplier is %g and must be a number but 0", double(factor));
}

void check_cap(float cap) {
    if (!std::isfinite(cap) || cap < 0) refuse("a soft cap is %g and must be a number from 0 on", double(cap));
}

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

void check_int4_group(const ModelSpec& s, Precision precision) {
    if (precision == INT4 && s.group != 32 && s.group != 64 && s.group != 128)
        refuse("groups of %d columns in int4: they have 32, 64 or 128", s.group);
}

void check_routing(const MlpSpec& m) {
    check_range("scores of experts", m.scores, SOFTMAX, SPARSEMIXER);
    check_range("experts that a group is judged by", m.best_of_group, 1, 2);
    check_range("groups of experts", m.groups, 1, m.experts);
    check_range("groups of a token", m.groups_per_token, 1, m.groups);
    const int32_t each = m.experts / m.groups;
    if (m.groups > 1 && (m.experts % m.groups || each < m.best_of_group))
        refuse("%d experts in %d groups, which are judged by %d of theirs", m.experts, m.groups, m.best_of_group);
    if (m.experts_per_token > each * m.groups_per_token)
        refuse("%d experts of a token in %d groups of %d", m.experts_per_token, m.groups_per_token, each);
    check_range("whether inputs of experts are scaled", m.scales_inputs, 0, 1);
    if (m.scores == SPARSEMIXER && m.experts_per_token != 2)
        refuse("%d experts of a token, and sparsemixer chooses 2", m.experts_per_token);
    check_multiplier(m.scaling);
    for (const float number : {m.added_to_sum, m.least_sum, m.jitter}) {
        if (!std::isfinite(number) || number < 0)
            refuse("a number of the routing is %g and must be from 0 on", double(number));
    }
}

void check_mlp(const ModelSpec& s, const MlpSpec& m) {
    check_range("intermediate_size", m.intermediate_size, m.experts ? 1 : 0, LARGEST);  // 0: no MLP
    check_range(m.experts ? "precision of experts" : "precision", m.precision, FP32, FP8);
    check_int4_group(s, m.precision);
    check_range("activation", m.activation, SILU, m.gated ? CLAMPED_SWIGLU : XIELU);
    if (m.activation == XIELU && m.gated) refuse("xIELU is of MLPs without a gate");
    check_range("experts of a layer", m.experts, 0, 1024);
    check_range("experts of a token", m.experts_per_token, m.experts ? 1 : 0, m.experts);
    check_range("the shared expert's intermediate_size", m.shared_size, 0, m.experts ? LARGEST : 0);
    if (m.shared_gate && !m.shared_size) refuse("a gate of a shared expert that is not there");
    if (m.own_norms && (!m.shared_size || m.shared_gate)) refuse("norms of experts, and no shared one without a gate");
    if (m.expert_scales && !m.experts) refuse("scales of experts that are not there");
    if (m.experts) check_routing(m);
}

void check_layer(const ModelSpec& s, const LayerSpec& layer) {
    check_recurrent(layer.recurrent);
    if (!layer.is_recurrent()) check_attention(s, layer.attention);
    else if (layer.attention.kv_heads)
        refuse("a layer with a recurrent mixer and %d key/value heads", layer.attention.kv_heads);
    check_mlp(s, layer.mlp);
    check_range("norm_place", layer.norm_place, PRE, SANDWICH);
    check_multiplier(layer.residual_multiplier);
    if (layer.parallel && layer.norm_place != PRE) refuse("norms of parallel layers are before them");
    if (layer.shared_norm && !layer.parallel) refuse("attention and MLP share a norm in parallel layers only");
    if ((layer.mlp.experts || !layer.has_mlp()) && layer.parallel) refuse("experts, or nothing, parallel to attention");
    if (layer.mlp.own_norms && layer.norm_place != SANDWICH) refuse("norms of experts are within those around them");
    const bool plain = layer.mlp.activation != XIELU && layer.mlp.activation != CLAMPED_SWIGLU;
    if (s.per_layer_size && (!layer.has_mlp() || layer.parallel || !plain))
        refuse("per-layer embeddings follow an MLP that is not parallel, and have its activation of one number");
}

// A layer that reads the keys and values of an earlier one, which has some as wide; or, of a draft head, the target's.
void check_kv_layer(const ModelSpec& s, const LayerSpec* layers, int32_t number) {
    const AttentionSpec& a = layers[number].attention;
    if (s.reads_target()) {
        if (layers[number].is_recurrent() || !a.shares_kv || a.is_latent() || a.qk_norm == ALL_HEADS || a.chunk)
            refuse("layer %d of a draft head does not read keys and values of its target alone", number);
        return check_range("the target's layer whose keys and values are read", a.kv_layer, 0, MOST_LAYERS - 1);
    }
    if (layers[number].is_recurrent() || !a.shares_kv) return;
    check_range("the layer whose keys and values are read", a.kv_layer, 0, int64_t(number) - 1);
    const LayerSpec& other = layers[a.kv_layer];
    if (other.is_recurrent() || other.attention.shares_kv || other.attention.is_latent())
        refuse("layer %d reads the keys and values of layer %d, which has none of its own", number, a.kv_layer);
    if (other.attention.kv_heads != a.kv_heads || other.attention.head_dim != a.head_dim) {
        refuse("layer %d reads %d key/value heads of %d, and layer %d has %d of %d", number, a.kv_heads, a.head_dim,
               a.kv_layer, other.attention.kv_heads, other.attention.head_dim);
    }
}

// A mixer beside that of the layer before, which ends with it.
void check_beside(const LayerSpec* layers, int32_t number) {
    if (!layers[number].beside) return;
    const bool alone = number == 0 || layers[number - 1].has_mlp() || layers[number - 1].norm_place != PRE;
    if (alone || layers[number].norm_place != PRE)
        refuse("the mixer of layer %d beside that of one before it, which ends with an MLP or a norm", number);
}

// A head that reads keys and values of its target.
void check_reading_head(const ModelSpec& s) {
    const HeadSpec& h = s.draft_head;
    if (h.taps != 1 || h.input_norm || !h.shared_embedding || h.shared_head || h.lm_head_rows || s.embedding_norm)
        refuse("a draft head that reads its target takes one hidden state as it is, and has an lm_head of its own");
    check_range("clusters of a draft head's tokens", h.clusters, 0, s.vocab_size);
    check_range("clusters that a row reads", h.clusters_read, h.clusters ? 1 : 0, h.clusters);
    if (h.clusters && (s.vocab_size % h.clusters || s.logit_cap > 0))
        refuse("%d tokens in %d clusters, or with a cap of their logits", s.vocab_size, h.clusters);
}

// What a DFlash of the second kind has; none of it elsewhere.
void check_second_kind(const ModelSpec& s) {
    const HeadSpec& h = s.draft_head;
    const int64_t most = h.kind == DFLASH ? LARGEST : 0;
    check_range("taps of a draft head's convolutions", h.conv_taps, 0, most);
    check_range("columns that a convolution scales together", h.conv_group, h.conv_taps ? 1 : 0,
                h.conv_taps ? s.hidden_size : 0);
    check_range("tokens that one is chosen among", h.candidates, 0, most);
    check_range("columns of a selector's tables", h.selector_rank, h.candidates ? 1 : 0, h.candidates ? most : 0);
    if (h.conv_taps && s.hidden_size % h.conv_group) refuse("%d columns in groups of %d", s.hidden_size, h.conv_group);
    if (h.candidates && h.lm_head_rows) refuse("a choice among candidates by a head of its own vocabulary");
}

void check_draft_head(const ModelSpec& s) {
    const HeadSpec& h = s.draft_head;
    check_range("the kind of a draft head", h.kind, NO_DRAFT_HEAD, SHARED_KV);
    const int32_t least = s.is_draft_head() ? 1 : 0, most = s.is_draft_head() ? LARGEST : 0;
    check_range("taps of a draft head", h.taps, least, most);
    check_range("columns of a draft head's hidden states", h.input_size, least, most);
    check_range("the input norm of a draft head", h.input_norm, NO_INPUT_NORM, least ? NORM_OF_EACH : NO_INPUT_NORM);
    check_second_kind(s);
    check_range("rows of a draft head's lm_head", h.lm_head_rows, 0, s.is_draft_head() ? s.vocab_size : 0);
    if (!s.is_draft_head()) {
        if (h.shared_embedding || h.shared_head) refuse("draft heads alone take a table or a head from another model");
        return;
    }
    if (h.input_size % h.taps) refuse("%d columns of %d hidden states", h.input_size, h.taps);
    if (h.kind == MTP && h.input_size != s.hidden_size)
        refuse("a draft head of %d columns for hidden states of %d", s.hidden_size, h.input_size);
    if (s.reads_target()) check_reading_head(s);
    else check_range("clusters of a draft head's tokens", h.clusters, 0, 0);
    if (h.input_norm && h.kind == MTP) refuse("the norm of one hidden state is its own");
    if (s.projected_embedding || s.tied_head || s.positions) {
        refuse("a draft head with a projected embedding, a head that is its embedding, or learned positions");
    }
}

void check_model(const ModelSpec& s) {
    check_range("num_hidden_layers", s.layers, 1, MOST_LAYERS);
    check_range("vocab_size", s.vocab_size, 1, LARGEST);
    check_range("hidden_size", s.hidden_size, 1, LARGEST);
    check_range("embedding_size", s.embedding_size, 1, LARGEST);
    check_range("rows of the position table", s.positions, 0, LARGEST);
    check_range("position_offset", s.position_offset, 0, LARGEST);
    check_range("rope_width", s.rope_width, 0, LARGEST);
    check_range("precision", s.precision, FP32, FP8);
    check_range("outer_precision", s.outer_precision, FP32, FP8);
    check_int4_group(s, s.precision);
    check_int4_group(s, s.outer_precision);
    const bool head_is_table = s.tied_head && (s.precision == FP32 || s.precision == BF16);
    if (head_is_table && s.outer_precision != s.precision)
        refuse("a head that is the embedding has its precision, too");
    if (!std::isfinite(s.norm_eps) || s.norm_eps < 0)
        refuse("the norms' epsilon is %g and must be a number from 0 on", double(s.norm_eps));
    check_multiplier(s.embedding_multiplier);
    check_cap(s.logit_cap);
    check_draft_head(s);
    check_range("the size of per-layer embeddings", s.per_layer_size, 0, 1 << 14);
    check_range("layers x the size of per-layer embeddings", s.per_layer_width(), 0, LARGEST);
    if (!s.projected_embedding && s.embedding_size != s.hidden_size) {
        refuse("an embedding of %d for a hidden size of %d needs projections", s.embedding_size, s.hidden_size);
    }
}

}  // namespace

const ModelSpec& checked(const ModelSpec& s, const LayerSpec* layers) {
    check_model(s);
    for (int32_t i = 0; i < s.layers; i++) {
        check_layer(s, layers[i]);
        check_kv_layer(s, layers, i);
        check_beside(layers, i);
    }
    if (s.draft_head.kind == EAGLE3 && (layers[0].is_recurrent() || layers[0].norm_place != PRE || layers[0].parallel))
        refuse("the first layer of an EAGLE-3 head is one of attention, with norms before it");
    for (int32_t i = 0; s.draft_head.kind == DFLASH && i < s.layers; i++) {
        const AttentionSpec& a = layers[i].attention;
        if (layers[i].is_recurrent() || a.is_latent() || a.qk_norm == ALL_HEADS)
            refuse("layers of a DFlash head have attention over keys and values, with norms of heads or none");
        if (!s.draft_head.conv_taps) continue;
        if (layers[i].norm_place != PRE || layers[i].parallel || layers[i].residual_multiplier != 1 ||
            !layers[i].has_mlp() || layers[i].mlp.experts || layers[i].shared_norm || a.shares_kv || s.per_layer_size)
            refuse("layers with convolutions have attention and a plain MLP, with a norm before each");
    }
    return s;
}

namespace {

void check_hidden(const ModelSpec& s, const Batch& b) {
    const bool given = b.hidden != nullptr;
    if (s.draft_head.feeds_back() && !given) refuse("a draft head needs hidden states of its target, or its own");
    if (!s.is_draft_head() && given) refuse("hidden states are given to draft heads alone");
    check_range("hidden states that are the head's own", b.own_hidden, 0,
                s.draft_head.feeds_back() && !s.reads_target() ? 1 : 0);
    if (s.draft_head.kind == DFLASH && given && (b.logit_row_count || b.taps.count))
        refuse("hidden states become keys and values alone, without logits");
    check_range("taps of a pass", b.taps.count, 0, LARGEST);
    check_range("whether taps are of rows with logits", b.taps.of_logit_rows, 0, 1);
    if (b.taps.count && (!b.taps.layers || !b.taps.rows)) refuse("taps without a place for hidden states");
    for (int32_t i = 0; i < b.taps.count; i++) check_range("the layer of a tap", b.taps.layers[i], 0, s.layers);
}

void check_sizes(const PackedModel& model, const Batch& b) {
    const int32_t vocabulary = model.spec.lm_head_rows();
    check_range("rows of a pass", b.rows, 1, LARGEST);
    check_range("segments of a pass", b.segment_count, 1, b.rows);
    check_range("rows with logits", b.logit_row_count, 0, b.rows);
    check_range("the vocabulary of logits", b.vocabulary, 0, vocabulary);
    check_range("threads of a pass", b.threads, 0, LARGEST);
    check_hidden(model.spec, b);
    if (!b.tokens || !b.segments || !b.blocks || (b.logit_row_count && !b.logit_rows))
        refuse("a pass needs tokens, segments and blocks");
    if (!b.blocks->fits(model)) refuse("a pass with the blocks of another model");
    if (model.is_recurrent() && !(b.states && b.states->fits(model)))
        refuse("a pass of recurrent layers without states of their model");
    for (int32_t i = 0; i < b.logit_row_count; i++) {
        check_range("a row with logits", b.logit_rows[i], i ? int64_t(b.logit_rows[i - 1]) + 1 : 0,
                    int64_t(b.rows) - 1);
    }
    if (b.logit_row_count == 0) return;
    const bool some = b.vocabulary > 0 && !model.spec.draft_head.clusters;
    const int64_t columns = round_up(some ? b.vocabulary : vocabulary, LANES);
    if (!b.logits || b.stride < columns) {
        refuse("logits of %lld columns for a vocabulary that takes %lld",
               static_cast<long long>(b.logits ? b.stride : 0), static_cast<long long>(columns));
    }
}

// The positions of a segment up to `last` are in its table and the pool.
void check_table(const Batch& b, int32_t index, int64_t last) {
    const Segment& segment = b.segments[index];
    if (!segment.blocks || last / BLOCK_POSITIONS >= segment.block_count) {
        refuse("segment %d goes up to position %lld, and its table has %d blocks of %d", index,
               static_cast<long long>(last), segment.blocks ? segment.block_count : 0, BLOCK_POSITIONS);
    }
    for (int64_t i = 0; i <= last / BLOCK_POSITIONS; i++) {
        if (segment.blocks[i] < 0 || segment.blocks[i] >= b.blocks->count()) {
            refuse("segment %d has block %d of a pool of %lld", index, segment.blocks[i],
                   static_cast<long long>(b.blocks->count()));
        }
    }
}

// The positions of a segment up to `last`, of what is drafted after it, are in its table, the position tables and the
// pool; of a head that reads its target, those before it are in the table.
void check_segment(const PackedModel& model, const Batch& b, int32_t index, int64_t last) {
    const ModelSpec& s = model.spec;
    const Segment& segment = b.segments[index];
    if (segment.start < 0 || last >= INT32_MAX)
        refuse("segment %d is at position %lld", index,
               static_cast<long long>(segment.start < 0 ? segment.start : last));
    if (s.reads_target() && (segment.start < 1 || segment.rows != 1))
        refuse("segment %d has %d rows at position %d, and one after those of its target drafts", index, segment.rows,
               segment.start);
    if (segment.adapter && !segment.adapter->is_of(model)) refuse("segment %d has the adapter of another model", index);
    if (segment.adapter && !std::isfinite(segment.adapter_scale))
        refuse("segment %d has an adapter with a scale of %g", index, double(segment.adapter_scale));
    check_table(b, index, s.reads_target() ? int64_t(segment.start) - 1 : last);
    if (s.positions) {
        if (last + s.position_offset >= s.positions) {
            refuse("segment %d is at position %lld, and the model has %d", index, static_cast<long long>(last),
                   s.positions - s.position_offset);
        }
    }
    if (!s.rope_width) return;
    if (!(segment.cosine && segment.sine)) refuse("rotary positions need their tables");
    if (segment.start < segment.rope_start || last - segment.rope_start >= segment.rope_rows) {
        refuse("segment %d is at positions %d to %lld, and its cos/sin table holds %d from %d on", index, segment.start,
               static_cast<long long>(last), segment.rope_rows, segment.rope_start);
    }
}

// A segment's state, and the tokens behind it and before `end`, are in its slot, which no other segment has.
void check_states(const Batch& b) {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < b.segment_count; i++) {
        const Segment& s = b.segments[i];
        check_range("the state of a segment", s.state, 0, b.states->count() - 1);
        check_range("tokens that a state is behind", s.settled, std::max(0, s.start - PENDING_ROWS), s.start);
        check_range("tokens that a state will be behind", s.settle,
                    std::max<int64_t>(s.settled, int64_t(s.start) + s.rows - PENDING_ROWS), int64_t(s.start) + s.rows);
        slots.push_back(s.state);
    }
    std::sort(slots.begin(), slots.end());
    const auto twice = std::adjacent_find(slots.begin(), slots.end());
    if (twice != slots.end()) refuse("state %d belongs to two segments", *twice);
}

// What a segment writes, nobody else may read or write in this pass, nor may it be in its own table twice.
void check_written(const Batch& b, const std::vector<int64_t>& lasts) {
    std::vector<int32_t> written;
    for (int32_t i = 0; i < b.segment_count; i++) {
        const Segment& s = b.segments[i];
        for (int64_t at = s.start / BLOCK_POSITIONS; at <= lasts[size_t(i)] / BLOCK_POSITIONS; at++)
            written.push_back(s.blocks[at]);
    }
    std::sort(written.begin(), written.end());
    const auto twice = std::adjacent_find(written.begin(), written.end());
    if (twice != written.end()) refuse("block %d is written by two segments", *twice);
    for (int32_t i = 0; i < b.segment_count; i++) {
        const Segment& s = b.segments[i];
        for (int64_t at = 0; at < s.start / BLOCK_POSITIONS; at++) {
            if (std::binary_search(written.begin(), written.end(), s.blocks[at])) {
                refuse("block %d is written while segment %d reads it", s.blocks[at], i);
            }
        }
    }
}

}  // namespace

const Batch& checked(const PackedModel& model, const Batch& b, const int32_t* counts) {
    if (!model.ready()) {
        if (!model.has_memory()) refuse("the model has no weights yet");
        if (model.missing() == 0) refuse("a draft head without its target's embedding or head");
        refuse("%lld of the model's weights are not packed yet", static_cast<long long>(model.missing()));
    }
    const bool reads = model.spec.reads_target();
    if (reads && !counts) refuse("a draft head that reads its target does nothing but draft");
    check_sizes(model, b);
    if (counts && b.taps.count) refuse("a draft gives no hidden states");
    int64_t rows = 0;
    std::vector<int64_t> lasts;
    for (int32_t i = 0; i < b.segment_count; i++) {
        check_range("rows of a segment", b.segments[i].rows, 1, b.rows);
        if (counts) check_range("tokens drafted after a segment", counts[i], 1, LARGEST);
        rows += b.segments[i].rows;
        // The last drafted token is not fed.
        const int64_t further = counts && !reads ? counts[i] - 1 : 0;
        lasts.push_back(int64_t(b.segments[i].start) + b.segments[i].rows - 1 + further);
        check_segment(model, b, i, lasts.back());
        if (counts && (b.logit_row_count != b.segment_count || b.logit_rows[i] != rows - 1))
            refuse("drafting takes the last row of each segment");
    }
    if (rows != b.rows) refuse("%d rows of a pass, and %lld of its segments", b.rows, static_cast<long long>(rows));
    for (int32_t r = 0; r < b.rows; r++) {
        if (b.tokens[r] < 0 || b.tokens[r] >= model.spec.vocab_size) {
            refuse("token id %d of a vocabulary of %d", b.tokens[r], model.spec.vocab_size);
        }
    }
    if (!reads) check_written(b, lasts);
    if (model.is_recurrent()) check_states(b);
    return b;
}

void check_draft_blocks(const Batch& b, const int32_t* counts) {
    if (b.hidden) refuse("hidden states beside a block of tokens to draft");
    int32_t row = 0, logit_row = 0;
    for (int32_t i = 0; i < b.segment_count; row += b.segments[i++].rows) {
        check_range("tokens of a block", counts[i], 1, int64_t(b.segments[i].rows) - 1);
        for (int32_t r = 1; r <= counts[i]; r++) {
            if (logit_row >= b.logit_row_count || b.logit_rows[logit_row++] != row + r)
                refuse("a block drafts by its rows after the first");
        }
    }
    if (logit_row != b.logit_row_count) refuse("a block drafts by its rows after the first");
}

void check_target_tokens(const ModelSpec& s, const int32_t* tokens) {
    for (int32_t i = 0; tokens && i < s.lm_head_rows(); i++) {
        if (tokens[i] < 0 || tokens[i] >= s.vocab_size)
            refuse("token %d of the draft head is %d of a vocabulary of %d", i, tokens[i], s.vocab_size);
    }
    if (!tokens && s.lm_head_rows() != s.vocab_size)
        refuse("a draft head of %d tokens needs what they are", s.lm_head_rows());
}

void check_choices(const RowChoice* choices, int32_t count, int64_t columns) {
    for (int32_t row = 0; row < count; row++) {
        const RowChoice& c = choices[row];
        if (!c.rule) refuse("row %d is chosen by no rule", row);
        const SamplingRule& r = *c.rule;
        if (!std::isfinite(r.temperature) || r.temperature < 0)
            refuse("a temperature is %g and must be a number from 0 on", r.temperature);
        if (!(r.top_p > 0 && r.top_p <= 1)) refuse("top_p is %g and must be above 0 and at most 1", r.top_p);
        if (!(r.min_p_distance <= 0)) refuse("the distance of min_p is %g and must be at most 0", r.min_p_distance);
        check_range("top_k", r.top_k, 0, INT32_MAX);
        check_range("the position of an output token", c.position, 0, INT64_MAX - 1);
        for (int64_t i = 0; i < c.edit_count; i++) {
            check_range("a token whose logit changes", c.edits[i].token, i ? int64_t(c.edits[i - 1].token) + 1 : 0,
                        columns - 1);
        }
    }
}

}  // namespace ipex_assist
