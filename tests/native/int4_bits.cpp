// Every bit of int4 that is packed from floats, held against the search for scales and zeros in plain loops.
#include <algorithm>
#include <iterator>

#include "check.h"

namespace check {
namespace {

// The search for a grid by plain loops, a group at a time. Its sums are added up as a vector of 16 lanes adds up 16
// consecutive values: every bit of an image that somebody has kept depends on that.

struct Grid {
    float scale;
    int32_t zero;
};

float added(const float* lanes) {
    float sums[LANES];
    std::copy(lanes, lanes + LANES, sums);
    for (int half = LANES / 2; half; half /= 2) {
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    }
    return sums[0];
}

float storable(float scale) {
    const uint32_t bits = (bits_as<uint32_t>(&scale) + ZERO_BITS / 2) & ~uint32_t(ZERO_BITS);
    const float kept = bits_as<float>(&bits);
    return kept > 1e-30f ? kept : 0.0f;
}

int32_t nibble_of(float x, Grid grid) {
    const float reciprocal = grid.scale > 0 ? 1.0f / grid.scale : 0.0f;
    return std::min(15, std::max(0, int32_t(std::lrint(x * reciprocal)) + grid.zero));
}

float error_of(const float* x, int64_t size, Grid grid, float* fitted) {
    float error[LANES] = {}, product[LANES] = {}, square[LANES] = {};
    for (int64_t k = 0; k < size; k++) {
        const float q = float(nibble_of(x[k], grid) - grid.zero), miss = std::fma(-grid.scale, q, x[k]);
        const int64_t i = k % LANES;
        error[i] = std::fma(miss, miss, error[i]);
        product[i] = std::fma(x[k], q, product[i]);
        square[i] = std::fma(q, q, square[i]);
    }
    const float squares = added(square);
    *fitted = squares > 0 ? storable(added(product) / squares) : 0.0f;
    return added(error);
}

Grid searched(const float* x, int64_t size) {
    const float least = std::min(0.0f, *std::min_element(x, x + size)),
                most = std::max(0.0f, *std::max_element(x, x + size));
    const float range = most - least, ratio = -least * 15.0f / range;
    const int32_t zero = range > 0 && ratio < 16 ? int32_t(std::lrint(ratio)) : 0;
    const Grid symmetric{storable((most > -least ? most : -least) / 8.0f), most > -least ? 7 : 8};
    Grid best = symmetric.scale > 0 ? symmetric : Grid{0.0f, 8};
    float best_error = INFINITY;
    const auto consider = [&](Grid grid) {
        float fitted = 0;
        for (int pass = 0; pass < 2 && grid.scale > 0; pass++) {
            const float error = error_of(x, size, grid, &fitted);
            if (error < best_error) best = grid, best_error = error;
            grid.scale = fitted;
        }
    };
    consider(symmetric);
    for (int step = 0; step < 10; step++) consider({storable(range / 15.0f * (1.0f - 0.04f * float(step))), zero});
    for (int side = -1; side <= 1; side += 2) {
        for (int32_t moved = best.zero + side; moved >= 0 && moved <= 15; moved += side) {
            const float before = best_error;
            consider({best.scale, moved});
            if (best_error == before) break;
        }
    }
    return best;
}

// Columns of normal values and of values few of which are large, with all signs, one sign, ties and hardly any values.
std::vector<float> varied_values(Random& random, int64_t columns, int64_t width) {
    std::vector<float> values;
    for (int64_t c = 0; c < columns; c++) {
        const float size = std::ldexp(1.0f, random.below(40) - 30);
        for (int64_t i = 0; i < width; i++) {
            const float x = random.normal() * size, tail = random.below(50) ? x : x * 20;
            const float row = HARD[size_t(c) / 8 % std::size(HARD)][i % 4];
            values.push_back(c % 8 == 0   ? x
                             : c % 8 == 1 ? tail
                             : c % 8 == 2 ? std::abs(tail)
                             : c % 8 == 3 ? -std::abs(x) - size
                             : c % 8 == 4 ? std::nearbyint(x / size) * size
                             : c % 8 == 5 ? (random.below(9) ? 0.0f : x)
                             : c % 8 == 6 ? from_bf16(to_bf16(x))
                                          : row);
        }
    }
    return values;
}

}  // namespace

void test_int4_bits(const KernelTable& k) {
    Random random(5);
    constexpr int64_t columns = 8 * int64_t(std::size(HARD)) + 5, width = 300;
    const std::vector<float> source = varied_values(random, columns, width);
    for (int i = 3; i < 6; i++) {
        const Format& f = FORMATS[i];
        const Packed packed(k, f, source, columns, width);
        const int64_t depth = packed.linear.depth, group = f.group;
        for (int64_t c = 0; c < columns; c++) {
            std::vector<float> x(source.begin() + c * width, source.begin() + (c + 1) * width);
            x.resize(size_t(depth));
            for (int64_t g = 0; g < depth; g += group) {
                const Grid grid = searched(x.data() + g, group);
                const uint8_t* start = packed.bytes.data() + c / LANES * panel_bytes(INT4, group, depth) +
                                       g / group * (group / 8 + 1) * 64;
                const uint32_t head = bits_as<uint32_t>(start + c % LANES * 4);
                CHECK(head == (bits_as<uint32_t>(&grid.scale) | uint32_t(grid.zero)),
                      "%s column %ld from %ld: head %08x, not %a with %d", f.name, long(c), long(g), head,
                      double(grid.scale), grid.zero);
                for (int64_t at = 0; at < group; at++) {
                    const uint8_t both = start[64 + at / 32 * 256 + at % 16 / 4 * 64 + c % LANES * 4 + at % 4];
                    const int got = at % 32 < 16 ? both & 15 : both >> 4;
                    CHECK(got == nibble_of(x[size_t(g + at)], grid), "%s column %ld, %ld: nibble %d", f.name, long(c),
                          long(g + at), got);
                }
            }
        }
    }
}

}  // namespace check
