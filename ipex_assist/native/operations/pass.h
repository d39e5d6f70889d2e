// A pass of rows through a model: what its operations share, and the list of them that each layer has.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "operations/activations.h"
#include "operations/batch.h"
#include "operations/linear_blocks.h"
#include "operations/operation.h"
#include "operations/pass_plan.h"
#include "packing/model.h"
#include "threads/pool.h"

namespace ipex_assist {

struct AttentionView;

// What a mixer does beside attention's own operations; null: nothing. Each of them is of one KV head.
struct AttentionHooks {
    // Stores what it keeps of a range of rows beside their keys and values.
    void (*append)(const AttentionView& v, const RowRange& range, int32_t kv_head) = nullptr;
    // A block of what the rows of a query tile attend to, in memory of this thread: where positions are kept as rows
    // (KeptByMixer), or the tile's one row chooses what it sees (AttentionShape::gathers).
    KeyValueBlock (*gather)(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block) = nullptr;
    // By all threads, when none reads any more what earlier passes kept: moves on a sequence's state, for later passes.
    void (*keep)(const AttentionView& v) = nullptr;
    // Changes what a head attended to, (value_dim).
    void (*finish)(const AttentionView& v, int64_t row, float* attended) = nullptr;
};

// A layer as a pass runs it.
struct LayerStep {
    int32_t index;
    bool last;
    // Until keys and values of all rows are appended, or states have passed them; then what is left for the rows that
    // go on (prune_rows.cpp).
    std::vector<Operation> append_operations, attend_operations;
    AttentionHooks hooks;
};

// The operations of a model, made when it is made. It outlives no model.
struct Program {
    explicit Program(const PackedModel& model);

    const PackedModel& model;
    PassShape shape;
    std::vector<LayerStep> layers;
    std::vector<int32_t> mlp_kinds;  // a layer of each kind of MLP, for sizes
    OperationWatch watch;            // called after each operation, if it is set
    int32_t last_filled = 0;         // the last layer that keeps anything of a row: keys and values, or a state
    // The layer after whose keys and values, or states, rows without logits end, as neither later passes nor the
    // batch's taps read more of them, nor do its embeddings add to them; -1: all rows go on to the end.
    int32_t pruning_layer(const PassPlan& plan, const Batch& batch) const;
};

// Which experts the rows of a layer pass through; a slot is one row of one expert, see experts.cpp.
struct Routes {
    int64_t each = 0;             // experts of a row, the shared one included
    std::vector<int32_t> chosen;  // (rows, each), ascending
    std::vector<float> weights;   // (rows, each)
    std::vector<int32_t> slots;   // (rows, each)
    std::vector<int32_t> first;   // each expert's first slot, and how many there are
    std::vector<int32_t> used;    // experts that have rows, ascending
    std::vector<int32_t> rows;    // of each slot
    std::vector<float> factors;   // of each slot's input, where experts' inputs are scaled
    int32_t count(int32_t expert) const { return first[size_t(expert) + 1] - first[size_t(expert)]; }
};

struct alignas(64) Counter {
    std::atomic<int64_t> done{0};
};

struct Pass {
    // `counts`: tokens that will be drafted after each segment, or null. Throws std::invalid_argument for a batch that
    // does not fit the model or its blocks, before anything is touched.
    Pass(const Program& program, Pool& pool, Activations& activations, const Batch& batch,
         const int32_t* counts = nullptr);

    const PassPlan& plan() const { return *plan_; }  // of the rows that go on
    void wait(int thread) { pool.wait(thread); }
    int node(int thread) const { return pool.node(thread); }
    const PackedLayer& layer(const LayerStep& step) const { return model.layers[size_t(step.index)]; }
    // What reads the result of a layer, or of the last one: the head, or the projection before it.
    const Linear& reader(const LayerStep& step) const {
        if (step.last && model.spec.streams.gated()) return model.head_gate.down;
        return step.last ? after_layers() : model.layers[size_t(step.index) + 1].first_linear();
    }
    // What reads the result of its MLP.
    const Linear& after_mlp(const LayerStep& step) const {
        if (layer(step).aside) return layer(step).aside_linear;
        return model.spec.per_layer_size ? layer(step).per_layer.gate : reader(step);
    }
    const Linear& after_layers() const {
        if (model.spec.draft_head.clusters) return model.clusters;
        return model.spec.projected_embedding ? model.project_out : head;
    }
    // Whether a hidden state that leaves the last layer is asked for, of all rows.
    bool taps_end() const;
    // The residual stream: a thread's own where each prepares all rows.
    const Array<float>& stream(int thread) const {
        return plan().each_thread_prepares ? activations.own(thread).x : activations.shared.x;
    }
    // Likewise what a norm gave that is read once more.
    const Array<float>& normed(int thread) const {
        return plan().each_thread_prepares ? activations.own(thread).normed : activations.shared.normed;
    }
    // Where threads read rows that each of them made a part of, their own node's; else there is one.
    const Array<float>& delta(int thread) const {
        return activations.on(plan().each_thread_prepares ? node(thread) : 0).delta;
    }
    // The inputs of the next linear, as this thread reads them.
    LinearRows inputs(int thread, int64_t depth) const {
        const PreparedRows& rows =
            plan().each_thread_prepares ? activations.own(thread).inputs : activations.on(node(thread)).inputs;
        return rows.with_depth(depth);
    }
    // Goes on by another plan: by thread 0, between two barriers. After a layer that prunes rows, and between the
    // passes of a draft.
    void continue_with(std::unique_ptr<const PassPlan> next) { plan_ = std::move(next), embeddings = nullptr; }
    // Prefill attention begins a barrier later: by thread 0.
    void begin_tiles();
    // Adds to what is done of something; whether that is all of it, and this thread the one to go on.
    bool completes(size_t counter, int64_t done, int64_t total);

