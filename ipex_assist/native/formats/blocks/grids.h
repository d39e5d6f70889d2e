// The points of GGUF's lattices, a line of 4 bytes each, as kernels look them up.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ipex_assist {

template <size_t N>
struct alignas(64) Grid {
    uint32_t points[N];
};

extern const Grid<256> IQ2_XXS_GRID, IQ3_XXS_GRID;
extern const Grid<512> IQ2_XS_GRID, IQ3_S_GRID;
extern const Grid<1024> IQ2_S_GRID;
extern const Grid<2048> IQ1_GRID;

}  // namespace ipex_assist
