// The buffers of a pass: named, with shapes, placed by one list (activations.cpp), so that what is reserved and where
// everything lies cannot disagree. They lie in three kinds of memory:
//
// - shared: what threads exchange, or have their own rows or columns of;
// - of a node: what all threads read. There is one copy for each memory node: who computes a part of it writes that
//   part for every node, and who reads it reads its own node's, so that it crosses from one socket to another once and
//   not once for each core. What few threads read (queries, keys and values, activated columns) is there once.
// - of a thread: its own temporary rows.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "operations/batch.h"
#include "operations/pass_plan.h"
#include "threads/pool.h"

namespace ipex_assist {

// A buffer (rows, columns), without gaps.
template <class T>
struct Array {
    T* data = nullptr;
    int64_t rows = 0, columns = 0;
    T* row(int64_t i) const { return data + i * columns; }
};

// The rows of a linear's inputs in the form that it multiplies, before they are given a depth (kernels.h: LinearRows).
struct PreparedRows {
    Array<uint8_t> values, tiles;  // no tiles: null
    Array<float> scales;
    Array<int32_t> negated_sums;
    LinearRows with_depth(int64_t depth) const {
        return {values.data, scales.data, negated_sums.data, depth, tiles.data};
    }
};

// A token and its logit ÷ temperature + noise.
struct NoisyToken {
    double score;
    int32_t token;
};

// A row while its token is searched for (sampling.cpp).
struct SampledRow {
    NoisyToken likeliest;  // the token of the largest logit
    float largest, least;  // logits: of the row, and of what may be chosen
    float kept;            // likewise: what top-k and min-p keep
    float limit;           // weight of the token that top-p rejected last, infinity: none
    int32_t rejected;      // that token
    int32_t open;          // whether the search goes on
};

struct SharedBuffers {
    Array<float> x;             // (rows, stream_width): the residual stream
    Array<float> stream_parts;  // (rows, slices · …) of streams where each thread prepares all rows: streams.cpp
    Array<float> qkv;           // (rows, queries, keys and values)
    Array<float> attended;      // (rows, heads · value_dim)
    Array<float> per_layer;     // (rows, layers · per_layer_size): each layer's own embeddings
    Array<float> heads;         // (rows, …) of latent attention: queries, later the values of the heads
    Array<float> active;        // (rows or slots, the layer's intermediate_size): activated gate and up
    Array<float> scanned;       // (rows to scan, scan_width): queries, keys, values, decays and betas
    Array<float> partials;      // split KV's, see attention.h
    Array<float> fed_back;      // (segments, all streams): what a draft head's next rows get as their hidden states
    Array<float> low_rank;      // (windows · WINDOW_ROWS, …) A · x of rows with an adapter
    Array<float> normed;        // (rows, hidden): what a norm gives where that is read once more
    Array<float> gate_rows;     // (rows, rank) of norms with gates: the row that these are made of
    Array<float> norm_gates;    // (rows, hidden), or of all streams, as `normed` is then
    Array<float> deferred;  // (rows, hidden): what routed experts give, added after the next layer; or LAuReL's linears
    Array<float> projected;       // (rows, …): AltUp's streams but the first, projected on their way in and out
    Array<float> conv_scales;     // (rows, 2 · conv_kernel · groups): what scales the weights of both
    Array<float> cluster_scores;  // (rows with logits, clusters) of a draft head
    Array<float> contexts;        // (rows with logits, selector_rank): a row's projection, then times a token's row
    Array<float> scores;          // (rows with logits, candidates)
    Array<int32_t> candidates;    // (rows with logits, candidates): tokens
    Array<float> router_logits;   // (rows, experts)
    Array<float> expert_outputs;  // (slots, hidden)
    Array<int32_t> clusters;      // (rows with logits, clusters read) ascending
    // Of mixers, which say how much (Mixer::size): what an operation notes of a row for later operations and layers,
    // and what threads exchange during one operation.
    Array<int32_t> notes;  // (rows, …)
    Array<float> work;     // (work_rows, …)
    Array<ArgMax> maxima;  // (rows with logits, chunks of the vocabulary)
    // Of sampling: (rows with logits, groups, chunks or 1)
    Array<float> group_maxima;
    Array<NoisyToken> noisy_tokens;
    Array<WeightSums> weight_sums;
    Array<SampledRow> sampled_rows;
};

struct NodeBuffers {
    Array<float> delta;          // (rows, hidden): what is added to the residual stream next
    PreparedRows inputs;         // of the next linear
    PreparedRows down_inputs;    // of a down linear where they are made while those of up are read, and of experts'
    PreparedRows expert_inputs;  // of the experts' up linears, a row for each slot
};

struct ThreadBuffers {
    Array<float> row;            // (hidden)
    Array<float> entering;       // a draft head's token and hidden state side by side, or the latter alone
    Array<float> of_token;       // (selector_rank) a token's row of one of the selector's tables
    Array<float> ordered;        // a row in the order of a linear's input columns, where there is one
    Array<float> up;             // (ROW_BLOCK, columns of gate and up that are activated while they are in the cache)
    Array<float> x;              // (DECODE_ROWS, stream_width): the residual stream where each thread prepares all rows
    Array<float> normed;         // (DECODE_ROWS, hidden): as that of all threads, likewise
    PreparedRows inputs;         // and what the next linear gets of it
    PreparedRows slot_inputs;    // of an expert's up linear, of up to DECODE_ROWS slots
    PreparedRows head_inputs;    // of latent attention: of ROW_BLOCK rows, what the linear of a head gets
    Array<float> state;          // (key_depth, 16) of a recurrent state
    Array<int32_t> window_sums;  // of int8 rows that A is multiplied with: see adapters.cpp
    // Of attention, with a row for each query of a tile; see AttentionTile.
    Array<float> head, scores, results, running, totals, slopes, distances, query_scales, weight_scales;
    Array<int32_t> query_offsets, first, end;
    Array<uint8_t> query, probabilities, widened;
    Array<AttentionPartial> partials, runs, sums;
    Array<uint8_t> work;  // bytes that one operation of a mixer needs
};

// The sizes that the list takes: of a pass, and of the widest layer of the model.
struct ActivationSizes {
    int64_t rows, logit_rows, vocabulary_chunks, threads, nodes;
    int64_t width, qkv, attended, per_layer;    // columns of a row
    int64_t wide;                               // and of what gates of norms, and layers aside, read
    int64_t stream, stream_rows, stream_parts;  // columns of a row of the residual stream; of several streams
    int64_t between;                            // columns of rows between the linears of a mixer
    int64_t scan_rows, scan_columns, state;     // of recurrent layers; floats of a part of their state
    int64_t depth;                              // input columns of any linear that all rows enter
    int64_t active;                             // floats of activated gate and up
    int64_t partials;                           // floats
    int64_t down_values, down_columns;          // bytes of all rows of `down_inputs`, and their input columns
    int64_t router_columns, slots;              // of experts
    int64_t slot_values, slot_columns;          // bytes of the inputs of all slots, and their columns
    int64_t own_slot_values, own_slot_columns;  // of `slot_inputs`: bytes, and input columns
    int64_t ordered;                            // columns, 0 where no linear has an order of input columns
    int64_t own_value;                          // bytes of a value that each thread prepares itself
    int64_t queries, key_depth, value_width;    // of a query tile; the latter of a head before it is one, too
    int64_t fed_back_rows, entering;            // of draft heads; the latter columns
    int64_t clusters, clusters_read;            // of draft heads
    int64_t normed, conv_scales, gate_rows;     // of what is read after norms: columns of a row
    int64_t deferred, projected;                // columns of a row
    int64_t candidates, selector_rank;          // of draft heads
    int64_t heads, head_depth;                  // of latent attention: columns of a row, input columns of a head
    int64_t notes, work_rows, work, own_work;   // of mixers: columns, rows and columns, and bytes of a thread's
    int64_t low_rows, low_columns;              // of A · x; 0 without adapters
    int64_t tiles;                              // whether rows are kept as tiles, too
};

// Of each kind of memory: shared, of a node, of a thread.
struct ActivationBytes {
    int64_t shared = 0, node = 0, thread = 0;
    void include(const ActivationBytes& other);  // becomes the larger of the two in each
    int64_t total(int threads, int nodes) const;
};

// Valid at every moment of being changed, as a child of fork() must be able to free it.
class Activations {
public:
    // Places all buffers; what was in them is lost. Memory grows with the largest pass.
    void place(const ActivationSizes& sizes, Pool& pool);

