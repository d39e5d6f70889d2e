// int4: [depth/group] of
//         [16] scale and zero            32 bits: a float with 19 significant bits; the zero, 0…31, in the lowest 5
//         [group/32][4][16][4] bytes     low nibble: quads 0…3 of the 32 columns, high nibble: quads 4…7
// value = scale · (nibble - zero); group 32, 64 or 128
#pragma once
#include "formats/precision.h"

namespace ipex_assist {

constexpr int ZERO_BITS = 31;  // the mask of a group's zero

struct Int4Format {
    static constexpr RowType ROWS = INT8_ROWS;
    static constexpr int64_t DEPTH = SCALE_COLUMNS;  // input columns are padded to a multiple of it
    static constexpr bool COLUMN_SCALES = false;     // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = false;         // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = true;  // whether a checkpoint's numbers can be placed as they are (stored.h)
    // Input columns that share a scale; `asked` is what a model has for its int4.
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return asked; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) {
        return asked == 32 || asked == 64 || asked == 128;
    }
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) {
        return depth * LANES / 2 + depth / group * LANES * 4;
    }
};

}  // namespace ipex_assist
