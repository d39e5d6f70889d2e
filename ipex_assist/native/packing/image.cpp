// A model's image from a file that somebody packed before: copied, mapped, or mapped first and copied later.
#include <algorithm>
#include <cstring>
#include <utility>

#include "refuse.h"
#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "memory/read_file.h"
#include "packing/model.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096;

}  // namespace

bool PackedModel::adopt(Pool& pool, int file, int64_t offset, Adoption how) {
    if (expert_cache) refuse("an image without experts");
    if (how == MAP || (how == SETTLE && !pool.several_nodes())) {
        Memory mapped(file, offset, size_t(image_bytes()));
        // What a mapping lacks in huge pages it makes up by being there at once, and shared by all that map it.
        madvise(mapped.data(), mapped.size(), MADV_WILLNEED);
        image_ = std::move(mapped);
        writable_ = false, settled_ = 0;
        layout_.divide(nullptr);
        layout_.place(*this, image_.data());
        missing_.clear();
        return how == MAP;
    }
    allocate(pool);
    pool.run([&](int thread) {
        for (const ImageLayout::Piece& piece : layout_.pieces()) {
            // Of a node's panels its threads read as much each, and of what everybody reads everybody.
            const bool everybody = piece.node < 0;
            if (!everybody && piece.node != pool.node(thread)) continue;
            const int before = everybody ? 0 : layout_.first_thread(piece.node);
            const int threads = everybody ? pool.threads() : layout_.first_thread(piece.node + 1) - before;
            const int64_t pages = (piece.bytes + PAGE - 1) / PAGE;
            const int64_t first = share(pages, thread - before, threads) * PAGE;
            const int64_t last = std::min(share(pages, thread - before + 1, threads) * PAGE, piece.bytes);
            read_file(file, offset + piece.start + first, piece.at + first, last - first);
        }
    });
    missing_.clear();
    return true;
}

bool join_pages(const PackedModel& model, double seconds) {
    return !model.writable_ || join_pages(model.image_.data(), model.image_.size(), seconds);
}

const uint8_t* PackedModel::image(int64_t offset, int64_t bytes, uint8_t* buffer) const {
    const auto starts_after = [](int64_t place, const ImageLayout::Piece& piece) { return place < piece.start; };
    auto piece = std::upper_bound(layout_.pieces().begin(), layout_.pieces().end(), offset, starts_after) - 1;
    if (offset + bytes <= piece->start + piece->bytes) return piece->at + (offset - piece->start);
    for (int64_t done = 0; done < bytes; piece++) {
        const int64_t skipped = offset + done - piece->start, size = std::min(piece->bytes - skipped, bytes - done);
        std::memcpy(buffer + done, piece->at + skipped, size_t(size));
        done += size;
    }
    return buffer;
}

bool PackedModel::settle(Pool& pool, int64_t bytes) {
    const int64_t end = table_of_ && table ? table - image_.data() : image_bytes();
    if (writable_ || settled_ >= end) return true;
    if (bytes < PAGE) refuse("%lld bytes of an image are no page", static_cast<long long>(bytes));
    const uint8_t* start = image_.data() + settled_;
    int64_t size = std::min(bytes / PAGE * PAGE, end - settled_);
    const int64_t over = int64_t((uintptr_t(start) + size_t(size)) % HUGE_PAGE);  // past a border of huge pages
    if (settled_ + size < end && over < size) size -= over;
    Memory piece = Memory::like(start, size_t(size));
    pool.run([&](int thread) {
        const int64_t first = share(size / PAGE, thread, pool.threads()) * PAGE;
        const int64_t last = share(size / PAGE, thread + 1, pool.threads()) * PAGE;
        std::memcpy(piece.data() + first, start + first, size_t(last - first));
    });
    image_.replace(size_t(settled_), std::move(piece));
    settled_ += size;
    return settled_ >= end;
}

namespace {

constexpr int64_t CHUNK = 1 << 20;
constexpr uint64_t PRIME = 0x9e3779b185ebca87;

uint64_t sum_of(const uint8_t* data, int64_t size) {
    uint64_t lanes[4] = {1, 2, 3, 4}, sum = 0;
    for (int64_t i = 0; i < size; i += 32) {
        uint64_t words[4] = {};
        std::memcpy(words, data + i, size_t(size - i < 32 ? size - i : 32));
        for (int j = 0; j < 4; j++) {
            lanes[j] = (lanes[j] ^ words[j]) * PRIME;
            lanes[j] ^= lanes[j] >> 29;
        }
    }
    for (const uint64_t lane : lanes) sum = (sum ^ lane) * PRIME;
    return sum;
}

// at(offset, bytes, buffer): where that chunk is.
template <class At>
uint64_t sum_of_chunks(Pool& pool, int64_t size, bool buffered, At&& at) {
    const int64_t chunks = (size + CHUNK - 1) / CHUNK;
    std::vector<uint64_t> sums(static_cast<size_t>(chunks));
    pool.run([&](int thread) {
        std::vector<uint8_t> buffer(buffered ? size_t(CHUNK) : 0);
        for (int64_t c = share(chunks, thread, pool.threads()); c < share(chunks, thread + 1, pool.threads()); c++) {
            const int64_t bytes = std::min(CHUNK, size - c * CHUNK);
            sums[size_t(c)] = sum_of(at(c * CHUNK, bytes, buffer.data()), bytes);
        }
    });
    uint64_t total = uint64_t(size);
    for (const uint64_t sum : sums) total = ((total ^ sum) * PRIME) ^ (total >> 31);
    return total;
}

}  // namespace

uint64_t checksum(Pool& pool, const uint8_t* data, int64_t size) {
    return sum_of_chunks(pool, size, false, [data](int64_t offset, int64_t, uint8_t*) { return data + offset; });
}

uint64_t PackedModel::checksum(Pool& pool) const {
    if (!has_memory()) refuse("the checksum of an image that is not there");
    return sum_of_chunks(
        pool, image_bytes(), layout_.pieces().size() > 1,
        [this](int64_t offset, int64_t bytes, uint8_t* buffer) { return image(offset, bytes, buffer); });
}

}  // namespace ipex_assist
