// What the watch of a pass is shown after each operation.
#include <cstring>
#include <string>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// A linear's input rows as fp32, in the order of the checkpoint's columns.
std::vector<float> widened(const Pass& pass, const Linear& linear, const LinearRows& in) {
    const int64_t rows = pass.plan().rows(), depth = linear.depth, spans = depth / SCALE_COLUMNS;
    std::vector<float> out(size_t(rows * depth), 0.0f);
    const int64_t bytes = value_bytes(linear.precision, *pass.model.kernels);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < depth; i++) {
            const uint8_t* from = in.values + (r * depth + i) * bytes;
            float& to = out[size_t(r * depth + (linear.order ? linear.order[i] : i))];
            uint16_t half = 0;
            if (bytes == 4) {
                std::memcpy(&to, from, 4);
            } else if (bytes == 2) {
                std::memcpy(&half, from, 2);
                const uint32_t bits = uint32_t(half) << 16;
                std::memcpy(&to, &bits, 4);
            } else {
                to = in.scales[r * spans + i / SCALE_COLUMNS] * float(int8_t(*from));
            }
        }
    }
    return out;
}

// The row of the batch that each row of the plan is.
std::vector<int32_t> batch_rows(const Pass& pass) {
    std::vector<int32_t> rows(size_t(pass.plan().rows()));
    const bool pruned = pass.plan().rows() < pass.batch.rows && pass.plan().rows() == pass.batch.logit_row_count;
    for (size_t i = 0; i < rows.size(); i++) rows[i] = pruned ? pass.batch.logit_rows[i] : int32_t(i);
    return rows;
}

class Report {
public:
    Report(const Pass& pass, const char* operation, const LayerStep* step)
        : pass_(pass),
          step_(step),
          shared_(pass.activations.shared),
          rows_(batch_rows(pass)),
          now_{operation, nullptr, 0, pass.plan().rows(), 0, 0, 0, nullptr, nullptr} {
        now_.layer = step ? step->index : -1;
    }

    void show(Written buffer) {
        // Of AltUp's streams, the row that layers see.
        const int64_t hidden = pass_.model.spec.hidden_size, columns = pass_.model.spec.streams.columns(hidden);
        const Array<float>& stream = pass_.stream(0);
        if (buffer == RESIDUAL_STREAM) return give("residual stream", stream.data, columns, stream.columns, rows_);
        if (buffer == LOGITS) return show_logits();
        const PackedLayer& layer = pass_.layer(*step_);
        const Array<float>& delta = pass_.delta(0);
        switch (buffer) {
            case MIXER_INPUTS:
                return show_inputs("mixer inputs", layer.mixer_gate_rank ? layer.qkv : layer.first_linear());
            case MLP_INPUTS:
                return show_inputs("mlp inputs", layer.mlp_gate_rank ? layer.mlp_linear() : layer.first_of_mlp());
            case PROJECTED: return give("qkv", shared_.qkv.data, layer.columns.width, shared_.qkv.columns, rows_);
            case QUERIES: {
                const int64_t width = layer.attention.latent_query_width();
                return give("queries", shared_.heads.data, width, shared_.heads.columns, rows_);
            }
            case SCANNED: return show_scanned(layer);
            case ATTENDED: {
                return give("attended", shared_.attended.data, layer.mixed_width(), shared_.attended.columns, rows_);
            }
            case VALUES:
                return give("values", shared_.heads.data, layer.attention.output_width(), shared_.heads.columns, rows_);
            case DELTA: return give("delta", delta.data, hidden, delta.columns, rows_);
            case ACTIVE: return show_active(layer);
            case ROUTER_LOGITS: {
                const int64_t stride = layer.router.panels * LANES;
                return give("router logits", shared_.router_logits.data, layer.mlp.experts, stride, rows_);
            }
            case EXPERT_OUTPUTS:
                return give("expert outputs", shared_.expert_outputs.data, hidden, shared_.expert_outputs.columns,
                            slots(layer.mlp.count()));
            case NOTHING:
            case RESIDUAL_STREAM:
            case LOGITS: return;
        }
    }

private:
    void give(const char* buffer, const float* data, int64_t columns, int64_t stride,
              const std::vector<int32_t>& rows) {
        now_.buffer = buffer, now_.data = data, now_.columns = columns, now_.stride = stride;
        now_.rows = int64_t(rows.size()), now_.batch_rows = rows.data();
        pass_.program.watch.call(pass_.program.watch.context, &now_);
    }

    void show_logits() {
        std::vector<int32_t> rows;
        for (const int32_t row : pass_.plan().logit_rows) rows.push_back(rows_[size_t(row)]);
        now_.layer = pass_.model.spec.layers;
        give("logits", pass_.batch.logits, vocabulary_columns(pass_), pass_.batch.stride, rows);
    }

    void show_inputs(const char* name, const Linear& next) {
        const std::vector<float> values = widened(pass_, next, pass_.inputs(0, next.depth));
        give(name, values.data(), next.depth, next.depth, rows_);
    }

    void show_scanned(const PackedLayer& layer) {
        std::vector<int32_t> rows;
        for (size_t i = 0; i < pass_.plan().segments.size(); i++) {
            const Segment& s = pass_.plan().segments[i];
            rows.insert(rows.end(), size_t(s.start - s.settled), -1);
            const auto first = rows_.begin() + pass_.plan().first_row[i];
            rows.insert(rows.end(), first, first + s.rows);
        }
        give("scanned", shared_.scanned.data, layer.columns.scanned, shared_.scanned.columns, rows);
    }

    // Of a plain MLP, or of the slots of all routed experts; the shared one's have a width of their own.
    void show_active(const PackedLayer& layer) {
        const float* data = shared_.active.data;
        if (!layer.mlp.experts) {
            const int64_t columns = layer.mlp.intermediate_size;
            if (layer.mlp.sparsity > 0)
                return give("active", data + sparse_active(layer.mlp), columns, sparse_stride(layer.mlp), rows_);
            return give("active", data, columns, round_up(columns, LANES), rows_);
        }
        const int64_t stride = layer.experts[0].up.panels / (layer.mlp.gated ? 2 : 1) * LANES;
        give("active", data, layer.mlp.intermediate_size, stride, slots(layer.mlp.experts));
    }

    // The batch row of each slot of the first `experts` experts.
    std::vector<int32_t> slots(int32_t experts) const {
        std::vector<int32_t> rows;
        for (int32_t i = 0; i < pass_.routes.first[size_t(experts)]; i++)
            rows.push_back(rows_[size_t(pass_.routes.rows[size_t(i)])]);
        return rows;
    }

    const Pass& pass_;
    const LayerStep* step_;
    const SharedBuffers& shared_;
    const std::vector<int32_t> rows_;
    WatchedBuffer now_;
};

}  // namespace

void watch(Pass& pass, const char* name, uint32_t writes, const LayerStep* step, int thread) {
    pass.wait(thread);
    if (thread == 0) {
        Report report(pass, name, step);
        for (uint32_t bit = 1; bit <= LOGITS; bit <<= 1) {
            if (writes & bit) report.show(Written(bit));
        }
    }
    pass.wait(thread);
}

}  // namespace ipex_assist
