// What happens to rows between linears, against plain loops in double: quantization, norms, activations, rotation,
// arg-max.
#include <algorithm>
#include <cfloat>

#include "check.h"

namespace check {
namespace {

std::vector<float> normal_row(Random& random, int64_t size) {
    std::vector<float> row(static_cast<size_t>(size));
    for (float& value : row) value = random.normal();
    return row;
}

// ---- quantization

void check_integers(const Quantized& q, const float* x, int64_t rows, int64_t width, const char* name) {
    const int64_t depth = q.rows.depth;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t span = 0; span < depth; span += SCALE_COLUMNS) {
            float most = 0;
            for (int64_t i = span; i < std::min(span + SCALE_COLUMNS, width); i++)
                most = std::max(most, std::abs(x[r * width + i]));
            const double scale = q.scales[size_t((r * depth + span) / SCALE_COLUMNS)];
            CHECK(std::abs(scale - double(most) / 127) <= 1e-6 * scale, "%s scale %g of %g", name, scale, double(most));
            for (int64_t i = span; i < span + SCALE_COLUMNS; i++) {
                const double expected = i < width ? x[r * width + i] : 0;
                CHECK(std::abs(q.value(r, i) - expected) <= 0.50001 * scale, "%s: %g became %g", name, expected,
                      q.value(r, i));
            }
        }
        for (int64_t g = 0; g < depth / q.group; g++) {
            int32_t sum = 0;
            for (int64_t i = 0; i < q.group; i++) sum -= int8_t(q.values[size_t(r * depth + g * q.group + i)]);
            const int32_t got = q.sums[size_t(r * (depth / q.group) + g)];
            CHECK(got == sum, "%s: sum %d of group %ld is %d", name, got, long(g), sum);
        }
    }
}

void test_quantize(const Kernels& k) {
    Random random(1);
    for (const Format& f : FORMATS) {
        for (const int64_t width : {1, 17, 128, 200, 389}) {
            Linear linear{};
            linear.precision = f.precision, linear.group = f.group, linear.depth = padded_depth(f.precision, width);
            std::vector<float> x = normal_row(random, 5 * width);
            std::fill(x.begin(), x.begin() + width, 0.0f);                       // a row of zeros
            for (int64_t i = 0; i < width; i++) x[size_t(width + i)] *= 1e-30f;  // and one of next to nothing
            const Quantized q(k, linear, x.data(), 5, width);
            if (integers(f.precision)) {
                check_integers(q, x.data(), 5, width, f.name);
            } else {
                for (int64_t r = 0; r < 5; r++) {
                    for (int64_t i = 0; i < linear.depth; i++) {
                        const float expected = i < width ? rounded(f.precision, x[size_t(r * width + i)]) : 0;
                        CHECK(q.value(r, i) == double(expected), "%s: %g became %g", f.name, double(expected),
                              q.value(r, i));
                    }
                }
            }
            // Span by span, as threads share a row, it is the same.
            Quantized parts(k, linear, x.data(), 5, width);
            std::fill(parts.values.data(), parts.values.data() + 5 * linear.depth * parts.bytes_each, uint8_t(0x7e));
            for (int64_t r = 0; r < 5; r++) {
                for (int64_t i = (linear.depth - 1) / SCALE_COLUMNS * SCALE_COLUMNS; i >= 0; i -= SCALE_COLUMNS) {
                    k.quantize(f.precision, f.group, x.data() + r * width, width, i,
                               std::min(i + SCALE_COLUMNS, linear.depth), r, parts.rows);
                }
            }
            CHECK(!std::memcmp(q.values.data(), parts.values.data(), size_t(5 * linear.depth * q.bytes_each)),
                  "%s in spans", f.name);
        }
    }
}

// A maximum of floats drops NaN, wherever it is but last: then it became -128 or what is beside it.
void test_spans_that_are_no_numbers(const Kernels& k) {
    Random random(7);
    for (const Format& f : FORMATS) {
        if (f.precision == FP32 || f.precision == BF16) continue;
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
            for (int64_t at = 0; at < 2 * SCALE_COLUMNS; at++) {
                std::vector<float> x = normal_row(random, 2 * SCALE_COLUMNS);
                x[size_t(at)] = bad;
                Linear linear{};
                linear.precision = f.precision, linear.group = f.group, linear.depth = 2 * SCALE_COLUMNS;
                const Quantized q(k, linear, x.data(), 1, 2 * SCALE_COLUMNS);
                CHECK(!std::isfinite(q.scales[size_t(at / SCALE_COLUMNS)]), "%s: %g at %ld gives a scale of %g", f.name,
                      double(bad), long(at), double(q.scales[size_t(at / SCALE_COLUMNS)]));
                CHECK(std::isfinite(q.scales[size_t(1 - at / SCALE_COLUMNS)]), "%s: %g at %ld is in the other span",
                      f.name, double(bad), long(at));
            }
        }
    }
}

