// What happens to rows between linears, against plain loops in double: norms, activations, rotary embedding, arg-max.
#include <algorithm>
#include <cfloat>

#include "check.h"
#include "mixers/kernels.h"

namespace check {
namespace {

// ---- norms, sums, activations

// Values whose squares overflow are no row of zeros.
void test_norms_that_overflow(const KernelTable& k) {
    for (const bool rms : {true, false}) {
        for (const float bad : {1e25f, INFINITY, NAN}) {
            Buffer<float> x(40, 1.0f), out(40);
            x[9] = bad;
            k.normalize(rms, x.data(), nullptr, nullptr, 1e-5f, 40, out.data());
            CHECK(std::any_of(out.data(), out.data() + 40, [](float v) { return std::isnan(v); }), "%g became numbers",
                  double(bad));
        }
    }
}

void test_normalize(const KernelTable& k) {
    Random random(2);
    for (const int64_t size : {1, 7, 16, 60, 128, 1029}) {
        for (int kind = 0; kind < 8; kind++) {
            const bool rms = kind & 1, weighted = kind & 2, biased = kind & 4;
            Buffer<float> x(static_cast<size_t>(size)), weight(x.size()), bias(x.size()), out(x.size());
            for (size_t i = 0; i < x.size(); i++) {
                x[i] = random.normal() + 3, weight[i] = random.normal(), bias[i] = random.normal();
            }
            double mean = 0, squares = 0, terms = 0;
            for (int64_t i = 0; i < size && !rms; i++) mean += double(x[size_t(i)]) / double(size);
            for (int64_t i = 0; i < size; i++) squares += std::pow(double(x[size_t(i)]) - mean, 2) / double(size);
            for (int64_t i = 0; i < size; i++) terms = std::max(terms, std::abs(double(x[size_t(i)])));
            const double factor = 1 / std::sqrt(squares + 1e-5);
            k.normalize(rms, x.data(), weighted ? weight.data() : nullptr, biased ? bias.data() : nullptr, 1e-5f, size,
                        out.data());
            for (size_t i = 0; i < x.size(); i++) {
                const double expected = (x[i] - mean) * factor * (weighted ? weight[i] : 1) + (biased ? bias[i] : 0);
                const double bound = 1e-6 * (terms * factor * (weighted ? std::abs(weight[i]) : 1) + 1);
                CHECK(std::abs(out[i] - expected) <= bound, "%s of %ld: %g != %g", rms ? "rms" : "layer", long(size),
                      double(out[i]), expected);
            }
            k.normalize(rms, x.data(), weighted ? weight.data() : nullptr, biased ? bias.data() : nullptr, 1e-5f, size,
                        x.data());
            CHECK(same_bits(x.data(), out.data(), x.size()), "in place, %ld", long(size));
        }
    }
}

void test_add_and_convert(const KernelTable& k) {
    Random random(3);
    for (int64_t size = 1; size < 70; size += 4) {
        Buffer<float> x(static_cast<size_t>(size)), y(x.size()), sum(x.size());
        for (size_t i = 0; i < x.size(); i++) x[i] = random.normal(), y[i] = random.normal(), sum[i] = x[i] + y[i];
        k.add(x.data(), y.data(), size);
        CHECK(same_bits(x.data(), sum.data(), x.size()), "sum of %ld", long(size));
        const int64_t padded = (size + 31) / 32 * 32;
        for (const Precision precision : {FP32, BF16}) {
            const int32_t bytes = precision == FP32 ? 4 : k.bf16_row_bytes;
            Buffer<uint8_t> out(size_t(padded * bytes), 0x7e);
            k.convert(precision, x.data(), size, padded, out.data());
            for (int64_t i = 0; i < padded; i++) {
                const float expected = i < size ? rounded(precision, x[size_t(i)]) : 0;
                const uint8_t* at = out.data() + i * bytes;
                const float got = bytes == 4 ? bits_as<float>(at) : from_bf16(bits_as<uint16_t>(at));
                CHECK(got == expected, "%g became %g", double(expected), double(got));
            }
        }
    }
}

double exact_activation(Activation kind, double x) {
    switch (kind) {
        case SILU: return x / (1 + std::exp(-x));
        case RELU: return x > 0 ? x : 0;
        case GELU: return x * 0.5 * std::erfc(-x * std::sqrt(0.5));
        default: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    }
}

void test_activations(const KernelTable& k) {
    std::vector<float> values;
    for (float x = -30; x <= 30; x += 0.013f) values.push_back(x);
    for (const float size : {0.0f, 1e-45f, 1e-38f, 1e-20f, 1e-4f, 50.0f, 87.0f, 88.5f, 90.0f, 104.0f, 1e3f, 1e4f, 1e7f,
                             1e10f, 1e15f, 1e30f, FLT_MAX}) {
        values.push_back(size), values.push_back(-size);
    }
    values.push_back(NAN), values.push_back(-NAN);
    while (values.size() % LANES) values.push_back(1);
    const int64_t blocks = int64_t(values.size()) / LANES;
    for (const Activation kind : {SILU, RELU, GELU, GELU_TANH}) {
        Buffer<float> in(values.size()), pairs(values.size() * 2), out(values.size()), gated(values.size());
        std::copy(values.begin(), values.end(), in.data());
        for (size_t i = 0; i < values.size(); i++) {
            pairs[i / LANES * 2 * LANES + i % LANES] = values[i];
            pairs[i / LANES * 2 * LANES + LANES + i % LANES] = float(i % 5) - 2;
        }
        k.activate(kind, false, in.data(), blocks, out.data());
        k.activate(kind, true, pairs.data(), blocks, gated.data());
        double worst = 0;
        for (size_t i = 0; i < values.size(); i++) {
            const double x = values[i], expected = exact_activation(kind, x), miss = std::abs(out[i] - expected);
            if (std::isnan(x)) {
                CHECK(std::isnan(out[i]), "activation %d of NaN is %g", kind, double(out[i]));
                continue;
            }
            worst = std::max(worst, miss / (std::abs(x) + 1e-30));
            // Of GELU's tail little is left after 1 + erf: its error is one of x, as that of float arithmetic is.
            CHECK(miss <= 4e-7 * std::abs(x) + 1e-37, "activation %d of %g: %g != %g", kind, x, double(out[i]),
                  expected);
            const float product = out[i] * (float(i % 5) - 2);
            CHECK(gated[i] == product, "activation %d gated at %g: %g != %g", kind, x, double(gated[i]),
                  double(product));
        }
        std::printf("  activation %d: largest error %.1e of |x|\n", kind, worst);
    }
}

// gpt-oss: values of gate and up below, within and beyond the limits, and none that is no number.
void test_clamped_swiglu(const KernelTable& k) {
    const float some[] = {-FLT_MAX, -1e4f, -60.0f, -7.01f, -7.0f, -6.9f, -1.0f, -1e-20f,
                          0.0f,     0.3f,  2.5f,   6.99f,  7.0f,  7.01f, 1e10f, INFINITY};
    Buffer<float> in(2 * LANES), out(LANES);
    for (int shift = 0; shift < LANES; shift++) {
        for (int i = 0; i < LANES; i++) in[size_t(i)] = some[i], in[size_t(LANES + i)] = some[(i + shift) % LANES];
        k.activate(CLAMPED_SWIGLU, true, in.data(), 1, out.data());
        for (int i = 0; i < LANES; i++) {
            const double gate = std::min(double(some[i]), 7.0),
                         up = std::clamp(double(some[(i + shift) % LANES]), -7.0, 7.0);
            const double expected = gate < -1e3 ? 0 : gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
            CHECK(std::abs(out[size_t(i)] - expected) <= 1e-6 * std::abs(expected) + 1e-36, "gate %g, up %g: %g != %g",
                  gate, up, double(out[size_t(i)]), expected);
        }
    }
    for (const size_t place : {size_t(3), size_t(LANES + 3)}) {
        std::fill(in.data(), in.data() + 2 * LANES, 1.0f);
        in[place] = NAN;
        k.activate(CLAMPED_SWIGLU, true, in.data(), 1, out.data());
        for (size_t i = 0; i < LANES; i++) CHECK(std::isnan(out[i]) == (i == 3), "lane %zu is %g", i, double(out[i]));
    }
}

// The square of ReLU, and xIELU on both sides of 0 and of its eps, where its exponential overflows, and of NaN.
void test_plain_activations(const KernelTable& k) {
    const float some[] = {-1e38f, -1e4f, -90.0f, -20.0f, -1.0f, -0.1f, -1e-3f, -1e-6f,
                          -1e-9f, 0.0f,  1e-9f,  1e-3f,  0.7f,  3.0f,  1e4f,   NAN};
    Buffer<float> in(LANES), out(LANES);
    std::copy(std::begin(some), std::end(some), in.data());
    k.activate(RELU2, false, in.data(), 1, out.data());
    for (size_t i = 0; i < LANES; i++) {
        const float expected = some[i] > 0 ? some[i] * some[i] : 0;
        CHECK(std::isnan(some[i]) ? std::isnan(out[i]) : out[i] == expected, "%g squared: %g", double(some[i]),
              double(out[i]));
    }
    const Xielu of{0.8f, 1.3f, 0.5f, -1e-6f};
    k.xielu(of, in.data(), 1, out.data());
    for (size_t i = 0; i < LANES; i++) {
        const double x = some[i];
        const double below = double(of.negative) * (std::expm1(std::min(x, double(of.eps))) - x);
        const double expected = (x > 0 ? double(of.positive) * x * x : below) + 0.5 * x;
        CHECK(std::isnan(x) ? std::isnan(out[i]) : std::abs(out[i] - expected) <= 4e-7 * (1 + std::abs(expected)),
              "xIELU of %g: %g != %g", x, double(out[i]), expected);
    }
}

void test_multiply_sigmoid(const KernelTable& k) {
    Buffer<float> x(203), gate(203);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(i) - 50, gate[i] = (float(i) - 100) * 0.9f;
    gate[7] = NAN, gate[8] = INFINITY, gate[9] = -INFINITY, gate[10] = FLT_MAX, gate[11] = -FLT_MAX;
    const std::vector<float> before(x.data(), x.data() + x.size());
    k.multiply_sigmoid(x.data(), gate.data(), 200);
    for (size_t i = 0; i < x.size(); i++) {
        const double expected = i < 200 ? before[i] / (1 + std::exp(-double(gate[i]))) : double(before[i]);
        CHECK(i == 7 ? std::isnan(x[i]) : std::abs(x[i] - expected) <= 4e-7 * std::abs(expected) + 1e-36,
              "%g gated by %g: %g != %g", double(before[i]), double(gate[i]), double(x[i]), expected);
    }
}

// Decays of keys are exact near 0 and 1, where a softplus of large or small inputs would lose its digits.
void test_decay_keys(const KernelTable& k) {
    constexpr size_t SIZE = 203, PADDED = 208;
    Buffer<float> in(SIZE), bias(SIZE), key(SIZE), decays(PADDED, NAN), recalls(PADDED, NAN);
    Random random(8);
    for (size_t i = 0; i < SIZE; i++)
        in[i] = (float(i) - 100) * 0.9f, bias[i] = random.normal(), key[i] = random.normal();
    in[7] = NAN, in[8] = INFINITY, in[9] = -INFINITY;
    for (const auto& [rate, bound] :
         {std::pair(-0.01f, 0.0f), {-1, 0}, {-16, 0}, {-0.01f, -5}, {-1, -5}, {-16, -0.3f}}) {
        k.mixers->scan.decay_keys(in.data(), bias.data(), rate, bound, key.data(), SIZE, decays.data(), recalls.data());
        for (size_t i = 0; i < PADDED; i++) {
            const double x = i < SIZE ? double(in[i] + bias[i]) : 0;
            const double log =
                bound < 0 ? bound / (1 + std::exp(rate * x)) : rate * (x > 40 ? x : std::log1p(std::exp(x)));
            const double expected = i < SIZE ? std::exp(log) : 0, recalled = i < SIZE ? expected * key[i] : 0;
            // Its error is that of what is raised.
            const double exponent = bound < 0 ? -bound : std::abs(rate * std::max(x, 1.0));
            const double most = expected > 0 ? 4e-7 * (1 + exponent) * expected + 1e-37 : 1e-37;
            CHECK(i == 7 ? std::isnan(decays[i]) : std::abs(decays[i] - expected) <= most,
                  "decay of %g by %g, %g: %g != %g", x, double(rate), double(bound), double(decays[i]), expected);
            CHECK(i == 7 ? std::isnan(recalls[i]) : std::abs(recalls[i] - recalled) <= most * 8, "key of %g by %g, %g",
                  x, double(rate), double(bound));
        }
    }
}

void test_rotary(const KernelTable& k) {
    Random random(4);
    for (const int32_t size : {2, 10, 64, 80, 128}) {
        Buffer<float> x(static_cast<size_t>(size)), cosine(x.size()), sine(x.size());
        for (size_t i = 0; i < x.size(); i++) {
            const double angle = 0.7 * double(i % (x.size() / 2));
            cosine[i] = float(std::cos(angle)), sine[i] = float(i < x.size() / 2 ? -std::sin(angle) : std::sin(angle));
            x[i] = random.normal();
        }
        const std::vector<float> before(x.data(), x.data() + x.size());
        k.apply_rotary(x.data(), size, cosine.data(), sine.data());
        for (size_t i = 0; i < x.size(); i++) {
            const double other = before[(i + x.size() / 2) % x.size()];
            const double expected = double(before[i]) * double(cosine[i]) + other * double(sine[i]);
            CHECK(std::abs(x[i] - expected) <= 1e-6 * (std::abs(double(before[i])) + std::abs(other)),
                  "head of %d: %g != %g", size, double(x[i]), expected);
        }
    }
}

// ---- arg-max

void test_soft_cap(const KernelTable& k) {
    Buffer<float> x(203);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(int(i) - 100) * (i % 2 ? 0.7f : 1e-3f);
    x[7] = NAN, x[8] = INFINITY, x[9] = -FLT_MAX;
    const std::vector<float> before(x.data(), x.data() + x.size());
    k.soft_cap(x.data(), 200, 1 / 30.0f, 30.0f);
    for (size_t i = 0; i < x.size(); i++) {
        const double expected = i < 200 ? 30 * std::tanh(double(before[i]) / 30) : double(before[i]);
        CHECK(i == 7 ? std::isnan(x[i]) : std::abs(x[i] - expected) <= 1e-5, "cap of %g: %g != %g", double(before[i]),
              double(x[i]), expected);
    }
}

void test_argmax(const KernelTable& k) {
    Random random(5);
    for (const int64_t size : {1, 2, 15, 16, 17, 100, 4099}) {
        for (int round = 0; round < 40; round++) {
            Buffer<float> x(static_cast<size_t>(size));
            // Few different values make ties; the lowest index must win.
            for (size_t i = 0; i < x.size(); i++) x[i] = round % 2 ? float(random.below(3)) - 4 : random.normal() * 5;
            if (round == 4) std::fill(x.data(), x.data() + size, -7.0f);
            if (round % 3 == 0) x[size_t(random.below(int(size)))] = -INFINITY;
            if (size == 1) x[0] = -3;
            const ArgMax got = k.argmax(x.data(), size);
            const int64_t expected = std::max_element(x.data(), x.data() + size) - x.data();
            double sum = 0;
            for (size_t i = 0; i < x.size(); i++) sum += std::exp(double(x[i]) - double(x[size_t(expected)]));
            CHECK(got.index == expected && got.value == x[size_t(expected)], "of %ld: %d, not %ld", long(size),
                  got.index, long(expected));
            CHECK(std::abs(got.sum - sum) <= 1e-5 * sum, "of %ld: sum %g != %g", long(size), double(got.sum), sum);
        }
    }
    Buffer<float> x(40, 1.0f);
    x[7] = NAN, x[20] = 2;
    const ArgMax got = k.argmax(x.data(), 40);
    CHECK(got.index == 20 && std::isnan(got.sum), "beside NaN: %d, sum %g", got.index, double(got.sum));
}

// Groups that are no whole vectors, rows that are not side by side, and fewer rows than there are weights for.
void test_convolve_groups(const KernelTable& k) {
    Random random(9);
    for (const int64_t group : {1, 3, 8, 16, 20, 48}) {
        for (const int32_t kernel_size : {1, 2, 4}) {
            const int64_t groups = 5, size = group * groups, stride = size + 7;
            Buffer<float> rows(size_t(stride * kernel_size)), base(size_t(size * kernel_size)),
                scales(size_t(groups * kernel_size)), out(static_cast<size_t>(size));
            for (Buffer<float>* each : {&rows, &base, &scales}) {
                for (size_t i = 0; i < each->size(); i++) (*each)[i] = random.normal();
            }
            const float* x = rows.data() + (kernel_size - 1) * stride;
            k.convolve_groups({x, stride, kernel_size, base.data(), scales.data(), groups, group}, out.data());
            for (int64_t c = 0; c < size; c++) {
                double sum = 0, terms = 0;
                for (int64_t t = 0; t < kernel_size; t++) {
                    const double factor =
                        double(base[size_t(t * size + c)]) + double(scales[size_t(t * groups + c / group)]);
                    sum += x[c - t * stride] * factor, terms += std::abs(x[c - t * stride] * factor) + 1;
                }
                CHECK(std::abs(out[size_t(c)] - sum) <= 1e-6 * terms, "column %ld of %ld in groups of %ld: %g != %g",
                      long(c), long(size), long(group), double(out[size_t(c)]), sum);
            }
        }
    }
}

void test_dot(const KernelTable& k) {
    Random random(10);
    for (const int64_t size : {1, 15, 16, 45, 256}) {
        Buffer<float> x(static_cast<size_t>(size)), y(x.size());
        double sum = 0, terms = 0;
        for (size_t i = 0; i < x.size(); i++) {
            x[i] = random.normal(), y[i] = random.normal();
            sum += double(x[i]) * double(y[i]), terms += std::abs(double(x[i]) * double(y[i]));
        }
        const float got = k.dot(x.data(), y.data(), size);
        CHECK(std::abs(got - sum) <= 1e-6 * terms, "of %ld: %g != %g", long(size), double(got), sum);
    }
}

// What all kernels for rows make of the same values, those that are no numbers among them.
std::vector<float> results_for_rows(const KernelTable& k) {
    std::vector<float> results;
    const auto keep = [&](const Buffer<float>& made) {
        results.insert(results.end(), made.data(), made.data() + made.size());
    };
    Random random(8);
    for (const int64_t size : {1, 16, 37, 200, 777}) {
        const size_t padded = size_t((size + LANES - 1) / LANES * LANES);
        Buffer<float> x(padded), weight(padded), bias(padded), out(padded);
        for (size_t i = 0; i < padded; i++)
            x[i] = random.normal() * 3, weight[i] = random.normal(), bias[i] = random.normal();
        for (const bool rms : {true, false}) {
            for (const bool plain : {true, false}) {
                k.normalize(rms, x.data(), plain ? nullptr : weight.data(), plain ? nullptr : bias.data(), 1e-5f, size,
                            out.data());
                keep(out);
            }
        }
        k.convolve_groups({x.data(), 0, 1, weight.data(), bias.data(), 1, size}, out.data());
        keep(out);
        results.push_back(k.dot(x.data(), weight.data(), size));
        const ArgMax found = k.argmax(x.data(), size);
        results.insert(results.end(), {found.value, float(found.index), found.sum});
        Linear linear{};
        linear.precision = INT4, linear.group = 32, linear.depth = padded_depth(INT4, size);
        const Quantized q(k, linear, x.data(), 1, size);
        keep(q.scales);
        for (int64_t i = 0; i < linear.depth; i++) results.push_back(float(q.value(0, i)));
        for (size_t i = 0; i < q.sums.size(); i++) results.push_back(float(q.sums[i]));
        const float special[] = {0.0f,   -0.0f, 1e-40f, 3.0f,  87.0f,   88.5f,    104.0f,
                                 200.0f, 1e4f,  1e10f,  1e30f, FLT_MAX, INFINITY, NAN};
        for (size_t i = 0; padded > 2 * std::size(special) && i < 2 * std::size(special); i++)
            x[i] = i % 2 ? special[i / 2] : -special[i / 2];
        for (const Activation kind : {SILU, RELU, GELU, GELU_TANH, RELU2}) {
            k.activate(kind, false, x.data(), int64_t(padded / LANES), out.data());
            keep(out);
        }
        k.activate(CLAMPED_SWIGLU, true, x.data(), int64_t(padded / LANES / 2), out.data());
        keep(out);
        k.xielu({0.8f, 1.3f, 0.5f, -1e-6f}, x.data(), int64_t(padded / LANES), out.data());
        keep(out);
        k.apply_rotary(x.data(), int32_t(size), weight.data(), bias.data());
        keep(x);
        k.soft_cap(x.data(), size, 0.3f, 5.0f);
        keep(x);
        k.multiply_sigmoid(out.data(), x.data(), size);
        keep(out);
        Buffer<float> recalls(padded);
        k.mixers->scan.decay_keys(x.data(), bias.data(), -0.7f, 0, weight.data(), size, out.data(), recalls.data());
        keep(out), keep(recalls);
        k.mixers->scan.decay_keys(x.data(), bias.data(), -0.7f, -5, weight.data(), size, out.data(), recalls.data());
        keep(out), keep(recalls);
    }
    return results;
}

}  // namespace

// Every level gives the same bits, whatever its vectors are; NaN is NaN by any bits.
void test_rows_agree(const std::vector<const KernelTable*>& levels) {
    if (levels.empty()) return;
    const std::vector<float> expected = results_for_rows(*levels[0]);
    for (const KernelTable* k : levels) {
        const std::vector<float> got = results_for_rows(*k);
        CHECK(got.size() == expected.size(), "%zu results on %s", got.size(), k->name);
        for (size_t i = 0; i < got.size(); i++) {
            const bool same = same_bits(&got[i], &expected[i], 1) || (std::isnan(got[i]) && std::isnan(expected[i]));
            CHECK(same, "result %zu on %s: %.9g != %.9g", i, k->name, double(got[i]), double(expected[i]));
        }
    }
}

void test_rows(const KernelTable& k) {
    test_quantization(k);
    test_norms_that_overflow(k);
    test_normalize(k);
    test_add_and_convert(k);
    test_activations(k);
    test_clamped_swiglu(k);
    test_plain_activations(k);
    test_multiply_sigmoid(k);
    test_decay_keys(k);
    test_rotary(k);
    test_soft_cap(k);
    test_argmax(k);
    test_convolve_groups(k);
    test_dot(k);
}

}  // namespace check
