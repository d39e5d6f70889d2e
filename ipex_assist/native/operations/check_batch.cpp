#include "operations/check_batch.h"

#include <algorithm>
#include <cmath>

#include "packing/adapter.h"
#include "packing/checks.h"

namespace ipex_assist {
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
    check_range("what is given of streams", b.taps.streams, ONE_STREAM, s.streams.several() ? ALL_STREAMS : ONE_STREAM);
    const bool several = s.streams.several() || s.altup.several();
    // Those that the final norm gives, which gated residuals do not have; or of each layer all of them, or their mean.
    const bool weighed = s.streams.several() && !s.streams.gated();
    const bool known = b.taps.normed ? !b.taps.streams && weighed : b.taps.streams != ONE_STREAM;
    if (several && ((b.taps.count && !known) || b.embedding_layers))
        refuse("hidden states of a model whose residual stream has %d rows", std::max(s.streams.count, s.altup.count));
    if (b.taps.count && (!b.taps.layers || !b.taps.rows)) refuse("taps without a place for hidden states");
    const int32_t least = several && b.taps.normed ? s.layers : 0;
    for (int32_t i = 0; i < b.taps.count; i++) check_range("the layer of a tap", b.taps.layers[i], least, s.layers);
}

// Rows that are no tokens' enter where the embedding of tokens is all that enters.
void check_embeddings(const ModelSpec& s, const Batch& b) {
    check_range("layers that embeddings are for", b.embedding_layers, 0, b.embeddings ? s.layers - 1 : 0);
    if (!b.embeddings) return;
    if (s.is_draft_head() || s.projected_embedding || s.positions || s.embedding_norm)
        refuse("embeddings of rows for a model that does more than begin with them");
}

// What rows see ahead of them is in the same pass, and where their segment's tiles and splits look for it.
void check_seen_ahead(const PackedModel& model, const Batch& b) {
    check_range("whether rows see further ones in windows alone", b.ahead_in_windows, 0, b.last_seen ? 1 : 0);
    if (!b.last_seen) return;
    if (model.spec.is_draft_head()) refuse("rows of a draft head that see further ones");
    for (const PackedLayer& layer : model.layers) {
        const AttentionSpec& a = layer.attention;
        if (attends_sparsely(a)) refuse("rows that choose what they see, and see further ones");
    }
    int32_t row = 0;
    for (int32_t i = 0; i < b.segment_count; i++) {
        const int64_t end = int64_t(b.segments[i].start) + b.segments[i].rows;
        int64_t least = 0;
        for (int32_t r = 0; r < b.segments[i].rows; r++, row++) {
            least = std::max<int64_t>(least, int64_t(b.segments[i].start) + r);
            check_range("the last position that a row sees", b.last_seen[row], least, end - 1);
            least = b.last_seen[row];
        }
    }
}

void check_sizes(const PackedModel& model, const Batch& b) {
    const int32_t vocabulary = model.spec.lm_head_rows();
    check_range("rows of a pass", b.rows, 1, LARGEST);
    check_range("segments of a pass", b.segment_count, 1, b.rows);
    check_range("rows with logits", b.logit_row_count, 0, b.rows);
    check_range("the vocabulary of logits", b.vocabulary, 0, vocabulary);
    check_range("threads of a pass", b.threads, 0, LARGEST);
    check_hidden(model.spec, b);
    check_embeddings(model.spec, b);
    if (!b.tokens || !b.segments || !b.blocks || (b.logit_row_count && !b.logit_rows))
        refuse("a pass needs tokens, segments and blocks");
    if (!b.blocks->fits(model)) refuse("a pass with the blocks of another model");
    if (model.keeps_state() && !(b.states && b.states->fits(model, b.blocks->precision())))
        refuse("a pass of layers that keep states without states of their model");
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
    if (!s.rotary_width) return;
    if (!(segment.cosine && segment.sine)) refuse("rotary positions need their tables");
    const auto rotates_entries = [](const PackedLayer& layer) {
        return layer.attention.latent.has_entries() || layer.attention.has_means();
    };
    if (segment.rope_start && std::any_of(model.layers.begin(), model.layers.end(), rotates_entries))
        refuse("segment %d has a cos/sin table from position %d on, and entries and means need all", index,
               segment.rope_start);
    if (segment.start < segment.rope_start || last - segment.rope_start >= segment.rope_rows) {
        refuse("segment %d is at positions %d to %lld, and its cos/sin table holds %d from %d on", index, segment.start,
               static_cast<long long>(last), segment.rope_rows, segment.rope_start);
    }
}

