// What a plan asks of a kind of attention layer.
#include <algorithm>

#include "operations/pass_plan.h"

namespace ipex_assist {

bool AttentionShape::operator==(const AttentionShape& other) const {
    return heads == other.heads && kv_heads == other.kv_heads && value_dim == other.value_dim &&
           window == other.window && chunk == other.chunk && span_columns == other.span_columns &&
           spans == other.spans && shared == other.shared && gathering == other.gathering &&
           window_of_first == other.window_of_first;
}

int64_t AttentionShape::most_seen(int64_t last) const {
    if (gathering.any()) return gathering.most(last);
    const int64_t seen = window ? std::min<int64_t>(last + 1, window) : last + 1;
    return chunk ? std::min<int64_t>(seen, chunk) : seen;
}

int64_t AttentionShape::most_blocks(int64_t rows, int64_t last) const {
    const int64_t seen = most_seen(last), all = last / BLOCK_POSITIONS + 1;
    if (gathering.any()) return (seen - 1) / BLOCK_POSITIONS + 1;  // from the first of a block on
    return std::min(all, (seen + rows - 3 + BLOCK_POSITIONS) / BLOCK_POSITIONS + 1);
}

int32_t AttentionShape::tile_rows() const { return int32_t(std::max<int64_t>(1, TILE_QUERIES / group())); }

int32_t AttentionShape::most_queries() const {
    return shared ? std::max(int32_t(TILE_QUERIES), heads) : tile_rows() * group();
}

}  // namespace ipex_assist
