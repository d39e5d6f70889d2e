// Rows that choose the blocks of positions they attend to (BlockChoiceSpec): the highest score of each block, and the
// choice. A score depends on its row and its position alone, and the choice on the row's own scores.
#include "mixers/attention/block_choice.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "mixers/latent/choice.h"
#include "mixers/latent/kept.h"

namespace ipex_assist {

void append_choice_keys(const AttentionView& v, const RowRange& range, int32_t kv_head) {
    if (kv_head != 0) return;  // one key is for all
    const int32_t dim = v.spec.choice.dim;
    const int32_t id = v.segment(range).blocks[v.plan.last_block(range.first)];
    const KeyValueBlock block = index_at(v, id);
    float* key = v.own.head.data;
    for (int32_t r = range.first; r < range.end; r++) {
        const int32_t position = v.plan.positions[size_t(r)];
        v.k.normalize(true, v.qkv(r) + choice_key_column(v.spec), own_weights<ChoiceWeights>(v.layer).key_norm, nullptr,
                      v.pass.model.spec.norm_eps, dim, key);
        rotate_head(v.pass, v.layer, nullptr, v.segment(range), position, key);
        v.k.store_key(index_precision(v), key, dim, v.spec.index_depth(), position % BLOCK_POSITIONS, block);
    }
}

namespace {

bool chooses(const AttentionView& v, int32_t row) {
    return sight_of(v.spec.choice).chooses(v.plan.positions[size_t(row)]);
}

// Of each KV head the query that it is chosen by, and that times -1: relu(x) - relu(-x) is x, and a kernel for sums of
// relus gives a score as it is.
void store_queries(const AttentionView& v, int32_t row) {
    const int32_t dim = v.spec.choice.dim;
    const Segment& segment = v.plan.segments[size_t(v.plan.segment_of[size_t(row)])];
    float* query = v.own.head.data;
    for (int32_t h = 0; h < v.spec.kv_heads; h++) {
        v.k.normalize(true, v.qkv(row) + choice_query_column(v.spec) + h * dim,
                      own_weights<ChoiceWeights>(v.layer).query_norm, nullptr, v.pass.model.spec.norm_eps, dim, query);
        rotate_head(v.pass, v.layer, nullptr, segment, v.plan.positions[size_t(row)], query);
        store_index_query(v, 2 * h, query, dim, 1);
        for (int32_t d = 0; d < dim; d++) query[d] = -query[d];
        store_index_query(v, 2 * h + 1, query, dim, -1);
    }
}

// The highest of each block's scores, of which there are `count`, to the blocks from `to` on.
void find_highest(const float* scores, int64_t count, int64_t size, float* to) {
    for (int64_t first = 0; first < count; first += size)
        *to++ = *std::max_element(scores + first, scores + std::min(first + size, count));
}

// Rows first <= r < end that choose, each with the highest scores of its blocks (KV heads, stride) from
// scores.row(r - first) on: this thread's share of the blocks of keys, those of its memory node in turns.
void score_share(const AttentionView& v, int32_t first, int32_t end, int64_t stride) {
    const Array<float>& highest = v.pass.activations.shared.work;
    const TeamNodes& team = v.plan.team;
    const int own = v.thread - team.first_thread(v.node), sharers = team.threads_of(v.node);
    const int64_t size = v.spec.choice.size;
    float* scores = reinterpret_cast<float*>(v.own.probabilities.data);
    int turn = 0;
    for (int32_t r = first; r < end; r++) {
        if (!chooses(v, r)) continue;
        const int64_t seen = int64_t(v.plan.positions[size_t(r)]) + 1;
        const Segment& segment = v.plan.segments[size_t(v.plan.segment_of[size_t(r)])];
        bool stored = false;
        for (int64_t b = 0; b * BLOCK_POSITIONS < seen; b++) {
            if (team.several() && team.home(segment.blocks[b], 0, 1) != v.node) continue;
            const bool mine = turn == own;
            turn = turn + 1 < sharers ? turn + 1 : 0;
            if (!mine) continue;
            if (!stored) store_queries(v, r), stored = true;
            const int64_t start = b * BLOCK_POSITIONS, count = std::min<int64_t>(BLOCK_POSITIONS, seen - start);
            for (int32_t h = 0; h < v.spec.kv_heads; h++) {
                const IndexQueries queries = index_queries_from(v, 2 * h, 2);
                v.k.mixers->index.score(queries.tile, index_at(v, segment.blocks[b]), nullptr, queries.weights, count,
                                        scores);
                find_highest(scores, count, size, highest.row(r - first) + h * stride + start / size);
            }
        }
    }
}

// The blocks of a row for each KV head, ascending. highest: (KV heads, stride).
void choose(const AttentionView& v, int32_t row, float* highest, int64_t stride) {
    const BlockChoiceSpec& c = v.spec.choice;
    const int64_t count = v.plan.positions[size_t(row)] / c.size + 1;
    int32_t* chosen = v.pass.activations.shared.notes.row(row);
    uint64_t* keys = choice_keys(v.own).data;
    for (int32_t h = 0; h < v.spec.kv_heads; h++, highest += stride) {
        std::fill(highest + count - c.local, highest + count, INFINITY);
        for (int64_t b = 0; b < count; b++) keys[b] = choice_key(highest, b);
        std::nth_element(keys, keys + c.blocks - 1, keys + count, std::greater<>());
        const uint64_t least = keys[c.blocks - 1];
        for (int64_t b = 0; b < count; b++) {
            if (choice_key(highest, b) >= least) *chosen++ = int32_t(b);
        }
    }
}

}  // namespace

void choose_blocks(Pass& pass, const LayerStep& step, int thread) {
    const uint64_t started = __rdtsc();
    const AttentionView v(pass, step, thread);
    const Array<float>& scores = pass.activations.shared.work;
    const int32_t rows = pass.plan().rows(), most = int32_t(scores.rows);
    const int64_t stride = scores.columns / v.spec.kv_heads;
    for (int32_t first = 0, end; first < rows; first = end) {
        if (!chooses(v, first)) {
            end = first + 1;
            continue;
        }
        end = std::min(first + most, rows);
        score_share(v, first, end, stride);
        pass.wait(thread);
        for (int32_t r = first; r < end; r++) {
            if (chooses(v, r) && (r - first) % pass.plan().threads == thread)
                choose(v, r, scores.row(r - first), stride);
        }
        pass.wait(thread);
    }
    if (thread == 0) pass.timing.attention += __rdtsc() - started;
}

// Panels of 16 positions' keys, and of each panel of 16 columns of values as many lines, lie side by side.
KeyValueBlock gather_choice(const AttentionView& v, const RowRange& tile, int32_t kv_head, int64_t block) {
    const BlockChoiceSpec& c = v.spec.choice;
    const Precision precision = v.blocks.precision();
    const int64_t bytes = row_type_bytes(row_type(precision)), size = c.size, each = BLOCK_POSITIONS / size;
    const int64_t key_bytes = v.spec.key_depth() * bytes, panel = BLOCK_POSITIONS * LANES * bytes;
    const int32_t* chosen = v.pass.activations.shared.notes.row(tile.first) + kv_head * c.blocks + block * each;
    const GatheredBlock to(v);
    for (int64_t i = 0; i < std::min(each, c.blocks - block * each); i++) {
        const int64_t here = chosen[i] % each * size, there = i * size;
        const KeyValueBlock from = v.block(tile, kv_head, chosen[i] / each);
        std::memcpy(to.keys + there * key_bytes, from.keys + here * key_bytes, size_t(size * key_bytes));
        for (int64_t at = 0; at < v.spec.value_width() * BLOCK_POSITIONS * bytes; at += panel) {
            std::memcpy(to.values + at + there * LANES * bytes, from.values + at + here * LANES * bytes,
                        size_t(size * LANES * bytes));
        }
        if (precision != INT8) continue;
        std::copy_n(from.key_scales + here, size, to.key_scales + there);
        std::copy_n(from.value_scales + here, size, to.value_scales + there);
    }
    return to;
}

}  // namespace ipex_assist
