// Embeddings of n-grams (Qwen4): a row of a table for each of several hashes of a token and those before it. They make a
// value that all residual streams get, each as far as its own key says, and what a dilated convolution makes of these
// values: that is the whole layer. A sequence keeps the convolution's inputs and, behind them, the token.
#include <algorithm>
#include <cmath>

#include "mixers/mixer.h"
#include "mixers/recurrent_rows.h"
#include "operations/routing.h"

namespace ipex_assist {
namespace {

constexpr int64_t COLUMNS = 256;  // that are convolved together

int64_t token_column(const RecurrentSpec& r) { return r.value_width(); }  // of what is kept

int32_t token_at(const Pass& pass, const LayerStep& step, size_t segment, int64_t position) {
    const Segment& s = pass.plan().segments[segment];
    if (position >= s.start) return pass.plan().tokens[size_t(pass.plan().first_row[segment] + position - s.start)];
    return int32_t(recurrent_inputs(pass, step, segment, position)[token_column(pass.layer(step).recurrent)]);
}

// The embeddings of a row, side by side, to `out`. What is before a text, or before the token that ends one, is that
// token.
void look_up(const Pass& pass, const LayerStep& step, int64_t row, float* out) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& r = layer.recurrent;
    const size_t segment = size_t(pass.plan().segment_of[size_t(row)]);
    const int64_t position = pass.plan().positions[size_t(row)], width = r.gate_rank / r.hashes.tables();
    const int64_t *sizes = r.hashes.numbers + r.hashes.size, *factors = r.hashes.numbers;
    const bool wide = pass.model.spec.precision == FP32;
    int64_t mixed = int64_t(token_at(pass, step, segment, position)) * factors[0], before = 0;
    bool ended = false;
    for (int32_t back = 1; back < r.hashes.size; back++) {
        ended |= position < back;
        const int32_t token = ended ? r.hashes.end : token_at(pass, step, segment, position - back);
        ended |= token == r.hashes.end;
        mixed ^= int64_t(token) * factors[back];
        for (int32_t h = 0; h < r.hashes.heads; h++, before += *sizes++, out += width) {
            const int64_t at = before + mixed % *sizes;
            const uint8_t* part = layer.recurrence.ngram_tables[size_t(at / r.hashes.part_rows)];
            pass.kernels.widen(wide ? SOURCE_F32 : SOURCE_BF16, part + at % r.hashes.part_rows * width * (wide ? 4 : 2),
                               width, out);
        }
    }
}

// f(row) for all rows where each thread has a stream of its own, else for this thread's share, which it also normalises
// in the layers around.
template <class F>
void each_own_row(const Pass& pass, int thread, F&& f) {
    const PassPlan& plan = pass.plan();
    const bool all = plan.each_thread_prepares;
    const int64_t rows = plan.rows(), end = all ? rows : share(rows, thread + 1, plan.threads);
    for (int64_t r = all ? 0 : share(rows, thread, plan.threads); r < end; r++) f(r);
}

// Adds what the layer before gave, and makes the embeddings the linear's inputs.
void prepare_ngrams(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const PassPlan& plan = pass.plan();
    const int64_t lines = pass.model.spec.hidden_size / LANES;
    const int64_t start = plan.each_thread_prepares ? share(lines, thread, plan.threads) * LANES : 0;
    float* row = pass.activations.own(thread).row.data;
    add_embeddings(pass, step.index, thread);
    each_own_row(pass, thread, [&](int64_t r) {
        if (!layer.into_attention.add) return;
        add_delta(pass, layer.into_attention, r, pass.stream(thread).row(r), pass.delta(thread).row(r), row, start);
    });
    if (pass.batch.taps.count) tap_layer(pass, step.index, thread);
    prepare_made(pass, thread, layer.recurrent.gate_rank, plan.rows(), layer.qkv, [&](int64_t r) {
        look_up(pass, step, r, row);
        return row;
    });
}

void ngram_linear(Pass& pass, const LayerStep& step, int thread) {
    const Linear& made = pass.layer(step).qkv;
    const Array<float>& qkv = pass.activations.shared.qkv;
    linear(pass, thread, pass.inputs(thread, made.depth), made, pass.plan().rows(), qkv.data, qkv.columns);
}

// The product of a key and a stream, both normalised.
float product(const float* key, const float* query, int64_t size) {
    float sums[LANES] = {}, sum = 0;
    for (int64_t i = 0; i < size; i += LANES) {
        for (int64_t j = 0; j < LANES; j++) sums[j] += key[i + j] * query[i + j];
    }
    for (int64_t j = 0; j < LANES; j++) sum += sums[j];
    return sum;
}

// The value of a row times each stream's gate; and that through its norm, which is kept.
void gate_ngrams(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentWeights& w = layer.recurrence;
    const ModelSpec& spec = pass.model.spec;
    const int64_t size = spec.hidden_size, width = layer.recurrent.value_width();
    float* query = pass.activations.own(thread).row.data;
    const auto normed = [&](const float* x, const float* weight, float* to) {
        pass.kernels.normalize(true, x, weight, nullptr, spec.norm_eps, size, to);
    };
    const int64_t rows = pass.plan().rows(), end = share(rows, thread + 1, pass.plan().threads);
    for (int64_t r = share(rows, thread, pass.plan().threads); r < end; r++) {
        float *made = pass.activations.shared.qkv.row(r), *kept = made + layer.columns.kept;
        const float *value = made + width, *x = pass.stream(thread).row(r);
        float* out = pass.activations.shared.attended.row(r);
        kept[token_column(layer.recurrent)] = float(pass.plan().tokens[size_t(r)]);
        for (int64_t at = 0; at < width; at += size) {
            normed(made + at, w.key_norm + at, made + at);
            normed(x + at, w.query_norm + at, query);
            const float logit = product(made + at, query, size) / std::sqrt(float(size));
            const float root = std::sqrt(std::max(std::abs(logit), 1e-6f));
            const float gate = sigmoid(logit > 0 ? root : logit < 0 ? -root : 0.0f);
            for (int64_t i = 0; i < size; i++) out[at + i] = gate * value[i];
            normed(out + at, w.norm + at, kept + at);
        }
    }
    pass.wait(thread);
}

// Adds what the convolution makes of rows so far apart, and all of it to the streams.
void convolve_ngrams(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const RecurrentSpec& r = layer.recurrent;
    const PassPlan& plan = pass.plan();
    const Array<float>& attended = pass.activations.shared.attended;
    const int64_t width = r.value_width(), each = (width + COLUMNS - 1) / COLUMNS, items = plan.rows() * each;
    for (int64_t u = share(items, thread, plan.threads); u < share(items, thread + 1, plan.threads); u++) {
        const size_t row = size_t(u / each), segment = size_t(plan.segment_of[row]);
        const int64_t first = u % each * COLUMNS, size = std::min(COLUMNS, width - first);
        const float* rows[MOST_CONV_ROWS];
        for (int32_t t = 0; t < r.hashes.kernel; t++) {
            const int64_t back = int64_t(r.hashes.size) * (r.hashes.kernel - 1 - t);
            const float* inputs = recurrent_inputs(pass, step, segment, plan.positions[row] - back);
            rows[t] = inputs ? inputs + first : nullptr;
        }
        float sums[COLUMNS];
        pass.kernels.convolve(rows, r.hashes.kernel, layer.recurrence.v_conv + first, width, nullptr, true, size, sums);
        float* out = attended.row(int64_t(row)) + first;
        for (int64_t i = 0; i < size; i++) out[i] += sums[i];
    }
    pass.wait(thread);
    keep_inputs(pass, step, thread);
    each_own_row(pass, thread,
                 [&](int64_t row) { pass.kernels.add(pass.stream(thread).row(row), attended.row(row), width); });
}

void check(const ModelSpec& spec, const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    check_recurrent(r);
    if (!spec.streams.gated() || layer.has_mlp() || layer.mixer_gate_rank || r.value_width() != spec.norm_width())
        refuse("embeddings of n-grams but for all of gated residuals");
    check_range("ngram_size", r.hashes.size, 2, MOST_CONV_ROWS);
    check_range("heads_per_ngram", r.hashes.heads, 1, 1 << 10);
    check_range("ple_conv_kernel_size", r.hashes.kernel, 1, MOST_CONV_ROWS);
    check_range("rows of that convolution", (int64_t(r.hashes.kernel) - 1) * r.hashes.size + 1, 1, r.conv_kernel);
    check_range("ngram_size", r.hashes.size, 2, r.conv_kernel);
    check_range("ple_embed_dim", r.gate_rank, r.hashes.tables(), spec.hidden_size);
    check_range("rows of a part of the table", r.hashes.part_rows, 1, INT32_MAX);
    check_range("rows of the table", r.hashes.rows, 1, INT32_MAX);
    if (r.gate_rank % r.hashes.tables() || !r.hashes.numbers) refuse("embeddings of n-grams without their numbers");
    int64_t rows = 0;
    for (int32_t h = 0; h < r.hashes.tables(); h++) {
        check_range("rows of a hash", r.hashes.numbers[r.hashes.size + h], 1, INT32_MAX);
        rows += r.hashes.numbers[r.hashes.size + h];
    }
    for (int32_t i = 0; i < r.hashes.size; i++)
        check_range("a factor of a hash", r.hashes.numbers[i], 0, INT64_MAX / spec.vocab_size);
    check_range("the token between texts", r.hashes.end, 0, spec.vocab_size - 1);
    check_range("rows of all hashes", rows, 1, r.hashes.rows);
}

MixerColumns columns(const LayerSpec& layer) {
    const RecurrentSpec& r = layer.recurrent;
    MixerColumns made;
    made.kept = made.input_width = r.value_width() + round_up(r.value_dim, LANES);
    made.kept_width = r.value_width() + LANES;
    made.width = made.kept + made.kept_width, made.out_width = r.value_width();
    return made;
}

void list_weights(WeightList& list, const ModelSpec& spec, PackedLayer& layer) {
    const RecurrentSpec& r = layer.recurrent;
    RecurrentWeights& w = layer.recurrence;
    list.linear(layer.qkv, {layer.columns.input_width, r.gate_rank, false, spec.precision},
                {{"k_in", 0, r.value_width()}, {"v_in", r.value_width() / LANES, r.value_dim}});
    list.vector(w.v_conv, {"v_conv", r.value_width() * r.hashes.kernel, {r.value_width(), r.hashes.kernel}});
    list.vector(w.key_norm, {"ngram_key_norm", r.value_width()});
    list.vector(w.query_norm, {"ngram_query_norm", r.value_width()});
    list.vector(w.norm, {"ngram_conv_norm", r.value_width()});
    const int64_t parts = (int64_t(r.hashes.rows) + r.hashes.part_rows - 1) / r.hashes.part_rows;
    w.ngram_tables.resize(size_t(parts));
    for (int64_t i = 0; i < parts; i++) {
        const int64_t rows = std::min<int64_t>(r.hashes.part_rows, r.hashes.rows - i * r.hashes.part_rows);
        list.within("ngram_embed", int32_t(i),
                    [&] { list.table(w.ngram_tables[size_t(i)], "rows", rows, r.gate_rank / r.hashes.tables()); });
    }
}

void size(const PackedLayer& layer, int64_t, ActivationSizes& s) {
    s.between = std::max<int64_t>(s.between, layer.recurrent.gate_rank);
}

constexpr Operation PREPARE_NGRAMS{"prepare_ngrams", prepare_ngrams, RESIDUAL_STREAM};
constexpr Operation NGRAM_LINEAR{"ngram_linear", ngram_linear, PROJECTED};
constexpr Operation GATE_NGRAMS{"gate_ngrams", gate_ngrams};
constexpr Operation CONVOLVE_NGRAMS{"convolve_ngrams", convolve_ngrams, ATTENDED};

void list_operations(const PackedLayer&, LayerStep& step, const Operation&) {
    add(step.append_operations, {PREPARE_NGRAMS, NGRAM_LINEAR, GATE_NGRAMS, CONVOLVE_NGRAMS});
}

}  // namespace

extern const Mixer NGRAM_ROWS_MIXER{check, columns, list_weights, size, list_operations};

}  // namespace ipex_assist
