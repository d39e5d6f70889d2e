// What a plan asks of a kind of attention layer.
#include <algorithm>

#include "operations/pass_plan.h"

namespace ipex_assist {

bool AttentionShape::operator==(const AttentionShape& other) const {
    return heads == other.heads && kv_heads == other.kv_heads && value_dim == other.value_dim &&
           window == other.window && chunk == other.chunk && top_k == other.top_k && chosen_size == other.chosen_size &&
           pool == other.pool && rate == other.rate && span_columns == other.span_columns && spans == other.spans &&
           shared == other.shared;
}

int64_t AttentionShape::most_seen(int64_t last) const {
    int64_t seen = last + 1;
    if (window) seen = std::min<int64_t>(seen, window);
    if (rate) return seen + (top_k ? std::min<int64_t>(top_k, keys_before(last)) : keys_before(last));
    if (chunk) seen = std::min<int64_t>(seen, chunk);
    return top_k ? std::min<int64_t>(seen, top_k + pool - 1) : seen;
}

int64_t AttentionShape::most_blocks(int64_t rows, int64_t last) const {
    const int64_t seen = most_seen(last), all = last / BLOCK_POSITIONS + 1;
    if (rate || top_k) return (seen - 1) / BLOCK_POSITIONS + 1;  // from the first of a block on
    return std::min(all, (seen + rows - 3 + BLOCK_POSITIONS) / BLOCK_POSITIONS + 1);
}

int32_t AttentionShape::tile_rows() const { return int32_t(std::max<int64_t>(1, TILE_QUERIES / group())); }

int32_t AttentionShape::most_queries() const {
    return shared ? std::max(int32_t(TILE_QUERIES), heads) : tile_rows() * group();
}

}  // namespace ipex_assist
