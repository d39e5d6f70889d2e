// Matrices in blocks, from a file into the image as they are.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "formats/blocks/place.h"
#include "packing/model.h"
#include "packing/panels.h"
#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int64_t READ_BYTES = 256 << 10;  // at once, of rows that follow each other in the file

// Rows for one thread, which asks for them in ascending order.
class BlockReader {
public:
    BlockReader(const BlockMatrix& matrix, int64_t row_bytes) : matrix_(matrix), row_bytes_(row_bytes) {}

    // Rows [first, first + count), until the next call.
    FileRows rows(int64_t first, int64_t count) {
        FileRows found{{}, matrix_.columns};
        if (first < first_ || first + count > end_) read(first, count);
        for (int64_t i = 0; i < count; i++) found.at[i] = buffer_.data() + (first + i - first_) * row_bytes_;
        return found;
    }

private:
    static const void* address(int64_t offset) { return reinterpret_cast<const void*>(intptr_t(offset)); }

    void read(int64_t first, int64_t count) {
        const auto follows = [&](int64_t row) { return matrix_.offsets[row] == matrix_.offsets[row - 1] + row_bytes_; };
        first_ = first, end_ = first + count;
        const int64_t most = std::min(matrix_.rows, first + std::max(count, READ_BYTES / row_bytes_ / LANES * LANES));
        while (end_ < most && follows(end_)) end_++;
        buffer_.resize(size_t((end_ - first_) * row_bytes_));
        for (int64_t row = first_, end; row < end_; row = end) {
            end = row + 1;
            while (end < end_ && follows(end)) end++;
            uint8_t* to = buffer_.data() + (row - first_) * row_bytes_;
            if (matrix_.file < 0) std::memcpy(to, address(matrix_.offsets[row]), size_t((end - row) * row_bytes_));
            else read_file(matrix_.file, matrix_.offsets[row], to, (end - row) * row_bytes_);
        }
    }

    const BlockMatrix& matrix_;
    const int64_t row_bytes_;
    int64_t first_ = 0, end_ = 0;  // the rows in the buffer
    std::vector<uint8_t> buffer_;
};

// Of the i-th 16 rows.
void place_row_scales(const BlockMatrix& matrix, int64_t i, float* to) {
    for (int64_t row = i * LANES; row < (i + 1) * LANES; row++)
        *to++ = matrix.row_scales && row < matrix.rows ? matrix.row_scales[row] : 1.0f;
}

// The first row with a scale that is no number, or `rows`.
int64_t pack_panels(Pool& pool, const PackTarget& where, Precision format, const BlockMatrix& matrix) {
    const Linear& linear = *where.linear;
    const int64_t count = (matrix.rows + LANES - 1) / LANES;
    std::atomic<int64_t> wrong{matrix.rows};
    pool.run([&](int thread) {
        BlockReader reader(matrix, file_row_bytes(format, matrix.columns));
        each_panel(pool, thread, where, count, [&](int64_t i, int64_t panel) {
            if (has_column_scales(format))
                place_row_scales(matrix, i, const_cast<float*>(linear.scales) + panel * LANES);
            const FileRows rows = reader.rows(i * LANES, std::min<int64_t>(LANES, matrix.rows - i * LANES));
            const int64_t lane =
                place_blocks(format, rows, linear.depth, const_cast<uint8_t*>(weights_of(linear, panel)));
            int64_t before = wrong;
            while (lane < LANES && i * LANES + lane < before &&
                   !wrong.compare_exchange_weak(before, i * LANES + lane)) {
            }
        });
    });
    return wrong;
}

}  // namespace

bool PackedModel::pack_blocks(Pool& pool, std::string_view name, const BlockMatrix& matrix) {
    require_memory();
    const Weight weight = find(name);
    const PackTarget& where = weight.part;
    if (!weight.is_matrix() || !where.linear || !weight.takes(matrix.rows, matrix.columns)) return false;
    const Precision format = panel_format(*where.linear, where.first);
    if (!is_blocks(format)) return false;
    if (matrix.row_scales && !has_column_scales(format)) refuse("scales of rows, which this format does not have");
    for (int64_t row = 0; matrix.row_scales && row < matrix.rows; row++) {
        if (!std::isfinite(matrix.row_scales[row]))
            throw NotFinite("a scale that is NaN or infinity in row " + std::to_string(row));
    }
    if (is_cached(*this, weight)) {
        if (has_column_scales(format)) refuse("an expert in a format that has scales of rows");
        expert_cache->add(weight.layer, where, format, matrix);
        return arrived(name), true;
    }
    const int64_t row = pack_panels(pool, where, format, matrix);
    if (row < matrix.rows) throw NotFinite("a scale that is NaN or infinity in row " + std::to_string(row));
    if (!weight.table || skips_table(weight)) arrived(name);  // else the table is still to come
    return true;
}

}  // namespace ipex_assist
