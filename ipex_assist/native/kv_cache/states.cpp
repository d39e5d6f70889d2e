#include "kv_cache/states.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096;

// Floats of a layer in a state.
int64_t layer_floats(const PackedLayer& layer) {
    if (!layer.is_recurrent()) return 0;
    const MixerColumns& columns = layer.columns;
    return columns.tiles * columns.tile_floats + (PENDING_ROWS + layer.recurrent.conv_kernel - 1) * columns.kept_width;
}

}  // namespace

States::States(std::shared_ptr<const PackedModel> model, int64_t count) : model_(std::move(model)), count_(count) {
    if (!model_->is_recurrent()) refuse("states of a model without recurrent layers");
    if (count < 1 || count > INT32_MAX) refuse("a pool of %lld states", static_cast<long long>(count));
    for (const PackedLayer& layer : model_->layers) {
        offsets_.push_back(bytes_);
        bytes_ += layer_floats(layer) * 4;
    }
    bytes_ = round_up(bytes_, PAGE);
    if (double(count) * double(bytes_) > double(INT64_MAX)) throw std::bad_alloc();
    data_ = Memory(size_t(count * bytes_));
}

int64_t States::bytes_each(const PackedModel& model) {
    int64_t bytes = 0;
    for (const PackedLayer& layer : model.layers) bytes += layer_floats(layer) * 4;
    return round_up(bytes, PAGE);
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
        for (size_t i = 0; i < offsets_.size(); i++) {
            // Tiles as passes share them, so that they come to lie on the nodes of who reads them.
            const PackedLayer& layer = model_->layers[i];
            const int64_t tiles = layer.columns.tiles, each = layer.columns.tile_floats;
            const int64_t inputs = layer_floats(layer) - tiles * each;
            const float* source = reinterpret_cast<const float*>(state + offsets_[i]);
            float* target = at(to, int32_t(i));
            const auto part = [&](int64_t start, int64_t items, int64_t size) {
                const int64_t first = share(items, thread, pool.threads()),
                              end = share(items, thread + 1, pool.threads());
                std::memcpy(target + start + first * size, source + start + first * size,
                            size_t((end - first) * size) * 4);
            };
            part(0, tiles, each);
            part(tiles * each, inputs / LANES, LANES);
        }
    });
}

void States::discard(const int32_t* states, int64_t number) const {
    if (number > 0 && !states) refuse("%lld states without their numbers", static_cast<long long>(number));
    for (int64_t i = 0; i < number; i++) check(states[i]);
    for (int64_t i = 0; i < number; i++) madvise(data_.data() + states[i] * bytes_, size_t(bytes_), MADV_DONTNEED);
}

}  // namespace ipex_assist
