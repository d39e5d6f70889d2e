// Memory of the calling thread's own, which it keeps.
#pragma once
#include "memory/memory.h"

namespace ipex_assist {
namespace {

// At least `bytes`, until the next call.
inline uint8_t* own_memory(size_t bytes) {
    thread_local Memory memory;
    memory.grow(bytes);
    return memory.data();
}

}  // namespace
}  // namespace ipex_assist
