// Linears of GGUF's blocks: a row has the bits that it has alone, among few, in two panels at a time and on tiles.
#include <algorithm>

#include "check.h"
#include "formats/blocks/place.h"

namespace check {
namespace {

constexpr Precision KINDS[] = {Q4_0,    Q4_1,       Q5_0,    Q5_1,  Q8_0,   Q2_K,    Q3_K,     Q4_K,    Q5_K,    Q6_K,
                               IQ2_XXS, IQ2_XS,     IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S,   IQ2_S,    IQ4_XS,  IQ1_M,   TQ1_0,
                               TQ2_0,   GGUF_MXFP4, NVFP4,   NF4,   FP4,    INT2_32, INT2_128, INT3_32, INT3_128};

class BlockCase {
public:
    BlockCase(const KernelTable& kernels, Precision format, int64_t width)
        : k_(kernels),
          random_(uint32_t(format)),
          width_(width),
          weights_(size_t(PANELS * panel_bytes(format, 32, padded_depth(format, width)))),
          scales_(size_t(COLUMNS)),
          bias_(size_t(COLUMNS)),
          x_(size_t(ROWS * width)) {
        linear_.precision = format, linear_.group = 32, linear_.panels = PANELS;
        linear_.depth = padded_depth(format, width);
        linear_.weights = weights_.data(), linear_.scales = scales_.data(), linear_.bias = bias_.data();
        for (int64_t i = 0; i < COLUMNS; i++) scales_.data()[i] = random_.normal(), bias_.data()[i] = random_.normal();
        for (float& value : x_) value = random_.normal();
        place();
    }

    // All columns of `count` rows from `first` on, in one call or in two of which the second begins at panel `from`.
    std::vector<float> run(int64_t first, int64_t count, int64_t from, bool tiles) const {
        const Quantized own(k_, linear_, x_.data() + first * width_, count, width_);
        constexpr int64_t stride = COLUMNS + 5;
        Buffer<float> out(size_t((count - 1) * stride + COLUMNS));
        const LinearRows& rows = tiles ? own.tiled : own.rows;
        if (from) k_.linear(linear_, rows, count, 0, from, out.data(), stride);
        k_.linear(linear_, rows, count, from, PANELS, out.data() + from * LANES, stride);
        std::vector<float> found;
        for (int64_t r = 0; r < count; r++)
            found.insert(found.end(), out.data() + r * stride, out.data() + r * stride + COLUMNS);
        return found;
    }

    static constexpr int64_t ROWS = 70, PANELS = 5, COLUMNS = PANELS * LANES;

private:
    void place() {
        const int64_t bytes = file_row_bytes(linear_.precision, width_);
        std::vector<uint8_t> file(size_t(COLUMNS * bytes));
        for (uint8_t& byte : file) byte = uint8_t(random_.below(256) & 0x3b);  // scales are numbers
        for (int64_t b = 0; b < PANELS; b++) {
            FileRows rows{{}, width_};
            for (int64_t i = 0; i < LANES; i++) rows.at[i] = file.data() + (b * LANES + i) * bytes;
            uint8_t* to = weights_.data() + b * panel_bytes(linear_.precision, 32, linear_.depth);
            CHECK(place_blocks(linear_.precision, rows, linear_.depth, to) == LANES, "format %d", linear_.precision);
        }
    }

    const KernelTable& k_;
    Random random_;
    int64_t width_;
    Buffer<uint8_t> weights_;
    Buffer<float> scales_, bias_;
    std::vector<float> x_;
    Linear linear_{};
};

}  // namespace

void test_blocks(const KernelTable& k) {
    for (const Precision format : KINDS) {
        // Beyond the columns that are unpacked at once; and, of blocks, padded.
        for (const int64_t width : {768, 448}) {
            if (!file_row_bytes(format, width)) continue;
            const BlockCase c(k, format, width);
            std::vector<float> alone;
            for (int64_t r = 0; r < c.ROWS; r++) {
                const std::vector<float> row = c.run(r, 1, 0, false);
                alone.insert(alone.end(), row.begin(), row.end());
            }
            const bool numbers = std::all_of(alone.begin(), alone.end(), [](float y) { return std::isfinite(y); });
            CHECK(numbers, "format %d, %ld columns", format, long(width));
            for (const int64_t count : {2, 3, 4, 5, 6, 8, 9, 16, 17, 21, 33, 48, 64, 70}) {
                for (const bool tiles : {false, true}) {
                    if (tiles && count <= 16) continue;
                    const int64_t first = c.ROWS - count;
                    const std::vector<float> found = c.run(first, count, count % c.PANELS, tiles);
                    CHECK(same_bits(found.data(), alone.data() + first * c.COLUMNS, found.size()),
                          "format %d, %ld columns, %ld rows%s", format, long(width), long(count),
                          tiles ? " as tiles" : "");
                }
            }
        }
    }
}

}  // namespace check
