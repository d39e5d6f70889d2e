// The int8 form of rows between linears, read back by plain loops: scales, sums, NaN, outliers.
#include <algorithm>

#include "check.h"

namespace check {
namespace {

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

void test_quantize(const KernelTable& k) {
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
void test_spans_that_are_no_numbers(const KernelTable& k) {
    Random random(7);
    for (const Format& f : FORMATS) {
        if (!integers(f.precision)) continue;
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

// Rows as OPT above 6B has them: a few channels sixty times larger than the rest (Dettmers et al. 2022,
// LLM.int8(), section 4). One scale a row rounds all other channels away; one for every 128 columns only those in their
// spans.
void test_outliers(const KernelTable& k) {
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

}  // namespace

Quantized::Quantized(const KernelTable& k, const Linear& linear, const float* x, int64_t count, int64_t width)
    : precision(linear.precision),
      group(linear.group),
      bytes_each(precision == FP32                  ? 4
                 : row_type(precision) == BF16_ROWS ? k.bf16_row_bytes
                                                    : 1),
      values(size_t((count + 31) / 32 * 32 * linear.depth * bytes_each), 0xff),
      scales(size_t(count * std::max<int64_t>(1, linear.depth / SCALE_COLUMNS)), NAN),
      sums(size_t(count * std::max<int64_t>(1, linear.depth / group)), 1 << 20),
      tiles(k.tiled && bytes_each < 4 ? values.size() : 0, 0xff),
      rows{values.data(), scales.data(), sums.data(), linear.depth},
      tiled(rows) {
    if (tiles.size()) tiled.tiles = tiles.data();
    Buffer<float> row(static_cast<size_t>(width));
    for (int64_t r = 0; r < count; r++) {
        std::copy(x + r * width, x + (r + 1) * width, row.data());
        k.quantize(precision, group, row.data(), width, 0, linear.depth, r, tiled);
    }
}

double Quantized::value(int64_t row, int64_t column) const {
    const int64_t at = row * rows.depth + column;
    const uint8_t* from = values.data() + at * bytes_each;
    if (bytes_each == 4) return bits_as<float>(from);
    if (bytes_each == 2) return from_bf16(bits_as<uint16_t>(from));
    return int8_t(*from) * double(scales[size_t(row * (rows.depth / SCALE_COLUMNS) + column / SCALE_COLUMNS)]);
}

void test_quantization(const KernelTable& k) {
    test_quantize(k);
    test_spans_that_are_no_numbers(k);
    test_outliers(k);
}

}  // namespace check
