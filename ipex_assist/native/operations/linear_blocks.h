// How threads share a linear: by panels of columns where rows are few, as reading the weights takes the time then; by
// blocks of rows and panels where they are many, so that no core has to read all rows, and all have as much to do.
// Columns of inputs are not shared: each output is one sum in one order.
#pragma once
#include <array>

#include "packing/weights.h"
#include "threads/team_nodes.h"

namespace ipex_assist {

struct LinearBlock {
    int64_t row, end_row, first, last;  // rows row <= r < end_row times panels first <= b < last
    int64_t rows() const { return end_row - row; }
};

// The blocks of a thread, of panels that the threads of its node have of the linear.
class LinearBlocks {
public:
    // row_bytes: of an input row.
    LinearBlocks(const Linear& linear, int64_t rows, int64_t row_bytes, const TeamNodes& team, int thread);
    const LinearBlock* begin() const { return blocks_.data(); }
    const LinearBlock* end() const { return blocks_.data() + count_; }

private:
    void add(const LinearBlock& block) { blocks_.at(count_++) = block; }
    std::array<LinearBlock, 4> blocks_;  // a thread has parts of three groups of panels at most
    size_t count_ = 0;
};

}  // namespace ipex_assist
