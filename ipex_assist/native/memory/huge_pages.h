// Small pages made one huge page, after memory was written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace ipex_assist {

// Memory that asked for huge pages has small ones where no huge one was free as it was first written, as where files fill
// the rest of the memory; the kernel joins these itself, but some megabytes a minute. Now instead, by copying them, on the
// node that has most of them (MADV_COLLAPSE, Linux 6.1), for at most about so many seconds. False where some stay: on an
// older kernel, with huge pages switched off (`setting`), where there is none to be had, or the time is over.
bool join_pages(uint8_t* start, size_t bytes, double seconds,
                const std::string& setting = "/sys/kernel/mm/transparent_hugepage/enabled");

}  // namespace ipex_assist
