// Which panels of a packed linear each thread writes.
#pragma once
#include "packing/weights.h"
#include "threads/barrier.h"
#include "threads/pool.h"

namespace ipex_assist {

// f(i, panel) for each of a thread's among `count` panels that a matrix fills, the i-th of which is `panel` of its
// linear. Whoever writes a panel has it on its own node; where there is one node, all have as much to do.
template <class F>
void each_panel(const Pool& pool, int thread, const PackTarget& target, int64_t count, F&& f) {
    const bool owned = pool.several_nodes();
    const auto [first, last] = slice(*target.linear, thread, pool.threads());
    const int64_t end = owned ? count : share(count, thread + 1, pool.threads());
    for (int64_t i = owned ? 0 : share(count, thread, pool.threads()); i < end; i++) {
        const int64_t panel = target.first + i * target.step;
        if (!owned || (panel >= first && panel < last)) f(i, panel);
    }
}

}  // namespace ipex_assist
