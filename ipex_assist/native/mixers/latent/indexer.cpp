// The indexer of sparse attention (IndexerSpec): the scores of all positions that a row sees, and the choice among them.
// A score depends on its row and its position alone, and the choice on the row's own scores: so on its past, whatever
// runs beside it and whoever computes it.
#include <algorithm>
#include <cstring>
#include <functional>

#include "mixers/latent/latent.h"
#include "operations/attention.h"

namespace ipex_assist {

// Through a layer norm, and rotated.
void append_index_keys(const AttentionView& v, const RowRange& range) {
    constexpr float EPSILON = 1e-6f;
    const int32_t dim = v.spec.latent.indexer.dim;
    const Norm& norm = v.layer.latent.index_norm;
    const int32_t id = v.segment(range).blocks[v.plan.last_block(range.first)];
    const KeyValueBlock block = v.blocks.index_at(id, v.kv_layer);
    float* key = v.own.head.data;
    for (int32_t r = range.first; r < range.end; r++) {
        const int32_t position = v.plan.positions[size_t(r)];
        v.k.normalize(false, v.qkv(r) + v.spec.index_key_column(), norm.weight, norm.bias, EPSILON, dim, key);
        rotate_head(v.pass, v.layer, nullptr, v.segment(range), position, key);
        v.k.store_key(v.blocks.attention_precision(), key, dim, v.spec.index_depth(), position % BLOCK_POSITIONS,
                      block);
    }
}

namespace {

// The queries of a row's indexer in the form that keys are multiplied with.
AttentionTile index_tile(const AttentionView& v, int32_t row) {
    const IndexerSpec& indexer = v.spec.latent.indexer;
    AttentionTile t{};
    t.precision = v.blocks.attention_precision();
    t.queries = indexer.heads;
    t.key_depth = v.spec.index_depth();
    t.query = v.own.query.data;
    t.scores = v.own.scores.data;
    t.widened = v.own.widened.data;
    const int64_t bytes = t.precision == FP32 ? 4 : v.k.bf16_row_bytes;
    const float* queries = v.pass.activations.shared.heads.row(row) + v.spec.index_query_column();
    for (int64_t h = 0; h < indexer.heads; h++) {
        v.k.convert(t.precision, queries + h * indexer.dim, indexer.dim, t.key_depth,
                    v.own.query.data + h * t.key_depth * bytes);
    }
    return t;
}

// Rows first <= r < end that choose, each with its scores (positions) from scores.row(r - first) on: this thread's
// share of their blocks, those of its memory node in turns with its other threads.
void score_share(const AttentionView& v, int32_t first, int32_t end) {
    const Array<float>& scores = v.pass.activations.shared.index_scores;
    const TeamNodes& team = v.plan.team;
    const int own = v.thread - team.first_thread(v.node), sharers = team.threads_of(v.node);
    int turn = 0;
    for (int32_t r = first; r < end; r++) {
        const int64_t seen = int64_t(v.plan.positions[size_t(r)]) + 1;
        if (!v.splits.shape.chooses(seen - 1)) continue;
        const Segment& segment = v.plan.segments[size_t(v.plan.segment_of[size_t(r)])];
        const float* weights = v.qkv(r) + v.spec.index_weight_column();
        AttentionTile t{};
        for (int64_t b = 0; b * BLOCK_POSITIONS < seen; b++) {
            if (team.several() && team.home(segment.blocks[b], 0, 1) != v.node) continue;
            const bool mine = turn == own;
            turn = turn + 1 < sharers ? turn + 1 : 0;
            if (!mine) continue;
            if (!t.queries) t = index_tile(v, r);
            const int64_t start = b * BLOCK_POSITIONS, after = b + sharers;
            const bool more = after * BLOCK_POSITIONS < seen;
            const KeyValueBlock next = v.blocks.index_at(segment.blocks[more ? after : b], v.kv_layer);
            v.k.score_index(t, v.blocks.index_at(segment.blocks[b], v.kv_layer), more ? &next : nullptr, weights,
                            std::min<int64_t>(BLOCK_POSITIONS, seen - start), scores.row(r - first) + start);
        }
    }
}

// Orders positions by their scores, and those of equal scores by descending positions: as unsigned numbers, of which no
// two are equal.
uint64_t choice_key(const float* scores, int64_t position) {
    uint32_t bits;
    std::memcpy(&bits, scores + position, 4);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | (0xffffffffu - uint32_t(position));
}

// The keys from `least` on, in the order of their positions: how many.
int64_t collect_keys(const float* scores, int64_t count, uint64_t least, uint64_t* to) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        to[found] = choice_key(scores, i);
        found += to[found] >= least;
    }
    return found;
}

constexpr int64_t SAMPLED = 2048;  // positions by which the least score is guessed

// A key below that of most positions, and most likely not above the k-th largest.
uint64_t guess_least(const float* scores, int64_t count, int64_t k, uint64_t* sample) {
    const int64_t step = count / SAMPLED, wanted = k * SAMPLED / count;
    const int64_t place = wanted + wanted / 4 + 32;
    if (step < 2 || place >= SAMPLED) return 0;
    for (int64_t i = 0; i < SAMPLED; i++) sample[i] = choice_key(scores, i * step);
    std::nth_element(sample, sample + place, sample + SAMPLED, std::greater<>());
    return sample[place];
}

// The k positions of the largest of `count` > k scores, ascending. keys: room for twice as many.
void choose(const float* scores, int64_t count, int64_t k, uint64_t* keys, int32_t* chosen) {
    uint64_t* sorted = keys + count;
    int64_t found = collect_keys(scores, count, guess_least(scores, count, k, keys), keys);
    if (found < k) found = collect_keys(scores, count, 0, keys);
    std::copy(keys, keys + found, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + found, std::greater<>());
    const uint64_t least = sorted[k - 1];
    for (int64_t i = 0; i < found; i++) {
        if (keys[i] >= least) *chosen++ = int32_t(0xffffffffu - uint32_t(keys[i]));
    }
}

}  // namespace

// As many rows at a time as there is room for scores.
void choose_positions(Pass& pass, const LayerStep& step, int thread) {
    const AttentionView v(pass, step, thread);
    const SharedBuffers& shared = pass.activations.shared;
    const int32_t rows = pass.plan().rows(), most = int32_t(shared.index_scores.rows);
    const auto chooses = [&](int32_t r) { return v.splits.shape.chooses(pass.plan().positions[size_t(r)]); };
    for (int32_t first = 0, end; first < rows; first = end) {
        if (!chooses(first)) {
            end = first + 1;
            continue;
        }
        end = std::min(first + most, rows);
        score_share(v, first, end);
        pass.wait(thread);
        for (int32_t r = first + thread; r < end; r += pass.plan().threads) {
            if (!chooses(r)) continue;
            choose(shared.index_scores.row(r - first), int64_t(pass.plan().positions[size_t(r)]) + 1,
                   v.splits.shape.top_k, v.own.index_keys.data, shared.chosen.row(r));
        }
        pass.wait(thread);
    }
}

}  // namespace ipex_assist
