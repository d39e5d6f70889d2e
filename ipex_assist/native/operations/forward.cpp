// One pass of rows through a model: the phases of a layer, with a barrier between them. Attention is in attention.cpp.
#include "operations/forward.h"

#include <x86intrin.h>

#include <algorithm>

#include "abi/checks.h"

namespace ipex_assist {
namespace {

constexpr int64_t UP_BLOCKS = 16;     // of gate and up, which are activated while they are still in the cache
constexpr int64_t TILE_QUERIES = 64;  // that one piece of attention works on
constexpr int64_t WEIGHT_SCALES = BLOCK_POSITIONS / ATTENTION_GROUP;
constexpr int64_t ASKED = 4096;  // bytes of the next weights that are asked for ahead

void multiply(float* x, float factor, int64_t size) {
    for (int64_t i = 0; i < size; i++) x[i] *= factor;
}

}  // namespace

Forward::Forward(const Model& model, Pool& pool, Workspace& workspace, const Batch& batch, const int32_t* counts)
    : model_(model),
      k_(*model.kernels),
      spec_(model.spec),
      pool_(pool),
      w_(workspace),
      batch_(checked(model, batch, counts)),
      head_(model.head),
      width_(round_up(std::max(spec_.hidden_size, spec_.embedding_size), LANES)),
      qkv_width_(model.layers[0].qkv.blocks * LANES),
      inner_(round_up(spec_.intermediate_size, LANES)),
      attended_width_(round_up(int64_t(spec_.heads) * spec_.head_dim, LANES)),
      partial_width_(model.value_width() + LANES),
      stretches_(batch.stretches, batch.stretches + batch.stretch_count),
      tokens_(batch.tokens, batch.tokens + batch.rows),
      wanted_(batch.wanted, batch.wanted + batch.wanted_count) {
    if (spec_.attention_sinks) nothing_.assign(size_t(model_.value_width()), 0.0f);
    place_rows();
    if (batch.vocabulary > 0) head_.blocks = std::min(head_.blocks, (int64_t(batch.vocabulary) + LANES - 1) / LANES);
    reserve(counts);
}

// Positions, tiles and pieces of the rows that `stretches_` has.
void Forward::place_rows() {
    positions_.clear(), stretch_of_.clear(), first_row_.clear(), tiles_.clear(), pieces_.clear();
    first_tile_.clear(), first_piece_.clear();
    for (size_t i = 0; i < stretches_.size(); i++) {
        const Stretch& s = stretches_[i];
        const int32_t first = int32_t(positions_.size()), end = first + s.rows;
        first_row_.push_back(first), first_tile_.push_back(tiles_.size()), first_piece_.push_back(pieces_.size());
        for (int32_t r = 0; r < s.rows; r++) positions_.push_back(s.start + r), stretch_of_.push_back(int32_t(i));
        for (int32_t r = first; r < end; r += tile_rows())
            tiles_.push_back({r, std::min(r + tile_rows(), end), int32_t(i)});
        for (int32_t r = first; r < end;) {
            const int32_t next = std::min(end, r + LANES - positions_[size_t(r)] % LANES);
            pieces_.push_back({r, next, int32_t(i)});
            r = next;
        }
    }
    first_tile_.push_back(tiles_.size()), first_piece_.push_back(pieces_.size());
    place_parts();
    if (few()) return;
    // Those that see most come last, and are taken first: none of them is left over at the end.
    std::sort(tiles_.begin(), tiles_.end(),
              [this](const Tile& a, const Tile& b) { return last_block(a.end - 1) < last_block(b.end - 1); });
}

void Forward::reserve(const int32_t* counts) {
    const int64_t rows = batch_.rows, padded = round_up(rows, 32);  // AMX reads whole tiles of rows
    const int64_t depth = round_up(std::max({width_, inner_, attended_width_}), SCALE_COLUMNS);
    w_.x.grow(size_t(rows * width_ * 4));
    reserve_copies(w_.delta, rows * width_ * 4);
    w_.qkv.grow(size_t(rows * qkv_width_ * 4));
    w_.attended.grow(size_t(rows * attended_width_ * 4));
    w_.active.grow(size_t(rows * inner_ * 4));
    reserve_copies(w_.row_values, padded * depth * 4);
    reserve_copies(w_.row_scales, padded * depth / SCALE_COLUMNS * 4);
    reserve_copies(w_.row_sums, padded * depth / 32 * 4);
    w_.scratch.grow(size_t(scratch_bytes() * threads()));
    reserve_between();
    reserve_experts();
    inputs_ = copies(w_.row_values, w_.row_scales, w_.row_sums);
    down_inputs_ = copies(w_.down_values, w_.down_scales, w_.down_sums);
    if (k_.tiled && rows > DECODE_ROWS) {
        reserve_copies(w_.row_tiles, padded * depth);
        for (int node = 0; node < nodes(); node++) inputs_[size_t(node)].tiles = copy(w_.row_tiles, node);
    }
    const int64_t attended_rows = few() ? rows : counts ? std::min<int64_t>(DECODE_ROWS, batch_.stretch_count) : 0;
    if (!attended_rows) return;
    int64_t parts = 0;
    for (size_t i = 0; i < stretches_.size(); i++) {
        // Drafting may come to where each block is a part.
        if (counts)
            parts = std::max(parts,
                             (int64_t(stretches_[i].start) + stretches_[i].rows - 1 + counts[i]) / BLOCK_POSITIONS + 1);
        for (int32_t l = 0; !counts && l < spec_.layers; l++) parts = std::max(parts, seen_parts(i, l));
    }
    w_.partials.grow(size_t(parts * spec_.heads * attended_rows * partial_width_ * 4));
}

int64_t Forward::ordered_width() const {
    return spec_.ordered
               ? round_up(std::max({width_, inner_, attended_width_, int64_t(spec_.shared_size)}), SCALE_COLUMNS)
               : 0;
}

int32_t Forward::tile_rows() const { return int32_t(std::max<int64_t>(1, TILE_QUERIES / group())); }

int64_t Forward::scratch_bytes() const {
    const int64_t queries = int64_t(tile_rows()) * group();
    const int64_t floats =
        width_ + ordered_width() + int64_t(rows()) * UP_BLOCKS * LANES + model_.value_width() +
        queries * (model_.key_depth() + 2 * BLOCK_POSITIONS + 3 * partial_width_ + 4 + WEIGHT_SCALES +
                   2 * model_.key_depth() / ATTENTION_GROUP + 3 * int64_t(sizeof(AttentionPartial) / 4));
    return round_up(floats * 4 + widened_bytes(model_.key_depth()) + own_bytes() + 23 * 64, 4096);
}

Forward::Scratch Forward::scratch(int thread) const {
    const int64_t queries = int64_t(tile_rows()) * group();
    uint8_t* at = w_.scratch.data() + scratch_bytes() * thread;
    const auto take = [&](int64_t floats) {
        uint8_t* taken = at;
        at += round_up(floats * 4, 64);
        return taken;
    };
    const auto take_floats = [&](int64_t floats) { return reinterpret_cast<float*>(take(floats)); };
    Scratch s;
    s.row = take_floats(width_);
    s.ordered = take_floats(ordered_width());
    s.up = take_floats(rows() * UP_BLOCKS * LANES);
    s.head = take_floats(model_.value_width());
    s.scores = take_floats(queries * BLOCK_POSITIONS);
    s.results = take_floats(queries * partial_width_);
    s.running = take_floats(queries * partial_width_);
    s.totals = take_floats(queries * partial_width_);
    s.slopes = take_floats(queries);
    s.distances = take_floats(queries);
    s.query_scales = take_floats(queries * model_.key_depth() / ATTENTION_GROUP);
    s.weight_scales = take_floats(queries * WEIGHT_SCALES);
    s.query_offsets = reinterpret_cast<int32_t*>(take(queries * model_.key_depth() / ATTENTION_GROUP));
    s.query = take(queries * model_.key_depth());
    s.probabilities = take(queries * BLOCK_POSITIONS);
    s.widened = take(widened_bytes(model_.key_depth()) / 4);
    s.first = reinterpret_cast<int32_t*>(take(queries));
    s.end = reinterpret_cast<int32_t*>(take(queries));
    s.partials = reinterpret_cast<AttentionPartial*>(take(queries * int64_t(sizeof(AttentionPartial) / 4)));
    s.runs = reinterpret_cast<AttentionPartial*>(take(queries * int64_t(sizeof(AttentionPartial) / 4)));
    s.sums = reinterpret_cast<AttentionPartial*>(take(queries * int64_t(sizeof(AttentionPartial) / 4)));
    s.x = take_floats(DECODE_ROWS * width_);
    s.rows = own_rows(at);
    return s;
}

void Forward::run() {
    const uint64_t started = __rdtsc();
    pool_.run([this](int thread) { pass(thread); }, threads());
    timing.total += __rdtsc() - started;
}

void Forward::pass(int thread) {
    embed_rows(thread);
    for (size_t i = 0; i < model_.layers.size(); i++) {
        const Layer& layer = model_.layers[i];
        const std::vector<int32_t>* some = narrows() && i + 1 == model_.layers.size() ? &wanted_ : nullptr;
        const int64_t rows = some ? int64_t(some->size()) : this->rows();
        const Linear& mlp = spec_.experts ? layer.router : layer.up;
        const Linear& next = i + 1 < model_.layers.size() ? model_.layers[i + 1].qkv : behind_layers();
        prepare_rows(thread, layer.into_attention, nullptr, layer.qkv);
        linear(thread, inputs(thread), layer.qkv, this->rows(), w_.qkv.as<float>(), qkv_width_, &layer.output);
        if (spec_.qk_norm == ALL_HEADS) normalise_queries_and_keys(thread, layer);
        if (!rows) return append(thread, int32_t(i));
        attention(thread, int32_t(i), some);
        linear(thread, of_node(inputs_, thread), layer.output, rows, delta(thread), width_, &mlp);
        prepare_rows(thread, layer.into_mlp, some, mlp);
        if (spec_.experts) {
            run_experts(thread, layer, rows, next);
            continue;
        }
        up_linear(thread, layer, rows);
        const Rows& active = of_node(activates_in_place(layer.down) ? down_inputs_ : inputs_, thread);
        linear(thread, active, layer.down, rows, delta(thread), width_, &next);
    }
    if (!wanted_.empty()) head(thread);
}

void Forward::embed_rows(int thread) {
    const bool all = repeats();
    const int64_t first = all ? 0 : share(rows(), thread, threads());
    const int64_t end = all ? rows() : share(rows(), thread + 1, threads());
    float *x = all ? scratch(thread).x : w_.x.as<float>(), *delta = this->delta(thread);
    if (spec_.projected_embedding) {
        for (int64_t r = first; r < end; r++) {
            model_.embed(tokens_[size_t(r)], delta + r * width_);
            quantize(thread, delta + r * width_, spec_.embedding_size, 0, model_.project_in.depth, r, model_.project_in,
                     inputs_);
        }
        wait(thread);
        linear(thread, of_node(inputs_, thread), model_.project_in, rows(), x, width_);
    }
    for (int64_t r = first; r < end; r++) {
        if (!spec_.projected_embedding) model_.embed(tokens_[size_t(r)], x + r * width_);
        if (spec_.embedding_multiplier != 1) multiply(x + r * width_, spec_.embedding_multiplier, spec_.hidden_size);
        const float* position = model_.position_row(positions_[size_t(r)]);
        if (position) k_.add(x + r * width_, position, spec_.hidden_size);
        if (spec_.embedding_norm) normalize(model_.embedding_norm, x + r * width_, x + r * width_);
    }
}

void Forward::normalize(const Norm& norm, const float* x, float* out) const {
    k_.normalize(spec_.rms_norm, x, norm.weight, norm.bias, spec_.norm_eps, spec_.hidden_size, out);
}

// `delta` stays as it is: other threads may read it, too. `changed` is a row for what becomes of it.
void Forward::add_delta(const Join& join, float* x, const float* delta, float* changed) const {
    if (join.behind) normalize(*join.behind, delta, changed);
    else if (spec_.residual_multiplier != 1) std::copy(delta, delta + spec_.hidden_size, changed);
    if (spec_.residual_multiplier != 1) multiply(changed, spec_.residual_multiplier, spec_.hidden_size);
    k_.add(x, join.behind || spec_.residual_multiplier != 1 ? changed : delta, spec_.hidden_size);
    if (join.sum) normalize(*join.sum, x, x);
}

// A join, and then the form that `next` multiplies. Of all rows, or of those that `some` names, which `next` gets side
// by side (as delta has them where the last layer narrows). All threads are done with it where they do not repeat it.
void Forward::prepare_rows(int thread, const Join& join, const std::vector<int32_t>* some, const Linear& next) {
    const int64_t count = some ? int64_t(some->size()) : rows();
    const bool narrow = some && narrows(), all = repeats();
    const Scratch s = scratch(thread);
    const int64_t first = all ? 0 : share(count, thread, threads());
    const int64_t end = all ? count : share(count, thread + 1, threads());
    for (int64_t i = first; i < end; i++) {
        const int64_t row = some ? (*some)[size_t(i)] : i;
        float* x = (all ? s.x : w_.x.as<float>()) + row * width_;
        const float* delta = this->delta(thread) + (narrow ? i : row) * width_;
        if (join.add && !join.late) add_delta(join, x, delta, s.row);
        if (join.before) normalize(*join.before, x, s.row);
        const float* from = join.before ? s.row : x;
        if (all) quantize(thread, from, spec_.hidden_size, 0, next.depth, i, next, s.rows);
        else quantize(thread, from, spec_.hidden_size, 0, next.depth, i, next, inputs_);
        if (join.late) add_delta(join, x, delta, s.row);
    }
    if (!all) wait(thread);
}

// The norm over all heads together.
void Forward::normalise_queries_and_keys(int thread, const Layer& layer) {
    const int64_t dim = spec_.head_dim;
    for (int64_t r = share(rows(), thread, threads()); r < share(rows(), thread + 1, threads()); r++) {
        float *query = w_.qkv.as<float>() + r * qkv_width_, *key = query + model_.key_column();
        k_.normalize(true, query, layer.q_norm, nullptr, spec_.norm_eps, spec_.heads * dim, query);
        k_.normalize(true, key, layer.k_norm, nullptr, spec_.norm_eps, spec_.kv_heads * dim, key);
    }
    wait(thread);
}

void Forward::quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                       const Linear& next, Rows to) {
    to.depth = next.depth;
    if (next.order) from = Model::arrange(next, from, width, first, last, scratch(thread).ordered);
    k_.quantize(next.precision, next.group, from, width, first, last, row, to);
}

