// Matrices that are stored in signed 8-bit integers with a scale for each output column.
#pragma once
#include "formats/int8/format.h"
#include "formats/stored_numbers.h"

namespace ipex_assist {

inline bool is_stored_as(Int8Format, const StoredNumbers& matrix, int32_t) {
    return matrix.groups == 1 && !matrix.zeros;
}

inline Placed place_stored(Int8Format, const StoredNumbers& columns, int32_t, int64_t depth, uint8_t* panel,
                           float* scales) {
    for (int lane = 0; lane < LANES; lane++) {
        const bool used = lane < columns.columns;
        const uint8_t* values = columns.values + lane * columns.width;
        for (int64_t k = 0; k < depth; k++) {  // 128 is zero
            panel[k / 4 * 64 + lane * 4 + k % 4] = uint8_t((used && k < columns.width ? values[k] : 0) ^ 0x80);
        }
        scales[lane] = used ? columns.scales[lane] : 0.0f;
    }
    return Placed::DONE;
}

}  // namespace ipex_assist
