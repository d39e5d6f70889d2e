// What a draft head of DFlash 2 computes beside linears: convolutions whose weights each row scales, and dot products.
#pragma once
#include "kernels/row_operations.h"

namespace ipex_assist {
namespace {

// The columns of a group have one scale for each row of the kernel; products are added in the order of these rows.
void convolve_groups(const GroupedConv& c, float* out) {
    const int64_t size = c.groups * c.group;
    for (int64_t g = 0; g < c.groups; g++) {
        const int64_t end = (g + 1) * c.group;
        for (int64_t i = end - c.group; i < end; i += LANES) {
            const __mmask16 mask = lanes(end - i);
            __m512 sum = _mm512_setzero_ps();
            for (int32_t t = 0; t < c.kernel_size; t++) {
                const __m512 factor = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c.base + t * size + i),
                                                    _mm512_set1_ps(c.scales[t * c.groups + g]));
                sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, c.x - t * c.stride + i), factor, sum);
            }
            _mm512_mask_storeu_ps(out + i, mask, sum);
        }
    }
}

float dot(const float* x, const float* y, int64_t size) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_maskz_loadu_ps(mask, y + i), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

}  // namespace
}  // namespace ipex_assist
