// The points of GGUF's lattices as kernels look them up: 4 bytes each, and of those with few points words of 4 columns.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ipex_assist {

template <size_t N>
struct alignas(64) Grid {
    uint32_t points[N];
};

// A word has the numbers of 4 columns, the first in the lowest bits; [1] is of the last 4 of 8.
template <size_t N>
struct WordGrid : Grid<N> {
    alignas(64) uint16_t words[2][N];
};

extern const WordGrid<256> IQ2_XXS_GRID, IQ3_XXS_GRID;
extern const WordGrid<512> IQ2_XS_GRID, IQ3_S_GRID;
extern const Grid<1024> IQ2_S_GRID;
extern const Grid<2048> IQ1_GRID;

}  // namespace ipex_assist
