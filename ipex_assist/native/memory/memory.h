// Memory from the kernel, zeroed and in huge pages where there are any; a page lands on the node of its first writer.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace ipex_assist {

constexpr int64_t HUGE_PAGE = int64_t(2) << 20;  // bytes

class Memory {
public:
    Memory() = default;
    explicit Memory(size_t bytes) : bytes_(bytes) {
        if (!bytes) return;
        void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(got);
        madvise(data_, bytes, MADV_HUGEPAGE);
    }
    // Aligned to huge pages.
    static Memory at_border(size_t bytes) { return like(nullptr, bytes); }
    // `bytes` of a file from `offset` (a multiple of the page size), read-only and shared with others who map it.
    Memory(int file, int64_t offset, size_t bytes) : bytes_(bytes) {
        void* got = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, offset);
        if (got == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(got);
    }
    // For `replace`: at the same offset within a huge page as `place`, so that huge pages can move there.
    static Memory like(const uint8_t* place, size_t bytes) {
        void* got = mmap(nullptr, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) throw std::bad_alloc();
        auto* start = static_cast<uint8_t*>(got);
        const size_t before = (uintptr_t(place) - uintptr_t(start)) % HUGE_PAGE;
        if (before) munmap(start, before);
        munmap(start + before + bytes, HUGE_PAGE - before);
        Memory made;
        made.data_ = start + before, made.bytes_ = bytes;
        madvise(made.data_, bytes, MADV_HUGEPAGE);
        return made;
    }
    // Maps `piece` over as many bytes from `from` on, atomically for all threads. In whole pages.
    void replace(size_t from, Memory&& piece) {
        void* place = mremap(piece.data_, piece.bytes_, piece.bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + from);
        if (place == MAP_FAILED) throw std::bad_alloc();
        piece.data_ = nullptr, piece.bytes_ = 0;
    }
    ~Memory() {
        if (bytes_) munmap(data_, bytes_);
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }

    uint8_t* data() const { return data_; }
    size_t size() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    // To at least `bytes`; the contents are lost where it grows.
    void grow(size_t bytes) {
        if (bytes > bytes_) *this = Memory(bytes);
    }

private:
    // In this order, because a child of fork() may find it half done and free what it finds: all of the bytes that it
    // then believes in are mapped. x86 shows stores in the order in which they are made.
    void swap(Memory& other) {
        uint8_t* const data = data_;
        const size_t bytes = bytes_;
        bytes_ = 0;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        data_ = other.data_;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        bytes_ = other.bytes_;
        other.data_ = data, other.bytes_ = bytes;
    }
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace ipex_assist
