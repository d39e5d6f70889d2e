// Matrices that are stored in E4M3 with a scale for each span of 128 input columns of each output column.
#pragma once
#include "formats/fp8/format.h"
#include "formats/stored_numbers.h"

namespace ipex_assist {

inline bool is_stored_as(Fp8Format, const StoredNumbers& matrix, int32_t) {
    return !matrix.zeros && matrix.groups == (matrix.width + SCALE_COLUMNS - 1) / SCALE_COLUMNS;
}

// The scales of a panel's spans and columns: its columns have the same ones, or each has one for all spans. False where
// neither is so.
inline bool place_fp8_scales(const StoredNumbers& columns, float* of_spans, float* of_columns) {
    const float* scales = columns.scales;
    const int64_t spans = columns.groups;
    bool same = true, single = true;
    for (int64_t c = 0; c < columns.columns; c++) {
        for (int64_t s = 0; s < spans; s++) {
            same &= scales[c * spans + s] == scales[s];
            single &= scales[c * spans + s] == scales[c * spans];
        }
    }
    for (int64_t s = 0; s < spans; s++) of_spans[s] = same ? scales[s] : 1.0f;
    for (int64_t c = 0; c < LANES; c++) of_columns[c] = same || c >= columns.columns ? 1.0f : scales[c * spans];
    return same || single;
}

inline Placed place_stored(Fp8Format, const StoredNumbers& columns, int32_t, int64_t depth, uint8_t* panel,
                           float* scales) {
    constexpr uint8_t NOT_A_NUMBER = 0x7f;  // and 0xff
    if (!place_fp8_scales(columns, reinterpret_cast<float*>(panel), scales)) return Placed::UNEVEN_SCALES;
    bool numbers = true;
    for (int lane = 0; lane < LANES; lane++) {
        const uint8_t* values = columns.values + lane * columns.width;
        uint8_t* lines = panel + fp8_head_bytes(depth) + lane / 4 * 16 + lane % 4 * 2;
        for (int64_t k = 0; k < depth; k++) {
            const uint8_t value = lane < columns.columns && k < columns.width ? values[k] : 0;
            numbers &= (value & NOT_A_NUMBER) != NOT_A_NUMBER;
            lines[k / 4 * 64 + k % 4 / 2 * 8 + k % 2] = value;
        }
    }
    return numbers ? Placed::DONE : Placed::NAN_VALUE;
}

}  // namespace ipex_assist
