// One pass of rows through a model, by all threads of a pool in one parallel region.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "kv_cache/blocks.h"

namespace ipex_assist {

// The rows of one sequence in a pass, at consecutive positions.
struct Stretch {
    const int32_t* blocks;  // the sequence's table: the block of positions 256 · i to 256 · i + 255 is blocks[i]
    int32_t block_count;
    int32_t start, rows;  // its rows are at positions start, start + 1, …
    // Rotation tables (table_rows, rotary_tables, rotary_dim) of positions from `table_start` on; null where none turn.
    int32_t table_start, table_rows;
    const float* cosine;
    const float* sine;
};

// Rows of any sequences; tokens in the order of the stretches. What a stretch writes is its own: no other stretch has
// these blocks in its table.
struct Batch {
    int32_t stretch_count, rows;
    const Stretch* stretches;
    const int32_t* tokens;  // (rows)
    const Blocks* blocks;
    const int32_t* wanted;  // ascending numbers of the rows whose logits are wanted
    int32_t wanted_count;
    int32_t vocabulary;  // logits are wanted of the first so many tokens, 0: of all
    float* logits;       // (wanted_count, stride)
    int64_t stride;      // at least the vocabulary, rounded up to 16
    int32_t threads;     // of the pool, its first ones, that run the pass; 0, or more than it has: all. Changes no bit
};

// What drafting behind a pass may do, and what it did; arrays have an element, or a row of `stride`, for each stretch.
struct Drafts {
    const int32_t* counts;  // tokens at most, from 1 to `stride`
    const float* least;     // a token with a smaller probability is the last
    int64_t stride;
    int32_t* tokens;       // -1 where logits hold NaN or infinity, which ends the draft, too
    float* probabilities;  // NaN there
    int32_t* drafted;      // how many tokens there are, that -1 included
};

// What is likeliest behind each of the wanted rows, and the logarithms of its probability; a row whose logits hold NaN
// or infinity gets -1 and NaN.
struct Choices {
    int32_t top;          // how many of the likeliest, besides
    int32_t* tokens;      // (wanted_count)
    float* logs;          // (wanted_count)
    float* log_sums;      // (wanted_count), log of the sum of exp(logit)
    int32_t* top_tokens;  // (wanted_count, top), the likeliest first, lower ids before higher ones of the same logit
    float* top_logs;      // (wanted_count, top)
};

// Buffers of passes; they grow with the largest one.
struct Workspace {
    // Of delta, rows, down and slots there is one for each memory node (copies.cpp).
    Memory x, delta, qkv, attended, active, partials, row_values, row_tiles, row_scales, row_sums, scratch, maxima;
    Memory down_values, down_scales, down_sums;  // rows of the down linear, which are made while those of up are in use
    Memory routed, slot_values, slot_scales, slot_sums, made;  // of experts: logits, their rows, and what they give
};

// Rows that all threads read: one copy for each memory node.
using Copies = std::vector<Rows>;

// Bytes of each copy, in memory that has one for every node.
inline int64_t copy_bytes(const Memory& memory, int nodes) { return int64_t(memory.size()) / nodes / 64 * 64; }

// Which experts the rows of a layer pass through; slots are rows of experts, see experts.cpp.
struct Routes {
    int64_t each = 0;             // experts of a row, the shared one included
    std::vector<int32_t> chosen;  // (rows, each), ascending
    std::vector<float> weights;   // (rows, each)
    std::vector<int32_t> slots;   // (rows, each)
    std::vector<int32_t> first;   // each expert's first slot, and how many there are
    std::vector<int32_t> rows;    // of each slot
    int32_t count(int32_t expert) const { return first[size_t(expert) + 1] - first[size_t(expert)]; }
};

// Cycles of thread 0, waiting for the others included.
struct Timing {
    uint64_t linear = 0, attention = 0, total = 0;
};

class Forward {
public:
    // `counts`: tokens that will be drafted behind each stretch, or null. Throws std::invalid_argument for a batch that
    // does not fit the model or its blocks, before anything is touched.
    Forward(const Model& model, Pool& pool, Workspace& workspace, const Batch& batch, const int32_t* counts = nullptr);
    void run();
    // The pass, and what is likeliest by its logits.
    void choose(const Choices& choices);
    // Feeds the batch, then each stretch's arg-max among the first `vocabulary` tokens, and so on, until a stretch has
    // its count of them or one whose probability is below its `least`; that one is its last. The others go on. The last
    // row of each stretch must be wanted, and no other.
    void draft(const Drafts& drafts);

