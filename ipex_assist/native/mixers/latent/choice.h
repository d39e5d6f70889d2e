// What mixers have in common whose rows choose what they attend to, positions or blocks, by the scores of index keys.
#pragma once
#include <cstring>

#include "mixers/kernels.h"
#include "operations/attention.h"

namespace ipex_assist {

// What index keys are multiplied with, of one row at a time in memory of this thread (index_queries.cpp).
struct IndexQueries {
    AttentionTile tile;
    const float* weights;
};
// Query `number`, (dim), whose products are weighted.
void store_index_query(const AttentionView& v, int32_t number, const float* query, int32_t dim, float weight);
// Those from `first` on that have been stored.
IndexQueries index_queries_from(const AttentionView& v, int32_t first, int32_t count);

// Orders positions, or blocks, by their scores, and those of equal scores by descending numbers: as unsigned numbers, of
// which no two are equal.
inline uint64_t choice_key(const float* scores, int64_t number) {
    uint32_t bits;
    std::memcpy(&bits, scores + number, 4);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | (0xffffffffu - uint32_t(number));
}

}  // namespace ipex_assist
