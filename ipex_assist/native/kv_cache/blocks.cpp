// The pool of blocks of keys and values.
#include "kv_cache/blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "memory/memory.h"
#include "memory/numa_nodes.h"
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

// With room to begin at a huge page.
size_t checked_bytes(int64_t count, int64_t each, const NodeRegions& regions) {
    if (each == 0) return 0;
    if (double(count) * double(each) > double(INT64_MAX / 2)) throw std::bad_alloc();
    return size_t((regions.regions ? regions.total() : count * each) + HUGE_PAGE);
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
        heads.push_back(bytes);
        for (int32_t i = 0; i < layers(); i++) {
            if (h >= kv_heads(i)) continue;
            const AttentionSpec& a = model.layers[size_t(i)].attention;
            HeadPart& part = parts[size_t(first[size_t(i)] + h)];
            part.offset = bytes;
            const KeptByMixer kept =
                kept_by_mixer(model.layers[size_t(i)], precision, ipex_assist::attention_precision(model));
            const bool own = !a.shares_kv && !a.latent.is_compressed();  // or what its mixer keeps beside them alone
            const bool in_key = kept.rows && a.is_latent() && precision != INT8;  // whether that has the value
            const int64_t key = kept.rows ? key_row(a) : a.key_depth(), value = in_key ? 0 : a.value_width();
            part.rows = kept.rows;
            part.key_bytes = own ? BLOCK_POSITIONS * key * element(precision) : 0;
            part.value_bytes = own ? BLOCK_POSITIONS * value * element(precision) : 0;
            part.beside_bytes = h == 0 ? kept.beside : 0;
            part.bytes = part.key_bytes + part.value_bytes + (own ? scales(precision) : 0) + part.beside_bytes;
            bytes += part.bytes;
        }
    }
}

NodeRegions::NodeRegions(const BlockLayout& layout, const TeamNodes& team, int64_t count) {
    for (int32_t i = 0; i < layout.layers(); i++) heads = std::max(heads, layout.kv_heads(i));
    const auto alike = [&](int32_t layer) { return !layout.kv_heads(layer) || layout.kv_heads(layer) == heads; };
    for (int32_t i = 0; i < layout.layers(); i++) {
        if (!alike(i)) return;
    }
    if (!heads || !layout.bytes || !team.several() || !team.even() ||
        double(count) * double(layout.bytes) > double(INT64_MAX / 2))
        return;
    regions = team.nodes();
    const int32_t groups = std::gcd(heads, regions);
    heads_each = heads / groups, nodes_each = regions / groups;
    for (size_t h = 0; h < layout.heads.size(); h++) {
        const int64_t end = h + 1 < layout.heads.size() ? layout.heads[h + 1] : layout.bytes;
        head_bytes = std::max(head_bytes, end - layout.heads[h]);
    }
    bytes = round_up((count + nodes_each - 1) / nodes_each * heads_each * head_bytes, HUGE_PAGE);
}

Blocks::Blocks(std::shared_ptr<const PackedModel> model, int64_t count, Precision precision)
    : model_(std::move(model)),
      precision_(checked_precision(*model_, precision)),
      attention_precision_(precision == INT8 ? ipex_assist::attention_precision(*model_) : precision),
      count_(checked_count(count)),
      layout_(*model_, precision),
      regions_(layout_, model_->layout().team(), count_),
      key_factors_(precision == INT8 ? ipex_assist::key_factors(*model_) : std::vector<std::vector<float>>()),
      data_(checked_bytes(count_, layout_.bytes, regions_)),
      start_(data_.data() + round_up(int64_t(uintptr_t(data_.data())), HUGE_PAGE) - uintptr_t(data_.data())) {
    for (int32_t node = 0; node < regions_.regions; node++)
        prefer_node(start_ + node * regions_.bytes, regions_.bytes, model_->layout().node_number(node));
}

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
               return !of.is_latent() && !keeps_rows(a.kv_layer) && of.head_dim == a.head_dim &&
                      of.value_dim() == a.value_dim();
           });
}

void Blocks::check(int64_t id) const {
    if (id < 0 || id >= count_) refuse("block %lld of a pool of %lld", (long long)id, (long long)count_);
}

// By all threads; of several memory nodes each copies what it has: the parts of a node go round its threads.
template <class F>
void Blocks::fill(Pool& pool, int32_t to, F&& source) const {
    const TeamNodes team = pool.team_nodes(pool.threads());
    pool.run([&](int thread) {
        const int node = team.node(thread), own = thread - team.first_thread(node);
        int32_t turn = 0;
        for_parts([&](const BlockLayout::HeadPart& part, int32_t layer, int32_t h) {
            if (team.home(to, h, layout_.kv_heads(layer)) != node || turn++ % team.threads_of(node) != own) return;
            std::memcpy(place(to, part, h), source(part, h), size_t(part.bytes));
        });
    });
}

void Blocks::copy(Pool& pool, int32_t from, int32_t to) const {
    check(from), check(to);
    if (from == to) return;
    fill(pool, to, [&](const BlockLayout::HeadPart& part, int32_t h) { return place(from, part, h); });
}

void Blocks::read(int32_t id, uint8_t* bytes) const {
    check(id);
    if (layout_.bytes > 0 && !bytes) refuse("a block is read to nowhere");
    for_parts([&](const BlockLayout::HeadPart& part, int32_t, int32_t h) {
        std::memcpy(bytes + part.offset, place(id, part, h), size_t(part.bytes));
    });
}

void Blocks::write(Pool& pool, int32_t id, const uint8_t* bytes) const {
    check(id);
    if (layout_.bytes > 0 && !bytes) refuse("block %d is written without its bytes", id);
    fill(pool, id, [&](const BlockLayout::HeadPart& part, int32_t) { return bytes + part.offset; });
}

void Blocks::discard(const int32_t* ids, int64_t number) const {
    if (number > 0 && !ids) refuse("%lld blocks without their numbers", (long long)number);
    for (int64_t i = 0; i < number; i++) check(ids[i]);
    std::vector<std::pair<int64_t, int64_t>> pieces;  // the first byte of each, and the one behind it
    for (int64_t i = 0; i < number; i++) {
        if (!regions_.regions) pieces.push_back({ids[i] * layout_.bytes, (ids[i] + int64_t(1)) * layout_.bytes});
        for (int32_t h = 0; regions_.regions && h < regions_.heads; h++) {
            const int64_t first = regions_.offset(ids[i], h);
            pieces.push_back({first, first + regions_.head_bytes});
        }
    }
    std::sort(pieces.begin(), pieces.end());
    for (size_t i = 0; i < pieces.size();) {
        size_t end = i + 1;  // of neighbours, whose memory goes at once: a page may lie in two of them
        while (end < pieces.size() && pieces[end].first <= pieces[end - 1].second) end++;
        const int64_t first = round_up(pieces[i].first, PAGE), last = pieces[end - 1].second / PAGE * PAGE;
        if (first < last) madvise(start_ + first, size_t(last - first), MADV_DONTNEED);
        i = end;
    }
}

}  // namespace ipex_assist
