// What is asked of the formats that checkpoints store matrices in: those whose STORED is true have a file stored.h.
#pragma once
#include "formats/formats.h"
#include "formats/fp8/stored.h"
#include "formats/int4/stored.h"
#include "formats/int8/stored.h"

namespace ipex_assist {

// Whether a matrix is stored as this format has its numbers, in groups of `group` where it has such.
inline bool is_stored_as(Precision precision, const StoredNumbers& matrix, int32_t group) {
    return with_format(precision, [&](auto format) {
        if constexpr (format.STORED) return is_stored_as(format, matrix, group);
        else return false;
    });
}

// Up to 16 columns of such a matrix, as a panel of this depth, and its column scales where the format has them.
inline Placed place_stored(Precision precision, const StoredNumbers& columns, int32_t group, int64_t depth,
                           uint8_t* panel, float* scales) {
    return with_format(precision, [&](auto format) {
        if constexpr (format.STORED) return place_stored(format, columns, group, depth, panel, scales);
        else return Placed::UNEVEN_SCALES;
    });
}

}  // namespace ipex_assist
