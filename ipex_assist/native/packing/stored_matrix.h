// A checkpoint's matrix where it is stored: in memory, or in a file, of which every thread reads the rows that it
// packs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "memory/read_file.h"

namespace ipex_assist {

struct StoredMatrix {
    SourceType type;
    const void* data;  // (rows, columns), or null: in the file
    int64_t rows, columns;
    int file = -1;
    int64_t offset = 0;  // in the file

    bool is_somewhere() const { return data || (file >= 0 && offset >= 0); }
    int64_t element_bytes() const { return type == SOURCE_F32 ? 4 : 2; }
    int64_t row_bytes() const { return columns * element_bytes(); }
};

// A matrix that lies in an open file, from byte offsets[i] on row i, in blocks.
struct BlockMatrix {
    int file;                // -1: it lies in memory, and offsets are addresses
    const int64_t* offsets;  // (rows)
    int64_t rows, columns;
    const float* row_scales = nullptr;  // (rows), of formats whose columns have scales of their own; null: all are 1
};

// Rows for one thread, which asks for them in ascending order. What it reads stays in its own cache until it is packed:
// the file's bytes pass memory once, and all threads read at a time.
class RowReader {
public:
    explicit RowReader(const StoredMatrix& matrix) : matrix_(matrix) {}

    // Rows [first, first + count); they are there until the next call.
    const uint8_t* rows(int64_t first, int64_t count) {
        const int64_t bytes = matrix_.row_bytes();
        if (matrix_.data) return static_cast<const uint8_t*>(matrix_.data) + first * bytes;
        if (first < first_ || first + count > end_) {
            first_ = first;
            end_ = std::min(first + std::max(count, CHUNK / bytes), matrix_.rows);
            buffer_.resize(size_t((end_ - first_) * bytes));
            read_file(matrix_.file, matrix_.offset + first_ * bytes, buffer_.data(), (end_ - first_) * bytes);
        }
        return buffer_.data() + (first - first_) * bytes;
    }

private:
    static constexpr int64_t CHUNK = 256 << 10;  // bytes
    const StoredMatrix& matrix_;
    int64_t first_ = 0, end_ = 0;  // the rows in the buffer
    std::vector<uint8_t> buffer_;
};

}  // namespace ipex_assist
