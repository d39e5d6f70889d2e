// Hidden states of a pass's rows: copies of the residual stream, which change nothing of the pass itself.
#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

// f(row, to) for those of this thread's share of the rows that have states, where the batch wants the stream of this
// layer.
template <class F>
void each_tapped(const Pass& pass, int32_t layer, int thread, F&& f) {
    const Taps& taps = pass.batch.taps;
    const int64_t rows = pass.plan().rows(), size = taps.width(pass.model.spec);
    const std::vector<int32_t>& chosen = pass.plan().logit_rows;
    int64_t first = share(rows, thread, pass.plan().threads), end = share(rows, thread + 1, pass.plan().threads);
    if (taps.of_logit_rows) {
        first = std::lower_bound(chosen.begin(), chosen.end(), int32_t(first)) - chosen.begin();
        end = std::lower_bound(chosen.begin(), chosen.end(), int32_t(end)) - chosen.begin();
    }
    for (int32_t i = 0; i < taps.count; i++) {
        if (taps.layers[i] != layer) continue;
        for (int64_t n = first; n < end; n++)
            f(taps.of_logit_rows ? chosen[size_t(n)] : n, taps.rows + (n * taps.count + i) * size);
    }
}

}  // namespace

// Each thread's rows are those that it has just added to itself, or all threads have all of them.
void tap_layer(const Pass& pass, int32_t layer, int thread) {
    const int64_t size = pass.model.spec.hidden_size;
    const StreamTaps streams = pass.batch.taps.streams;
    each_tapped(pass, layer, thread, [&](int64_t r, float* to) {
        const float* x = pass.stream(thread).row(r);
        if (streams) give_streams(pass.model.spec, streams, x, nullptr, to);
        else std::copy(x, x + size, to);
    });
}

// The head adds to rows with logits only, and to others' rows than these: it waits until they are copied.
void tap_end(Pass& pass, int thread) {
    const ResidualNorm& end = pass.model.into_head;
    const bool several = pass.model.spec.streams.several();
    const int64_t size = pass.model.spec.hidden_size;
    const StreamTaps streams = pass.batch.taps.streams;
    each_tapped(pass, pass.model.spec.layers, thread, [&](int64_t r, float* to) {
        const float* x = pass.stream(thread).row(r);
        const float* delta = end.left ? convolved_delta(pass, thread, *end.left, r) : pass.delta(thread).row(r);
        float* changed = pass.activations.own(thread).row.data;
        if (streams) return give_streams(pass.model.spec, streams, x, added_delta(pass, end, delta, changed), to);
        if (several) {
            const bool own = pass.plan().each_thread_prepares;  // then `x` is: the shared stream is room
            float* room = own ? pass.activations.shared.x.row(r) : pass.activations.own(thread).x.row(0);
            read_last_streams(pass, x, added_delta(pass, end, delta, changed), room, to);
        } else {
            std::copy(x, x + size, to);
            add_delta(pass, end, r, to, delta, changed, 0);
        }
        if (pass.batch.taps.normed && end.pre) normalize(pass, *end.pre, to, to);
    });
    if (!pass.plan().each_thread_prepares) pass.wait(thread);
}

}  // namespace ipex_assist
