// Linears of a pass: every thread computes its own panels of output columns, or, of many rows, blocks of both.
#include <x86intrin.h>

#include <algorithm>

#include "operations/operations.h"

namespace ipex_assist {
namespace {

constexpr int64_t PREFETCHED = 4096;  // bytes of the next weights

}  // namespace

void prefetch(const Pass& pass, int thread, const Linear& next) {
    const auto [first, last] = slice(pass, next, thread);
    if (!pass.plan().decode || first == last) return;
    const int64_t bytes = panel_offset(next, last) - panel_offset(next, first);
    const uint8_t* start = weights_of(next, first);
    for (int64_t i = 0; i < std::min(PREFETCHED, bytes); i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(start + i), _MM_HINT_T1);
    }
}

void linear(Pass& pass, int thread, LinearRows inputs, const Linear& linear, int64_t rows, float* out, int64_t stride,
            const Linear* next, const AdapterTerm& term) {
    const uint64_t started = __rdtsc();
    const LinearBlocks blocks = blocks_of(pass, linear, inputs, rows, thread);
    const auto at = [&](const LinearBlock& block) { return out + block.row * stride + block.first * LANES; };
    shrink(pass, thread, term, linear, inputs);
    for (const LinearBlock& block : blocks)
        multiply_before_expand(pass, term, linear, inputs, block, at(block), stride);
    if (term.rows) {
        pass.wait(thread);
        for (const LinearBlock& block : blocks) expand(pass, term, block, at(block), stride);
    }
    for (const LinearBlock& block : blocks) {
        if (out == pass.delta(thread).data)
            share_delta(pass, thread, block.row, block.end_row, block.first * LANES, block.last * LANES);
    }
    if (next) prefetch(pass, thread, *next);
    pass.wait(thread);
    if (thread == 0) pass.timing.linear += __rdtsc() - started;
}

void qkv_linear(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    linear(pass, thread, pass.inputs(thread, layer.qkv.depth), layer.qkv, pass.plan().rows(),
           pass.activations.shared.qkv.data, pass.activations.shared.qkv.columns, &layer.output,
           adapter_term(pass, step, QKV));
}

void output_linear(Pass& pass, const LayerStep& step, int thread) {
    const PackedLayer& layer = pass.layer(step);
    const Array<float>& delta = pass.delta(thread);
    // Attention prepares its rows once for each node.
    const LinearRows rows = pass.activations.on(pass.node(thread)).inputs.with_depth(layer.output.depth);
    linear(pass, thread, rows, layer.output, pass.plan().rows(), delta.data, delta.columns,
           layer.has_mlp() ? &layer.first_of_mlp() : &pass.reader(step), adapter_term(pass, step, OUTPUT));
}

}  // namespace ipex_assist
