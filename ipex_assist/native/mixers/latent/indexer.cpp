// The indexer of sparse attention (IndexerSpec): the scores of all positions, or entries, that a row sees, and its
// choice. A score depends on its row and its position alone, and the choice on the row's own scores: so it depends on
// the row's past, not on other rows or threads.
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "mixers/attention/block_choice.h"
#include "mixers/latent/choice.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"
#include "operations/share_work.h"

namespace ipex_assist {

// Those of an indexer that reads the layer's input.
void index_queries(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const LatentWeights& w = layer.latent;
    const int64_t size = pass.model.spec.hidden_size;
    const Array<float>& heads = pass.activations.shared.heads;
    float* made = pass.activations.own(thread).row.data;
    prepare_made(pass, thread, size, pass.plan().rows(), w.index_query, [&](int64_t r) {
        pass.kernels.normalize(false, pass.normed(thread).row(r), w.index_query_norm.weight, w.index_query_norm.bias,
                               layer.attention.latent.indexer.norm_eps, size, made);
        return made;
    });
    linear(pass, thread, pass.inputs(thread, w.index_query.depth), w.index_query, pass.plan().rows(),
           heads.data + layer.attention.index_query_column(), heads.columns, &w.keys);
}

namespace {

// The key and the gates of a position, dim values of each.
struct OpenRow {
    const float *key, *gates;
};

// The key of a pool: of each column, keys weighted with the softmax of gates + places.
void make_pool(const IndexerSpec& index, const OpenRow* rows, const float* places, float* key) {
    for (int32_t d = 0; d < index.dim; d++) {
        float logits[LANES], most = -INFINITY, sum = 0, weighted = 0;
        for (int32_t j = 0; j < index.pool; j++) {
            logits[j] = rows[j].gates[d] + places[j * index.dim + d];
            most = std::max(most, logits[j]);
        }
        for (int32_t j = 0; j < index.pool; j++) {
            const float weight = std::exp(logits[j] - most);
            sum += weight, weighted += weight * rows[j].key[d];
        }
        key[d] = weighted / sum;
    }
}

// The mean of keys, through the norm, and rotated as the first position is.
void make_mean(const AttentionView& v, const Segment& segment, int32_t first, const OpenRow* rows, float* key) {
    const IndexerSpec& index = v.spec.latent.indexer;
    std::fill_n(key, index.dim, 0.0f);
    for (int32_t j = 0; j < index.each(); j++) {
        for (int32_t d = 0; d < index.dim; d++) key[d] += rows[j].key[d];
    }
    for (int32_t d = 0; d < index.dim; d++) key[d] /= float(index.each());
    v.k.normalize(true, key, own_weights<ChoiceWeights>(v.layer).key_norm, nullptr, index.norm_eps, index.dim, key);
    rotate_head(v.pass, v.layer, nullptr, segment, first, key);
}

// Of rows whose positions are of the same pools, those of pools that end with one of them: a pool's positions before
// those of the segment are of earlier passes.
void append_pools(const AttentionView& v, const RowRange& range, int32_t id) {
    const IndexerSpec& index = v.spec.latent.indexer;
    const Segment& segment = v.segment(range);
    const int32_t first_row = v.plan.first_row[size_t(range.segment)];
    for (int32_t r = range.first; r < range.end; r++) {
        const int32_t after = v.plan.positions[size_t(r)] + 1;
        if (after % index.each()) continue;
        OpenRow rows[BLOCK_POSITIONS];
        for (int32_t j = 0; j < index.each(); j++) {
            const int32_t position = after - index.each() + j;
            const float* row = position < segment.start
                                   ? reinterpret_cast<const float*>(open_row(v, segment, position))
                                   : v.qkv(first_row + position - segment.start) + v.spec.index_key_column();
            rows[j] = {row, row + index.dim};
        }
        float* key = v.own.head.data;
        if (index.means) make_mean(v, segment, after - index.each(), rows, key);
        else make_pool(index, rows, v.layer.latent.index_places, key);
        v.k.store_key(index_precision(v), key, index.dim, v.spec.index_depth(),
                      (after - 1) % BLOCK_POSITIONS / index.each(), index_at(v, id));
    }
}

}  // namespace

void keep_open_rows(const AttentionView& v) {
    const LatentSpec& latent = v.spec.latent;
    const SourceType type = latent.has_entries() ? entry_type(v) : SOURCE_F32;
    const int32_t rows = v.plan.rows();
    for (int32_t r = int32_t(share(rows, v.thread, v.plan.threads)),
                 end = int32_t(share(rows, v.thread + 1, v.plan.threads));
         r < end; r++) {
        const Segment& s = v.plan.segments[size_t(v.plan.segment_of[size_t(r)])];
        const int32_t position = v.plan.positions[size_t(r)];
        if (position + latent.open_rows() < s.start + s.rows) continue;
        v.k.narrow(type, v.qkv(r) + v.spec.index_key_column(), latent.open_width(), open_row(v, s, position));
    }
}

// Through a layer norm, and rotated; or as they are where pools of them are stored.
void append_index_keys(const AttentionView& v, const RowRange& range, int32_t kv_head) {
    if (kv_head != 0) return;  // one key is for all
    const IndexerSpec& index = v.spec.latent.indexer;
    const Norm& norm = v.layer.latent.index_norm;
    const int32_t id = v.segment(range).blocks[v.plan.last_block(range.first)];
    if (index.means) return append_pools(v, range, id);
    const KeyValueBlock block = index_at(v, id);
    for (int32_t r = range.first; r < range.end; r++) {
        const int32_t position = v.plan.positions[size_t(r)];
        float *made = v.pass.activations.shared.qkv.row(r) + v.spec.index_key_column(),
              *key = index.pools() ? made : v.own.head.data;
        v.k.normalize(false, made, norm.weight, norm.bias, index.norm_eps, index.dim, key);
        if (index.pools()) continue;
        rotate_head(v.pass, v.layer, nullptr, v.segment(range), position, key);
        v.k.store_key(index_precision(v), key, index.dim, v.spec.index_depth(), position % BLOCK_POSITIONS, block);
    }
    if (index.pools()) append_pools(v, range, id);
}

namespace {

// Of QSA, through their norm.
void store_normed_queries(const AttentionView& v, int32_t row) {
    const IndexerSpec& indexer = v.spec.latent.indexer;
    const Segment& segment = v.plan.segments[size_t(v.plan.segment_of[size_t(row)])];
    const float weight = 1 / std::sqrt(float(indexer.dim));
    float* query = v.own.head.data;
    for (int32_t h = 0; h < indexer.heads; h++) {
        const float* made = v.qkv(row) + v.spec.index_query_column() + int64_t(h) * indexer.dim;
        v.k.normalize(true, made, own_weights<ChoiceWeights>(v.layer).query_norm, nullptr, indexer.norm_eps,
                      indexer.dim, query);
        rotate_head(v.pass, v.layer, nullptr, segment, v.plan.positions[size_t(row)], query);
        store_index_query(v, h, query, indexer.dim, weight);
    }
}

// The queries of a row's indexer, with the weights of their heads.
void store_queries(const AttentionView& v, int32_t row) {
    const IndexerSpec& indexer = v.spec.latent.indexer;
    if (indexer.means) return store_normed_queries(v, row);
    const float* weights = v.qkv(row) + v.spec.index_weight_column();
    const float* queries = v.pass.activations.shared.heads.row(row) + v.spec.index_query_column();
    for (int32_t h = 0; h < indexer.heads; h++)
        store_index_query(v, h, queries + int64_t(h) * indexer.dim, indexer.dim, weights[h]);
}

// Whether a row attends to positions that it chooses, and not to all.
bool chooses(const AttentionView& v, int32_t row) { return sight_of(v.spec).chooses(v.plan.positions[size_t(row)]); }

constexpr int64_t KEPT_BLOCKS = 8;  // of a thread, which stay in its second cache: 512 KB of bf16

// Rows first <= r < end that choose, each with its scores (positions) from scores.row(r - first) on: this thread's
// share of their blocks, those of its memory node in turns with its other threads. All rows are scored with some blocks
// before any with the next ones.
void score_share(const AttentionView& v, int32_t first, int32_t end) {
    const Array<float>& scores = v.pass.activations.shared.work;
    const ChosenSight sight = sight_of(v.spec);
    const TeamNodes& team = v.plan.team;
    const int own = v.thread - team.first_thread(v.node), sharers = team.threads_of(v.node);
    const int64_t each = BLOCK_POSITIONS / sight.of_key();  // keys of a block
    const IndexQueries queries = index_queries_from(v, 0, v.spec.latent.indexer.heads);
    const auto seen_by = [&](int32_t r) {
        return chooses(v, r) ? sight.keys_before(v.plan.positions[size_t(r)]) : int64_t(0);
    };
    int64_t most = 0;
    for (int32_t r = first; r < end; r++) most = std::max(most, seen_by(r));
    int turn = 0;
    int32_t stored = -1;  // row whose queries are there
    for (int64_t begin = 0, next_begin; begin * each < most; begin = next_begin) {
        next_begin = begin + KEPT_BLOCKS * v.plan.threads;
        for (int32_t r = first; r < end; r++) {
            const int64_t seen = seen_by(r);
            const Segment& segment = v.plan.segments[size_t(v.plan.segment_of[size_t(r)])];
            for (int64_t b = begin; b < next_begin && b * each < seen; b++) {
                if (team.several() && team.home(segment.blocks[b], 0, 1) != v.node) continue;
                const bool mine = turn == own;
                turn = turn + 1 < sharers ? turn + 1 : 0;
                if (!mine) continue;
                if (stored != r) store_queries(v, r), stored = r;
                const int64_t start = b * each, after = b + sharers, count = std::min(each, seen - start);
                const bool more = after * each < seen;
                const KeyValueBlock next = index_at(v, segment.blocks[more ? after : b]);
                float few[LANES], *to = scores.row(r - first) + start;  // 16 scores at a time would reach the next
                v.k.mixers->index.score(queries.tile, index_at(v, segment.blocks[b]), more ? &next : nullptr,
                                        queries.weights, count, each < LANES ? few : to);
                if (each < LANES) std::copy_n(few, count, to);
            }
        }
    }
}

constexpr int64_t SAMPLED = 2048;  // positions by which the least score is guessed

// A score below that of most positions, and most likely not above the k-th largest. sample: (SAMPLED).
float guess_least(const float* scores, int64_t count, int64_t k, float* sample) {
    const int64_t step = count / SAMPLED, wanted = k * SAMPLED / count;
    const int64_t place = wanted + wanted / 4 + 32;
    if (step < 2 || place >= SAMPLED) return -INFINITY;
    // What is no number is found whatever the guess is.
    for (int64_t i = 0; i < SAMPLED; i++) sample[i] = std::isnan(scores[i * step]) ? INFINITY : scores[i * step];
    std::nth_element(sample, sample + place, sample + SAMPLED, std::greater<>());
    return sample[place];
}

// The positions first <= i < end, ascending, whose scores are not below `least`: how many.
int64_t find_positions(const float* scores, int64_t first, int64_t end, float least, int32_t* found) {
    int64_t count = 0;
    for (int64_t i = first; i < end; i++) {
        found[count] = int32_t(i);
        count += !(scores[i] < least);
    }
    return count;
}

// Ascending positions that a thread has found.
struct FoundPositions {
    const int32_t* positions;
    int64_t count;
};

// The choices of rows that were scored together, each made by one thread: of the positions that are not below a guess.
// Where rows are few and positions many, all threads look for those, each in its part of the positions.
class PositionChoices {
public:
    // Of the rows from `first`, which chooses, to `end`. Nothing is allocated: threads of a pass cannot say that memory
    // has run out.
    PositionChoices(Pass& pass, const AttentionView& v, int32_t first, int32_t end)
        : pass_(pass),
          v_(v),
          sight_(sight_of(v.spec)),
          threads_(pass.plan().threads),
          first_(first),
          end_(end) {}
    void make() {
        int64_t rows = 0;
        each_row([&](int64_t, int32_t) { rows++; });
        // Then what a thread finds takes half of its room at most, and the other half is its own.
        const bool together = 2 * rows <= threads_ && count(first_) >= EACH * threads_;
        if (together) find_together();
        each_row([&](int64_t i, int32_t row) {
            if (i % threads_ == v_.thread) choose(row, together);
        });
        pass_.wait(v_.thread);
    }

private:
    static constexpr int64_t EACH = 128;  // positions that a thread looks at in about the time of two barriers

