// The operations of a pass. Those of the type Operation are in layers' lists (program.cpp); the others they share.
#pragma once
#include "operations/pass.h"

namespace ipex_assist {

// embedding.cpp
void embed(Pass& pass, int thread);
// What rows that are no tokens' add to the residual stream before a layer, by whoever normalises them next.
void add_embeddings(Pass& pass, int32_t layer, int thread);
// The embedding of a token at a position, where it enters the residual stream, to `row` (hidden).
void embed_token(const Pass& pass, int32_t token, int32_t position, float* row);

// draft_head_input.cpp: the tokens and hidden states of a draft head's rows enter it.
void enter_draft_head(Pass& pass, int thread);
// DFLASH: hidden states of the target as keys and values of every layer; that is the whole pass.
void append_context(Pass& pass, int thread);
// EAGLE3: the inputs of the first layer's queries, keys and values.
void prepare_token_and_hidden(Pass& pass, const LayerStep& step, int thread);
// The rows with logits as the hidden states of the rows that come after them. After `lm_head`; may end without a
// barrier.
void feed_back(Pass& pass, int thread);

// taps.cpp: copies of the residual stream where a batch asks for it.
void tap_layer(const Pass& pass, int32_t layer, int thread);  // that enters a layer
void tap_end(Pass& pass, int thread);                         // that leaves the last one, before `lm_head`

// per_layer.cpp
// Each layer's own embeddings of all rows, of a model that has them; ends before the threads' shares are all there.
void embed_per_layer(Pass& pass, int thread);
// The columns of the residual stream from one on, as `next` takes them; ends with a barrier unless each thread prepares
// all rows.
void prepare_stream(Pass& pass, int thread, int64_t column, const Linear& next);
void prepare_per_layer(Pass& pass, const LayerStep& step, int thread);
void per_layer(Pass& pass, const LayerStep& step, int thread);

// prune_rows.cpp
// Between a layer's keys and values and its attention: rows without logits end. All threads go on with the plan of the
// others, which lie side by side in every buffer that is read later.
void prune_rows(Pass& pass, const LayerStep& step, int thread);

// residual_norm.cpp
// Residual addition and norms, then the rows in the form that `next` multiplies: of all rows, or of those that `kept`
// names, which `next` gets side by side. Ends with a barrier unless each thread prepares all rows.
void residual_norm(Pass& pass, int thread, const ResidualNorm& residual, const std::vector<int32_t>* kept,
                   const Linear& next);
// streams.cpp, of a row of several streams: makes the numbers of a range of rows; what is read of a row by them, in
// `out`; and adds to its streams what was computed of that.
void weigh_streams(Pass& pass, int thread, const StreamWeights& weights, const std::vector<int32_t>* kept,
                   const WorkRange& rows);
const float* read_streams(const ModelSpec& spec, const float* x, float* out);
// What the final norm gets of a row that leaves the last layer, of which `delta` is still to be added to it: to `out`.
// room: for a copy of the row.
const float* read_last_streams(const Pass& pass, const float* x, const float* delta, float* room, float* out);
// Of gated residuals: each stream of a row through its part of a norm, to `out`, as wide.
void normalize_streams(const Pass& pass, const Norm& norm, const float* x, float* out);
void write_streams(const ModelSpec& spec, const float* delta, int64_t start, float* x);
// Of a row, as hidden states; delta: what is still to be added to it, or null.
void give_streams(const ModelSpec& spec, StreamTaps given, const float* x, const float* delta, float* to);
int64_t stream_parts(const ModelSpec& spec);  // floats that threads exchange of a row
// altup.cpp, of a row x of AltUp's streams: predicts them, and makes what a layer sees, x itself; corrects them after it,
// and makes what per-layer embeddings read, in `read`; adds what those gave to all but the first. scratch: (hidden).
float* predict_streams(const Pass& pass, const AltUpWeights& weights, float* x, float* scratch);
float* correct_streams(const Pass& pass, const AltUpWeights& weights, float* x, float* read);
void add_to_streams(const ModelSpec& spec, const float* delta, float* x);
void enter_streams(Pass& pass, int thread);  // after the embedding; may end without a barrier
void leave_streams(Pass& pass, int thread);  // before the final norm
// laurel.cpp
void laurel(Pass& pass, const LayerStep& step, int thread);
// What is added for delta: that itself, or `changed`, which is room for the row that it becomes, and may not be it.
const float* added_delta(const Pass& pass, const ResidualNorm& residual, const float* delta, float* changed);
// x, a copy of row `row` of the stream or that itself, += delta as `residual` says, likewise.
void add_delta(const Pass& pass, const ResidualNorm& residual, int64_t row, float* x, const float* delta,
               float* changed, int64_t start);
// norm_gate.cpp: the rows that a residual norm has kept, of which `gate` has the inputs, gated, in the form of `next`.
// rank: columns of the row between. Of several streams `next` gets the mean. Ends as `residual_norm` does.
void gate_rows(Pass& pass, int thread, const NormGate& gate, int64_t rank, int64_t rows, const Linear& next);
void prepare_attention(Pass& pass, const LayerStep& step, int thread);
void prepare_mlp(Pass& pass, const LayerStep& step, int thread);
void normalize(const Pass& pass, const Norm& norm, const float* x, float* out, int64_t width = 0);  // 0: hidden_size

// row_preparation.cpp
// Columns first … last of a row (width) in the form that `next` multiplies, as row `row` of `to`.
void prepare_row(const Pass& pass, int thread, const float* from, int64_t width, int64_t first, int64_t last,
                 int64_t row, const Linear& next, LinearRows to);
// Likewise for every node.
void prepare_row(const Pass& pass, int thread, const float* from, int64_t width, int64_t first, int64_t last,
                 int64_t row, const Linear& next, PreparedRows NodeBuffers::* to);
// Whether what one linear gives is prepared for the next one by whoever makes the last of a span of columns, without a
// barrier between: where that takes the columns in the order that they are computed in.
bool prepares_in_place(const Pass& pass, const Linear& next);
// All rows, or this thread's share, as `residual_norm` prepares them: row r of `width` columns is what make(r) gives,
// which may lie in memory of the thread. Ends as that does.
template <class Make>
void prepare_made(Pass& pass, int thread, int64_t width, int64_t rows, const Linear& next, const Make& make) {
    const PassPlan& plan = pass.plan();
    const bool all = plan.each_thread_prepares;
    const int64_t end = all ? rows : share(rows, thread + 1, plan.threads);
    for (int64_t r = all ? 0 : share(rows, thread, plan.threads); r < end; r++) {
        const float* made = make(r);
        if (!all) prepare_row(pass, thread, made, width, 0, next.depth, r, next, &NodeBuffers::inputs);
        else
            prepare_row(pass, thread, made, width, 0, next.depth, r, next,
                        pass.activations.own(thread).inputs.with_depth(next.depth));
    }
    if (!all) pass.wait(thread);
}
// This thread's share of rows (rows, stride).
void prepare_rows(const Pass& pass, int thread, const float* from, int64_t stride, int64_t width, int64_t rows,
                  const Linear& next);
// Columns [first, end) of rows of delta that this thread has computed, to the other nodes.
void share_delta(const Pass& pass, int thread, int64_t row, int64_t end_row, int64_t first, int64_t end);

// adapters.cpp
// What adapters add to a linear of a layer; rows: null where they add nothing.
struct AdapterTerm {
    const AdapterRows* rows = nullptr;
    int32_t layer = 0;
    LinearRole role = QKV;
};
AdapterTerm adapter_term(const Pass& pass, const LayerStep& step, LinearRole role);
// This thread's share of A · x, of the linear's inputs x; ends without a barrier.
void shrink(const Pass& pass, int thread, const AdapterTerm& term, const Linear& linear, const LinearRows& inputs);
// After a barrier: adds B · (A · x) to a block of the linear, which begins at `out`.
void expand(const Pass& pass, const AdapterTerm& term, const LinearBlock& block, float* out, int64_t stride);
// A block of a linear, which begins at `out`, of all rows of its inputs. What `expand` will read for it is prefetched
// before the last of its panels: it is little of several places in memory, and weights that stream by would push it out
// of the cache.
void multiply_before_expand(const Pass& pass, const AdapterTerm& term, const Linear& linear, const LinearRows& in,
                            const LinearBlock& block, float* out, int64_t stride);

// linear.cpp
// out (rows, stride) = linear(inputs (rows, …)); ends with a barrier. next: whose inputs these outputs become, if
// known.
void linear(Pass& pass, int thread, LinearRows inputs, const Linear& linear, int64_t rows, float* out, int64_t stride,
            const Linear* next = nullptr, const AdapterTerm& term = {});
// The first lines of what this thread reads next, before it waits for the others. Only in passes that wait for memory.
void prefetch(const Pass& pass, int thread, const Linear& next);
void qkv_linear(Pass& pass, const LayerStep& step, int thread);
void output_linear(Pass& pass, const LayerStep& step, int thread);

// per_head_linear.cpp
// This thread's blocks of a linear that has `columns` of each head in turn. Head h's inputs are the `width` columns
// from h · step on of the rows `from`; its outputs go to the columns from out + h · out_width on.
struct PerHeadRows {
    const float* from;
    int64_t from_stride, step, width;
    int64_t rows;
    float* out;
    int64_t stride, out_width;
};
void per_head_linear(const Pass& pass, int thread, const Linear& linear, int64_t columns, const PerHeadRows& x);

// rotary.cpp
void normalize_queries_and_keys(Pass& pass, const LayerStep& step, int thread);  // all heads together
// Norm and rotary embedding of one head (head_dim) of queries or keys.
void rotate_head(const Pass& pass, const PackedLayer& layer, const float* norm, const Segment& segment,
                 int32_t position, float* head);

// kv_append.cpp, and mixers/attention/attention.cpp
void append_keys_values(Pass& pass, const LayerStep& step, int thread);
void attention(Pass& pass, const LayerStep& step, int thread);
void begin_tiles(Pass& pass, const LayerStep& step, int thread);  // of layers that append nothing

// dynamic_conv.cpp: of a DFlash 2, from the rows that `residual_norm` keeps to those that attention and MLP read.
void convolve_attention(Pass& pass, const LayerStep& step, int thread);
void convolve_mlp(Pass& pass, const LayerStep& step, int thread);
// A row of delta after the second convolution, in memory of this thread.
const float* convolved_delta(const Pass& pass, int thread, const ConvWeights& conv, int64_t row);

// mlp.cpp
void mlp(Pass& pass, const LayerStep& step, int thread);
void aside_linear(Pass& pass, const LayerStep& step, int thread);  // of a layer aside, after its MLP
// A row of sparse gates: gate and up, from a column on activated columns, and in the last 16 what gates are above.
inline int64_t sparse_active(const MlpSpec& mlp) { return 2 * round_up(mlp.intermediate_size, LANES); }
inline int64_t sparse_stride(const MlpSpec& mlp) { return sparse_active(mlp) / 2 * 3 + LANES; }
// Rows (rows, stride) of `width` activated columns, of whose `panels` panels a thread has made first <= b < end.
struct ActiveRows {
    float* data;
    int64_t rows, stride, width, panels, first, end;
};
// What this thread has activated, in the form of `down`; ends with a barrier. Then what `down` reads. started: when the
// thread began to activate, for the timing.
void prepare_active(Pass& pass, int thread, const ActiveRows& x, const Linear& down, uint64_t started);
LinearRows active_inputs(const Pass& pass, int thread, const Linear& down);
// A block of gate and up, activated, to its rows and columns of `out`. term: after `shrink` and a barrier.
void activate_block(const Pass& pass, int thread, const MlpSpec& spec, const Linear& up, const LinearRows& in,
                    const LinearBlock& block, float* out, int64_t stride, const Xielu* xielu = nullptr,
                    const AdapterTerm& term = {});

// experts.cpp
void route(Pass& pass, const LayerStep& step, int thread);
void fill_slots(Pass& pass, const LayerStep& step, int thread);
void up_experts(Pass& pass, const LayerStep& step, int thread);
void prepare_slots(Pass& pass, const LayerStep& step, int thread);
void down_experts(Pass& pass, const LayerStep& step, int thread);
void add_experts(Pass& pass, const LayerStep& step, int thread);
// cached_experts.cpp: the three between, where experts are read as they are needed.
void cached_experts(Pass& pass, const LayerStep& step, int thread);
// The largest buffers of the experts of a pass.
void size_experts(const PackedLayer& layer, const KernelTable& kernels, int64_t rows, ActivationSizes& sizes);
void reserve_routes(const PackedLayer& layer, int64_t rows, Routes& routes);
int64_t counters_of_experts(const PackedLayer& layer, int64_t rows);  // of spans of columns, on the decode path

// lm_head.cpp
void lm_head(Pass& pass, int thread);

// mixers/table.cpp: what the mixer of a layer needs of buffers beside those of its columns, and its operations.
// prepare: the one that makes the rows which its first linear reads.
void size_mixer(const PackedLayer& layer, int64_t last, ActivationSizes& sizes);
void shape_mixer(const LayerSpec& layer, AttentionShape& shape);
void list_mixer_operations(const PackedLayer& layer, LayerStep& step, const Operation& prepare);

// clustered_lm_head.cpp: the same of a head whose tokens are in clusters, and the arg-max of each row among the tokens
// of the clusters that it reads, as the number of a row of lm_head. order: the token of each of these rows, null: its
// own.
void clustered_lm_head(Pass& pass, int thread);
void find_cluster_maxima(Pass& pass, const int32_t* order, int thread);

// sampling.cpp: a column for each row with logits, as `choices` has one for each; -1 where there is none. By every
// thread of the pass; ends with a barrier where confidence is asked for. Logits become those that are chosen from.
struct SampledTokens {
    const RowChoice* choices;
    const int32_t* target_tokens;  // of a draft head's columns, ascending; null: a column's number is its token
    int32_t* columns;
    float* confidence;  // draft_confidence.cpp; null: nobody asks
};
void sample_rows(Pass& pass, const SampledTokens& s, int thread);

// arg_max.cpp
void find_maxima(Pass& pass, int thread);
void describe_chunk(Pass& pass, int64_t row, int64_t chunk);  // `find_maxima` of VOCABULARY_CHUNK columns
// Of a row with logits, with the sum of exponentials over all of it; not finite where one of its logits is not.
ArgMax arg_max(const Pass& pass, int64_t row);
bool is_finite(const ArgMax& m);
// The `count` most likely tokens of a row, whose logits are finite, by descending logit.
void find_top(const Pass& pass, int64_t row, int32_t count, int32_t* tokens, float* logits);
int64_t vocabulary_columns(const Pass& pass);

// selector.cpp: of a DFlash 2, after `find_maxima`: what the tokens of all rows with logits are chosen among.
void find_candidates(Pass& pass, int thread);
// The best of a row's after the token `last`, with the sum of exponentials over all of them; as arg_max where a logit
// is not finite. Once for each row.
ArgMax choose_candidate(const Pass& pass, int thread, int64_t row, int32_t last);
// A block of a DSpark whose next token is chosen: the number of its segment, the row with its logits, the token before
// it, and how sure the head is of what follows (NAN where it does not say).
struct BlockTurn {
    int32_t segment, last;
    int64_t row;
    float confidence;
};
// Adds what follows each block's last token to the logits of its row, and describes them for `arg_max`. Once for each
// row; ends with a barrier.
void follow_last_tokens(Pass& pass, std::vector<BlockTurn>& turns, int thread);

}  // namespace ipex_assist
