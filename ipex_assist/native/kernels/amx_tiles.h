// The eight tile registers of AMX. With IPEX_ASSIST_EMULATE_AMX they are plain arrays, so that the code built on them
// can be tested on processors without them.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ipex_assist {
namespace {

// Layout as ldtilecfg reads it (Intel SDM, volume 1, 18.2).
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// The rows (of 64 bytes) of a tile in a linear of `rows` rows. Tiles 6 and 7 are for weights and have 16. The others
// are for rows and sums; from 17 rows on, those with an odd number hold the rows after the first 16. Up to 16 rows,
// tile 5 is for weights, too.
inline int64_t rows_of_tile(int tile, int64_t rows) {
    if (rows <= 16) return tile < 5 ? rows : 16;
    return rows < 32 && tile < 6 && tile % 2 ? rows - 16 : 16;
}

// Of a tile's rows.
struct TileShape {
    int64_t rows, bytes;
};

#ifndef IPEX_ASSIST_EMULATE_AMX

// Assembly that tells the compiler which memory is read and written. Its own intrinsics (gcc 11 to 13) say that
// ldtilecfg reads 8 bytes, and nothing about tileloadd: stores before them may be moved after them, or dropped.
template <class F>
inline void tiles_configure(const F& shape) {
    TileConfig config;
    for (int i = 0; i < 8; i++) config.row_bytes[i] = uint16_t(shape(i).bytes), config.rows[i] = uint8_t(shape(i).rows);
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
inline void tiles_end() { _tile_release(); }
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride)                                                         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                       \
                     :                                                                        \
                     : "r"(static_cast<const void*>(from)), "r"(static_cast<int64_t>(stride)) \
                     : "memory")
#define TILE_STORE(tile, to, stride)                                                  \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                           \
                     :                                                                \
                     : "r"(static_cast<void*>(to)), "r"(static_cast<int64_t>(stride)) \
                     : "memory")
#define TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_DOT_SIGNED_UNSIGNED(c, a, b) _tile_dpbsud(c, a, b)
#define TILE_DOT_UNSIGNED_SIGNED(c, a, b) _tile_dpbusd(c, a, b)
#define TILE_DOT_SIGNED(c, a, b) _tile_dpbssd(c, a, b)

#else

thread_local uint8_t emulated_tiles[8][16][64];
thread_local TileShape emulated_shapes[8];

template <class F>
inline void tiles_configure(const F& shape) {
    std::memset(emulated_tiles, 0xee, sizeof emulated_tiles);
    for (int i = 0; i < 8; i++) emulated_shapes[i] = shape(i);
}
inline void tiles_end() {}

__attribute__((noinline)) void emulated_load(int tile, const void* from, int64_t stride) {
    for (int64_t r = 0; r < emulated_shapes[tile].rows; r++) {
        std::memcpy(emulated_tiles[tile][r], static_cast<const uint8_t*>(from) + r * stride,
                    size_t(emulated_shapes[tile].bytes));
    }
}

__attribute__((noinline)) void emulated_store(int tile, void* to, int64_t stride) {
    for (int64_t r = 0; r < emulated_shapes[tile].rows; r++) {
        std::memcpy(static_cast<uint8_t*>(to) + r * stride, emulated_tiles[tile][r],
                    size_t(emulated_shapes[tile].bytes));
    }
}

inline float emulated_bf16(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

__attribute__((noinline)) void emulated_dot_bf16(int c, int a, int b) {
    for (int64_t m = 0; m < emulated_shapes[c].rows; m++) {
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 16; n++) {
                float sum;
                std::memcpy(&sum, &emulated_tiles[c][m][n * 4], 4);
                for (int i = 0; i < 2; i++) {
                    sum += emulated_bf16(&emulated_tiles[a][m][(k * 2 + i) * 2]) *
                           emulated_bf16(&emulated_tiles[b][k][(n * 2 + i) * 2]);
                }
                std::memcpy(&emulated_tiles[c][m][n * 4], &sum, 4);
            }
        }
    }
}

template <class Row, class Weight>
__attribute__((noinline)) void emulated_dot_bytes(int c, int a, int b) {
    for (int64_t m = 0; m < emulated_shapes[c].rows; m++) {
        for (int k = 0; k < emulated_shapes[a].bytes / 4; k++) {
            for (int n = 0; n < 16; n++) {
                int32_t sum;
                std::memcpy(&sum, &emulated_tiles[c][m][n * 4], 4);
                for (int i = 0; i < 4; i++) {
                    sum += int32_t(Row(emulated_tiles[a][m][k * 4 + i])) * Weight(emulated_tiles[b][k][n * 4 + i]);
                }
                std::memcpy(&emulated_tiles[c][m][n * 4], &sum, 4);
            }
        }
    }
}

#define TILE_ZERO(tile) std::memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile])
#define TILE_LOAD(tile, from, stride) emulated_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulated_store(tile, to, stride)
#define TILE_DOT_BF16(c, a, b) emulated_dot_bf16(c, a, b)
#define TILE_DOT_SIGNED_UNSIGNED(c, a, b) emulated_dot_bytes<int8_t, uint8_t>(c, a, b)
#define TILE_DOT_UNSIGNED_SIGNED(c, a, b) emulated_dot_bytes<uint8_t, int8_t>(c, a, b)
#define TILE_DOT_SIGNED(c, a, b) emulated_dot_bytes<int8_t, int8_t>(c, a, b)

#endif

inline void tiles_begin(int64_t rows) {
    tiles_configure([=](int tile) { return TileShape{rows_of_tile(tile, rows), 64}; });
}

// Tile 0: sums of up to 16 rows, 1: 32 bytes of each row, 2: 8 lines of weights.
inline void tiles_begin_shared(int64_t rows) {
    tiles_configure([=](int tile) { return TileShape{tile == 2 ? 8 : rows, tile == 1 ? 32 : 64}; });
}

}  // namespace
}  // namespace ipex_assist
