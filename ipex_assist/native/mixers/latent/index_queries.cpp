// The queries of an indexer in the form in which its keys are multiplied: as attention's queries, or, where keys are
// int8, int8 with one scale, so that products are exact.
#include "mixers/latent/choice.h"
#include "mixers/latent/kept.h"

namespace ipex_assist {
namespace {

bool are_integers(const AttentionView& v) {
    return index_precision(v) == INT8 && v.blocks.attention_precision() != FP32;
}

// Of a query.
int64_t bytes_of(const AttentionView& v) {
    const int64_t element = are_integers(v) ? 2 : v.blocks.attention_precision() == FP32 ? 4 : v.k.bf16_row_bytes;
    return v.spec.index_depth() * element;
}

}  // namespace

void store_index_query(const AttentionView& v, int32_t number, const float* query, int32_t dim, float weight) {
    const int64_t depth = v.spec.index_depth();
    uint8_t* to = v.own.query.data + number * bytes_of(v);
    float& scale = v.own.query_scales.data[number] = 1;
    if (are_integers(v))
        v.k.mixers->index.store_query(query, dim, depth, to, &scale, v.own.query_offsets.data + number);
    else v.k.convert(v.blocks.attention_precision(), query, dim, depth, to);
    scale *= weight;
}

IndexQueries index_queries_from(const AttentionView& v, int32_t first, int32_t count) {
    AttentionTile t{};
    t.precision = v.blocks.attention_precision();
    t.queries = count;
    t.key_depth = v.spec.index_depth();
    t.query = v.own.query.data + first * bytes_of(v);
    t.query_offsets = v.own.query_offsets.data + first;
    t.scores = v.own.scores.data;
    t.widened = v.own.widened.data;
    return {t, v.own.query_scales.data + first};
}

}  // namespace ipex_assist
