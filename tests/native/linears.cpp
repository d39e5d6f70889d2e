// Linears of every number format against plain sums in double, and what a row's bits may depend on: nothing beside it.
#include <xmmintrin.h>

#include <algorithm>

#include "check.h"

namespace check {
namespace {

struct Case {
    Case(const KernelTable& kernels, const Format& f, int64_t columns, int64_t width, int64_t count, bool bias,
         uint32_t seed, bool apart = false)
        : k(kernels),
          format(f),
          random(seed),
          weights(apart ? groups_apart(columns, width) : values(columns * width, 0.05f)),
          x(values(count * width, 1.0f)),
          packed(k, f, weights, columns, width, bias ? values(columns, 1.0f) : std::vector<float>()),
          quantized(k, packed.linear, x.data(), count, width) {}

    std::vector<float> values(int64_t size, float scale) {
        std::vector<float> made(static_cast<size_t>(size));
        for (float& value : made) value = random.normal() * scale;
        return made;
    }

    // Weights whose groups of 32 in every other span are up to 16 times as large as others, or zero.
    std::vector<float> groups_apart(int64_t columns, int64_t width) {
        std::vector<float> made = values(columns * width, 0.05f);
        for (int64_t i = 0; i < columns * width; i += 32) {
            const int size = random.below(6);
            for (int64_t k = i; k < std::min(i + 32, columns * width); k++) {
                if (k % width / SCALE_COLUMNS % 2) made[size_t(k)] *= size < 5 ? float(1 << size) : 0.0f;
            }
        }
        return made;
    }

    // Rows from `first` on, `count` of them in one call.
    std::vector<float> run(int64_t first, int64_t count, int parts = 1) const {
        // Rows of their own, so that nothing lies behind them but what must.
        const Quantized own(k, packed.linear, x.data() + first * packed.width, count, packed.width);
        const int64_t width = packed.linear.panels * LANES;
        constexpr int64_t gap = 5;  // a stride that is wider than what is written
        Buffer<float> out(size_t((count - 1) * (width + gap) + width), SENTINEL);
        const auto multiply = [&](const LinearRows& rows, Buffer<float>& to) {
            for (int p = 0; p < parts; p++) {
                const int64_t from = packed.linear.panels * p / parts, end = packed.linear.panels * (p + 1) / parts;
                if (from < end) k.linear(packed.linear, rows, count, from, end, to.data() + from * LANES, width + gap);
            }
        };
        multiply(own.rows, out);
        if (count > 16 && own.tiled.tiles) {
            Buffer<float> of_tiles(out.size(), SENTINEL);
            multiply(own.tiled, of_tiles);
            CHECK(same_bits(out.data(), of_tiles.data(), out.size()), "%s, %ld rows as tiles", format.name,
                  long(count));
        }
        std::vector<float> result;
        for (int64_t r = 0; r < count; r++) {
            const float* row = out.data() + r * (width + gap);
            result.insert(result.end(), row, row + width);
            for (int64_t i = width; r + 1 < count && i < width + gap; i++) {
                CHECK(row[i] == SENTINEL, "%s wrote behind row %ld of %ld", format.name, long(r), long(count));
            }
        }
        return result;
    }

    // Compares rows with sums in double of exactly what is multiplied: the packed weights and the quantized rows.
    void check_values(const std::vector<float>& got, int64_t first, int64_t count) const {
        const int64_t width = packed.linear.panels * LANES, depth = packed.linear.depth;
        for (int64_t c = 0; c < packed.columns; c++) {
            std::vector<double> weight(static_cast<size_t>(depth));
            for (int64_t i = 0; i < depth; i++) weight[size_t(i)] = packed.weight(c, i);
            for (int64_t r = 0; r < count; r++) {
                double sum = packed.biases[size_t(c)], size = std::abs(sum);
                for (int64_t i = 0; i < depth; i++) {
                    const double term = weight[size_t(i)] * quantized.value(first + r, i);
                    sum += term;
                    size += std::abs(term);
                }
                const double value = got[size_t(r * width + c)], miss = std::abs(value - sum);
                CHECK(miss <= size * rounding(integers(format.precision) ? depth / 32 * 3 : depth),
                      "%s %ld x %ld, row %ld of %ld, column %ld: %.8g != %.8g", format.name, long(packed.columns),
                      long(packed.width), long(first + r), long(count), long(c), value, sum);
            }
        }
    }