// Of `rows` rows, which are those that `some` names or lie side by side.
void Forward::quantize_all(int thread, const float* from, int64_t stride, int64_t width, int64_t rows,
                           const std::vector<int32_t>* some, const Linear& next) {
    const int64_t spans = (next.depth + SCALE_COLUMNS - 1) / SCALE_COLUMNS, units = rows * spans;
    for (int64_t u = share(units, thread, threads()); u < share(units, thread + 1, threads()); u++) {
        const int64_t row = u / spans, first = u % spans * SCALE_COLUMNS;
        const float* x = from + (some ? (*some)[size_t(row)] : row) * stride;
        quantize(thread, x, width, first, std::min(first + SCALE_COLUMNS, next.depth), row, next, inputs_);
    }
}

// The first lines of what this thread reads next, before it waits for the others: they are on their way meanwhile. Of
// passes whose time is that of reading weights.
void Forward::ask_for(int thread, const Linear& next) const {
    const auto [first, last] = model_.slice(next, thread, threads());
    if (!few() || first == last) return;
    const int64_t each = block_bytes(next.precision, next.group, next.depth);
    const uint8_t* start = weights_of(next, first);
    for (int64_t i = 0; i < std::min(ASKED, (last - first) * each); i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(start + i), _MM_HINT_T1);
}

