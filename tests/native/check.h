// What the tests of the core share: checks, random values, buffers that end where memory ends, plain references.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/kernels.h"

namespace check {

using namespace ipex_assist;

inline long passed = 0, failed = 0;
// Whether also what shows the same again, on another level or in another format (main.cpp).
inline bool everything = false;

// What a program may do under its sanitizer: ThreadSanitizer ends a child of fork() that starts threads, and the locks
// of AddressSanitizer's allocator stay held in a child where another thread of the parent was allocating.
#ifndef __SANITIZE_THREAD__
#define FORKS_ALONE
#ifndef __SANITIZE_ADDRESS__
#define FORKS_AMONG_THREADS
#endif
#endif

// One comparison; what failed is printed with the format that follows.
#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (condition) {                                                         \
            check::passed++;                                                     \
        } else {                                                                 \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                   \
            std::fputc('\n', stderr);                                            \
            if (++check::failed >= 20) std::exit(1);                             \
        }                                                                        \
    } while (0)

// Values of which the one behind the last is in no mapped page, so that reading or writing it ends the program even
// where a compiler's sanitizer does not look (masked loads, gathers). With AddressSanitizer its own heap serves.
template <class T>
class Buffer {
public:
    explicit Buffer(size_t size, T fill = T()) : size_(size) {
#ifdef __SANITIZE_ADDRESS__
        data_ = static_cast<T*>(std::malloc(size * sizeof(T)));
#else
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        mapped_ = (size * sizeof(T) + page - 1) / page * page + page;
        start_ =
            static_cast<uint8_t*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (start_ == MAP_FAILED || mprotect(start_ + mapped_ - page, page, PROT_NONE)) std::abort();
        data_ = reinterpret_cast<T*>(start_ + mapped_ - page - size * sizeof(T));
#endif
        for (size_t i = 0; i < size; i++) data_[i] = fill;
    }
    ~Buffer() {
#ifdef __SANITIZE_ADDRESS__
        std::free(data_);
#else
        munmap(start_, mapped_);
#endif
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    T& operator[](size_t i) { return data_[i]; }
    const T& operator[](size_t i) const { return data_[i]; }

private:
    T* data_;
    size_t size_;
    uint8_t* start_ = nullptr;
    size_t mapped_ = 0;
};

class Random {
public:
    explicit Random(uint32_t seed) : engine_(seed) {}
    float normal() { return normal_(engine_); }
    int below(int limit) { return int(engine_() % uint32_t(limit)); }
    float between(float low, float high) { return low + (high - low) * float(engine_() >> 8) / 16777216.0f; }

private:
    std::mt19937 engine_;
    std::normal_distribution<float> normal_;
};

inline std::vector<float> normal_row(Random& random, int64_t size) {
    std::vector<float> row(static_cast<size_t>(size));
    for (float& value : row) value = random.normal();
    return row;
}

template <class T>
T bits_as(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline float from_bf16(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    return bits_as<float>(&bits);
}

// The nearest bf16, ties to the even one: chosen among the two neighbours by their distances.
inline uint16_t to_bf16(float x) {
    const uint32_t bits = bits_as<uint32_t>(&x);
    const uint16_t below = uint16_t(bits >> 16), above = uint16_t(below + 1);
    if (std::isnan(x)) return below | 0x40;
    if (std::isinf(x) || !(bits & 0xffff)) return below;
    const double down = std::abs(double(x) - double(from_bf16(below)));
    // Beyond the largest bf16 comes what would be 2^128.
    const double next =
        (above & 0x7fff) == 0x7f80 ? std::copysign(std::ldexp(1.0, 128), double(x)) : double(from_bf16(above));
    const double up = std::abs(next - double(x));
    return down < up || (down == up && !(below & 1)) ? below : above;
}

inline float rounded(Precision precision, float x) { return precision == FP32 ? x : from_bf16(to_bf16(x)); }

inline bool same_bits(const float* a, const float* b, size_t size) {
    return std::memcmp(a, b, size * sizeof(float)) == 0;
}

// Whether sums of these precisions have one order on both levels: those of integers are exact; bf16 is multiplied in
// pairs, or widened, and AMX's tiles have an order of their own.
inline bool agree(const KernelTable& a, const KernelTable& b, Precision precision) {
    return row_type(precision) != BF16_ROWS || a.bf16_row_bytes == b.bf16_row_bytes;
}

// Rounding errors of n additions and multiplications in fp32, relative to the sum of the absolute terms.
inline double rounding(int64_t n) { return double(n + 2) * std::ldexp(1.0, -24); }

// The number formats of linears.
struct Format {
    const char* name;
    Precision precision;
    int32_t group;
};
inline bool integers(Precision precision) { return row_type(precision) == INT8_ROWS; }
inline const Format FORMATS[] = {{"fp32", FP32, SCALE_COLUMNS}, {"bf16", BF16, SCALE_COLUMNS},
                                 {"int8", INT8, SCALE_COLUMNS}, {"int4 g32", INT4, 32},
                                 {"int4 g64", INT4, 64},        {"int4 g128", INT4, 128},
                                 {"mxfp4", MXFP4, 32},          {"fp8", FP8, SCALE_COLUMNS}};

// Groups that leave a quantizer little to work with, by turns of 4 values.
inline const float HARD[][4] = {{0, 0, 0, 0},
                                {3, 3, 3, 3},
                                {-2, -2, -2, -2},
                                {0, 0, 0, 7},
                                {1e-38f, -1e-38f, 0, 0},
                                {1e-42f, 1e-42f, 0, 0},
                                {1e4f, 1, 1, 1},
                                {1e15f, -1e15f, 1, 0},
                                {5, 6, 5, 6},
                                {-5, -6, -6, -5},
                                {-0.0f, 0, 1, 0},
                                {1e-20f, 1e-20f, 0, -1e-20f},
                                {1e30f, -1e30f, 1, 0},
                                {3e38f, -3e38f, 0, 1}};

// A matrix of `columns` outputs and `width` inputs as a checkpoint holds it (row-major by output), and packed.
struct Packed {
    Packed(const KernelTable& k, const Format& format, const std::vector<float>& source, int64_t columns, int64_t width,
           const std::vector<float>& bias = {});
    double span_scale(int64_t column, int64_t k) const;  // of fp8, both scales together
    double weight(int64_t column, int64_t k) const;      // read back from the packed bytes by a plain loop

    int64_t columns, width;
    Linear linear{};
    Buffer<uint8_t> bytes;
    Buffer<float> scales, biases;
};

// Rows in the form that a linear multiplies, with room up to a multiple of 32 rows, and rubbish in that room.
struct Quantized {
    Quantized(const KernelTable& k, const Linear& linear, const float* x, int64_t rows, int64_t width);
    double value(int64_t row, int64_t column) const;

    Precision precision;
    int32_t group;
    int64_t bytes_each;
    Buffer<uint8_t> values;
    Buffer<float> scales;
    Buffer<int32_t> sums;
    Buffer<uint8_t> tiles;
    LinearRows rows, tiled;  // the latter with tiles, where these kernels use such
};

void test_cpu();
void test_pass_plan();
void test_attention_work();
void test_threads();
void test_waiting();
void test_locks_and_forks();
void test_thread_limit();
void test_packing(const KernelTable& k);
void test_int4_bits(const KernelTable& k);  // a part of it
void test_linears(const KernelTable& k);
void test_blocks(const KernelTable& k);  // a part of it
void test_rows(const KernelTable& k);
void test_quantization(const KernelTable& k);  // a part of it
void test_attention(const KernelTable& k);
void test_attention_bits(const KernelTable& k);  // a part of it
void test_model(const KernelTable& k);
void test_model_drafts(const KernelTable& k);  // three parts of it
void test_model_memory(const KernelTable& k);
void test_adapters(const KernelTable& k);
void test_sampling(const KernelTable& k);
void test_draft_heads(const KernelTable& k);
void test_pruning(const KernelTable& k);
void test_nodes(const KernelTable& k);
void test_recurrent(const KernelTable& k);
void test_open_rows(const KernelTable& k);
void test_refusals(const KernelTable& k);
void test_api(const KernelTable& k);
void test_levels_agree(const std::vector<const KernelTable*>& levels);
void test_rows_agree(const std::vector<const KernelTable*>& levels);
void test_attention_agree(const std::vector<const KernelTable*>& levels);
void test_sampling_agrees(const std::vector<const KernelTable*>& levels);

}  // namespace check
