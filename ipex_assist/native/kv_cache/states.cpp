#include "kv_cache/states.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

#include "kv_cache/blocks.h"
#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096, LINE = 64;

// Where each layer begins in a state, and the end.
std::vector<int64_t> layer_offsets(const PackedModel& model, Precision precision) {
    std::vector<int64_t> offsets{0};
    for (const PackedLayer& layer : model.layers) {
        const MixerColumns& columns = layer.columns;
        const int64_t inputs = (PENDING_ROWS + layer.recurrent.conv_kernel - 1) * columns.kept_width,
                      bytes = layer.is_recurrent() ? (columns.tiles * columns.tile_floats + inputs) * 4
                                                   : kept_by_mixer(layer, precision, attention_precision(model)).state;
        offsets.push_back(offsets.back() + round_up(bytes, LINE));
    }
    return offsets;
}

}  // namespace

States::States(std::shared_ptr<const PackedModel> model, int64_t count, Precision precision)
    : model_(std::move(model)),
      precision_(precision),
      count_(count),
      bytes_(bytes_each(*model_, precision)),
      offsets_(layer_offsets(*model_, precision)) {
    if (!bytes_) refuse("states of a model whose layers have none");
    if (count < 1 || count > INT32_MAX) refuse("a pool of %lld states", static_cast<long long>(count));
    if (double(count) * double(bytes_) > double(INT64_MAX)) throw std::bad_alloc();
    data_ = Memory(size_t(count * bytes_));
}

int64_t States::bytes_each(const PackedModel& model, Precision precision) {
    return round_up(layer_offsets(model, precision).back(), PAGE);
}

void States::check(int64_t state) const {
    if (state < 0 || state >= count_)
        refuse("state %lld of a pool of %lld", static_cast<long long>(state), static_cast<long long>(count_));
}

void States::copy(Pool& pool, int32_t from, int32_t to) const {
    check(from), check(to);
    if (from != to) fill(pool, to, data_.data() + from * bytes_);
}

void States::read(int32_t state, uint8_t* bytes) const {
    check(state);
    if (!bytes) refuse("a state is read to nowhere");
    std::memcpy(bytes, data_.data() + state * bytes_, size_t(bytes_));
}

void States::write(Pool& pool, int32_t state, const uint8_t* bytes) const {
    check(state);
    if (!bytes) refuse("state %d is written without its bytes", state);
    fill(pool, state, bytes);
}

void States::fill(Pool& pool, int32_t to, const uint8_t* state) const {
    pool.run([&](int thread) {
        for (size_t i = 0; i < model_->layers.size(); i++) {
            // Tiles as passes share them, so that they come to lie on the nodes of who reads them.
            const MixerColumns& columns = model_->layers[i].columns;
            const int64_t each = columns.tile_floats * 4, tiles = columns.tiles * each;
            const auto part = [&](int64_t start, int64_t items, int64_t size) {
                const int64_t first = start + share(items, thread, pool.threads()) * size,
                              end = start + share(items, thread + 1, pool.threads()) * size;
                std::memcpy(kept(to, int32_t(i)) + first, state + offsets_[i] + first, size_t(end - first));
            };
            part(0, columns.tiles, each);
            part(tiles, (offsets_[i + 1] - offsets_[i] - tiles) / LINE, LINE);
        }
    });
}

void States::discard(const int32_t* states, int64_t number) const {
    if (number > 0 && !states) refuse("%lld states without their numbers", static_cast<long long>(number));
    for (int64_t i = 0; i < number; i++) check(states[i]);
    for (int64_t i = 0; i < number; i++) madvise(data_.data() + states[i] * bytes_, size_t(bytes_), MADV_DONTNEED);
}

}  // namespace ipex_assist
