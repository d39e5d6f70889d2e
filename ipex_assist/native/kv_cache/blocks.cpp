// The pool of blocks of keys and values.
#include "kv_cache/blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "refuse.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096;

int64_t element(Precision precision) { return row_type_bytes(row_type(precision)); }

int64_t scales(Precision precision) { return precision == INT8 ? 2 * BLOCK_POSITIONS * 4 : 0; }

Precision checked_precision(const PackedModel& model, Precision precision) {
    if (precision == BF16 || precision == INT8 || precision == ipex_assist::attention_precision(model))
        return precision;
    refuse("keys and values in precision %d for attention in precision %d", precision,
           ipex_assist::attention_precision(model));
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

BlockLayout::BlockLayout(const PackedModel& model, Precision precision) {
    int32_t most = 0, count = 0;
    for (const PackedLayer& layer : model.layers) {
        first.push_back(count);
        count += layer.attention.kept_heads();
        most = std::max(most, layer.attention.kept_heads());
    }
    first.push_back(count);
    parts.resize(size_t(count));
    for (int32_t h = 0; h < most; h++) {
        for (int32_t i = 0; i < layers(); i++) {
            if (h >= kv_heads(i)) continue;
            const AttentionSpec& a = model.layers[size_t(i)].attention;
            HeadPart& part = parts[size_t(first[size_t(i)] + h)];
            part.offset = bytes;
            part.key_bytes = BLOCK_POSITIONS * a.key_depth() * element(precision);
            part.value_bytes = BLOCK_POSITIONS * a.value_width() * element(precision);
            part.bytes = part.key_bytes + part.value_bytes + scales(precision);
            bytes += part.bytes;
        }
    }
}

Blocks::Blocks(std::shared_ptr<const PackedModel> model, int64_t count, Precision precision)
    : model_(std::move(model)),
      precision_(checked_precision(*model_, precision)),
      attention_precision_(precision == INT8 ? ipex_assist::attention_precision(*model_) : precision),
      count_(checked_count(count)),
      layout_(*model_, precision),
      key_factors_(precision == INT8 ? ipex_assist::key_factors(*model_) : std::vector<std::vector<float>>()),
      data_(checked_bytes(count_, layout_.bytes)) {}

int64_t Blocks::bytes_each(const PackedModel& model, Precision precision) {
    return BlockLayout(model, checked_precision(model, precision)).bytes;
}

bool Blocks::fits(const PackedModel& model) const {
    if (model.spec.reads_target()) return has_layers_of(model);
    if (model_.get() == &model) return true;
    if (precision_ == INT8) return false;  // keys are divided by what its own model's weights say
    if (precision_ != BF16 && attention_precision_ != ipex_assist::attention_precision(model)) return false;
    return layout_ == BlockLayout(model, precision_);
}

// Whether they hold what the layers of a draft head read.
bool Blocks::has_layers_of(const PackedModel& head) const {
    return head.kernels == model_->kernels &&
           std::all_of(head.layers.begin(), head.layers.end(), [&](const PackedLayer& layer) {
               const AttentionSpec& a = layer.attention;
               if (a.kv_layer >= layout_.layers() || layout_.kv_heads(a.kv_layer) != a.kv_heads) return false;
               const AttentionSpec& of = model_->layers[size_t(a.kv_layer)].attention;
               return !of.is_latent() && of.head_dim == a.head_dim;
           });
}

void Blocks::check(int64_t id) const {
    if (id < 0 || id >= count_) refuse("block %lld of a pool of %lld", (long long)id, (long long)count_);
}

void Blocks::copy(Pool& pool, int32_t from, int32_t to) const {
    check(from), check(to);
    if (from != to) fill(pool, to, data_.data() + from * layout_.bytes);
}

void Blocks::read(int32_t id, uint8_t* bytes) const {
    check(id);
    if (layout_.bytes > 0 && !bytes) refuse("a block is read to nowhere");
    std::memcpy(bytes, data_.data() + id * layout_.bytes, size_t(layout_.bytes));
}

void Blocks::write(Pool& pool, int32_t id, const uint8_t* bytes) const {
    check(id);
    if (layout_.bytes > 0 && !bytes) refuse("block %d is written without its bytes", id);
    fill(pool, id, bytes);
}

void Blocks::fill(Pool& pool, int32_t to, const uint8_t* source) const {
    uint8_t* target = data_.data() + to * layout_.bytes;
    const TeamNodes team = pool.team_nodes(pool.threads());
    pool.run([&](int thread) {
        if (team.several()) return fill_of_node(team, thread, to, source);
        const int64_t lines = layout_.bytes / 64;  // parts are whole ones
        const int64_t first = share(lines, thread, pool.threads()) * 64;
        const int64_t last = share(lines, thread + 1, pool.threads()) * 64;
        std::memcpy(target + first, source + first, size_t(last - first));
    });
}

// A thread's share of the parts that its node has: they go round its threads.
void Blocks::fill_of_node(const TeamNodes& team, int thread, int32_t to, const uint8_t* source) const {
    const int node = team.node(thread), own = thread - team.first_thread(node);
    for (int32_t layer = 0, turn = 0; layer < layout_.layers(); layer++) {
        const int32_t heads = layout_.kv_heads(layer);
        for (int32_t h = 0; h < heads; h++) {
            if (team.home(to, h, heads) != node || turn++ % team.threads_of(node) != own) continue;
            const BlockLayout::HeadPart& part = layout_.part(layer, h);
            std::memcpy(data_.data() + to * layout_.bytes + part.offset, source + part.offset, size_t(part.bytes));
        }
    }
}

void Blocks::discard(const int32_t* ids, int64_t number) const {
    if (number > 0 && !ids) refuse("%lld blocks without their numbers", (long long)number);
    for (int64_t i = 0; i < number; i++) check(ids[i]);
    std::vector<int32_t> sorted(ids, ids + std::max<int64_t>(0, number));
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size();) {
        size_t end = i + 1;  // of neighbours, whose memory goes at once: a page may lie in two of them
        while (end < sorted.size() && sorted[end] <= sorted[end - 1] + 1) end++;
        const int64_t first = round_up(sorted[i] * layout_.bytes, PAGE),
                      last = (sorted[end - 1] + 1) * layout_.bytes / PAGE * PAGE;
        if (first < last) madvise(data_.data() + first, size_t(last - first), MADV_DONTNEED);
        i = end;
    }
}

}  // namespace ipex_assist