    const ThreadBuffers& own(int thread) const { return threads_.as<ThreadBuffers>()[thread]; }
    const NodeBuffers& on(int node) const { return nodes_.as<NodeBuffers>()[node]; }
    int nodes() const { return int(sizes_.nodes); }  // whose threads take part in the pass
    static ActivationBytes count(const ActivationSizes& sizes);
    // What was placed so far, at most at a time.
    const ActivationBytes& most() const { return most_; }
    // f(name, begin, end) for each buffer that is placed, for tests.
    void each(const std::function<void(const char*, const void*, const void*)>& f) const;

    SharedBuffers shared;

private:
    ActivationSizes sizes_{};
    int pool_nodes_ = 0;
    ActivationBytes most_;
    Memory shared_memory_, node_memory_, thread_memory_;
    Memory nodes_, threads_;  // NodeBuffers and ThreadBuffers: no containers, see Leased
};

constexpr int64_t UP_PANELS = 16;    // of gate and up, which are activated while they are still in the cache
constexpr int64_t PADDED_ROWS = 32;  // linears may read rows up to a multiple of this
// Columns of logits whose maximum and sum of exponentials are found together.
constexpr int64_t VOCABULARY_CHUNK = 2048;
constexpr int64_t CHUNK_GROUPS = VOCABULARY_CHUNK / NOISE_GROUP;

}  // namespace ipex_assist
