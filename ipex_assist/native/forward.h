// One pass of rows through a model, by all threads of a pool in one parallel region.
#pragma once
#include <atomic>
#include <vector>

#include "model.h"

namespace ipex_assist {

// Rows of a pass. Rows of one sequence are consecutive and at consecutive positions.
struct Batch {
    int32_t rows;
    const int32_t* tokens;
    const int32_t* positions;
    const Cache* const* caches;  // one a row
    // Rotation tables (…, head_dim) of positions from `table_start` on; null with learned positions.
    const float* cosine;
    const float* sine;
    int32_t table_start, table_rows;  // position table_start is their first row
    int32_t last;    // logits are wanted of the last so many rows
    float* logits;   // (last, stride)
    int64_t stride;  // at least the vocabulary, rounded up to 16
    int32_t vocabulary;  // logits are wanted of the first so many tokens, 0: of all
};

// Buffers of passes; they grow with the largest one.
struct Workspace {
    Memory x, delta, qkv, attended, active, partials, row_values, row_scales, row_sums, scratch;
};

// Cycles of thread 0, waiting for the others included.
struct Timing {
    uint64_t linear = 0, attention = 0, total = 0;
};

class Forward {
public:
    // `further`: tokens that will be drafted behind the batch. Throws std::invalid_argument for a batch that does not fit
    // the model or its caches, before anything is touched.
    Forward(const Model& model, Pool& pool, Workspace& workspace, const Batch& batch, int32_t further = 0);
    void run();
    // Feeds the batch, then its arg-max among the first `vocabulary` tokens, and so on, until there are `count` of them
    // or one whose probability is below `least`; that one is the last. Returns how many. `last` must be 1. Throws
    // NotFinite where the logits hold NaN or infinity.
    int32_t draft(int32_t count, int32_t vocabulary, float least, int32_t* tokens, float* probabilities);

    Timing timing;

private:
    struct Segment {  // the rows of one sequence: [first, end)
        int32_t first, end;
    };
    struct Scratch {  // one thread's own buffers
        float *row, *ordered, *up, *head, *scores, *results, *running;
        uint8_t *query, *probabilities;
        int32_t *first, *end;
        Partial *partials, *merged;
    };

    void reserve(int32_t further);
    int64_t scratch_bytes() const;
    Scratch scratch(int thread) const;
    void wait(int thread) { pool_.wait(thread); }
    bool few() const { return batch_.rows <= FEW; }

    void pass(int thread);
    void embed_rows(int thread);
    void prepare_rows(int thread, bool add, const Norm* post, const Norm* pre, int64_t first_row, const Linear& next);
    void quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                  const Linear& next);
    void quantize_all(int thread, const float* from, int64_t stride, int64_t width, const Linear& next);
    void linear(int thread, const Linear& linear, int64_t rows, float* out, int64_t stride);
    void up_linear(int thread, const Layer& layer);
    void head(int thread);
    Maximum best_of(int thread, int32_t vocabulary);

    void attention(int thread, int32_t index);
    void append(int thread, int32_t index);
    void attend_few(int thread, int32_t index);
    void combine_few(int thread, int32_t index);
    void combine_head(int32_t index, int64_t row, int32_t head);
    void attend_many(int thread, int32_t index);
    void attend_tile(int thread, int32_t index, int32_t kv_head, Segment tile);
    AttentionTile prepare_tile(const Scratch& s, int32_t index, int32_t kv_head, Segment tile) const;
    void limit_tile(const Scratch& s, Segment tile, int64_t block, int32_t window) const;
    void rotate_head(float* head, const float* norm, int32_t row) const;
    int64_t first_block(int32_t row, int32_t window) const;
    int64_t last_block(int32_t row) const { return batch_.positions[row] / KEYS; }
    int32_t group() const { return spec_.heads / spec_.kv_heads; }
    int32_t tile_rows() const;
    int64_t ordered_width() const;
    const Segment& segment_of(int32_t row) const;
    float* partial(int64_t block, int32_t kv_head, int64_t row) const;

    const Model& model_;
    const Kernels& k_;
    const Spec& spec_;
    Pool& pool_;
    Workspace& w_;
    Batch batch_;
    Rows rows_{};
    Linear head_;  // of the vocabulary that is wanted: its threads share these columns evenly
    const int64_t width_, qkv_width_, inner_, attended_width_;  // of a row in the buffers
    const int64_t partial_width_;                               // a head's values, then maximum and sum
    std::vector<Segment> segments_, tiles_;
    std::vector<Maximum> maxima_;
    std::atomic<int64_t> next_{0};  // unit of attend_many
};

}  // namespace ipex_assist
