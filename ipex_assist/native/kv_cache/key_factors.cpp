// Factors that even out the channels of int8 keys.
#include "kv_cache/key_factors.h"

#include <cmath>

#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int32_t ROWS = 16;

// +1 or -1, by the last bit of a hash: without any structure that weights may have. The same in
// executors/torch/key_factors.py.
float sign(uint32_t number) {
    number *= 0x9e3779b1u;
    number ^= number >> 15;
    number *= 0x85ebca77u;
    number ^= number >> 13;
    return number & 1 ? 1.0f : -1.0f;
}

// The norm whose rows a layer's keys are made of, none where they are an embedding's.
Norm norm_before(const PackedModel& model, size_t layer) {
    const ResidualNorm& into = model.layers[layer].into_attention;
    return into.pre ? *into.pre : into.post_residual ? *into.post_residual : Norm{};
}

// Keys (ROWS, stride) of a layer.
void probe(const PackedModel& model, size_t index, LinearRows in, float* keys, int64_t stride) {
    const PackedLayer& layer = model.layers[index];
    const int64_t width = layer.input_width, hidden = model.spec.hidden_size;
    in.depth = layer.qkv.depth;
    const bool both = width > hidden && !layer.aside;  // a token beside a hidden state, with a norm each
    std::vector<float> row(size_t(layer.qkv.depth)), ordered(row.size());
    for (int32_t r = 0; r < ROWS; r++) {
        for (int64_t i = 0; i < width; i++) {
            const Norm norm = !both        ? norm_before(model, index)
                              : i < hidden ? model.head_embedding_norm
                                           : model.head_hidden_norm;
            const int64_t at = both ? i % hidden : i;
            row[size_t(i)] =
                sign(uint32_t(r * width + i)) * (norm.weight ? norm.weight[at] : 1) + (norm.bias ? norm.bias[at] : 0);
        }
        const float* x = arrange(layer.qkv, row.data(), width, 0, layer.qkv.depth, ordered.data());
        model.kernels->quantize(layer.qkv.precision, layer.qkv.group, x, width, 0, layer.qkv.depth, r, in);
    }
    const AttentionSpec& a = layer.attention;
    const int64_t first = a.is_latent() ? 0 : a.key_column() / LANES;
    model.multiply(layer.qkv, in, ROWS, first, first + stride / LANES, keys, stride);
    for (int32_t r = 0; a.is_latent() && r < ROWS; r++) {
        float* latent = keys + r * stride + a.latent.rope_dim;
        model.kernels->normalize(true, latent, layer.latent.norm, nullptr, a.latent.norm_eps, a.latent.rank, latent);
    }
}

// A power of two near the square root of a magnitude, which is given squared.
float factor(double square) {
    if (!std::isfinite(square) || square <= 0) return 1;
    const double exponent = std::rint(std::log2(square) / 4);
    return float(std::exp2(exponent < -30 ? -30 : exponent > 30 ? 30 : exponent));
}

// Of a layer: (kv_heads, head_dim).
std::vector<float> layer_factors(const PackedModel& model, size_t index, const LinearRows& in) {
    const PackedLayer& layer = model.layers[index];
    if (layer.is_recurrent() || layer.attention.shares_kv) return {};
    const AttentionSpec& a = layer.attention;
    if (a.latent.is_compressed()) return std::vector<float>(size_t(a.head_dim), 1.0f);  // keys are values
    const int32_t dim = a.head_dim, half = a.paired_dim / 2;
    const int64_t stride = round_up(a.key_width(), LANES);
    std::vector<float> keys(size_t(ROWS * stride)), factors;
    probe(model, index, in, keys.data(), stride);
    const float epsilon = model.spec.norm_eps;
    for (int32_t r = 0; a.qk_norm == ALL_HEADS && r < ROWS; r++) {
        float* row = keys.data() + r * stride;
        model.kernels->normalize(true, row, layer.k_norm, nullptr, epsilon, a.key_width(), row);
    }
    for (int32_t h = 0; h < a.kv_heads; h++) {
        std::vector<double> squares(static_cast<size_t>(dim));
        const float* norm = head_norm(a, layer.k_norm, h);
        for (int32_t r = 0; r < ROWS; r++) {
            float* key = keys.data() + r * stride + int64_t(h) * dim;
            if (norm || a.qk_norm == UNWEIGHTED)
                model.kernels->normalize(a.qk_norm != EACH_HEAD, key, norm, nullptr, epsilon, dim, key);
            for (int32_t d = 0; d < dim; d++) squares[size_t(d)] += double(key[d]) * key[d] / ROWS;
        }
        for (int32_t d = 0; d < dim; d++) {
            const size_t other = size_t(half && d < 2 * half ? (d + half) % (2 * half) : d);
            factors.push_back(factor((squares[size_t(d)] + squares[other]) / 2));
        }
    }
    return factors;
}

}  // namespace

std::vector<std::vector<float>> key_factors(const PackedModel& model) {
    if (!model.ready()) refuse("keys of int8 for a model without weights");
    int64_t depth = 0;
    for (const PackedLayer& layer : model.layers) depth = std::max(depth, layer.qkv.depth);
    const Memory values(size_t(2 * ROWS * depth * 4)), scales(size_t(2 * ROWS * depth / 32 * 4)), sums(scales.size());
    const LinearRows in{values.data(), scales.as<float>(), sums.as<int32_t>(), depth};
    std::vector<std::vector<float>> factors;
    for (size_t i = 0; i < model.layers.size(); i++) factors.push_back(layer_factors(model, i, in));
    return factors;
}

}  // namespace ipex_assist
