// Packed weights read back by plain loops over the layout that kernels.h describes, and held against what was packed.
#include <algorithm>
#include <string>

#include "check.h"

namespace check {
namespace {

float from_f16(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return float(half & 0x8000 ? -size : size);
}

std::vector<float> normal_values(Random& random, int64_t size, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = random.normal() * scale;
    return values;
}

float largest(const float* x, int64_t size) {
    float most = 0;
    for (int64_t i = 0; i < size; i++) most = std::max(most, std::abs(x[i]));
    return most;
}

// Squared error of int4 by minimum and maximum alone, with an integer zero: what a search has to be no worse than.
double minmax_error(const float* x, int64_t size) {
    float low = 0, high = 0;
    for (int64_t i = 0; i < size; i++) low = std::min(low, x[i]), high = std::max(high, x[i]);
    if (high == low) return 0;
    const double scale = (double(high) - double(low)) / 15, zero = std::nearbyint(-low / scale);
    double sum = 0;
    for (int64_t i = 0; i < size; i++) {
        const double q = std::min(15.0, std::max(0.0, std::nearbyint(x[i] / scale) + zero));
        sum += std::pow(x[i] - (q - zero) * scale, 2);
    }
    return sum;
}

double group_error(const Packed& packed, const float* x, int64_t column, int64_t first, int64_t last) {
    double sum = 0;
    for (int64_t k = first; k < last; k++) sum += std::pow(packed.weight(column, k) - double(x[k]), 2);
    return sum;
}

// The nearest of E2M1's values times a power of two, of which the group's largest has 4 to 8; of ties the even one.
double exact_mxfp4(double x, double most) {
    const double scale = std::ldexp(1.0, std::max(most > 0 ? std::ilogb(most) - 2 : -125, -125));
    const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    int best = 0;
    for (int i = 1; i < 8; i++) {
        const double miss = std::abs(std::abs(x) / scale - values[i]),
                     before = std::abs(std::abs(x) / scale - values[best]);
        if (miss < before || (miss == before && i % 2 == 0)) best = i;
    }
    return std::copysign(values[best] * scale, x);
}

// E4M3 by its definition.
double from_fp8(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return code & 128 ? -size : size;
}

void check_column(const Format& f, const Packed& packed, const float* x, int64_t column) {
    const float scale = largest(x, packed.width) / 127.0f;
    for (int64_t k = 0; k < packed.width; k++) {
        const double got = packed.weight(column, k);
        if (f.precision == INT8) {
            CHECK(std::abs(got - double(x[k])) <= 0.5 * double(scale) * (1 + 1e-5), "%s column %ld of %ld: %g != %g",
                  f.name, long(column), long(k), got, double(x[k]));
        } else if (f.precision == MXFP4) {
            const int64_t group = k / 32 * 32;
            const double expected = exact_mxfp4(x[k], largest(x + group, std::min<int64_t>(32, packed.width - group)));
            CHECK(got == expected, "%s column %ld of %ld: %g is not %g but %g", f.name, long(column), long(k),
                  double(x[k]), expected, got);
        } else if (f.precision == FP8) {
            // Half a step of E4M3: a sixteenth of the power of two below, and 2^-10 of the scale among denormals.
            const double scale = packed.span_scale(column, k), size = std::abs(double(x[k])) / scale;
            const double step = std::ldexp(1.0, std::max(size > 0 ? std::ilogb(size) : -6, -6) - 3);
            CHECK(std::abs(got - double(x[k])) <= 0.5 * step * scale * (1 + 1e-5) || (scale == 0 && got == 0),
                  "%s column %ld of %ld: %g != %g", f.name, long(column), long(k), got, double(x[k]));
        } else if (f.precision != INT4) {
            CHECK(got == double(rounded(f.precision, x[k])), "%s column %ld of %ld: %g != %g", f.name, long(column),
                  long(k), got, double(x[k]));
        }
    }
    for (int64_t g = 0; f.precision == INT4 && g < packed.width; g += f.group) {
        const int64_t end = std::min<int64_t>(g + f.group, packed.width);
        const double got = group_error(packed, x, column, g, end), plain = minmax_error(x + g, end - g);
        // The stored scale has 19 significant bits, which moves each value by up to 2^-19 of it.
        const double moved = std::pow(std::ldexp(double(largest(x + g, end - g)), -19), 2) * double(end - g);
        CHECK(got <= plain * (1 + 1e-4) + moved, "%s column %ld from %ld: error %g, min-max %g", f.name, long(column),
              long(g), got, plain);
    }
}

void test_shapes(const KernelTable& k) {
    Random random(1);
    const int64_t shapes[][2] = {{1, 1}, {16, 128}, {17, 33}, {40, 200}, {33, 300}};
    for (const Format& f : FORMATS) {
        for (const auto& [columns, width] : shapes) {
            const std::vector<float> source = normal_values(random, columns * width, 0.05f);
            const Packed packed(k, f, source, columns, width);
            for (int64_t c = 0; c < columns; c++) check_column(f, packed, source.data() + c * width, c);
            for (int64_t c = 0; c < packed.linear.panels * LANES; c++) {
                for (int64_t i = c < columns ? width : 0; i < packed.linear.depth; i++) {
                    CHECK(packed.weight(c, i) == 0, "%s: padding at column %ld, %ld", f.name, long(c), long(i));
                }
            }
        }
    }
}

// fp16 and bf16 tensors, whose rows lie further apart than they are wide, become what their values are in fp32.
void test_sources(const KernelTable& k) {
    Random random(2);
    constexpr int64_t columns = 13, width = 70, stride = 75;
    for (const SourceType type : {SOURCE_F16, SOURCE_BF16}) {
        Buffer<uint16_t> halves(columns * stride - (stride - width));
        std::vector<float> source(columns * width);
        for (size_t i = 0; i < halves.size(); i++) {
            halves[i] = uint16_t(type == SOURCE_F16 ? random.below(2) << 15 | random.below(0x7c00)
                                                    : random.below(2) << 15 | (0x3000 + random.below(0x1800)));
        }
        for (int64_t c = 0; c < columns; c++) {
            for (int64_t i = 0; i < width; i++) {
                const uint16_t half = halves[size_t(c * stride + i)];
                source[size_t(c * width + i)] = type == SOURCE_F16 ? from_f16(half) : from_bf16(half);
            }
        }
        for (const Format& f : FORMATS) {
            const Packed expected(k, f, source, columns, width);
            const int64_t bytes = panel_bytes(f.precision, f.group, expected.linear.depth);
            Buffer<uint8_t> block(static_cast<size_t>(bytes));
            Buffer<float> scales(LANES), scratch(size_t(expected.linear.depth * (LANES + 2)));
            k.pack(f.precision, f.group, type, halves.data(), stride, columns, width, expected.linear.depth,
                   block.data(), scales.data(), scratch.data());
            CHECK(!std::memcmp(block.data(), expected.bytes.data(), size_t(bytes)), "%s from type %d", f.name, type);
        }
    }
}

// Blocks as GGUF's Q4_0 makes them (32 values of d · (q - 8), d in fp16 and of either sign) keep every bit.
void test_q4_0(const KernelTable& k) {
    Random random(3);
    constexpr int64_t columns = 16, width = 512;
    std::vector<float> source(columns * width);
    for (size_t block = 0; block < source.size(); block += 32) {
        const float d = from_f16(uint16_t(random.below(2) << 15 | (0x1400 + random.below(0x1000))));
        for (size_t i = 0; i < 32; i++) source[block + i] = block % 7 ? d * float(random.below(16) - 8) : 0.0f;
        if (block % 7) source[block + size_t(random.below(32))] = d * -8.0f;  // the quantizer puts the largest there
    }
    const Packed packed(k, FORMATS[3], source, columns, width);
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t i = 0; i < width; i++) {
            const double expected = source[size_t(c * width + i)];
            CHECK(packed.weight(c, i) == expected, "Q4_0 at %ld, %ld: %.9g != %.9g", long(c), long(i),
                  packed.weight(c, i), expected);
        }
    }
}

