// Where a part of an expert lies in a checkpoint's file, in blocks, and how some of its panels get into memory.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/direct_file.h"
#include "packing/stored_matrix.h"
#include "packing/weights.h"

namespace ipex_assist {

class ExpertSource {
public:
    // Refuses a matrix whose rows lie scattered, or in memory.
    ExpertSource(const PackTarget& target, Precision format, const BlockMatrix& matrix,
                 std::shared_ptr<const DirectFile> file);

    // Its panels are read in so many chunks, one at a time.
    int64_t chunks() const { return (panels() + each_ - 1) / each_; }
    int64_t room() const;  // bytes of the buffer that a chunk is read into, which begins at a page's border
    int64_t file_bytes(int64_t chunk) const;
    // Reads a chunk and places it where its linear lies. Throws std::runtime_error where the file cannot be read, or has
    // a scale that is NaN or infinite.
    void read(int64_t chunk, uint8_t* buffer) const;

private:
    struct Run {
        int64_t row, offset;  // of rows that follow each other in the file, the first one
    };
    int64_t panels() const { return (rows_ + LANES - 1) / LANES; }
    int64_t first_row(int64_t chunk) const { return chunk * each_ * LANES; }
    int64_t end_row(int64_t chunk) const;
    std::vector<const uint8_t*> read_rows(int64_t first, int64_t end, uint8_t* buffer) const;

    const Linear* linear_;
    int64_t first_, step_, rows_, width_, row_bytes_, each_;  // the last: panels of a chunk
    Precision format_;
    std::shared_ptr<const DirectFile> file_;
    std::vector<Run> runs_;
};

}  // namespace ipex_assist