// A segment has a state of its own, and the tokens after it and before `end` are among those that it keeps.
void check_states(const Batch& b) {
    std::vector<int32_t> states;
    for (int32_t i = 0; i < b.segment_count; i++) {
        const Segment& s = b.segments[i];
        check_range("the state of a segment", s.state, 0, b.states->count() - 1);
        check_range("tokens that a state has passed", s.settled, std::max(0, s.start - PENDING_ROWS), s.start);
        check_range("tokens that a state will have passed", s.settle,
                    std::max<int64_t>(s.settled, int64_t(s.start) + s.rows - PENDING_ROWS), int64_t(s.start) + s.rows);
        states.push_back(s.state);
    }
    std::sort(states.begin(), states.end());
    const auto twice = std::adjacent_find(states.begin(), states.end());
    if (twice != states.end()) refuse("state %d belongs to two segments", *twice);
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
    check_seen_ahead(model, b);
    if (!reads) check_written(b, lasts);
    if (model.keeps_state()) check_states(b);
    return b;
}

void check_draft_blocks(const Batch& b, const int32_t* counts) {
    if (b.hidden) refuse("hidden states beside a block of tokens to draft");
    int32_t row = 0, logit_row = 0;
    for (int32_t i = 0; i < b.segment_count; row += b.segments[i++].rows) {
        const int32_t first = logit_row < b.logit_row_count && b.logit_rows[logit_row] == row ? 0 : 1;
        check_range("tokens of a block", counts[i], 1, int64_t(b.segments[i].rows) - first);
        for (int32_t r = first; r < first + counts[i]; r++) {
            if (logit_row >= b.logit_row_count || b.logit_rows[logit_row++] != row + r)
                refuse("a block drafts by rows that follow each other, from its first or second on");
        }
    }
    if (logit_row != b.logit_row_count) refuse("rows with logits that no block drafts by");
}

void check_target_tokens(const ModelSpec& s, const int32_t* tokens) {
    for (int32_t i = 0; tokens && i < s.lm_head_rows(); i++) {
        if (tokens[i] < 0 || tokens[i] >= s.vocab_size)
            refuse("token %d of the draft head is %d of a vocabulary of %d", i, tokens[i], s.vocab_size);
    }
    if (!tokens && s.is_draft_head() && s.lm_head_rows() != s.vocab_size)
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
        check_range("the number of tokens since the edits", c.following_count, 0, INT32_MAX);
        for (int64_t i = 0; i < c.edit_count; i++) {
            check_range("a token whose logit changes", c.edits[i].token, i ? int64_t(c.edits[i - 1].token) + 1 : 0,
                        columns - 1);
        }
    }
}

void check_draft_choices(const ModelSpec& s, const DraftRequest& d, int32_t segments, int64_t columns) {
    if (!d.choices) return;
    if (s.draft_head.kind == DFLASH || s.draft_head.clusters) refuse("such a draft head drafts the likeliest tokens");
    for (int32_t i = 1; d.target_tokens && i < s.lm_head_rows(); i++) {
        if (d.target_tokens[i] <= d.target_tokens[i - 1]) refuse("token %d of the draft head is not above the last", i);
    }
    for (int32_t i = 0; i < segments; i++) {
        if (d.choices[i].following_count) refuse("draft %d begins after tokens that are not in its edits", i);
    }
    check_choices(d.choices, segments, d.target_tokens ? s.vocab_size : columns);
}

}  // namespace ipex_assist