// Blocks in MXFP4 keep every bit, whatever of its values they hold: scales from 2^-125 to 2^125, and none but zeros.
void test_mxfp4_stays(const KernelTable& k) {
    Random random(13);
    constexpr int64_t columns = 48, width = 8 * 32;
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    std::vector<float> source(columns * width);
    for (size_t block = 0; block < source.size(); block += 32) {
        const int exponent = random.below(251) - 125, most = 1 + random.below(8);
        for (size_t i = 0; i < 32; i++)
            source[block + i] =
                std::ldexp(random.below(2) ? values[random.below(most)] : -values[random.below(most)], exponent);
    }
    const Packed packed(k, FORMATS[6], source, columns, width);
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t i = 0; i < width; i++) {
            const double expected = source[size_t(c * width + i)];
            CHECK(packed.weight(c, i) == expected, "MXFP4 at %ld, %ld: %.9g != %.9g", long(c), long(i),
                  packed.weight(c, i), expected);
        }
    }
}

// The searched clip must be worth its name: on normal values it is better than minimum and maximum by several percent.
void test_search(const KernelTable& k) {
    Random random(4);
    constexpr int64_t columns = 64, width = 1024;
    const std::vector<float> source = normal_values(random, columns * width);
    for (int i = 3; i < 6; i++) {
        const Format& f = FORMATS[i];
        const Packed packed(k, f, source, columns, width);
        double got = 0, plain = 0;
        for (int64_t c = 0; c < columns; c++) {
            const float* x = source.data() + c * width;
            got += group_error(packed, x, c, 0, width);
            for (int64_t g = 0; g < width; g += f.group) plain += minmax_error(x + g, f.group);
        }
        std::printf("  %s on normal values: rms error %.4f, by min-max alone %.4f\n", f.name,
                    std::sqrt(got / (columns * width)), std::sqrt(plain / (columns * width)));
        CHECK(got < 0.92 * plain, "%s: squared error %g, min-max %g", f.name, got, plain);
    }
}

