// One pass of rows through a model: the phases of a layer, with a barrier between them. Attention is in attention.cpp.
#include "forward.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "checks.h"

namespace ipex_assist {
namespace {

constexpr int64_t UP_BLOCKS = 16;     // of gate and up, which are activated while they are still in the cache
constexpr int64_t TILE_QUERIES = 64;  // that one piece of attention works on

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

}  // namespace

Forward::Forward(const Model& model, Pool& pool, Workspace& workspace, const Batch& batch, int32_t further)
    : model_(model),
      k_(*model.kernels),
      spec_(model.spec),
      pool_(pool),
      w_(workspace),
      batch_(checked(model, batch, further)),
      head_(model.head),
      width_(round_up(std::max(spec_.hidden_size, spec_.embedding_size), LANES)),
      qkv_width_(model.layers[0].qkv.blocks * LANES),
      inner_(round_up(spec_.intermediate_size, LANES)),
      attended_width_(round_up(int64_t(spec_.heads) * spec_.head_dim, LANES)),
      partial_width_(model.value_width() + LANES),
      maxima_(size_t(pool.threads())) {
    for (int32_t r = 0; r < batch.rows; r++) {
        if (r == 0 || batch.caches[r] != batch.caches[r - 1]) segments_.push_back({r, r});
        segments_.back().end = r + 1;
    }
    for (const Segment& s : segments_) {
        for (int32_t r = s.first; r < s.end; r += tile_rows()) tiles_.push_back({r, std::min(r + tile_rows(), s.end)});
    }
    if (batch.vocabulary > 0) head_.blocks = std::min(head_.blocks, (int64_t(batch.vocabulary) + LANES - 1) / LANES);
    reserve(further);
}

void Forward::reserve(int32_t further) {
    const int64_t rows = batch_.rows, padded = round_up(rows, 32);  // AMX reads whole tiles of rows
    const int64_t depth = round_up(std::max({width_, inner_, attended_width_}), SPAN);
    w_.x.grow(size_t(rows * width_ * 4));
    w_.delta.grow(size_t(rows * width_ * 4));
    w_.qkv.grow(size_t(rows * qkv_width_ * 4));
    w_.attended.grow(size_t(rows * attended_width_ * 4));
    w_.active.grow(size_t(rows * inner_ * 4));
    w_.row_values.grow(size_t(padded * depth * 4));
    w_.row_scales.grow(size_t(padded * depth / SPAN * 4));
    w_.row_sums.grow(size_t(padded * depth / 32 * 4));
    w_.scratch.grow(size_t(scratch_bytes() * pool_.threads()));
    const int64_t attended_rows = few() ? rows : further > 0 ? 1 : 0;
    if (attended_rows) {
        int64_t blocks = 0;
        for (const Segment& s : segments_) {
            blocks = std::max(blocks, (batch_.positions[s.end - 1] + further) / KEYS + 1 - first_block(s.first, 0));
        }
        w_.partials.grow(size_t(blocks * spec_.heads * attended_rows * partial_width_ * 4));
    }
    rows_ = {w_.row_values.data(), w_.row_scales.as<float>(), w_.row_sums.as<int32_t>(), 0};
}

int64_t Forward::ordered_width() const {
    return spec_.ordered ? round_up(std::max({width_, inner_, attended_width_}), SPAN) : 0;
}

int32_t Forward::tile_rows() const { return int32_t(std::max<int64_t>(1, TILE_QUERIES / group())); }

int64_t Forward::scratch_bytes() const {
    const int64_t queries = int64_t(tile_rows()) * group();
    const int64_t floats = width_ + ordered_width() + int64_t(batch_.rows) * UP_BLOCKS * LANES + model_.value_width() +
                           queries * (model_.key_depth() + 2 * KEYS + 2 * partial_width_ + 2 + 2 * int64_t(sizeof(Partial) / 4));
    return round_up(floats * 4 + 16 * 64, 4096);
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
    s.up = take_floats(batch_.rows * UP_BLOCKS * LANES);
    s.head = take_floats(model_.value_width());
    s.scores = take_floats(queries * KEYS);
    s.results = take_floats(queries * partial_width_);
    s.running = take_floats(queries * partial_width_);
    s.query = take(queries * model_.key_depth());
    s.probabilities = take(queries * KEYS);
    s.first = reinterpret_cast<int32_t*>(take(queries));
    s.end = reinterpret_cast<int32_t*>(take(queries));
    s.partials = reinterpret_cast<Partial*>(take(queries * int64_t(sizeof(Partial) / 4)));
    s.merged = reinterpret_cast<Partial*>(take(queries * int64_t(sizeof(Partial) / 4)));
    return s;
}

void Forward::run() {
    const uint64_t started = __rdtsc();
    pool_.run([this](int thread) { pass(thread); });
    timing.total += __rdtsc() - started;
}

void Forward::pass(int thread) {
    const int64_t rows = batch_.rows;
    embed_rows(thread);
    for (size_t i = 0; i < model_.layers.size(); i++) {
        const Layer& layer = model_.layers[i];
        const Norm* before = spec_.post_norm && i > 0 ? &model_.layers[i - 1].mlp_norm : nullptr;
        prepare_rows(thread, i > 0, before, spec_.post_norm ? nullptr : &layer.attention_norm, 0, layer.qkv);
        wait(thread);
        linear(thread, layer.qkv, rows, w_.qkv.as<float>(), qkv_width_);
        attention(thread, int32_t(i));
        linear(thread, layer.output, rows, w_.delta.as<float>(), width_);
        prepare_rows(thread, true, spec_.post_norm ? &layer.attention_norm : nullptr,
                     spec_.post_norm ? nullptr : &layer.mlp_norm, 0, layer.up);
        wait(thread);
        up_linear(thread, layer);
        quantize_all(thread, w_.active.as<float>(), inner_, spec_.intermediate_size, layer.down);
        wait(thread);
        linear(thread, layer.down, rows, w_.delta.as<float>(), width_);
    }
    if (batch_.last > 0) head(thread);
}

void Forward::embed_rows(int thread) {
    const int64_t first = share(batch_.rows, thread, pool_.threads()), end = share(batch_.rows, thread + 1, pool_.threads());
    float *x = w_.x.as<float>(), *delta = w_.delta.as<float>();
    if (spec_.projected_embedding) {
        for (int64_t r = first; r < end; r++) {
            model_.embed(batch_.tokens[r], delta + r * width_);
            quantize(thread, delta + r * width_, spec_.embedding_size, 0, model_.project_in.depth, r, model_.project_in);
        }
        wait(thread);
        linear(thread, model_.project_in, batch_.rows, x, width_);
    }
    for (int64_t r = first; r < end; r++) {
        if (!spec_.projected_embedding) model_.embed(batch_.tokens[r], x + r * width_);
        const float* position = model_.position_row(batch_.positions[r]);
        if (position) k_.add(x + r * width_, position, spec_.hidden_size);
    }
}

// x += delta, then the norm behind the sum, then the norm before `next`, then the form that `next` multiplies.
void Forward::prepare_rows(int thread, bool add, const Norm* post, const Norm* pre, int64_t first_row, const Linear& next) {
    const int64_t count = batch_.rows - first_row, threads = pool_.threads();
    float* scratch_row = scratch(thread).row;
    for (int64_t i = share(count, thread, int(threads)); i < share(count, thread + 1, int(threads)); i++) {
        float* x = w_.x.as<float>() + (first_row + i) * width_;
        if (add) k_.add(x, w_.delta.as<float>() + (first_row + i) * width_, spec_.hidden_size);
        if (post) k_.normalise(spec_.rms_norm, x, post->weight, post->bias, spec_.norm_eps, spec_.hidden_size, x);
        if (pre) k_.normalise(spec_.rms_norm, x, pre->weight, pre->bias, spec_.norm_eps, spec_.hidden_size, scratch_row);
        quantize(thread, pre ? scratch_row : x, spec_.hidden_size, 0, next.depth, i, next);
    }
}

void Forward::quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                       const Linear& next) {
    Rows rows = rows_;
    rows.depth = next.depth;
    if (next.order) from = Model::arrange(next, from, width, first, last, scratch(thread).ordered);
    k_.quantize(next.precision, next.group, from, width, first, last, row, rows);
}