    Timing timing;
    int64_t experts_read = 0;  // of all layers, each once a pass

private:
    struct Tile {  // some rows of one stretch: [first, end)
        int32_t first, end, stretch;
    };
    struct Scratch {  // one thread's own buffers
        float *row, *ordered, *up, *head, *scores, *results, *running, *totals, *slopes, *distances, *query_scales,
            *weight_scales;
        uint8_t *query, *probabilities, *widened;
        int32_t *first, *end, *query_offsets;
        AttentionPartial *partials, *runs, *sums;
        float* x;   // of rows that every thread prepares itself, and …
        Rows rows;  // … what the next linear gets of them
    };
    struct alignas(64) Counter {
        std::atomic<int64_t> done{0};
    };
    // The columns of a row of attended values that are put into the output linear's form together, and how many such.
    struct Units {
        int64_t columns, each;
    };

    void place_rows();
    void place_parts();
    void reserve(const int32_t* counts);
    int64_t scratch_bytes() const;
    Scratch scratch(int thread) const;
    void wait(int thread) { pool_.wait(thread); }
    bool few() const { return rows() <= DECODE_ROWS; }
    // Whether rows without wanted logits end with the last layer's keys and values: in passes of many.
    bool narrows() const { return !few() && wanted_.size() < tokens_.size(); }
    int32_t rows() const { return int32_t(tokens_.size()); }
    int threads() const { return batch_.threads ? std::min(batch_.threads, pool_.threads()) : pool_.threads(); }