// Groups that leave a quantizer little to work with.
void test_hard_values(const KernelTable& k) {
    constexpr int64_t columns = int64_t(std::size(HARD)), width = 128;
    std::vector<float> source;
    for (const auto& row : HARD) {
        for (int64_t i = 0; i < width; i++) source.push_back(row[i % 4]);
    }
    for (const Format& f : FORMATS) {
        const Packed packed(k, f, source, columns, width);
        for (int64_t c = 0; c < columns; c++) {
            const float* x = source.data() + c * width;
            const float most = largest(x, width);
            for (int64_t i = 0; i < width; i++) {
                const double got = packed.weight(c, i);
                // Hardware makes bf16's denormals zero, and so do quantized groups of nothing but such values.
                const double bound = f.precision == FP32    ? 0
                                     : f.precision == BF16  ? std::max(double(most) / 256, 1.2e-38)
                                     : f.precision == INT8  ? std::max(double(most) / 250, 1.2e-38)
                                     : f.precision == MXFP4 ? std::max(double(most) / 4, 1.2e-38)
                                     : f.precision == FP8   ? std::max(packed.span_scale(c, i) * 16.001, 1e-30)
                                     : most > 1e19f ? double(most) / 7.9  // squares overflow: a grid without a search
                                                    : std::max(double(most) / 12, 1e-29);
                CHECK(std::abs(got - double(x[i])) <= bound, "%s, column %ld: %g for %g", f.name, long(c), got,
                      double(x[i]));
            }
        }
    }
}

