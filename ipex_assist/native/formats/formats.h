// What is asked of a number format: the only switch over them. A format without its case does not compile.
#pragma once
#include "formats/bf16/format.h"
#include "formats/blocks/format.h"
#include "formats/fp32/format.h"
#include "formats/fp8/format.h"
#include "formats/int4/format.h"
#include "formats/int8/format.h"
#include "formats/mxfp4/format.h"

namespace ipex_assist {

// f(the format's structure)
template <class F>
constexpr auto with_format(Precision precision, F&& f) {
    switch (precision) {
        case FP32: return f(Fp32Format());
        case BF16: return f(Bf16Format());
        case INT8: return f(Int8Format());
        case INT4: return f(Int4Format());
        case MXFP4: return f(Mxfp4Format());
        case FP8: return f(Fp8Format());
        case Q4_0: return f(Q4_0Format());
        case Q4_1: return f(Q4_1Format());
        case Q5_0: return f(Q5_0Format());
        case Q5_1: return f(Q5_1Format());
        case Q8_0: return f(Q8_0Format());
        case Q2_K: return f(Q2KFormat());
        case Q3_K: return f(Q3KFormat());
        case Q4_K: return f(Q4KFormat());
        case Q5_K: return f(Q5KFormat());
        case Q6_K: return f(Q6KFormat());
        case IQ2_XXS: return f(Iq2XxsFormat());
        case IQ2_XS: return f(Iq2XsFormat());
        case IQ3_XXS: return f(Iq3XxsFormat());
        case IQ1_S: return f(Iq1SFormat());
        case IQ4_NL: return f(Iq4NlFormat());
        case IQ3_S: return f(Iq3SFormat());
        case IQ2_S: return f(Iq2SFormat());
        case IQ4_XS: return f(Iq4XsFormat());
        case IQ1_M: return f(Iq1MFormat());
        case TQ1_0: return f(Tq1_0Format());
        case TQ2_0: return f(Tq2_0Format());
        case GGUF_MXFP4: return f(GgufMxfp4Format());
        case NVFP4: return f(Nvfp4Format());
        case NF4: return f(Nf4Format());
        case FP4: return f(Fp4Format());
        case INT2_32: return f(IntegerFormat<2, 32>());
        case INT2_128: return f(IntegerFormat<2, 128>());
        case INT3_32: return f(IntegerFormat<3, 32>());
        case INT3_128: return f(IntegerFormat<3, 128>());
    }
    __builtin_unreachable();
}

constexpr bool is_precision(int32_t number) {
    switch (Precision(number)) {
        case FP32:
        case BF16:
        case INT8:
        case INT4:
        case MXFP4:
        case FP8:
        case Q4_0:
        case Q4_1:
        case Q5_0:
        case Q5_1:
        case Q8_0:
        case Q2_K:
        case Q3_K:
        case Q4_K:
        case Q5_K:
        case Q6_K:
        case IQ2_XXS:
        case IQ2_XS:
        case IQ3_XXS:
        case IQ1_S:
        case IQ4_NL:
        case IQ3_S:
        case IQ2_S:
        case IQ4_XS:
        case IQ1_M:
        case TQ1_0:
        case TQ2_0:
        case GGUF_MXFP4:
        case NVFP4:
        case NF4:
        case FP4:
        case INT2_32:
        case INT2_128:
        case INT3_32:
        case INT3_128: return true;
    }
    return false;
}

// Of a panel of 16 output columns.
inline int64_t panel_bytes(Precision precision, int64_t group, int64_t depth) {
    return with_format(precision, [&](auto format) { return format.panel_bytes(group, depth); });
}

inline int64_t padded_depth(Precision precision, int64_t width) {
    return round_up(width, with_format(precision, [](auto format) { return format.DEPTH; }));
}

inline RowType row_type(Precision precision) {
    return with_format(precision, [](auto format) { return format.ROWS; });
}

inline bool has_column_scales(Precision precision) {
    return with_format(precision, [](auto format) { return format.COLUMN_SCALES; });
}

inline bool is_looked_up(Precision precision) {
    return with_format(precision, [](auto format) { return format.LOOKED_UP; });
}

inline int32_t group_of(Precision precision, int32_t asked) {
    return with_format(precision, [&](auto format) { return format.group(asked); });
}

inline bool takes_group(Precision precision, int32_t asked) {
    return with_format(precision, [&](auto format) { return format.takes_group(asked); });
}

}  // namespace ipex_assist
