// A matrix whose numbers a checkpoint stores as one of our formats has them.
#pragma once
#include <cstdint>

namespace ipex_assist {

struct StoredNumbers {
    const uint8_t* values;  // (columns, width): 4-bit values from 0 to 15, signed 8-bit ones, or E4M3
    const float* scales;    // (columns, groups)
    const uint8_t* zeros;   // (columns, groups), from 0 to 31, of 4-bit values; else null
    int64_t groups;         // of neighbouring inputs; the last one may be short
    int64_t columns, width;
};

// NAN_VALUE: a value is NaN. UNEVEN_SCALES: the format cannot hold these scales.
enum class Placed { DONE, NAN_VALUE, UNEVEN_SCALES };

}  // namespace ipex_assist