void Forward::quantize_all(int thread, const float* from, int64_t stride, int64_t width, const Linear& next) {
    const int64_t spans = (next.depth + SPAN - 1) / SPAN, units = batch_.rows * spans;
    for (int64_t u = share(units, thread, pool_.threads()); u < share(units, thread + 1, pool_.threads()); u++) {
        const int64_t row = u / spans, first = u % spans * SPAN;
        quantize(thread, from + row * stride, width, first, std::min(first + SPAN, next.depth), row, next);
    }
}

void Forward::linear(int thread, const Linear& linear, int64_t rows, float* out, int64_t stride) {
    const uint64_t started = __rdtsc();
    Rows in = rows_;
    in.depth = linear.depth;
    const auto [first, last] = model_.slice(linear, thread, pool_.threads());
    if (first < last) k_.linear(linear, in, rows, first, last, out + first * LANES, stride);
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
}

void Forward::up_linear(int thread, const Layer& layer) {
    const uint64_t started = __rdtsc();
    Rows in = rows_;
    in.depth = layer.up.depth;
    float* temporary = scratch(thread).up;
    const int64_t parts = spec_.gated ? 2 : 1;
    const auto [first, last] = model_.slice(layer.up, thread, pool_.threads());
    for (int64_t b = first; b < last; b += UP_BLOCKS) {
        const int64_t end = std::min(b + UP_BLOCKS, last);
        k_.linear(layer.up, in, batch_.rows, b, end, temporary, UP_BLOCKS * LANES);
        for (int64_t r = 0; r < batch_.rows; r++) {
            k_.activate(spec_.activation, spec_.gated, temporary + r * UP_BLOCKS * LANES, (end - b) / parts,
                        w_.active.as<float>() + r * inner_ + b / parts * LANES);
        }
    }
    wait(thread);
    if (thread == 0) timing.linear += __rdtsc() - started;
}

