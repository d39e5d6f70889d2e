// A lock that a child of fork() can use, and a counter of forks.
#include "threads/lock.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

namespace ipex_assist {
namespace {

std::atomic<uint32_t> fork_count{0};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, uint32_t kinds) {
    static_assert(sizeof word == sizeof value, "a futex is 32 bits");
    syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, kinds);
}

}  // namespace

uint32_t forks() {
    static const int failed = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
    if (failed) throw std::bad_alloc();  // the one reason there is
    return fork_count.load(std::memory_order_relaxed);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, uint32_t kinds) {
    futex(word, FUTEX_WAIT_BITSET, value, kinds);
}
void futex_wake(std::atomic<uint32_t>& word, int32_t count, uint32_t kinds) {
    futex(word, FUTEX_WAKE_BITSET, uint32_t(count), kinds);
}

bool Lock::lock() {
    const uint32_t held = 2 * (forks() + 1), awaited = held + 1;
    uint32_t taken = held;
    for (;;) {
        uint32_t seen = word_.load(std::memory_order_relaxed);
        if (seen != held && seen != awaited) {  // free, or held by a thread of a parent
            if (word_.compare_exchange_weak(seen, taken, std::memory_order_acquire)) return seen == 0;
            continue;
        }
        if (seen == held && !word_.compare_exchange_weak(seen, awaited, std::memory_order_relaxed)) continue;
        futex_wait(word_, awaited);
        taken = awaited;  // other threads may sleep, too
    }
}

void Lock::unlock() {
    if (word_.exchange(0, std::memory_order_release) & 1) futex_wake(word_, 1);
}

}  // namespace ipex_assist
