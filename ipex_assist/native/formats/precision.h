// The number formats that weights are packed in, each of which has a folder here.
#pragma once
#include <cstdint>

#include "memory/round_up.h"

namespace ipex_assist {

enum Precision : int32_t {
    FP32,
    BF16,
    INT8,
    INT4,
    MXFP4,
    FP8,
    // Those of GGUF files, kept as they are (blocks/): 64 and the number that the format has there. NF4 and FP4 of
    // bitsandbytes, and GPTQ's integers of 2 and 3 bits with a scale for 32 or 128 columns, are such blocks as well.
    Q4_0 = 66,
    Q4_1,
    Q5_0 = 70,
    Q5_1,
    Q8_0,
    Q2_K = 74,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS = 80,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M = 93,
    TQ1_0 = 98,
    TQ2_0,
    GGUF_MXFP4 = 103,
    NVFP4,
    NF4 = 264,
    FP4,
    INT2_32,
    INT2_128,
    INT3_32,
    INT3_128
};

// What the rows that a linear multiplies are made of; of several formats it is the same. INT8_ROWS and BLOCK_ROWS have
// a scale for each span of 128 columns; BLOCK_ROWS are int8 as well, and differ in their sums (LinearRows).
enum RowType : int32_t { FP32_ROWS, BF16_ROWS, INT8_ROWS, BLOCK_ROWS };

constexpr int LANES = 16;           // output columns of a panel
constexpr int SCALE_COLUMNS = 128;  // input columns that share one scale of an int8 row: a span

}  // namespace ipex_assist
