// Attention of a pass: appending keys and values, the blocks of the sequences, and their combination.
//
// Up to 16 rows: threads share the blocks that rows see evenly, or, on several memory nodes, each takes what it wrote
// (Blocks::owner). It appends the rows that lie in its blocks, which needs no barrier as it is who reads them, and
// computes its blocks' parts of every row. The parts of a head are merged a barrier later, or, where that is little, by
// whoever comes last (between.cpp). More rows: threads take tiles of rows in turn, each going through all blocks that
// its rows see.
//
// Blocks are merged in their order within runs of 8, and the runs in theirs. Which run a block is in follows from its
// positions alone; who merges it, and whether a run is one part or each of its blocks is, changes no bits.
#include <algorithm>
#include <cstring>

#include "operations/forward.h"

#include <x86intrin.h>

namespace ipex_assist {
namespace {

// A partial costs another thread about a sixteenth of its block: a query's 600 bytes out of another core's cache, line
// by line, for 130 KB of keys and values (head_dim 128, bf16) that are read ahead.
constexpr int64_t EVEN = 16;

// The first block behind those that share a partial, or, of size SPLIT_BLOCKS, a run.
int64_t part_end(int64_t block, int64_t size) { return (block / size + 1) * size; }

AttentionPartial partial_at(float* row, int64_t width) { return {row[width - LANES], row[width - LANES + 1], row}; }

void keep_partial(const AttentionPartial& partial, float* row, int64_t width) {
    row[width - LANES] = partial.maximum;
    row[width - LANES + 1] = partial.sum;
}

}  // namespace

// Of many rows, those that `some` names, or all, go on to the output linear.
void Forward::attention(int thread, int32_t index, const std::vector<int32_t>* some) {
    const uint64_t started = __rdtsc();
    if (few()) {
        attend_few(thread, index);
        if (!combines_in_place(index)) {
            wait(thread);
            combine_few(thread, index);
        }
    } else {
        append(thread, index);
        if (thread == 0) next_.store(0);
        wait(thread);
        attend_many(thread, index);
        wait(thread);
        quantize_all(thread, w_.attended.as<float>(), attended_width_, int64_t(spec_.heads) * spec_.head_dim,
                     some ? int64_t(some->size()) : rows(), some, model_.layers[size_t(index)].output);
    }
    wait(thread);
    if (thread == 0) timing.attention += __rdtsc() - started;
}

// Norm and rotation of one head of queries or keys.
void Forward::rotate_head(float* head, const float* norm, const Layer& layer, const Stretch& s,
                          int32_t position) const {
    if (norm) k_.normalize(spec_.qk_norm != EACH_HEAD, head, norm, nullptr, spec_.norm_eps, spec_.head_dim, head);
    if (layer.rotation < 0) return;
    const int64_t at = int64_t(position - s.table_start) * model_.rotation_width() + layer.rotation;
    k_.apply_rotary(head, spec_.rotary_dim, s.cosine + at, s.sine + at);
}

void Forward::append(int thread, int32_t index) {
    const int64_t units = int64_t(pieces_.size()) * spec_.kv_heads;
    const bool owned = pool_.several_nodes();
    const int64_t first = owned ? 0 : share(units, thread, threads()),
                  end = owned ? units : share(units, thread + 1, threads());
    for (int64_t u = first; u < end; u++) {
        const Tile& piece = pieces_[size_t(u / spec_.kv_heads)];
        const int32_t kv_head = int32_t(u % spec_.kv_heads);
        const int32_t id = stretches_[size_t(piece.stretch)].blocks[last_block(piece.first)];
        if (!owned || batch_.blocks->owner(id, kv_head, threads()) == thread)
            append_rows(thread, index, piece, kv_head);
    }
}

void Forward::append_rows(int thread, int32_t index, const Tile& piece, int32_t kv_head) {
    const Layer& layer = model_.layers[size_t(index)];
    const Precision precision = batch_.blocks->precision();
    const KeyValueBlock block = block_of(piece, index, kv_head, last_block(piece.first));
    const float* factors = batch_.blocks->key_factors(index, kv_head);
    float* head = scratch(thread).head;
    for (int32_t r = piece.first; r < piece.end; r++) {
        const int32_t position = positions_[size_t(r)], within = position % BLOCK_POSITIONS;
        const float* qkv = w_.qkv.as<float>() + r * qkv_width_;
        std::memcpy(head, qkv + model_.key_column() + int64_t(kv_head) * spec_.head_dim, size_t(spec_.head_dim) * 4);
        rotate_head(head, model_.head_norm(layer.k_norm, kv_head), layer, stretches_[size_t(piece.stretch)], position);
        for (int32_t d = 0; factors && d < spec_.head_dim; d++) head[d] /= factors[d];
        k_.store_key(precision, head, spec_.head_dim, model_.key_depth(), within, block);
        k_.store_value(precision, qkv + model_.value_column() + int64_t(kv_head) * spec_.head_dim, spec_.head_dim,
                       within, block);
    }
}

int64_t Forward::first_block(int32_t row, int32_t window) const {
    const int32_t position = positions_[size_t(row)];
    return window > 0 && position >= window ? (position - window + 1) / BLOCK_POSITIONS : 0;
}

KeyValueBlock Forward::block_of(const Tile& tile, int32_t index, int32_t kv_head, int64_t block) const {
    return batch_.blocks->at(stretches_[size_t(tile.stretch)].blocks[block], index, kv_head);
}

AttentionTile Forward::prepare_tile(const Scratch& s, int32_t index, int32_t kv_head, const Tile& tile) const {
    const Layer& layer = model_.layers[size_t(index)];
    AttentionTile t{};
    t.precision = batch_.blocks->attention_precision();
    t.queries = (tile.end - tile.first) * group();
    t.head_dim = spec_.head_dim;
    t.key_depth = model_.key_depth();
    t.scale = spec_.attention_scale;
    t.query = s.query;
    t.first = s.first;
    t.end = s.end;
    t.scores = s.scores;
    t.probabilities = s.probabilities;
    t.query_scales = s.query_scales;
    t.query_offsets = s.query_offsets;
    t.weight_scales = s.weight_scales;
    t.widened = s.widened;
    t.cap = spec_.attention_cap;
    t.slopes = model_.slopes.empty() ? nullptr : s.slopes;
    t.distances = s.distances;
    const float* factors = batch_.blocks->key_factors(index, kv_head);
    const int64_t shared = t.key_depth / ATTENTION_GROUP;
    const bool integers = batch_.blocks->precision() == INT8 && t.precision != FP32;
    const int64_t bytes = t.precision == FP32 ? 4 : integers ? 2 : k_.bf16_row_bytes;
    for (int32_t q = 0; q < t.queries; q++) {
        const int32_t row = tile.first + q / group(), head = kv_head * group() + q % group();
        std::memcpy(s.head, w_.qkv.as<float>() + row * qkv_width_ + int64_t(head) * spec_.head_dim,
                    size_t(spec_.head_dim) * 4);
        rotate_head(s.head, model_.head_norm(layer.q_norm, head), layer, stretches_[size_t(tile.stretch)],
                    positions_[size_t(row)]);
        if (t.slopes) s.slopes[q] = model_.slopes[size_t(head)];
        for (int32_t d = 0; factors && d < spec_.head_dim; d++) s.head[d] *= factors[d];
        uint8_t* to = s.query + q * t.key_depth * bytes;
        if (integers)
            k_.store_query(s.head, spec_.head_dim, t.key_depth, to, s.query_scales + q * shared,
                           s.query_offsets + q * shared);
        else k_.convert(t.precision, s.head, spec_.head_dim, t.key_depth, to);
    }
    return t;
}

// What each query of a tile sees of a block.
void Forward::limit_tile(const Scratch& s, const Tile& tile, int64_t block, int32_t window) const {
    for (int32_t q = 0; q < (tile.end - tile.first) * group(); q++) {
        const int64_t position = positions_[size_t(tile.first + q / group())], start = block * BLOCK_POSITIONS;
        const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
        s.first[q] = int32_t(std::clamp<int64_t>(first - start, 0, BLOCK_POSITIONS));
        s.end[q] = int32_t(std::clamp<int64_t>(position + 1 - start, 0, BLOCK_POSITIONS));
        s.distances[q] = float(start - position);
    }
}

// Where the part that a block belongs to lies for the queries of a row: counted from the first that its stretch sees.
float* Forward::partial(int32_t index, int64_t block, int32_t kv_head, int64_t row) const {
    const int64_t size = part_blocks_[size_t(index)];
    const int64_t first =
        first_block(first_row_[size_t(stretch_of_[size_t(row)])], model_.layers[size_t(index)].window);
    return w_.partials.as<float>() +
           (((block / size - first / size) * spec_.kv_heads + kv_head) * rows() + row) * group() * partial_width_;
}

// The border between two runs that is nearest to a unit: a block of a stretch for a KV head, in the order of
// attend_few.
int64_t Forward::border(int32_t window, int64_t unit) const {
    int64_t all = 0;
    for (size_t i = 0; i < stretches_.size(); i++) all += seen_blocks(i, window);
    int64_t within = unit % all;
    size_t i = 0;
    for (; within >= seen_blocks(i, window); i++) within -= seen_blocks(i, window);
    const int64_t first = first_block(first_row_[i], window), block = first + within,
                  run_end = part_end(block, SPLIT_BLOCKS);
    const int64_t lower = std::max(first, run_end - SPLIT_BLOCKS),
                  upper = std::min(first + seen_blocks(i, window), run_end);
    return unit - block + (block - lower < upper - block ? lower : upper);
}

// Whether threads take whole runs: where none of them then has much more than its share of the blocks.
bool Forward::takes_runs(int32_t window) const {
    const int threads = this->threads();
    if (pool_.several_nodes()) return spec_.kv_heads % threads == 0;  // who owns a block then owns all of its head
    int64_t blocks = 0, most = 0, from = 0;
    for (size_t i = 0; i < stretches_.size(); i++) blocks += seen_blocks(i, window) * spec_.kv_heads;
    for (int t = 1; t <= threads; t++) {
        const int64_t end = border(window, share(blocks, t, threads));
        most = std::max(most, end - from), from = end;
    }
    return most * threads * EVEN <= blocks * (EVEN + 1);
}

// Of how many blocks each layer's partials are.
void Forward::place_parts() {
    part_blocks_.clear();
    for (const Layer& layer : model_.layers) {
        const auto same = [&](const Layer& other) { return other.window == layer.window; };
        const size_t known =
            size_t(std::find_if(model_.layers.begin(), model_.layers.end(), same) - model_.layers.begin());
        part_blocks_.push_back(known < part_blocks_.size()         ? part_blocks_[known]
                               : few() && takes_runs(layer.window) ? SPLIT_BLOCKS
                                                                   : 1);
    }
}

// Merges, or begins with what is merged first, which then lies at `to`.
void Forward::add_part(AttentionPartial& sum, const AttentionPartial& next, float* to) const {
    if (sum.output) return k_.merge(sum, next, spec_.attention_scale, spec_.head_dim);
    sum = {next.maximum, next.sum, to};
    if (next.output != to) std::memcpy(to, next.output, size_t(model_.value_width()) * 4);
}

// Blocks [first, end) of a run, merged for each query in s.runs, whose values are from `to` on; no values where it sees
// none.
void Forward::attend_run(const Scratch& s, const AttentionTile& t, int32_t index, int32_t kv_head, const Tile& tile,
                         int64_t first, int64_t end, float* to) const {
    std::fill_n(s.runs, t.queries, AttentionPartial{});
    for (int64_t b = first; b < end; b++) {
        limit_tile(s, tile, b, model_.layers[size_t(index)].window);
        for (int32_t q = 0; q < t.queries; q++)
            s.partials[q] = {0, 0, (b == first ? to : s.results) + q * partial_width_};
        k_.attend(t, block_of(tile, index, kv_head, b), s.partials);
        for (int32_t q = 0; q < t.queries; q++) {
            if (s.first[q] < s.end[q]) add_part(s.runs[q], s.partials[q], to + q * partial_width_);
        }
    }
}

// Blocks [first, end) of a stretch's sequence, for one KV head, or those of them that this thread owns: how many.
int64_t Forward::attend_blocks(int thread, int32_t index, int32_t kv_head, size_t stretch, int64_t first, int64_t end) {
    const int32_t window = model_.layers[size_t(index)].window;
    const int32_t* table = stretches_[stretch].blocks;
    const Scratch s = scratch(thread);
    const auto mine = [&](int64_t block) {
        return block >= first && block < end &&
               (!pool_.several_nodes() || batch_.blocks->owner(table[block], kv_head, threads()) == thread);
    };
    for (size_t i = first_piece_[stretch]; i < first_piece_[stretch + 1]; i++) {
        if (mine(last_block(pieces_[i].first))) append_rows(thread, index, pieces_[i], kv_head);
    }
    for (size_t i = first_tile_[stretch]; i < first_tile_[stretch + 1]; i++) {
        const Tile& tile = tiles_[i];
        const int64_t seen_end = std::min(end, last_block(tile.end - 1) + 1);
        AttentionTile t{};
        for (int64_t b = std::max(first, first_block(tile.first, window)), next; b < seen_end; b = next) {
            next = std::min(seen_end, part_end(b, part_blocks_[size_t(index)]));
            if (!mine(b)) continue;
            if (!t.queries) t = prepare_tile(s, index, kv_head, tile);
            attend_run(s, t, index, kv_head, tile, b, next, partial(index, b, kv_head, tile.first));
            for (int32_t q = 0; q < t.queries; q++) {
                if (s.runs[q].output) keep_partial(s.runs[q], s.runs[q].output, partial_width_);
            }
        }
    }
    int64_t number = 0;
    for (int64_t b = first; b < end; b++) number += mine(b);
    return number;
}

void Forward::attend_few(int thread, int32_t index) {
    const int32_t window = model_.layers[size_t(index)].window;
    const auto first = [&](size_t i) { return first_block(first_row_[i], window); };
    const auto seen = [&](size_t i) { return seen_blocks(i, window); };
    const bool in_place = combines_in_place(index);
    int64_t units = 0;
    for (size_t i = 0; i < stretches_.size(); i++) units += seen(i) * spec_.kv_heads;
    const bool owned = pool_.several_nodes();
    const auto share_from = [&](int t) {
        const int64_t from = share(units, t, threads());
        return part_blocks_[size_t(index)] == SPLIT_BLOCKS ? border(window, from) : from;
    };
    const int64_t from = owned ? 0 : share_from(thread), to = owned ? units : share_from(thread + 1);
    int64_t unit = 0;
    for (int32_t h = 0; h < spec_.kv_heads; h++) {
        for (size_t i = 0; i < stretches_.size(); i++) {
            const int64_t begin = std::max(unit, from), end = std::min(unit + seen(i), to), offset = first(i) - unit;
            if (begin < end) {
                const int64_t done = attend_blocks(thread, index, h, i, offset + begin, offset + end);
                if (in_place) finish_blocks(thread, index, h, i, done);
            }
            unit += seen(i);
        }
    }
}

// The sink of a head, behind all blocks: one more score, whose value is nothing (Xiao et al. 2023, arXiv:2309.17453).
void Forward::add_sink(int32_t index, int32_t head, AttentionPartial& sum) const {
    const float* sinks = model_.layers[size_t(index)].sinks;
    if (!sinks) return;
    const AttentionPartial sink{sinks[head] / spec_.attention_scale, 1, const_cast<float*>(nothing_.data())};
    k_.merge(sum, sink, spec_.attention_scale, spec_.head_dim);
}

void Forward::combine_head(int32_t index, int64_t row, int32_t head) {
    const int32_t window = model_.layers[size_t(index)].window, kv_head = head / group();
    const int64_t end = last_block(int32_t(row)) + 1;
    const auto at = [&](int64_t block) {
        return partial_at(partial(index, block, kv_head, row) + head % group() * partial_width_, partial_width_);
    };
    AttentionPartial sum{};
    for (int64_t b = first_block(int32_t(row), window), run_end; b < end; b = run_end) {
        run_end = std::min(end, part_end(b, SPLIT_BLOCKS));
        AttentionPartial run = at(b);
        while ((b = part_end(b, part_blocks_[size_t(index)])) < run_end) add_part(run, at(b), nullptr);
        add_part(sum, run, run.output);
    }
    add_sink(index, head, sum);
    float* out = w_.attended.as<float>() + row * attended_width_ + int64_t(head) * spec_.head_dim;
    for (int32_t d = 0; d < spec_.head_dim; d++) out[d] = sum.output[d] / sum.sum;
}

void Forward::combine_few(int thread, int32_t index) {
    const int64_t each = attended_units(model_.layers[size_t(index)].output).each, units = rows() * each;
    for (int64_t u = share(units, thread, threads()); u < share(units, thread + 1, threads()); u++) {
        combine_unit(thread, index, u / each, u % each);
    }
}

void Forward::attend_many(int thread, int32_t index) {
    const int64_t units = int64_t(tiles_.size()) * spec_.kv_heads;
    for (int64_t u = next_.fetch_add(1); u < units; u = next_.fetch_add(1)) {
        const Tile& tile = tiles_[tiles_.size() - 1 - size_t(u / spec_.kv_heads)];
        attend_tile(thread, index, int32_t(u % spec_.kv_heads), tile);
    }
}

void Forward::attend_tile(int thread, int32_t index, int32_t kv_head, const Tile& tile) {
    const int32_t window = model_.layers[size_t(index)].window;
    const Scratch s = scratch(thread);
    const AttentionTile t = prepare_tile(s, index, kv_head, tile);
    const int64_t first = first_block(tile.first, window), end = last_block(tile.end - 1) + 1;
    std::fill_n(s.sums, t.queries, AttentionPartial{});
    for (int64_t b = first, next; b < end; b = next) {
        next = std::min(end, part_end(b, SPLIT_BLOCKS));
        attend_run(s, t, index, kv_head, tile, b, next, b == first ? s.totals : s.running);
        for (int32_t q = 0; q < t.queries; q++) {
            if (s.runs[q].output) add_part(s.sums[q], s.runs[q], s.totals + q * partial_width_);
        }
    }
    for (int32_t q = 0; q < t.queries; q++) {
        const int32_t row = tile.first + q / group(), head = kv_head * group() + q % group();
        float* out = w_.attended.as<float>() + row * attended_width_ + int64_t(head) * spec_.head_dim;
        AttentionPartial& sum = s.sums[q];
        add_sink(index, head, sum);
        for (int32_t d = 0; d < spec_.head_dim; d++) out[d] = sum.output[d] / sum.sum;
    }
}

}  // namespace ipex_assist