    static constexpr float SENTINEL = 12345.0f;
    const KernelTable& k;
    Format format;
    Random random;
    std::vector<float> weights, x;
    Packed packed;
    Quantized quantized;
};

// 1 to 64 rows of odd shapes; depths beyond the chunk that sums go by (1024).
void test_values(const KernelTable& k) {
    const int64_t shapes[][2] = {{1, 1}, {16, 128}, {17, 33}, {40, 200}, {50, 389}, {33, 1100}};
    for (const Format& f : FORMATS) {
        for (const auto& [columns, width] : shapes) {
            const Case c(k, f, columns, width, 64, columns % 2 == 0, uint32_t(columns));
            // The plain sums take longest, so that every count has a different part of the rows.
            const std::vector<float> all = c.run(0, 64);
            for (const int64_t count : {1, 2, 3, 5, 8, 11, 16, 17, 24, 31, 32, 33, 48, 64}) {
                const std::vector<float> got = c.run(64 - count, count);
                if (count == 16 || count == 64) c.check_values(got, 64 - count, count);
                const int64_t stride = c.packed.linear.panels * LANES;
                for (int parts = 2; parts <= 4 && (count == 1 || count == 5 || count == 33); parts++) {
                    const std::vector<float> split = c.run(64 - count, count, parts);
                    CHECK(same_bits(got.data(), split.data(), got.size()), "%s %ld x %ld: %ld rows in %d parts", f.name,
                          long(columns), long(width), long(count), parts);
                }
                CHECK(same_bits(got.data(), all.data() + (64 - count) * stride, got.size()),
                      "%s %ld x %ld: the last %ld rows of 64", f.name, long(columns), long(width), long(count));
            }
        }
    }
}

// The promise that makes assisted output equal plain output: a row among any number, wherever, has the bits it has
// alone.
void test_rows_alone(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const int64_t width : {333, 1200, 2300}) {
            const Case c(k, f, 40, width, 70, true, 7);
            const int64_t stride = c.packed.linear.panels * LANES;
            std::vector<float> alone;
            for (int64_t r = 0; r < 70; r++) {
                const std::vector<float> row = c.run(r, 1);
                alone.insert(alone.end(), row.begin(), row.end());
            }
            const bool deep = width > 333;  // the order of sums is what matters there, the places of rows do not
            for (int64_t count = 2; count <= 70; count += deep ? 1 + count / 2 : count < 34 ? 1 : 5) {
                for (int64_t first = deep ? 70 - count : 0; first + count <= 70; first += 17) {
                    const std::vector<float> got = c.run(first, count);
                    CHECK(same_bits(got.data(), alone.data() + first * stride, got.size()),
                          "%s, %ld deep: %ld rows from %ld", f.name, long(width), long(count), long(first));
                }
            }
        }
    }
}

// A prompt: 256 rows, through AMX where this build has it.
void test_prompt(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        const Case c(k, f, 20, 260, 256, true, 9);
        const std::vector<float> got = c.run(0, 256);
        c.check_values(got, 0, 256);
        for (int parts = 2; parts <= 4; parts++) {
            const std::vector<float> split = c.run(0, 256, parts);
            CHECK(same_bits(got.data(), split.data(), got.size()), "%s in %d parts", f.name, parts);
        }
    }
}

// More blocks and columns than many rows go by at once, and a last part of fewer than 16 rows, of an odd block and of
// fewer columns: every row has the bits it has alone.
void test_panels(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        const Case c(k, f, 300, 620, 37, true, 11);
        const int64_t stride = c.packed.linear.panels * LANES;
        const std::vector<float> all = c.run(0, 37), split = c.run(0, 37, 3);
        CHECK(same_bits(all.data(), split.data(), all.size()), "%s in 3 parts", f.name);
        for (int64_t r = 0; r < 37; r++) {
            const std::vector<float> alone = c.run(r, 1);
            CHECK(same_bits(all.data() + r * stride, alone.data(), size_t(stride)), "%s: row %ld of 37", f.name,
                  long(r));
        }
    }
}

// Groups of weights whose scales are far apart: where mxfp4 has one scale for a span, and where it cannot. And so many
// rows that AMX goes through slabs of columns.
void test_groups_apart(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        if (!integers(f.precision)) continue;
        constexpr int64_t ROWS = 400;
        const Case c(k, f, 50, 47 * 32, ROWS, true, 13, true);
        const int64_t stride = c.packed.linear.panels * LANES;
        const std::vector<float> all = c.run(0, ROWS);
        c.check_values(all, 0, 4);
        for (const int64_t count : {1, 2, 5, 8, 12, 16, 17, 32, 33, 40}) {
            const std::vector<float> got = c.run(ROWS - count, count);
            CHECK(same_bits(got.data(), all.data() + (ROWS - count) * stride, got.size()),
                  "%s: the last %ld rows of many", f.name, long(count));
        }
    }
}