// next: whose inputs these outputs become, if that is known.
void Forward::linear(int thread, const Rows& inputs, const Linear& linear, int64_t rows, float* out, int64_t stride,
                     const Linear* next) {
    const uint64_t started = __rdtsc();
    Rows in = inputs;
    in.depth = linear.depth;
    const auto [first, last] = model_.slice(linear, thread, threads());
    model_.multiply(linear, in, rows, first, last, out + first * LANES, stride);
    if (out == delta(thread)) share_delta(thread, 0, rows, first * LANES, last * LANES);
    if (next) ask_for(thread, *next);
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
}

// The linears of gate and up, what is activated of them, and its form for the down linear.
void Forward::up_linear(int thread, const Layer& layer, int64_t rows) {
    const uint64_t started = __rdtsc();
    Rows in = inputs(thread);
    in.depth = layer.up.depth;
    const auto [first, last] = model_.slice(layer.up, thread, threads());
    activate_blocks(thread, layer.up, in, rows, first, last, w_.active.as<float>(), inner_);
    const bool in_place = activates_in_place(layer.down);
    if (in_place) quantize_active(thread, layer.up, layer.down);
    ask_for(thread, layer.down);
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
    if (in_place) return;
    quantize_all(thread, w_.active.as<float>(), inner_, spec_.intermediate_size, rows, nullptr, layer.down);
    wait(thread);
}