    template <typename Visit>
    void each_row(const Visit& visit) const {
        int64_t i = 0;
        for (int32_t r = first_; r < end_; r++) {
            if (chooses(v_, r)) visit(i++, r);
        }
    }
    // Of keys: each is a position's, a pool's, or an entry's.
    int64_t k() const { return sight_.top_k / sight_.pool; }
    int64_t count(int32_t row) const { return sight_.keys_before(pass_.plan().positions[size_t(row)]); }
    const float* scores(int32_t row) const { return pass_.activations.shared.work.row(row - first_); }
    // Of a thread's own room, half is for positions that it has found: as many as there are, twice. At its end is a
    // guess. The other half is for keys.
    Array<uint64_t> room(int thread) const { return choice_keys(pass_.activations.own(thread)); }
    int32_t* found(int thread) const { return reinterpret_cast<int32_t*>(room(thread).data); }
    float& guess_of(int thread) const { return reinterpret_cast<float*>(room(thread).row(1))[-1]; }
    uint64_t* keys() const { return room(v_.thread).row(1); }

    float guess(int32_t row) const {
        return guess_least(scores(row), count(row), k(), reinterpret_cast<float*>(keys()));
    }
    Range part(int32_t row, int thread) const {
        const int64_t panels = (count(row) + LANES - 1) / LANES;
        return {share(panels, thread, threads_) * LANES,
                std::min(share(panels, thread + 1, threads_) * LANES, count(row))};
    }
    // Where a thread has the positions of a row that it has found, after their number.
    int32_t* place(int32_t row, int thread) const {
        int32_t* at = found(thread);
        for (int32_t before = first_; before < row; before++) {
            if (!chooses(v_, before)) continue;
            const Range of = part(before, thread);
            at += of.end - of.first + 1;
        }
        return at;
    }
    FoundPositions found_by(int32_t row, int thread) const {
        const int32_t* at = place(row, thread);
        return {at + 1, *at};
    }
    void find_together() const {
        each_row([&](int64_t i, int32_t row) {
            if (i == v_.thread) guess_of(v_.thread) = guess(row);
        });
        pass_.wait(v_.thread);
        each_row([&](int64_t i, int32_t row) {
            const Range of = part(row, v_.thread);
            int32_t* to = place(row, v_.thread);
            *to = int32_t(find_positions(scores(row), of.first, of.end, guess_of(int(i)), to + 1));
        });
        pass_.wait(v_.thread);
    }
    FoundPositions find_alone(int32_t row, float least) const {
        int32_t* to = found(v_.thread) + room(v_.thread).columns;
        return {to, find_positions(scores(row), 0, count(row), least, to)};
    }
    void choose(int32_t row, bool together) const {
        if (together) {
            int64_t all = 0;
            for (int t = 0; t < threads_; t++) all += found_by(row, t).count;
            if (all >= k()) return choose_among(row, threads_, [&](int t) { return found_by(row, t); });
        }
        FoundPositions alone = find_alone(row, together ? -INFINITY : guess(row));
        if (alone.count < k()) alone = find_alone(row, -INFINITY);
        choose_among(row, 1, [&](int) { return alone; });
    }
    // The k positions of the largest scores, ascending. part(0), part(1), …: candidates, which include them. Of a
    // pool all positions are chosen, and those of the open pool follow.
    template <typename Part>
    void choose_among(int32_t row, int parts, const Part& part) const {
        const float* of = scores(row);
        const int32_t pool = sight_.pool;
        int32_t* chosen = pass_.activations.shared.notes.row(row);
        uint64_t* end = keys();
        for (int p = 0; p < parts; p++) {
            const FoundPositions each = part(p);
            for (int64_t i = 0; i < each.count; i++) *end++ = choice_key(of, each.positions[i]);
        }
        std::nth_element(keys(), keys() + k() - 1, end, std::greater<>());
        const uint64_t least = keys()[k() - 1];
        for (int p = 0; p < parts; p++) {
            const FoundPositions each = part(p);
            for (int64_t i = 0; i < each.count; i++) {
                if (choice_key(of, each.positions[i]) < least) continue;
                for (int32_t j = 0; j < pool; j++) *chosen++ = each.positions[i] * pool + j;
            }
        }
        if (sight_.rate) return;  // entries, which a window follows
        for (int32_t i = int32_t(count(row)) * pool; i <= pass_.plan().positions[size_t(row)]; i++) *chosen++ = i;
    }

    Pass& pass_;
    const AttentionView& v_;
    const ChosenSight sight_;
    const int threads_;
    const int32_t first_, end_;
};

}  // namespace

// As many rows at a time as there is room for scores.
void choose_positions(Pass& pass, const LayerStep& step, int thread) {
    const AttentionView v(pass, step, thread);
    if (v.spec.latent.indexer.pools()) keep_open_rows(v);
    const int32_t rows = pass.plan().rows(), most = int32_t(pass.activations.shared.work.rows);
    for (int32_t first = 0, end; first < rows; first = end) {
        if (!chooses(v, first)) {
            end = first + 1;
            continue;
        }
        end = std::min(first + most, rows);
        const uint64_t started = __rdtsc();
        score_share(v, first, end);
        pass.wait(thread);
        const uint64_t scored = __rdtsc();
        PositionChoices(pass, v, first, end).make();
        if (thread > 0) continue;
        const uint64_t chosen = __rdtsc();
        pass.timing.scores += scored - started, pass.timing.choice += chosen - scored;
        pass.timing.attention += chosen - started;
    }
}

}  // namespace ipex_assist
