// The kernels for one instruction set: compiled once for each, with IPEX_ASSIST_KERNELS naming the function.
#include "kernels/kernels.h"

#if (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)) || \
    (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__))

#if defined(__AMX_TILE__) || (defined(IPEX_ASSIST_EMULATE_AMX) && defined(__AVX512BF16__))
#define IPEX_ASSIST_HAS_AMX
#endif

#include "kernels/attention.h"
#include "kernels/dynamic_conv.h"
#include "kernels/linear_fp32_bf16.h"
#include "kernels/linear_fp8.h"
#include "kernels/linear_int8_int4_prefill.h"
#include "kernels/linear_mxfp4.h"
#include "kernels/low_rank.h"
#include "packing/pack_mxfp4.h"
#include "kernels/row_operations.h"
#include "kernels/scan.h"
#include "kernels/sampling.h"
#ifdef IPEX_ASSIST_HAS_AMX
#include "kernels/linear_int8_int4_amx_prefill.h"
#endif
#include "kernels/peak_rate.h"

namespace ipex_assist {
namespace {

template <class D>
void float_linear(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
                  int64_t stride) {
    const auto* values = reinterpret_cast<const typename D::Row*>(in.values);
    rows <= STREAMED_ROWS ? float_few<D>(w, values, rows, first, last, out, stride)
                          : float_many<D>(w, values, rows, first, last, out, stride);
}

void linear(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
            int64_t stride) {
#ifdef IPEX_ASSIST_HAS_AMX
    if (w.precision == BF16) return amx_bf16(w, in, rows, first, last, out, stride);
    if (rows > VECTOR_ROWS && (w.precision == INT8 || (w.precision == INT4 && w.group >= 64))) {
        return rows > TILE ? amx_many(w, in, rows, first, last, out, stride)
                           : amx_integer(w, in, rows, first, last, out, stride);
    }
#endif
#ifdef IPEX_ASSIST_BYTE_PAIRS
    if (takes_byte_pairs(w, rows)) return byte_pairs(w, in, rows, first, last, out, stride);
#endif
    switch (w.precision) {
        case FP32: return float_linear<Fp32>(w, in, rows, first, last, out, stride);
        case BF16: return float_linear<Bf16>(w, in, rows, first, last, out, stride);
        case FP8: return fp8_linear(w, in, rows, first, last, out, stride);
        case MXFP4: return mxfp4_linear(w, in, rows, first, last, out, stride);
        default: return integer_linear(w, in, rows, first, last, out, stride);
    }
}

}  // namespace

const KernelTable* IPEX_ASSIST_KERNELS() {
#ifdef IPEX_ASSIST_HAS_AMX
    constexpr bool tiled = true;
#else
    constexpr bool tiled = false;
#endif
    static const KernelTable table = {IPEX_ASSIST_ISA_NAME,
                                      sizeof(Bf16::Row),
                                      tiled,
                                      linear,
                                      quantize,
                                      normalize,
                                      add,
                                      activate,
                                      xielu,
                                      apply_rotary,
                                      multiply_sigmoid,
                                      soft_cap,
                                      convert,
                                      store_query,
                                      store_key,
                                      store_value,
                                      attend,
                                      merge,
                                      argmax,
                                      group_maxima,
                                      sampling_weights,
                                      sum_weights,
                                      find_noise,
                                      pack,
                                      widen,
                                      read,
                                      narrow,
                                      convolve,
                                      unit_length,
                                      silu_gate,
                                      steps,
                                      decay_keys,
                                      scan,
                                      expand,
                                      convolve_groups,
                                      dot,
                                      multiply};
    return &table;
}

}  // namespace ipex_assist

#else

namespace ipex_assist {
const KernelTable* IPEX_ASSIST_KERNELS() { return nullptr; }
}  // namespace ipex_assist

#endif