// Rows of the largest int8 values with weights of the largest: where 16-bit sums would saturate.
void test_extremes(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const float sign : {1.0f, -1.0f}) {
            Case c(k, f, 16, 256, 32, false, 1);
            std::fill(c.x.begin(), c.x.end(), sign * 3.0f);
            Random random(5);
            for (float& weight : c.weights) weight = random.below(2) ? 1.0f : -1.0f;
            std::fill(c.weights.begin(), c.weights.begin() + 256, 1.0f);
            std::fill(c.weights.begin() + 256, c.weights.begin() + 512, -1.0f);
            const Packed packed(k, f, c.weights, 16, 256);
            const Quantized rows(k, packed.linear, c.x.data(), 32, 256);
            for (const int64_t count : {1, 5, 32}) {
                Buffer<float> out(size_t(count * LANES));
                k.linear(packed.linear, rows.rows, count, 0, 1, out.data(), LANES);
                for (int64_t r = 0; r < count; r++) {
                    for (int64_t j = 0; j < 2; j++) {
                        const double expected = 768.0 * double(sign) * (j ? -1 : 1), got = out[size_t(r * LANES + j)];
                        CHECK(std::abs(got - expected) < 1e-3 * 768, "%s: %g != %g", f.name, got, expected);
                    }
                }
            }
        }
    }
}

// NaN or infinity anywhere in a row is in every output of that row (integers have no such values: the row's scale keeps
// it), and in none of another row's.
void test_rows_that_are_no_numbers(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            for (const int64_t column : {0, 15, 127, 128, 200, 332}) {
                Case c(k, f, 20, 333, 40, true, 8);
                const std::vector<float> before = c.run(0, 40);
                c.x[size_t(3 * 333 + column)] = bad, c.x[size_t(36 * 333 + column)] = bad;
                for (const int64_t count : {5, 16, 40}) {
                    const std::vector<float> got = c.run(0, count);
                    const int64_t stride = c.packed.linear.panels * LANES;
                    for (int64_t r = 0; r < count; r++) {
                        for (int64_t i = 0; i < 20; i++) {
                            const float value = got[size_t(r * stride + i)], expected = before[size_t(r * stride + i)];
                            if (r == 3 || r == 36) {
                                CHECK(!std::isfinite(value), "%s: %g in column %ld gives %g", f.name, double(bad),
                                      long(column), double(value));
                            } else if (count == 40) {
                                CHECK(same_bits(&value, &expected, 1), "%s: row %ld beside %g", f.name, long(r),
                                      double(bad));
                            }
                        }
                    }
                }
            }
        }
    }
}

// KernelTable compute for more rows than there are, with what an earlier call has left behind them. Nobody sees what
// comes of it; but where that is numbers so small that the processor has no quick way with them, a few rows take longer
// than many.
void test_rows_behind_small_numbers(const KernelTable& k) {
    constexpr unsigned SMALL_OPERAND = 2, ALL_FLAGS = 0x3f;  // of MXCSR
    for (const Format& f : FORMATS) {
        Case tiny(k, f, 40, 333, 16, true, 3);
        for (float& value : tiny.x) value *= 1e-38f;
        const Case c(k, f, 40, 333, 16, true, 3);
        for (const int64_t count : {2, 3, 5, 7, 9, 12, 15}) {
            tiny.run(0, 16);
            _mm_setcsr(_mm_getcsr() & ~ALL_FLAGS);
            c.run(0, count);
            CHECK(!(_mm_getcsr() & SMALL_OPERAND), "%s: %ld rows behind others", f.name, long(count));
        }
    }
}

}  // namespace

void test_linears(const KernelTable& k) {
    test_rows_behind_small_numbers(k);
    test_values(k);
    test_rows_alone(k);
    test_prompt(k);
    test_panels(k);
    test_groups_apart(k);
    test_extremes(k);
    test_rows_that_are_no_numbers(k);
    test_blocks(k);
}

// A packed image serves every machine, so all levels pack the same bytes; and linears give the same bits on all of
// them, for few rows and for many, but those of bf16 where their instructions differ.
void test_levels_agree(const std::vector<const KernelTable*>& levels) {
    for (const Format& f : FORMATS) {
        const Case first(*levels[0], f, 40, 333, 64, true, 3);
        for (const KernelTable* k : levels) {
            const Case other(*k, f, 40, 333, 64, true, 3);
            CHECK(!std::memcmp(first.packed.bytes.data(), other.packed.bytes.data(), first.packed.bytes.size()),
                  "%s packed on %s", f.name, k->name);
            CHECK(!std::memcmp(first.packed.scales.data(), other.packed.scales.data(), first.packed.scales.size() * 4),
                  "%s scales on %s", f.name, k->name);
            if (!agree(*levels[0], *k, f.precision)) continue;
            for (const int64_t count : {1, 5, 16, 17, 64}) {
                const std::vector<float> a = first.run(0, count), b = other.run(0, count);
                CHECK(same_bits(a.data(), b.data(), a.size()), "%s: %ld rows on %s", f.name, long(count), k->name);
            }
        }
    }
}

}  // namespace check
