// Checks of a draft head, and of what its kind wants of its layers.
#include "packing/checks.h"

namespace ipex_assist {
namespace {

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

// What a DFlash of the second kind, or a DSpark, has; none of it elsewhere.
void check_selector(const ModelSpec& s) {
    const HeadSpec& h = s.draft_head;
    const int64_t most = h.kind == DFLASH ? LARGEST : 0;
    check_range("rows of a draft head's convolutions", h.conv_kernel, 0, most);
    check_range("columns that a convolution scales together", h.conv_group, h.conv_kernel ? 1 : 0,
                h.conv_kernel ? s.hidden_size : 0);
    check_range("tokens that one is chosen among", h.candidates, 0, most);
    check_range("columns of a selector's tables", h.selector_rank, h.candidates ? 1 : 0, most);
    check_range("columns that a confidence head reads", h.confidence_size, 0, h.candidates ? 0 : most);
    if (h.confidence_size && h.confidence_size != s.hidden_size &&
        int64_t(h.confidence_size) != int64_t(s.hidden_size) + h.selector_rank)
        refuse("a confidence head of %d columns, for rows of %d and tables of %d", h.confidence_size, s.hidden_size,
               h.selector_rank);
    if (h.conv_kernel && s.hidden_size % h.conv_group)
        refuse("%d columns in groups of %d", s.hidden_size, h.conv_group);
    if (h.candidates && h.lm_head_rows) refuse("a choice among candidates by a head of its own vocabulary");
}

}  // namespace

void check_draft_head(const ModelSpec& s) {
    const HeadSpec& h = s.draft_head;
    check_range("the kind of a draft head", h.kind, NO_DRAFT_HEAD, SHARED_KV);
    const int32_t least = s.is_draft_head() ? 1 : 0, most = s.is_draft_head() ? LARGEST : 0;
    check_range("taps of a draft head", h.taps, least, most);
    check_range("columns of a draft head's hidden states", h.input_size, least, most);
    check_range("the input norm of a draft head", h.input_norm, NO_INPUT_NORM, least ? NORM_OF_EACH : NO_INPUT_NORM);
    check_selector(s);
    check_range("rows of an lm_head", h.lm_head_rows, 0, s.tied_head ? 0 : s.vocab_size);
    if (!s.is_draft_head()) {
        if (h.shared_embedding || h.shared_head) refuse("draft heads alone take a table or a head from another model");
        return;
    }
    if (h.input_size % h.taps) refuse("%d columns of %d hidden states", h.input_size, h.taps);
    if (h.kind == MTP && h.input_size != s.streams.columns(s.hidden_size))
        refuse("a draft head of %d columns for hidden states of %d", s.hidden_size, h.input_size);
    const bool blocks = h.kind == DFLASH && !h.conv_kernel && !h.candidates && !h.input_norm;
    if (s.streams.several() && ((h.kind != MTP && (!blocks || s.streams.gated())) || h.fed_back_normed))
        refuse("several streams in a draft head of another kind, or with a norm behind them");
    if (s.reads_target()) check_reading_head(s);
    else check_range("clusters of a draft head's tokens", h.clusters, 0, 0);
    if (h.input_norm && h.kind == MTP) refuse("the norm of one hidden state is its own");
    if (s.projected_embedding || s.tied_head || s.positions) {
        refuse("a draft head with a projected embedding, a head that is its embedding, or learned positions");
    }
}

void check_draft_head_layers(const ModelSpec& s, const LayerSpec* layers) {
    if (s.draft_head.kind == EAGLE3 && (layers[0].is_recurrent() || layers[0].norm_place != PRE || layers[0].parallel))
        refuse("the first layer of an EAGLE-3 head is one of attention, with norms before it");
    for (int32_t i = 0; s.draft_head.kind == DFLASH && i < s.layers; i++) {
        const AttentionSpec& a = layers[i].attention;
        const bool other = a.is_latent() && (!a.latent.is_compressed() || a.latent.has_entries());
        if (layers[i].is_recurrent() || other || a.qk_norm == ALL_HEADS)
            refuse("layers of a DFlash head have attention over keys and values, with norms of heads or none");
        if (!s.draft_head.conv_kernel) continue;
        if (layers[i].norm_place != PRE || layers[i].parallel || layers[i].residual_multiplier != 1 ||
            !layers[i].has_mlp() || layers[i].mlp.experts || layers[i].shared_norm || a.shares_kv || s.per_layer_size)
            refuse("layers with convolutions have attention and a plain MLP, with a norm before each");
    }
}

}  // namespace ipex_assist