// Values whose squares overflow are no row of zeros.
void test_norms_that_overflow(const Kernels& k) {
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

// Rows as OPT above 6B has them: a few channels sixty times larger than the rest (Dettmers et al. 2022, LLM.int8(),
// section 4). One scale a row rounds all other channels away; one for every 128 columns only those in their spans.
void test_outliers(const Kernels& k) {
    constexpr int64_t width = 4096, columns = 64;
    Random random(6);
    std::vector<float> x = normal_row(random, width), weights = normal_row(random, width * columns);
    for (const int64_t channel : {130, 131, 1500, 2222, 3000, 4000}) x[size_t(channel)] *= 60.0f;
    Linear linear{};
    linear.precision = INT8, linear.group = SCALE_COLUMNS, linear.depth = width;
    const Quantized q(k, linear, x.data(), 1, width);
    double most = 0, spans = 0, whole = 0, spans_out = 0, whole_out = 0, outputs = 0;
    for (const float value : x) most = std::max(most, std::abs(double(value)));
    for (int64_t i = 0; i < width; i++) {
        spans += std::pow(q.value(0, i) - double(x[size_t(i)]), 2);
        whole += std::pow(std::nearbyint(x[size_t(i)] * 127 / most) * most / 127 - double(x[size_t(i)]), 2);
    }
    for (int64_t c = 0; c < columns; c++) {
        double exact = 0, by_spans = 0, by_row = 0;
        for (int64_t i = 0; i < width; i++) {
            const double weight = weights[size_t(c * width + i)];
            exact += weight * x[size_t(i)];
            by_spans += weight * q.value(0, i);
            by_row += weight * std::nearbyint(x[size_t(i)] * 127 / most) * most / 127;
        }
        spans_out += std::pow(by_spans - exact, 2), whole_out += std::pow(by_row - exact, 2), outputs += exact * exact;
    }
    std::printf(
        "  row with outlier channels, rms error of its values: %.4f with one scale, %.4f with one for 128 columns\n",
        std::sqrt(whole / width), std::sqrt(spans / width));
    std::printf("  and of a linear's outputs, relative: %.2f %% with one scale, %.2f %% with one for 128 columns\n",
                100 * std::sqrt(whole_out / outputs), 100 * std::sqrt(spans_out / outputs));
    CHECK(std::sqrt(whole / spans) > 2, "errors of values %g and %g", std::sqrt(whole), std::sqrt(spans));
    CHECK(std::sqrt(whole_out / spans_out) > 1.7, "errors of outputs %g and %g", std::sqrt(whole_out),
          std::sqrt(spans_out));
}

// ---- norms, sums, activations

void test_normalise(const Kernels& k) {
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

void test_add_and_convert(const Kernels& k) {
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

void test_activations(const Kernels& k) {
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
void test_clamped_swiglu(const Kernels& k) {
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

void test_rotate(const Kernels& k) {
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

void test_soft_cap(const Kernels& k) {
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

void test_maximum(const Kernels& k) {
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

}  // namespace

Quantized::Quantized(const Kernels& k, const Linear& linear, const float* x, int64_t count, int64_t width)
    : precision(linear.precision),
      group(linear.group),
      bytes_each(precision == FP32   ? 4
                 : precision == BF16 ? k.bf16_row_bytes
                                     : 1),
      values(size_t((count + 31) / 32 * 32 * linear.depth * bytes_each), 0xff),
      scales(size_t(count * std::max<int64_t>(1, linear.depth / SCALE_COLUMNS)), NAN),
      sums(size_t(count * std::max<int64_t>(1, linear.depth / group)), 1 << 20),
      rows{values.data(), scales.data(), sums.data(), linear.depth} {
    Buffer<float> row(static_cast<size_t>(width));
    for (int64_t r = 0; r < count; r++) {
        std::copy(x + r * width, x + (r + 1) * width, row.data());
        k.quantize(precision, group, row.data(), width, 0, linear.depth, r, rows);
    }
}

double Quantized::value(int64_t row, int64_t column) const {
    const int64_t at = row * rows.depth + column;
    const uint8_t* from = values.data() + at * bytes_each;
    if (bytes_each == 4) return bits_as<float>(from);
    if (bytes_each == 2) return from_bf16(bits_as<uint16_t>(from));
    return int8_t(*from) * double(scales[size_t(row * (rows.depth / SCALE_COLUMNS) + column / SCALE_COLUMNS)]);
}

namespace {

// What all kernels for rows make of the same values, those that are no numbers among them.
std::vector<float> results_for_rows(const Kernels& k) {
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
        for (const Activation kind : {SILU, RELU, GELU, GELU_TANH}) {
            k.activate(kind, false, x.data(), int64_t(padded / LANES), out.data());
            keep(out);
        }
        k.activate(CLAMPED_SWIGLU, true, x.data(), int64_t(padded / LANES / 2), out.data());
        keep(out);
        k.apply_rotary(x.data(), int32_t(size), weight.data(), bias.data());
        keep(x);
        k.soft_cap(x.data(), size, 0.3f, 5.0f);
        keep(x);
    }
    return results;
}

}  // namespace

// Every level gives the same bits, whatever its vectors are; NaN is NaN by any bits.
void test_rows_agree(const std::vector<const Kernels*>& levels) {
    if (levels.empty()) return;
    const std::vector<float> expected = results_for_rows(*levels[0]);
    for (const Kernels* k : levels) {
        const std::vector<float> got = results_for_rows(*k);
        CHECK(got.size() == expected.size(), "%zu results on %s", got.size(), k->name);
        for (size_t i = 0; i < got.size(); i++) {
            const bool same = same_bits(&got[i], &expected[i], 1) || (std::isnan(got[i]) && std::isnan(expected[i]));
            CHECK(same, "result %zu on %s: %.9g != %.9g", i, k->name, double(got[i]), double(expected[i]));
        }
    }
}

void test_rows(const Kernels& k) {
    test_quantize(k);
    test_spans_that_are_no_numbers(k);
    test_norms_that_overflow(k);
    test_outliers(k);
    test_normalise(k);
    test_add_and_convert(k);
    test_activations(k);
    test_clamped_swiglu(k);
    test_rotate(k);
    test_soft_cap(k);
    test_maximum(k);
}

}  // namespace check