    void pass(int thread);
    void embed_rows(int thread);
    void prepare_rows(int thread, const Join& join, const std::vector<int32_t>* some, const Linear& next);
    void add_delta(const Join& join, float* x, const float* delta, float* changed) const;
    void normalize(const Norm& norm, const float* x, float* out) const;
    void normalise_queries_and_keys(int thread, const Layer& layer);
    void cap_logits(int thread);
    void quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                  const Linear& next, Rows to);
    void quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                  const Linear& next, const Copies& to);
    void quantize_all(int thread, const float* from, int64_t stride, int64_t width, int64_t rows,
                      const std::vector<int32_t>* some, const Linear& next);
    const Linear& behind_layers() const { return spec_.projected_embedding ? model_.project_out : head_; }
    void ask_for(int thread, const Linear& next) const;
    void linear(int thread, const Rows& inputs, const Linear& linear, int64_t rows, float* out, int64_t stride,
                const Linear* next = nullptr);
    void up_linear(int thread, const Layer& layer, int64_t rows);
    void activate_blocks(int thread, const Linear& up, const Rows& in, int64_t rows, int64_t first, int64_t last,
                         float* out, int64_t stride);
    void head(int thread);

    // copies.cpp
    int nodes() const { return pool_.node(threads() - 1) + 1; }  // whose threads take part
    uint8_t* copy(const Memory& memory, int node) const {
        return memory.data() + node * copy_bytes(memory, pool_.nodes());
    }
    const Rows& of_node(const Copies& copies, int thread) const { return copies[size_t(pool_.node(thread))]; }
    void reserve_copies(Memory& memory, int64_t bytes);
    Copies copies(const Memory& values, const Memory& scales, const Memory& sums) const;
    float* delta(int thread) const;
    void share_delta(int thread, int64_t row, int64_t end_row, int64_t first, int64_t end) const;

    // between.cpp
    void reserve_between();
    bool repeats() const;
    Rows own_rows(uint8_t* memory) const;
    int64_t own_bytes() const;
    Rows inputs(int thread) const { return repeats() ? scratch(thread).rows : of_node(inputs_, thread); }
    bool activates_in_place(const Linear& down) const { return few() && !down.order; }
    void quantize_active(int thread, const Linear& up, const Linear& down);
    Units attended_units(const Linear& next) const;
    int64_t seen_blocks(size_t stretch, int32_t window) const;
    int64_t seen_parts(size_t stretch, int32_t index) const;
    bool combines_in_place(int32_t index) const;
    void combine_unit(int thread, int32_t index, int64_t row, int64_t unit);
    void finish_blocks(int thread, int32_t index, int32_t kv_head, size_t stretch, int64_t blocks);
    bool last(size_t counter, int64_t done, int64_t total);

    // experts.cpp
    static int64_t inner(const Layer& layer, int32_t expert);
    void reserve_experts();
    void route_row(const Layer& layer, int64_t row, std::vector<int32_t>& order);
    void place_slots(int64_t rows);
    void choose_experts(int thread, const Layer& layer, int64_t rows);
    struct Sharers {  // of work: this one's number, and how many there are
        int thread, threads;
    };
    struct Range {
        int64_t first, end;
        int64_t size() const { return end - first; }
    };
    Sharers sharers_of_blocks(int thread) const;
    Range blocks_of_node(int thread, const Linear& linear, int64_t each) const;
    template <class Counted, class Cost, class F>
    void share_experts(const Sharers& sharers, Counted&& units, Cost&& cost, F&& f) const;
    Rows slot_rows(const Copies& all, int node, int32_t expert, const Linear& next, int64_t usual) const;
    Rows up_rows(const Layer& layer, int32_t expert, int node) const;
    Rows down_rows(const Layer& layer, int32_t expert, int node) const;
    float* active_rows(const Layer& layer, int32_t expert) const;
    void fill_slots(int thread, const Layer& layer);
    void up_experts(int thread, const Layer& layer);
    void quantize_slots(int thread, const Layer& layer);
    void down_experts(int thread, const Layer& layer);
    void add_experts(int thread, int64_t rows, const Linear& next);
    void run_experts(int thread, const Layer& layer, int64_t rows, const Linear& next);

    // choose.cpp
    int32_t choice_columns() const;
    int64_t choice_chunks() const;
    void find_maxima(int thread);
    ArgMax likeliest(int64_t row) const;
    void find_top(int64_t row, const ArgMax& best, const Choices& choices) const;
    void go_on(const Drafts& drafts, std::vector<int32_t>& order);

    // attention.cpp
    void attention(int thread, int32_t index, const std::vector<int32_t>* some);
    void append(int thread, int32_t index);
    void append_rows(int thread, int32_t index, const Tile& piece, int32_t kv_head);
    bool takes_runs(int32_t window) const;
    int64_t border(int32_t window, int64_t unit) const;
    int64_t attend_blocks(int thread, int32_t index, int32_t kv_head, size_t stretch, int64_t first, int64_t end);
    void attend_few(int thread, int32_t index);
    void combine_few(int thread, int32_t index);
    void combine_head(int32_t index, int64_t row, int32_t head);
    void attend_many(int thread, int32_t index);
    void add_part(AttentionPartial& sum, const AttentionPartial& next, float* to) const;
    void add_sink(int32_t index, int32_t head, AttentionPartial& sum) const;
    void attend_run(const Scratch& s, const AttentionTile& t, int32_t index, int32_t kv_head, const Tile& tile,
                    int64_t first, int64_t end, float* to) const;
    void attend_tile(int thread, int32_t index, int32_t kv_head, const Tile& tile);
    AttentionTile prepare_tile(const Scratch& s, int32_t index, int32_t kv_head, const Tile& tile) const;
    void limit_tile(const Scratch& s, const Tile& tile, int64_t block, int32_t window) const;
    void rotate_head(float* head, const float* norm, const Layer& layer, const Stretch& stretch,
                     int32_t position) const;
    KeyValueBlock block_of(const Tile& tile, int32_t index, int32_t kv_head, int64_t block) const;
    int64_t first_block(int32_t row, int32_t window) const;
    int64_t last_block(int32_t row) const { return positions_[size_t(row)] / BLOCK_POSITIONS; }
    int32_t group() const { return spec_.heads / spec_.kv_heads; }
    int32_t tile_rows() const;
    int64_t ordered_width() const;
    float* partial(int32_t index, int64_t block, int32_t kv_head, int64_t row) const;

    const Model& model_;
    const Kernels& k_;
    const Spec& spec_;
    Pool& pool_;
    Workspace& w_;
    Batch batch_;
    Copies inputs_;       // of the next linear
    Copies down_inputs_;  // of a down linear whose rows are made where they are activated, or of the experts'
    Copies slot_inputs_;  // of the experts' up linears
    Routes routes_;
    bool by_node_ = false;           // whether each node's threads share its own blocks of experts
    std::vector<Counter> counters_;  // of what several threads have done of a span or of a head; 0 between two phases
    Linear head_;                    // of the vocabulary that is wanted: its threads share these columns evenly
    const int64_t width_, qkv_width_, inner_, attended_width_;  // of a row in the buffers
    const int64_t partial_width_;                               // a head's values, then maximum and sum
    std::vector<Stretch> stretches_;
    std::vector<int32_t> tokens_, positions_, stretch_of_, wanted_;  // of each row; of wanted logits
    std::vector<int32_t> first_row_;                                 // of each stretch
    std::vector<Tile> tiles_;                                        // whose queries are attended to together
    std::vector<Tile> pieces_;          // whose keys are appended together: of one block, at most 16 positions
    std::vector<int32_t> part_blocks_;  // of each layer, that one stored partial is of: SPLIT_BLOCKS or 1
    std::vector<size_t> first_tile_, first_piece_;  // of each stretch, and how many there are behind them
    std::vector<float> nothing_;    // the value of a sink: zeros, as many as a head has; empty where there are no sinks
    bool done_ = false;             // of drafting
    std::atomic<int64_t> next_{0};  // unit of attend_many
};

}  // namespace ipex_assist
