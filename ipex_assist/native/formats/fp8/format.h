// fp8: [depth/128] floats              a scale of the panel for each span of 128 input columns; padded to 64 bytes
//      [depth/4][4][2][4][2]           E4M3; in each quarter of a line columns 0 and 1 of its 4 outputs, then 2 and 3
// value = the output's scale, kept apart, · the span's · E4M3
#pragma once
#include "formats/precision.h"

namespace ipex_assist {

// Of the scales that a panel begins with.
inline constexpr int64_t fp8_head_bytes(int64_t depth) { return (depth / SCALE_COLUMNS * 4 + 63) / 64 * 64; }

struct Fp8Format {
    static constexpr RowType ROWS = BF16_ROWS;
    static constexpr int64_t DEPTH = SCALE_COLUMNS;  // input columns are padded to a multiple of it
    static constexpr bool COLUMN_SCALES = true;      // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = false;         // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = true;  // whether a checkpoint's numbers can be placed as they are (stored.h)
    // Input columns that share a scale; `asked` is what a model has for its int4.
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return SCALE_COLUMNS; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) { return true; }
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) {
        return fp8_head_bytes(depth) + depth * LANES;
    }
};

}  // namespace ipex_assist
