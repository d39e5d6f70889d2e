// Entries of several positions (CompressedSpec). An entry is made in the pass that has its last position, from rows in
// the precision in which blocks keep them: so its bits follow from the tokens, however these are cut into passes. Where
// tokens are taken back, it is made again with those that come in their place.
#include <algorithm>
#include <cstring>

#include "mixers/compressed/compressed.h"
#include "mixers/latent/kept.h"
#include "mixers/latent/latent.h"

namespace ipex_assist {

void round_entry_rows(const AttentionView& v, const RowRange& range) {
    const int64_t width = v.spec.latent.entry_width();
    if (entry_type(v) == SOURCE_F32) return;
    for (int32_t r = range.first; width && r < range.end; r++) {
        float* row = v.pass.activations.shared.qkv.row(r) + v.spec.index_key_column();
        v.k.narrow(entry_type(v), row, width, v.own.work.data);
        v.k.widen(entry_type(v), v.own.work.data, width, row);
    }
}

namespace {

// Of what is kept of a position: where its values are, and `parts` · dim columns after them their gates.
struct EntrySource {
    int64_t column, dim;
    const EntryWeights& weights;
};

class EntryMaker {
public:
    EntryMaker(const AttentionView& v, size_t segment, int64_t number)
        : v_(v),
          segment_(v.plan.segments[segment]),
          first_row_(v.plan.first_row[segment]),
          number_(number),
          rate_(v.spec.latent.compressed.rate),
          parts_(v.spec.latent.compressed.parts()) {}

    // The mean of the values of its positions, each column weighted by the softmax of its gates; normed and rotated.
    const float* make(const EntrySource& source) {
        const int64_t dim = source.dim;
        float *values = reinterpret_cast<float*>(v_.own.work.data), *gates = values;
        int64_t rows = 0;
        for (int64_t part = number_ > 0 ? 0 : parts_ - 1; part < parts_; part++) {
            for (int64_t j = 0; j < rate_; j++, gates += 2 * dim, rows++) read(source, part, j, gates);
        }
        float *most = gates, *sum = most + dim, *made = sum + dim;
        std::copy_n(values + dim, dim, most);
        std::fill_n(sum, dim, 0.0f), std::fill_n(made, dim, 0.0f);
        for (int64_t r = 1; r < rows; r++) {
            const float* gate = values + (2 * r + 1) * dim;
            for (int64_t d = 0; d < dim; d++) most[d] = most[d] < gate[d] ? gate[d] : most[d];
        }
        for (int64_t r = 0; r < rows; r++) {
            float *value = values + 2 * r * dim, *gate = value + dim;
            for (int64_t d = 0; d < dim; d++) gate[d] -= most[d];
            v_.k.sampling_weights(gate, dim, 0, 1, gate);
            for (int64_t d = 0; d < dim; d++) sum[d] += gate[d], made[d] += gate[d] * value[d];
        }
        for (int64_t d = 0; d < dim; d++) made[d] /= sum[d];
        v_.k.normalize(true, made, source.weights.norm, nullptr, v_.spec.latent.norm_eps, dim, made);
        rotate_head(v_.pass, v_.layer, nullptr, segment_, int32_t(number_ * rate_), made);
        return made;
    }

private:
    // Values and gates of a position of the windows before (part 0 of 2) or of its own window.
    void read(const EntrySource& source, int64_t part, int64_t j, float* to) const {
        const int64_t position = (number_ + part - (parts_ - 1)) * rate_ + j, dim = source.dim;
        const int64_t value = source.column + part * dim, gate = value + parts_ * dim;
        if (position >= segment_.start) {
            const float* row = v_.qkv(first_row_ + position - segment_.start) + v_.spec.index_key_column();
            std::copy_n(row + value, dim, to), std::copy_n(row + gate, dim, to + dim);
        } else {
            const int64_t bytes = element_bytes(entry_type(v_));
            const uint8_t* row = open_row(v_, segment_, position);
            v_.k.widen(entry_type(v_), row + value * bytes, dim, to);
            v_.k.widen(entry_type(v_), row + gate * bytes, dim, to + dim);
        }
        const float* bias = source.weights.bias + (j * parts_ + part) * dim;
        for (int64_t d = 0; d < dim; d++) to[dim + d] += bias[d];
    }

    const AttentionView& v_;
    const Segment& segment_;
    const int64_t first_row_, number_, rate_, parts_;
};

void close_entry(const AttentionView& v, size_t segment, int64_t number) {
    const AttentionSpec& a = v.spec;
    const int64_t dim = a.head_dim, index_dim = a.latent.indexer.dim, parts = a.latent.compressed.parts();
    const int64_t each = BLOCK_POSITIONS / a.latent.compressed.rate, slot = number % each;
    const int32_t id = v.plan.segments[segment].blocks[number / each];
    EntryMaker entry(v, segment, number);
    v.k.narrow(entry_type(v), entry.make({0, dim, own_weights<CompressedWeights>(v.layer).entries}), dim,
               entries_at(v, id) + slot * dim * element_bytes(entry_type(v)));
    if (!index_dim) return;
    v.k.store_key(index_precision(v),
                  entry.make({2 * parts * dim, index_dim, own_weights<CompressedWeights>(v.layer).index_entries}),
                  int32_t(index_dim), a.index_depth(), int32_t(slot), index_at(v, id));
}

}  // namespace

// The entries whose last position is a row of the pass; threads take turns. All rows are appended before.
void close_entries(Pass& pass, const LayerStep& step, int thread) {
    const AttentionView v(pass, step, thread);
    const int64_t rate = v.spec.latent.compressed.rate;
    int64_t turn = 0;
    for (size_t i = 0; i < v.plan.segments.size(); i++) {
        const Segment& segment = v.plan.segments[i];
        const int64_t end = (int64_t(segment.start) + segment.rows) / rate;
        for (int64_t number = segment.start / rate; number < end; number++) {
            if (turn++ % v.plan.threads == thread) close_entry(v, i, number);
        }
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
