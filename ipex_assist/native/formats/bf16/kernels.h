// bf16: linears by vectors or tiles, and packing.
#pragma once
#include "formats/bf16/format.h"
#include "kernels/float_linear.h"
#include "kernels/pack_rows.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/bf16_amx.h"
#endif

namespace ipex_assist {
namespace {

inline void format_linear(Bf16Format, const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last,
                          float* out, int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    amx_bf16(w, in, rows, first, last, out, stride);
#else
    float_linear<Bf16>(w, in, rows, first, last, out, stride);
#endif
}

inline bool format_pack(Bf16Format, const PackRequest& p) {
    return pack_columns(p, p.depth * 2, [&](int64_t, const float* column, uint8_t* to) {
        for (int64_t i = 0; i < p.depth; i += LANES)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * 2), to_bf16(_mm512_loadu_ps(column + i)));
    });
}

}  // namespace
}  // namespace ipex_assist
