// fp32: [depth][16]
#pragma once
#include "formats/precision.h"

namespace ipex_assist {

struct Fp32Format {
    static constexpr RowType ROWS = FP32_ROWS;
    static constexpr int64_t DEPTH = 32;          // input columns are padded to a multiple of it
    static constexpr bool COLUMN_SCALES = false;  // a float for each output column, kept apart
    static constexpr bool LOOKED_UP = true;       // whether rows of a packed matrix serve as a table of embeddings
    static constexpr bool STORED = false;         // whether a checkpoint's numbers can be placed as they are (stored.h)
    // Input columns that share a scale; `asked` is what a model has for its int4.
    static constexpr int32_t group([[maybe_unused]] int32_t asked) { return SCALE_COLUMNS; }
    static constexpr bool takes_group([[maybe_unused]] int32_t asked) { return true; }
    static constexpr int64_t panel_bytes([[maybe_unused]] int64_t group, int64_t depth) { return depth * LANES * 4; }
};

}  // namespace ipex_assist
