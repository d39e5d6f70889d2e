// The pool of blocks of keys and values.
#include "kv_cache/blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "abi/checks.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096;

int64_t element(Precision precision) { return precision == FP32 ? 4 : precision == BF16 ? 2 : 1; }

int64_t scales(Precision precision) { return precision == INT8 ? 2 * BLOCK_POSITIONS * 4 : 0; }

Precision checked_precision(const Model& model, Precision precision) {
    if (precision == BF16 || precision == INT8 || precision == model.attention_precision()) return precision;
    refuse("keys and values in precision %d for attention in precision %d", precision, model.attention_precision());
}

int64_t checked_count(int64_t count) {
    if (count < 1 || count > INT32_MAX) refuse("a pool of %lld blocks", (long long)count);
    return count;
}

size_t checked_bytes(int64_t count, int64_t each) {
    if (double(count) * double(each) > double(INT64_MAX)) throw std::bad_alloc();
    return size_t(count * each);
}

}  // namespace

Blocks::Blocks(const Model& model, int64_t count, Precision precision)
    : model_(&model),
      precision_(checked_precision(model, precision)),
      attention_precision_(precision == INT8 ? model.attention_precision() : precision),
      count_(checked_count(count)),
      layers_(model.spec.layers),
      kv_heads_(model.spec.kv_heads),
      head_dim_(model.spec.head_dim),
      key_bytes_(BLOCK_POSITIONS * model.key_depth() * element(precision)),
      value_bytes_(BLOCK_POSITIONS * model.value_width() * element(precision)),
      scale_bytes_(scales(precision)),
      key_factors_(precision == INT8 ? ipex_assist::key_factors(model) : std::vector<float>()),
      data_(checked_bytes(count_, bytes())) {}

int64_t Blocks::bytes_each(const Model& model, Precision precision) {
    const int64_t part =
        BLOCK_POSITIONS * (model.key_depth() + model.value_width()) * element(checked_precision(model, precision));
    return int64_t(model.spec.layers) * model.spec.kv_heads * (part + scales(precision));
}

bool Blocks::fits(const Model& model) const {
    if (precision_ == INT8) return model_ == &model;  // by whose weights keys are divided
    return layers_ == model.spec.layers && kv_heads_ == model.spec.kv_heads &&
           key_bytes_ == BLOCK_POSITIONS * model.key_depth() * element(precision_) &&
           value_bytes_ == BLOCK_POSITIONS * model.value_width() * element(precision_) &&
           (precision_ == BF16 || attention_precision_ == model.attention_precision());
}

void Blocks::check(int64_t id) const {
    if (id < 0 || id >= count_) refuse("block %lld of a pool of %lld", (long long)id, (long long)count_);
}

int Blocks::owner(int32_t id, int32_t kv_head, int threads) const {
    // Where every thread can have whole heads it has them; else heads of blocks go round, so that many short sequences
    // are everybody's work as a long one is.
    if (kv_heads_ % threads == 0) return int(share(threads, kv_head, int(kv_heads_)));
    return int((id * kv_heads_ + kv_head) % threads);
}

void Blocks::copy(Pool& pool, int32_t from, int32_t to) const {
    check(from), check(to);
    if (from == to) return;
    const uint8_t* source = data_.data() + from * bytes();
    uint8_t* target = data_.data() + to * bytes();
    const int64_t parts = layers_ * kv_heads_, part = bytes() / parts;
    pool.run([&](int thread) {
        for (int32_t h = 0; pool.several_nodes() && h < kv_heads_; h++) {
            const int64_t first = h * layers_ * part;
            if (owner(to, h, pool.threads()) == thread)
                std::memcpy(target + first, source + first, size_t(layers_ * part));
        }
        if (pool.several_nodes()) return;
        const int64_t first = share(parts, thread, pool.threads()), last = share(parts, thread + 1, pool.threads());
        std::memcpy(target + first * part, source + first * part, size_t((last - first) * part));
    });
}

void Blocks::discard(const int32_t* ids, int64_t number) const {
    if (number > 0 && !ids) refuse("%lld blocks without their numbers", (long long)number);
    for (int64_t i = 0; i < number; i++) check(ids[i]);
    std::vector<int32_t> sorted(ids, ids + std::max<int64_t>(0, number));
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size();) {
        size_t end = i + 1;  // of neighbours, whose memory goes at once: a page may lie in two of them
        while (end < sorted.size() && sorted[end] <= sorted[end - 1] + 1) end++;
        const int64_t first = round_up(sorted[i] * bytes(), PAGE), last = (sorted[end - 1] + 1) * bytes() / PAGE * PAGE;
        if (first < last) madvise(data_.data() + first, size_t(last - first), MADV_DONTNEED);
        i = end;
    }
}

}  // namespace ipex_assist