// A weight that is no number is said while it is packed: NaN became a group of zeros in int4, and a large number in
// int8.
void test_weights_that_are_no_numbers(const KernelTable& k) {
    constexpr int64_t columns = 16, width = 200;
    Buffer<float> exact(columns * width), out(columns * width), scales(LANES), scratch(256 * (LANES + 2));
    Buffer<uint16_t> halves(columns * width);
    Buffer<uint8_t> block(256 * LANES * 4);
    const auto packs = [&](const Format& f, SourceType type) {
        const void* from = type == SOURCE_F32 ? static_cast<const void*>(exact.data()) : halves.data();
        const int64_t depth = padded_depth(f.precision, width);
        const bool widened = k.widen(type, from, columns * width, out.data());
        const bool packed = k.pack(f.precision, f.group, type, from, width, columns, width, depth, block.data(),
                                   scales.data(), scratch.data());
        CHECK(widened == packed, "%s from type %d: widen says %d", f.name, type, widened);
        return packed;
    };
    for (const Format& f : FORMATS) {
        for (const SourceType type : {SOURCE_F32, SOURCE_F16, SOURCE_BF16}) {
            const uint16_t infinity = type == SOURCE_F16 ? 0x7c00 : 0x7f80, most = uint16_t(infinity - 1);
            for (size_t i = 0; i < exact.size(); i++)
                exact[i] = i % 2 ? 1e18f : -0.5f, halves[i] = uint16_t(i % 2 ? most : 0x8000 | 0x3000);
            CHECK(packs(f, type), "%s: the largest numbers of type %d", f.name, type);
            for (const size_t at : {size_t(0), size_t(15), size_t(199), size_t(200), size_t(3199)}) {
                for (const uint16_t half :
                     {infinity, uint16_t(infinity | 0x8000), uint16_t(infinity | 1), uint16_t(0xffff)}) {
                    const float before = exact[at];
                    const uint16_t was = halves[at];
                    exact[at] = half == infinity              ? INFINITY
                                : half == (infinity | 0x8000) ? -INFINITY
                                : half == 0xffff              ? -NAN
                                                              : NAN;
                    halves[at] = half;
                    CHECK(!packs(f, type), "%s: %04x of type %d at %zu was taken", f.name, half, type, at);
                    exact[at] = before, halves[at] = was;
                }
            }
        }
    }
}

// fp32 to bf16 and back through the kernels for tables: ties, infinities, NaN, and the largest value.
void test_narrow(const KernelTable& k) {
    std::vector<uint32_t> bits;
    for (const uint32_t high : {0x3f80u, 0x3f81u, 0xbf80u, 0xc2c9u, 0x7f7fu, 0x0080u, 0x8080u}) {
        for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) bits.push_back(high << 16 | low);
    }
    for (const uint32_t special : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu}) {
        bits.push_back(special);
    }
    for (size_t size = bits.size() - 20; size <= bits.size(); size++) {
        Buffer<float> source(size), back(size);
        Buffer<uint16_t> half(size);
        std::memcpy(source.data(), bits.data(), size * 4);
        k.narrow(SOURCE_BF16, source.data(), int64_t(size), half.data());
        k.widen(SOURCE_BF16, half.data(), int64_t(size), back.data());
        for (size_t i = 0; i < size; i++) {
            if (std::isnan(source[i])) {
                CHECK(std::isnan(back[i]), "NaN %08x became %g", bits[i], double(back[i]));
                continue;
            }
            CHECK(half[i] == to_bf16(source[i]), "%08x: %04x != %04x", bits[i], half[i], to_bf16(source[i]));
            CHECK(bits_as<uint32_t>(&back[i]) == uint32_t(half[i]) << 16, "%04x widened", half[i]);
        }
        k.narrow(SOURCE_F32, source.data(), int64_t(size), back.data());
        CHECK(!std::memcmp(source.data(), back.data(), size * 4), "fp32 is copied bit for bit");
    }
}

}  // namespace