// Blocks first <= b < last of gate and up, activated, to their columns of `out`.
void Forward::activate_blocks(int thread, const Linear& up, const Rows& in, int64_t rows, int64_t first, int64_t last,
                              float* out, int64_t stride) {
    float* temporary = scratch(thread).up;
    const int64_t parts = spec_.gated ? 2 : 1;
    for (int64_t b = first; b < last; b += UP_BLOCKS) {
        const int64_t end = std::min(b + UP_BLOCKS, last);
        model_.multiply(up, in, rows, b, end, temporary, UP_BLOCKS * LANES);
        for (int64_t r = 0; r < rows; r++) {
            k_.activate(spec_.activation, spec_.gated, temporary + r * UP_BLOCKS * LANES, (end - b) / parts,
                        out + r * stride + b / parts * LANES);
        }
    }
}

void Forward::head(int thread) {
    const Linear& next = behind_layers();
    const int64_t count = int64_t(wanted_.size());
    prepare_rows(thread, model_.into_head, &wanted_, next);
    if (spec_.projected_embedding) {
        linear(thread, of_node(inputs_, thread), model_.project_out, count, delta(thread), width_, &head_);
        for (int64_t r = share(count, thread, threads()); r < share(count, thread + 1, threads()); r++) {
            quantize(thread, delta(thread) + r * width_, spec_.embedding_size, 0, model_.head.depth, r, model_.head,
                     inputs_);
        }
        wait(thread);
    }
    linear(thread, inputs(thread), head_, count, batch_.logits, batch_.stride);
    if (spec_.logit_cap > 0) cap_logits(thread);
}

void Forward::cap_logits(int thread) {
    const int64_t parts = int64_t(wanted_.size()) * head_.blocks;
    for (int64_t i = share(parts, thread, threads()); i < share(parts, thread + 1, threads()); i++) {
        float* part = batch_.logits + i / head_.blocks * batch_.stride + i % head_.blocks * LANES;
        k_.soft_cap(part, LANES, 1 / spec_.logit_cap, spec_.logit_cap);
    }
    wait(thread);
}

}  // namespace ipex_assist
