// Matrices that are stored in 4-bit values with a scale and a zero for each group. Scales are rounded to 19 significant
// bits: exact for those of fp16 and bf16.
#pragma once
#include <cstring>

#include "formats/int4/format.h"
#include "formats/stored_numbers.h"

namespace ipex_assist {

inline bool is_stored_as(Int4Format, const StoredNumbers& matrix, int32_t group) {
    return matrix.zeros && matrix.groups == (matrix.width + group - 1) / group;
}

inline Placed place_stored(Int4Format, const StoredNumbers& columns, int32_t group, int64_t depth, uint8_t* panel,
                           float*) {
    const int64_t group_bytes = Int4Format::panel_bytes(group, group);
    for (int64_t lane = 0; lane < columns.columns; lane++) {
        const uint8_t* values = columns.values + lane * columns.width;
        const auto value = [&](int64_t k) { return k < columns.width ? values[k] : 0; };
        for (int64_t k = 0; k < depth; k += 32) {
            uint8_t* lines = panel + k / group * group_bytes + 64 + k % group / 8 * 64;
            for (int64_t i = 0; i < 16; i++) {
                lines[i / 4 * 64 + lane * 4 + i % 4] = uint8_t(value(k + i) | value(k + 16 + i) << 4);
            }
        }
        for (int64_t g = 0; g < columns.groups; g++) {
            uint32_t head;
            std::memcpy(&head, columns.scales + lane * columns.groups + g, 4);
            head = ((head + ZERO_BITS / 2) & ~uint32_t(ZERO_BITS)) | columns.zeros[lane * columns.groups + g];
            std::memcpy(panel + g * group_bytes + lane * 4, &head, 4);
        }
    }
    return Placed::DONE;
}

}  // namespace ipex_assist
