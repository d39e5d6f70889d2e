// One linear of every layer by itself, outside a pass: for benchmarks and tests.
#include "operations/single_linear.h"

#include <algorithm>

#include "refuse.h"

namespace ipex_assist {

void run_linears(const PackedModel& model, Pool& pool, LinearBuffers& buffers, LinearRole role, const float* x,
                 int64_t rows, float* out, int64_t stride) {
    if (!model.has_memory()) refuse("the model has no weights yet");
    if (role < QKV || role > DOWN) refuse("there is no linear %d", role);
    if (!x || !out || rows < 1 || rows > INT32_MAX) refuse("%lld rows through a linear", static_cast<long long>(rows));
    const auto choose = [&](const PackedLayer& layer) -> const Linear& { return layer.linear(role); };
    const PackedLayer& first_layer = model.layers[0];
    const int64_t width = role == OUTPUT ? first_layer.attention.output_width()
                          : role == DOWN ? first_layer.mlp.intermediate_size
                                         : model.spec.hidden_size;
    const int64_t columns = choose(first_layer).panels * LANES;
    for (const PackedLayer& layer : model.layers) {
        if (!layer.has_mlp() && role >= UP) refuse("linear %d of a layer without an MLP", role);
        if (layer.mlp.experts && role >= UP) refuse("linear %d is one of each expert's", role);
        if (choose(layer).panels * LANES != columns || choose(layer).depth != choose(first_layer).depth)
            refuse("linear %d differs in shape between layers", role);
    }
    if (stride < columns)
        refuse("%lld columns for the results of a linear of %lld", (long long)stride, (long long)columns);
    const int64_t depth = choose(first_layer).depth, padded = round_up(rows, 32);
    buffers.values.grow(size_t(padded * depth * 4));
    buffers.scales.grow(size_t(padded * depth / 32 * 4));
    buffers.sums.grow(size_t(padded * depth / 32 * 4));
    LinearRows in{buffers.values.data(), buffers.scales.as<float>(), buffers.sums.as<int32_t>(), depth};
    if (model.kernels->tiled && rows > DECODE_ROWS) {
        buffers.tiles.grow(size_t(padded * depth * 2));
        in.tiles = buffers.tiles.data();
    }
    pool.run([&](int thread) {
        std::vector<float> buffer(static_cast<size_t>(depth));
        for (const PackedLayer& layer : model.layers) {
            const Linear& linear = choose(layer);
            for (int64_t r = share(rows, thread, pool.threads()); r < share(rows, thread + 1, pool.threads()); r++) {
                const float* row = arrange(linear, x + r * width, width, 0, depth, buffer.data());
                model.kernels->quantize(linear.precision, linear.group, row, width, 0, depth, r, in);
            }
            pool.wait(thread);
            const auto [first, last] = slice(linear, thread, pool.threads());
            model.multiply(linear, in, rows, first, last, out + first * LANES, stride);
            pool.wait(thread);
        }
    });
}

}  // namespace ipex_assist
