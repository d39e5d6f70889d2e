// The number formats that weights are packed in, each of which has a folder here.
#pragma once
#include <cstdint>

#include "memory/round_up.h"

namespace ipex_assist {

enum Precision : int32_t { FP32, BF16, INT8, INT4, MXFP4, FP8 };

// What the rows that a linear multiplies are made of; of several formats it is the same. INT8_ROWS have a scale for
// each span of 128 columns.
enum RowType : int32_t { FP32_ROWS, BF16_ROWS, INT8_ROWS };

constexpr int LANES = 16;           // output columns of a panel
constexpr int SCALE_COLUMNS = 128;  // input columns that share one scale of an int8 row: a span

}  // namespace ipex_assist
