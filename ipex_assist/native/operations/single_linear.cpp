// One linear of every layer by itself, outside a pass: for benchmarks and tests.
#include "operations/single_linear.h"

#include <algorithm>
#include <numeric>

#include "refuse.h"

namespace ipex_assist {

// Raises Refusal unless the layers have such a linear, and all of one shape.
static void check_linears(const PackedModel& model, LinearRole role) {
    if (!model.has_memory()) refuse("the model has no weights yet");
    if (role < QKV || role > DOWN) refuse("there is no linear %d", role);
    const Linear& first = model.layers[0].linear(role);
    for (const PackedLayer& layer : model.layers) {
        if (!layer.has_mlp() && role >= UP) refuse("linear %d of a layer without an MLP", role);
        if (layer.mlp.experts && role >= UP) refuse("linear %d is one of each expert's", role);
        if (layer.linear(role).panels != first.panels || layer.linear(role).depth != first.depth)
            refuse("linear %d differs in shape between layers", role);
    }
}

void run_linears(const PackedModel& model, Pool& pool, LinearBuffers& buffers, LinearRole role, const float* x,
                 int64_t rows, float* out, int64_t stride) {
    check_linears(model, role);
    if (!x || !out || rows < 1 || rows > INT32_MAX) refuse("%lld rows through a linear", static_cast<long long>(rows));
    const auto choose = [&](const PackedLayer& layer) -> const Linear& { return layer.linear(role); };
    const PackedLayer& first_layer = model.layers[0];
    const int64_t width = role == OUTPUT ? first_layer.attention.output_width()
                          : role == DOWN ? first_layer.mlp.intermediate_size
                                         : model.spec.hidden_size;
    const int64_t columns = choose(first_layer).panels * LANES;
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

int64_t read_linears(const PackedModel& model, Pool& pool, LinearRole role, int64_t ahead) {
    check_linears(model, role);
    std::vector<int64_t> bytes(size_t(pool.threads()));
    std::vector<uint64_t> found(bytes.size());  // kept, so that reading is not left out
    pool.run([&](int thread) {
        for (const PackedLayer& layer : model.layers) {
            const auto [first, last] = slice(layer.linear(role), thread, pool.threads());
            each_part(layer.linear(role), first, last, [&](const Linear& part, int64_t from, int64_t end) {
                const int64_t each = panel_bytes(part.precision, part.group, part.depth);
                found[size_t(thread)] ^= model.kernels->read(part.weights + from * each, (end - from) * each, ahead);
                bytes[size_t(thread)] += (end - from) * each;
            });
        }
    });
    return std::accumulate(bytes.begin(), bytes.end(), int64_t(0));
}

}  // namespace ipex_assist
