// The rows of a linear that have an adapter.
#pragma once
#include <vector>

#include "operations/batch.h"

namespace ipex_assist {

constexpr int64_t WINDOW_ROWS = 32;  // rows of a linear that A is multiplied with together; a row's bits are its own

struct AdapterRows {
    // Rows from `first`, a multiple of WINDOW_ROWS, on, some of which have the adapter: A · x of window w is in the
    // rows from w · WINDOW_ROWS on of a buffer.
    struct Window {
        const Adapter* adapter;
        int64_t first, rows;
    };
    struct Group {  // all rows with an adapter
        const Adapter* adapter;
        std::vector<LowRankRow> rows;
    };
    std::vector<Window> windows;
    std::vector<Group> groups;

    // segment_of: of each row of the linear.
    AdapterRows(const std::vector<Segment>& segments, const std::vector<int32_t>& segment_of);
    int64_t low_columns() const;  // of A · x, of any of these adapters
};

}  // namespace ipex_assist
