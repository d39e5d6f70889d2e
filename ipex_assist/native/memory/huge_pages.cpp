#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>

#include "memory/memory.h"

namespace ipex_assist {
namespace {

constexpr int COLLAPSE = 25;  // MADV_COLLAPSE, which older headers lack
constexpr size_t AT_ONCE = size_t(128) << 20;

// Whether the administrator lets nobody have huge pages, which the call itself does not ask.
bool is_never(const std::string& setting) {
    std::ifstream file(setting);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("[never]") != std::string::npos;
}

}  // namespace

bool join_pages(uint8_t* start, size_t bytes, double seconds, const std::string& setting) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point started = Clock::now();
    const uintptr_t first = (uintptr_t(start) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = (uintptr_t(start) + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (first < end && is_never(setting)) return false;
    bool all = true;
    for (uintptr_t at = first; at < end; at += AT_ONCE) {
        if (std::chrono::duration<double>(Clock::now() - started).count() > seconds) return false;
        if (madvise(reinterpret_cast<void*>(at), std::min(AT_ONCE, end - at), COLLAPSE) == 0) continue;
        all = false;
        if (errno == ENOMEM || errno == EBUSY) break;  // no huge page is free, or the control group has no room for one
    }
    return all;
}

}  // namespace ipex_assist
