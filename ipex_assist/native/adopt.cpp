// A model's image from a file that somebody packed before: copied, mapped, or mapped first and copied later.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "checks.h"
#include "model.h"

namespace ipex_assist {
namespace {

constexpr int64_t PAGE = 4096;

// Not through a mapping: one whose file somebody truncates meanwhile ends the process (SIGBUS).
void read_file(int file, int64_t offset, uint8_t* to, int64_t bytes) {
    while (bytes > 0) {
        const ssize_t got = pread(file, to, size_t(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw std::system_error(errno, std::generic_category(), "the file cannot be read");
        if (got == 0) throw std::runtime_error("the file ends " + std::to_string(bytes) + " bytes too early");
        to += got, offset += got, bytes -= got;
    }
}

}  // namespace

bool Model::adopt(Pool& pool, int file, int64_t offset, Adoption how) {
    if (how == MAP || (how == SETTLE && !pool.several_nodes())) {
        Memory mapped(file, offset, size_t(image_bytes_));
        // What a mapping lacks in huge pages it makes up by being there at once, and shared by all that map it.
        madvise(mapped.data(), mapped.size(), MADV_WILLNEED);
        image_ = std::move(mapped);
        writable_ = false, settled_ = 0;
        lay_out();
        expect_none();
        return how == MAP;
    }
    allocate();
    pool.run([&](int thread) {
        const auto fetch = [&](const uint8_t* to, int64_t bytes) {
            read_file(file, offset + (to - image_.data()), const_cast<uint8_t*>(to), bytes);
        };
        int64_t done = 0;
        for (const Linear* linear : linears_) {
            const int64_t start = linear->weights - image_.data();
            if (thread == 0) fetch(image_.data() + done, start - done);
            const int64_t bytes = block_bytes(linear->precision, linear->group, linear->depth);
            const auto [first, last] = slice(*linear, thread, pool.threads());
            fetch(linear->weights + first * bytes, (last - first) * bytes);
            done = start + linear->blocks * bytes;
        }
        // The rest is the table, in which every thread looks up.
        const int64_t pages = (image_bytes_ - done) / PAGE;
        const int64_t first = share(pages, thread, pool.threads()), last = share(pages, thread + 1, pool.threads());
        fetch(image_.data() + done + first * PAGE, (last - first) * PAGE);
        if (thread == 0) fetch(image_.data() + done + pages * PAGE, image_bytes_ - done - pages * PAGE);
    });
    expect_none();
    return true;
}

bool Model::settle(Pool& pool, int64_t bytes) {
    const int64_t end = table_of_ ? table_ - image_.data() : image_bytes_;
    if (writable_ || settled_ >= end) return true;
    if (bytes < PAGE) refuse("%lld bytes of an image are no page", static_cast<long long>(bytes));
    const uint8_t* start = image_.data() + settled_;
    int64_t size = std::min(bytes / PAGE * PAGE, end - settled_);
    const int64_t over = int64_t((uintptr_t(start) + size_t(size)) % (size_t(2) << 20));  // behind a border of huge pages
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

uint64_t checksum(Pool& pool, const uint8_t* data, int64_t size) {
    constexpr int64_t CHUNK = 1 << 20;
    constexpr uint64_t PRIME = 0x9e3779b185ebca87;
    const int64_t chunks = (size + CHUNK - 1) / CHUNK;
    std::vector<uint64_t> sums(static_cast<size_t>(chunks));
    pool.run([&](int thread) {
        for (int64_t c = share(chunks, thread, pool.threads()); c < share(chunks, thread + 1, pool.threads()); c++) {
            const int64_t end = (c + 1) * CHUNK < size ? (c + 1) * CHUNK : size;
            uint64_t lanes[4] = {1, 2, 3, 4};
            for (int64_t i = c * CHUNK; i < end; i += 32) {
                uint64_t words[4] = {};
                std::memcpy(words, data + i, size_t(end - i < 32 ? end - i : 32));
                for (int j = 0; j < 4; j++) {
                    lanes[j] = (lanes[j] ^ words[j]) * PRIME;
                    lanes[j] ^= lanes[j] >> 29;
                }
            }
            for (const uint64_t lane : lanes) sums[size_t(c)] = (sums[size_t(c)] ^ lane) * PRIME;
        }
    });
    uint64_t total = uint64_t(size);
    for (const uint64_t sum : sums) total = ((total ^ sum) * PRIME) ^ (total >> 31);
    return total;
}

}  // namespace ipex_assist
