// The rows that sequences keep for recurrent layers (kv_cache/states.h).
#include "mixers/recurrent_rows.h"

#include <algorithm>
#include <cstring>

namespace ipex_assist {

void keep_inputs(const Pass& pass, const LayerStep& step, int thread) {
    const RecurrentSpec& spec = pass.layer(step).recurrent;
    for (size_t i = 0; i < pass.plan().segments.size(); i++) {
        const Segment& s = pass.plan().segments[i];
        const int64_t first = std::max<int64_t>(s.start, int64_t(s.settle) - (spec.conv_kernel - 1));
        const int64_t count = int64_t(s.start) + s.rows - first;
        for (int64_t p = share(count, thread, pass.plan().threads); p < share(count, thread + 1, pass.plan().threads);
             p++) {
            std::memcpy(pass.batch.states->inputs(s.state, step.index, first + p),
                        recurrent_inputs(pass, step, i, first + p), size_t(pass.layer(step).columns.kept_width) * 4);
        }
    }
}

}  // namespace ipex_assist
