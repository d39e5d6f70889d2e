// The kernels for one instruction set: compiled once for each, with IPEX_ASSIST_KERNELS naming the function.
#include "kernels/kernels.h"

#if (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)) || \
    (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__))

#if defined(__AMX_TILE__) || (defined(IPEX_ASSIST_EMULATE_AMX) && defined(__AVX512BF16__))
#define IPEX_ASSIST_HAS_AMX
#endif

#include "formats/kernels.h"
#include "kernels/attention.h"
#include "kernels/dynamic_conv.h"
#include "kernels/low_rank.h"
#include "kernels/peak_rate.h"
#include "kernels/row_operations.h"
#include "kernels/sampling.h"
#include "mixers/kernels.h"

namespace ipex_assist {
namespace {

void linear(const Linear& w, const LinearRows& in, int64_t rows, int64_t first, int64_t last, float* out,
            int64_t stride) {
    with_format(w.precision, [&](auto format) { format_linear(format, w, in, rows, first, last, out, stride); });
}

bool pack(Precision precision, int32_t group, SourceType type, const void* source, int64_t stride, int64_t columns,
          int64_t width, int64_t depth, uint8_t* panel, float* scales, float* scratch) {
    const PackRequest request{group,  type,   static_cast<const uint8_t*>(source), stride, columns, width, depth, panel,
                              scales, scratch};
    return with_format(precision, [&](auto format) {
        if constexpr (IS_BLOCKS<decltype(format)>) return false;  // only what a file has is packed into these
        else return format_pack(format, request);
    });
}

void look_up(const Linear& w, int64_t column, float* out) {
    with_format(w.precision, [&](auto format) {
        if constexpr (IS_BLOCKS<decltype(format)>) look_up_blocks<decltype(format)>(w, column, out);
    });
}

}  // namespace

const KernelTable* IPEX_ASSIST_KERNELS() {
#ifdef IPEX_ASSIST_HAS_AMX
    constexpr bool tiled = true;
#else
    constexpr bool tiled = false;
#endif
    // By name: two functions of one signature could be exchanged unseen.
    static const KernelTable table = {
        .name = IPEX_ASSIST_ISA_NAME,
        .bf16_row_bytes = sizeof(Bf16::Row),
        .tiled = tiled,
        .mixers = &MIXER_KERNELS,
        .linear = linear,
        .quantize = quantize,
        .normalize = normalize,
        .add = add,
        .activate = activate,
        .xielu = xielu,
        .apply_rotary = apply_rotary,
        .multiply_sigmoid = multiply_sigmoid,
        .soft_cap = soft_cap,
        .convert = convert,
        .store_query = store_query,
        .store_key = store_key,
        .store_value = store_value,
        .store_row = store_row,
        .pack_positions = pack_positions,
        .attend = attend,
        .merge = merge,
        .argmax = argmax,
        .group_maxima = group_maxima,
        .sampling_weights = sampling_weights,
        .sum_weights = sum_weights,
        .find_noise = find_noise,
        .pack = pack,
        .look_up = look_up,
        .widen = widen,
        .read = read,
        .narrow = narrow,
        .convolve = convolve,
        .unit_length = unit_length,
        .silu_gate = silu_gate,
        .steps = steps,
        .expand = expand,
        .convolve_groups = convolve_groups,
        .dot = dot,
        .multiply = multiply,
    };
    return &table;
}

}  // namespace ipex_assist

#else

namespace ipex_assist {
const KernelTable* IPEX_ASSIST_KERNELS() { return nullptr; }
}  // namespace ipex_assist

#endif
