// The keys and values of one sequence.
#include <new>

#include "checks.h"
#include "model.h"

namespace ipex_assist {
namespace {

int64_t blocks_for(int64_t positions) {
    if (positions < 1 || positions > INT32_MAX) refuse("a sequence with room for %lld positions", (long long)positions);
    return (positions + KEYS - 1) / KEYS;
}

size_t cache_bytes(int64_t heads, int64_t blocks, int64_t block_bytes) {
    if (double(heads) * double(blocks) * double(block_bytes) > double(INT64_MAX)) throw std::bad_alloc();
    return size_t(heads * blocks * block_bytes);
}

}  // namespace

Cache::Cache(const Model& model, int64_t positions)
    : blocks_(blocks_for(positions)),
      layers_(model.spec.layers),
      kv_heads_(model.spec.kv_heads),
      key_bytes_(KEYS * model.key_depth() * (model.spec.precision == FP32 ? 4 : 2)),
      value_bytes_(KEYS * model.value_width() * (model.spec.precision == FP32 ? 4 : 2)),
      data_(cache_bytes(layers_ * kv_heads_, blocks_, key_bytes_ + value_bytes_)) {}

bool Cache::fits(const Model& model) const {
    const int64_t element = model.spec.precision == FP32 ? 4 : 2;
    return layers_ == model.spec.layers && kv_heads_ == model.spec.kv_heads &&
           key_bytes_ == KEYS * model.key_depth() * element && value_bytes_ == KEYS * model.value_width() * element;
}

KeyValueBlock Cache::block(int32_t layer, int32_t kv_head, int64_t block) const {
    uint8_t* keys = data_.data() + ((layer * kv_heads_ + kv_head) * blocks_ + block) * (key_bytes_ + value_bytes_);
    return {keys, keys + key_bytes_};
}

}  // namespace ipex_assist