    const Program& program;
    const PackedModel& model;
    const KernelTable& kernels;
    Pool& pool;
    Activations& activations;
    const Batch batch;

private:
    std::unique_ptr<const PassPlan> plan_;

public:
    int32_t pruning_layer;                   // Program::pruning_layer, -1 where rows have ended already
    std::unique_ptr<const PassPlan> pruned;  // of the rows with logits, which go on after that layer; none: none do
    const Linear head;                 // of the vocabulary that is asked for: its threads share these columns evenly
    std::vector<Counter> counters;     // of what several threads have done of something; 0 between two phases
    std::vector<Counter> taken_tiles;  // of prefill attention: items of each of AttentionPlan::queues
    const bool panels_by_node;         // whether memory follows the nodes of all of the pool's threads, which all run
    std::vector<const float*> hidden;  // of a draft head: of each row
    bool own_hidden;                   // whether these are states of its own
    const float* const* embeddings;    // as the batch has them; null in plans after the first one
    Routes routes;
    Timing timing;
    int64_t experts_read = 0;  // of all layers, each once a pass
};

// The panels of a linear that a thread of the pass computes where rows are few: [first, second).
inline std::pair<int64_t, int64_t> slice(const Pass& pass, const Linear& linear, int thread) {
    return slice(linear, thread, pass.plan().threads);
}

// Spans of SCALE_COLUMNS columns in so many panels.
inline int64_t spans_of(int64_t panels) { return (panels * LANES + SCALE_COLUMNS - 1) / SCALE_COLUMNS; }

// Panels first <= b < end that this thread has made, of `panels` that all threads together make `times` times.
struct MadePanels {
    int64_t first, end, panels, times;
};

// f(first column) for each span of columns of which nothing is left to be made. Counters from `counter` on are the
// spans'.
template <class F>
void complete_spans(Pass& pass, size_t counter, const MadePanels& made, F&& f) {
    const int64_t each = SCALE_COLUMNS / LANES;
    for (int64_t s = made.first / each; s * each < made.end; s++) {
        const int64_t done = std::min(made.end, (s + 1) * each) - std::max(made.first, s * each);
        const int64_t all = std::min(made.panels, (s + 1) * each) - s * each;
        if (pass.completes(counter + size_t(s), done, all * made.times)) f(s * SCALE_COLUMNS);
    }
}

// The blocks of a linear, of so many rows of its inputs, that a thread of the pass computes.
inline LinearBlocks blocks_of(const Pass& pass, const Linear& linear, const LinearRows& in, int64_t rows, int thread) {
    return LinearBlocks(linear, rows, in.depth * value_bytes(linear.precision, pass.kernels), pass.plan().team, thread);
}

void run_layers(Pass& pass, int thread);  // and the head; by every thread of the pass
// The whole pass: logits of the rows with logits.
void forward(Pass& pass);
// The pass, and the most likely tokens by its logits (arg_max.cpp).
void top_tokens(Pass& pass, const TopTokens& found);
// The pass, and a token for each of its rows with logits, -1 where they hold NaN or infinity, or no token may be
// chosen. choices: one for each of these rows (sampling.cpp).
void sample(Pass& pass, const RowChoice* choices, int32_t* tokens);
// Feeds the batch, then each segment's choice among the first `vocabulary` tokens, and so on, until a segment has its
// count of them or one whose probability is below its minimum; that one is its last. The others go on. The last row of
// each segment must have logits, and no other (drafting.cpp).
void draft(Pass& pass, const DraftRequest& request);
// DFLASH: one pass, whose segments are blocks, of which `counts` rows from the first or the second on have logits: the
// arg-max of each is a drafted token, up to one whose probability is below its minimum (drafting.cpp).
void draft_blocks(Pass& pass, const DraftRequest& request);

}  // namespace ipex_assist
