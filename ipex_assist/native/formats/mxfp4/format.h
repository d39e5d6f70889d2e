// mxfp4: [depth/128] of
//          [16][4] bytes                exponents of 2, + 127, of a column's 4 groups of 32; 0 is a scale of 0
//          [4][4][16][4] bytes          as in int4
// value = 2^(exponent - 127) · E2M1(nibble): 0, 0.5, 1, 1.5, 2, 3, 4, 6, and from 8 on their negatives
#pragma once
#include "formats/precision.h"

namespace ipex_assist {

struct Mxfp4Format {
    static constexpr RowType ROWS = INT8_ROWS;
    static constexpr int64_t DEPTH = SCALE_COLUMNS;  // input columns are padded to a multiple of it
    static constexpr bool COLUMN_SCALES = false;     // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = false;         // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = false;  // whether a checkpoint's numbers can be placed as they are (stored.h)
    // Input columns that share a scale; `asked` is what a model has for its int4.
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return 32; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) { return true; }
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) {
        return depth * LANES / 2 + depth / SCALE_COLUMNS * LANES * 4;
    }
};

}  // namespace ipex_assist
