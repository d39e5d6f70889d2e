// Where rows without logits end. What later passes read of a row are its keys and values, or its effect on a state: of
// a prompt's rows all but the last have done their part with the last layer that keeps any. Layers after it that read
// the keys and values of earlier ones (Gemma 3n and 4), and the rest of the last layer of any model, are for the
// others, which go on as a pass of their own.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// The rows that `kept` names, ascending, to the first rows of a buffer; of columns first <= c < end this thread's
// share.
template <class T>
void close_up(const Pass& pass, int thread, const std::vector<int32_t>& kept, const Array<T>& rows, int64_t first,
              int64_t end) {
    const int64_t lines = (end - first + LANES - 1) / LANES, threads = pass.plan().threads;
    const int64_t begin = first + share(lines, thread, int(threads)) * LANES;
    end = std::min(end, first + share(lines, thread + 1, int(threads)) * LANES);
    for (size_t i = 0; begin < end && i < kept.size(); i++) {
        const T* from = rows.row(kept[i]);
        if (kept[i] != int32_t(i)) std::copy(from + begin, from + end, rows.row(int64_t(i)) + begin);
    }
}

}  // namespace

void prune_rows(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const SharedBuffers& rows = pass.activations.shared;
    const std::vector<int32_t>& kept = pass.plan().logit_rows;
    const int64_t size = pass.model.spec.stream_width(), per_layer = pass.model.spec.per_layer_size;
    pass.wait(thread);  // what a state keeps of rows is still being kept
    if (pass.pruned->each_thread_prepares) {
        const Array<float>& own = pass.activations.own(thread).x;
        for (size_t i = 0; i < kept.size(); i++)
            std::copy(rows.x.row(kept[i]), rows.x.row(kept[i]) + size, own.row(int64_t(i)));
    } else {
        close_up(pass, thread, kept, rows.x, 0, size);
    }
    close_up(pass, thread, kept, rows.qkv, 0, layer.columns.width);
    const auto attends = [](const Operation& each) { return (each.writes & ATTENDED) != 0; };
    if (std::any_of(step.append_operations.begin(), step.append_operations.end(), attends))
        close_up(pass, thread, kept, rows.attended, 0, layer.mixed_width());
    close_up(pass, thread, kept, rows.notes, 0, rows.notes.columns);
    close_up(pass, thread, kept, rows.deferred, 0, rows.deferred.columns);
    if (per_layer)
        close_up(pass, thread, kept, rows.per_layer, step.index * per_layer, pass.model.spec.layers * per_layer);
    pass.wait(thread);
    if (thread == 0) pass.continue_with(std::move(pass.pruned)), pass.pruning_layer = -1;
    pass.wait(thread);
}

}  // namespace ipex_assist
