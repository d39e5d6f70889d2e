// What all threads read of a pass's rows, once for each memory node: who makes a part of it writes it for every node,
// and who reads it reads its own node's, so that it crosses from one socket to another once, and not once a core. What
// is read by few threads (queries, keys and values, what is activated) there is once.
#include <algorithm>
#include <cstring>

#include "operations/forward.h"

namespace ipex_assist {

// `bytes` for each node.
void Forward::reserve_copies(Memory& memory, int64_t bytes) {
    constexpr int64_t HUGE_PAGE = int64_t(2) << 20;
    const int nodes = pool_.nodes();
    if (nodes == 1) return memory.grow(size_t(bytes));
    if (copy_bytes(memory, nodes) >= bytes) return;
    const int64_t each = round_up(bytes, HUGE_PAGE);
    memory = Memory::at_border(size_t(nodes * each));
    pool_.run([&](int thread) {
        // A page lands on the node of its first writer.
        const int node = pool_.node(thread);
        if (thread == pool_.first_thread(node)) std::memset(memory.data() + node * each, 0, size_t(each));
    });
}

Copies Forward::copies(const Memory& values, const Memory& scales, const Memory& sums) const {
    Copies all;
    for (int node = 0; node < nodes(); node++) {
        auto* of_scales = reinterpret_cast<float*>(copy(scales, node));
        all.push_back({copy(values, node), of_scales, reinterpret_cast<int32_t*>(copy(sums, node)), 0});
    }
    return all;
}

void Forward::quantize(int thread, const float* from, int64_t width, int64_t first, int64_t last, int64_t row,
                       const Linear& next, const Copies& to) {
    for (const Rows& each : to) quantize(thread, from, width, first, last, row, next, each);
}

// Where threads read rows that each of them made a part of, their own node's; else there is one.
float* Forward::delta(int thread) const {
    return reinterpret_cast<float*>(copy(w_.delta, repeats() ? pool_.node(thread) : 0));
}

// Columns [first, end) of rows that this thread has made.
void Forward::share_delta(int thread, int64_t row, int64_t end_row, int64_t first, int64_t end) const {
    if (nodes() == 1 || !repeats() || first >= end) return;
    const float* from = delta(thread);
    for (int node = 0; node < nodes(); node++) {
        if (node == pool_.node(thread)) continue;
        float* to = reinterpret_cast<float*>(copy(w_.delta, node));
        for (int64_t r = row; r < end_row; r++)
            std::copy(from + r * width_ + first, from + r * width_ + end, to + r * width_ + first);
    }
}

}  // namespace ipex_assist
