// Linked with --wrap=mmap and --wrap=munmap: each of the core's own buffers (class Memory) then ends at a page that
// cannot be touched, so that a pass that reads or writes behind its rows, cache or weights ends at once. With
// --wrap=syscall the system can refuse a call: for AMX, or for the place of memory.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>

extern "C" void* __real_mmap(void*, size_t, int, int, int, off_t);
extern "C" int __real_munmap(void*, size_t);

extern "C" long __real_syscall(long, ...);

std::atomic<long> refused_call{-1};  // the number of one that the system refuses

extern "C" long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number != refused_call) return __real_syscall(number, a, b, c, d, e, f);
    errno = EPERM;
    return -1;
}

// So many mappings succeed, and then one does not; below zero all do.
std::atomic<long> mappings_left{-1};

namespace {

constexpr size_t PAGE = 4096, ALIGNMENT = 64;

std::mutex lock;
std::map<void*, std::pair<void*, size_t>> mappings;  // what was given out, and where it really begins

}  // namespace

extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (!(flags & MAP_NORESERVE)) return __real_mmap(address, bytes, protection, flags, file, offset);
    if (mappings_left >= 0 && mappings_left-- == 0) return MAP_FAILED;
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    void* start = __real_mmap(address, whole, protection, flags, file, offset);
    if (start == MAP_FAILED) return start;
    uint8_t* end = static_cast<uint8_t*>(start) + whole - PAGE;
    mprotect(end, PAGE, PROT_NONE);
    void* given = end - (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    try {
        const std::lock_guard<std::mutex> guard(lock);
        mappings[given] = {start, whole};
    } catch (const std::bad_alloc&) {  // where api.cpp lets memory run out
        __real_munmap(start, whole);
        return MAP_FAILED;
    }
    return given;
}

extern "C" int __wrap_munmap(void* address, size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = mappings.find(address);
    if (found == mappings.end()) return __real_munmap(address, bytes);
    const auto [start, whole] = found->second;
    mappings.erase(found);
    return __real_munmap(start, whole);
}
