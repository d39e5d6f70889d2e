#include "packing/expert_source.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "formats/blocks/place.h"
#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int64_t CHUNK = 1 << 20;  // bytes of the file: disks are as fast as with more, and other threads read as well
constexpr size_t MOST_RUNS = 16;

}  // namespace

ExpertSource::ExpertSource(const PackTarget& target, Precision format, const BlockMatrix& matrix,
                           std::shared_ptr<const DirectFile> file)
    : linear_(target.linear),
      first_(target.first),
      step_(target.step),
      rows_(matrix.rows),
      width_(matrix.columns),
      row_bytes_(file_row_bytes(format, matrix.columns)),
      each_(std::max<int64_t>(1, CHUNK / (row_bytes_ * LANES))),
      format_(format),
      file_(std::move(file)) {
    for (int64_t row = 0; row < rows_; row++) {
        const int64_t offset = matrix.offsets[row];
        if (row && offset == matrix.offsets[row - 1] + row_bytes_) continue;
        if (offset < 0 || runs_.size() == MOST_RUNS)
            refuse("rows of an expert that lie scattered in a file are not read as they are needed");
        runs_.push_back({row, offset});
    }
}

int64_t ExpertSource::end_row(int64_t chunk) const { return std::min(rows_, first_row(chunk + 1)); }

int64_t ExpertSource::file_bytes(int64_t chunk) const { return (end_row(chunk) - first_row(chunk)) * row_bytes_; }

int64_t ExpertSource::room() const {
    const int64_t bytes = std::min(each_ * LANES, rows_) * row_bytes_;
    return DirectFile::room(bytes) + int64_t(runs_.size() - 1) * DirectFile::room(0);
}

// Where each of these rows is in the buffer.
std::vector<const uint8_t*> ExpertSource::read_rows(int64_t first, int64_t end, uint8_t* buffer) const {
    std::vector<const uint8_t*> rows;
    for (size_t i = 0; i < runs_.size(); i++) {
        const int64_t from = std::max(first, runs_[i].row),
                      to = std::min(end, i + 1 < runs_.size() ? runs_[i + 1].row : rows_);
        if (from >= to) continue;
        const int64_t bytes = (to - from) * row_bytes_;
        const uint8_t* at = file_->read(runs_[i].offset + (from - runs_[i].row) * row_bytes_, bytes, buffer);
        for (int64_t row = from; row < to; row++) rows.push_back(at + (row - from) * row_bytes_);
        buffer += DirectFile::room(bytes);
    }
    return rows;
}

void ExpertSource::read(int64_t chunk, uint8_t* buffer) const {
    const int64_t first = first_row(chunk), end = end_row(chunk);
    const std::vector<const uint8_t*> at = read_rows(first, end, buffer);
    for (int64_t row = first; row < end; row += LANES) {
        FileRows rows{{}, width_};
        std::copy_n(at.begin() + (row - first), std::min<int64_t>(LANES, end - row), rows.at);
        const int64_t panel = first_ + row / LANES * step_;
        uint8_t* to = const_cast<uint8_t*>(weights_of(*linear_, panel));
        const int64_t lane = place_blocks(format_, rows, linear_->depth, to);
        if (lane < LANES)
            throw std::runtime_error("a scale that is NaN or infinity in row " + std::to_string(row + lane));
    }
}

}  // namespace ipex_assist