Packed::Packed(const KernelTable& k, const Format& format, const std::vector<float>& source, int64_t columns_,
               int64_t width_, const std::vector<float>& bias)
    : columns(columns_),
      width(width_),
      bytes(size_t((columns + LANES - 1) / LANES *
                   panel_bytes(format.precision, format.group, padded_depth(format.precision, width)))),
      scales(size_t((columns + LANES - 1) / LANES * LANES)),
      biases(scales.size()) {
    linear.precision = format.precision;
    linear.group = format.group;
    linear.depth = padded_depth(format.precision, width);
    linear.panels = int64_t(scales.size()) / LANES;
    linear.weights = bytes.data();
    linear.scales = format.precision == INT8 || format.precision == FP8 ? scales.data() : nullptr;
    linear.bias = bias.empty() ? nullptr : biases.data();
    std::copy(bias.begin(), bias.end(), biases.data());
    Buffer<float> scratch(size_t(linear.depth * (LANES + 2)));
    Buffer<float> exact(source.size());
    std::copy(source.begin(), source.end(), exact.data());
    const int64_t size = panel_bytes(format.precision, format.group, linear.depth);
    for (int64_t b = 0; b < linear.panels; b++) {
        const int64_t used = std::min<int64_t>(LANES, columns - b * LANES);
        k.pack(format.precision, format.group, SOURCE_F32, exact.data() + b * LANES * width, width, used, width,
               linear.depth, bytes.data() + b * size, scales.data() + b * LANES, scratch.data());
    }
}

double Packed::span_scale(int64_t column, int64_t k) const {
    const uint8_t* block = bytes.data() + column / LANES * panel_bytes(FP8, 0, linear.depth);
    return double(bits_as<float>(block + k / SCALE_COLUMNS * 4)) * double(scales[size_t(column)]);
}

double Packed::weight(int64_t column, int64_t k) const {
    const int64_t lane = column % LANES, group = linear.group;
    const uint8_t* block = bytes.data() + column / LANES * panel_bytes(linear.precision, group, linear.depth);
    switch (linear.precision) {
        case FP32: return bits_as<float>(block + (k * LANES + lane) * 4);
        case BF16: return from_bf16(bits_as<uint16_t>(block + k / 2 * 64 + lane * 4 + k % 2 * 2));
        case INT8: return (block[k / 4 * 64 + lane * 4 + k % 4] - 128) * double(scales[size_t(column)]);
        case FP8: {
            const uint8_t* line = block + fp8_head_bytes(linear.depth) + k / 4 * 64;
            return span_scale(column, k) * from_fp8(line[lane / 4 * 16 + k % 4 / 2 * 8 + lane % 4 * 2 + k % 2]);
        }
        case MXFP4: {
            const uint8_t* start = block + k / SCALE_COLUMNS * (64 + 4 * 256);
            const int64_t number = k % SCALE_COLUMNS / 32, quad = k % 32 / 4;
            const uint8_t both = start[64 + number * 256 + quad % 4 * 64 + lane * 4 + k % 4],
                          nibble = quad < 4 ? both & 15 : both >> 4;
            const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
            const int exponent = start[lane * 4 + number];
            return exponent ? std::ldexp(nibble < 8 ? values[nibble] : -values[nibble - 8], exponent - 127) : 0;
        }
        default: {
            const uint8_t* start = block + k / group * (group / 8 + 1) * 64;
            const uint32_t head = bits_as<uint32_t>(start + lane * 4), scale = head & ~31u;
            const int64_t within = k % group, quad = within % 32 / 4;
            const uint8_t both = start[64 + within / 32 * 256 + quad % 4 * 64 + lane * 4 + k % 4];
            return (int(quad < 4 ? both & 15 : both >> 4) - int(head & 31)) * double(bits_as<float>(&scale));
        }
    }
}

void test_packing(const KernelTable& k) {
    test_shapes(k);
    test_sources(k);
    test_q4_0(k);
    test_mxfp4_stays(k);
    test_search(k);
    test_hard_values(k);
    test_int4_bits(k);
    test_weights_that_are_no_numbers(k);
    test_narrow(k);
}

}  // namespace check
