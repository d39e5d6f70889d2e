// fp32: linears by fused multiply-add, and packing.
#pragma once
#include "formats/fp32/format.h"
#include "kernels/float_linear.h"
#include "kernels/pack_rows.h"

namespace ipex_assist {
namespace {

inline void format_linear(Fp32Format, const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                          float* out, int64_t stride) {
    float_linear<Fp32>(w, in, rows, first, last, out, stride);
}

inline bool format_pack(Fp32Format, const PackRequest& p) {
    return pack_columns(p, p.depth * 4, [&](int64_t, const float* column, uint8_t* to) {
        std::memcpy(to, column, size_t(p.depth) * 4);
    });
}

}  // namespace
}  // namespace ipex_assist
