// What is asked of a number format: the only switch over them. A format without its case does not compile.
#pragma once
#include "formats/bf16/format.h"
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
        case FP8: return true;
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