void Forward::head(int thread) {
    const Layer& layer = model_.layers.back();
    const Norm* pre = spec_.final_norm ? &model_.final_norm : nullptr;
    const Linear& next = spec_.projected_embedding ? model_.project_out : model_.head;
    prepare_rows(thread, true, spec_.post_norm ? &layer.mlp_norm : nullptr, pre, batch_.rows - batch_.last, next);
    wait(thread);
    if (spec_.projected_embedding) {
        linear(thread, model_.project_out, batch_.last, w_.delta.as<float>(), width_);
        for (int64_t r = share(batch_.last, thread, pool_.threads()); r < share(batch_.last, thread + 1, pool_.threads()); r++) {
            quantize(thread, w_.delta.as<float>() + r * width_, spec_.embedding_size, 0, model_.head.depth, r,
                     model_.head);
        }
        wait(thread);
    }
    linear(thread, head_, batch_.last, batch_.logits, batch_.stride);
}

// The arg-max of one row of logits, each thread taking the slice it computed.
Maximum Forward::best_of(int thread, int32_t vocabulary) {
    const auto [first, last] = model_.slice(head_, thread, pool_.threads());
    const int64_t size = std::min<int64_t>(last * LANES, vocabulary) - first * LANES;
    Maximum mine{-INFINITY, 0, 0};
    if (size > 0) {
        mine = k_.maximum(batch_.logits + first * LANES, size);
        mine.index += int32_t(first * LANES);
    }
    maxima_[size_t(thread)] = mine;
    wait(thread);
    Maximum best = maxima_[0];
    for (const Maximum& other : maxima_) {
        if (other.value > best.value) best.value = other.value, best.index = other.index;
    }
    best.sum = 0;
    for (const Maximum& other : maxima_) {
        if (other.sum != 0) best.sum += other.sum * std::exp(other.value - best.value);  // 0: no columns of its own
    }
    return best;
}

int32_t Forward::draft(int32_t count, int32_t vocabulary, float least, int32_t* tokens, float* probabilities) {
    const uint64_t started = __rdtsc();
    const Segment all{0, 1};
    int32_t position = 0, drafted = 0;
    bool lost = false;
    pool_.run([&](int thread) {
        for (int32_t i = 0;; i++) {
            pass(thread);
            const Maximum best = best_of(thread, vocabulary);
            const float probability = 1.0f / best.sum;
            if (!std::isfinite(probability)) {  // the same in every thread
                if (thread == 0) lost = true;
                return;
            }
            if (thread == 0) {
                tokens[i] = best.index;
                probabilities[i] = probability;
                drafted = i + 1;
                // The next pass is one row: the token just found, in the same cache.
                position = batch_.positions[batch_.rows - 1] + 1;
                batch_.caches += batch_.rows - 1;
                batch_.rows = 1;
                batch_.tokens = tokens + i;
                batch_.positions = &position;
                segments_.assign(1, all);
                tiles_.assign(1, all);
            }
            if (i + 1 == count || !(probability >= least)) return;  // the same in every thread
            wait(thread);
        }
    });
    timing.total += __rdtsc() - started;
    if (lost) {
        throw NotFinite("the logits of position " + std::to_string(batch_.positions[batch_.rows - 1]) +
                        " hold NaN or infinity");
    }
    return drafted;
}

}  // namespace ipex_assist
