// A lock that a child of fork() can use, and a counter of forks.
#pragma once
#include <atomic>
#include <cstdint>

namespace ipex_assist {

// How many forks lie between this process and the one in which the core was first used: one more in a child than in its
// parent. Threads and holders of locks that belong to another count do not exist in this process.
uint32_t forks();

// Sleep while `word` is `value`; wake up to `count` sleepers, only those whose `kinds` have a bit in common.
constexpr uint32_t ANY_KIND = ~0u;
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, uint32_t kinds = ANY_KIND);
void futex_wake(std::atomic<uint32_t>& word, int32_t count, uint32_t kinds = ANY_KIND);

// Like std::mutex, but free in a child of fork() whichever thread of the parent held it. After Drepper, "Futexes are
// tricky" (2011), mutex 2, with the count of forks in the word.
class Lock {
public:
    // False where a thread of the parent held it at the fork: what it was changing may be half changed.
    bool lock();
    void unlock();

private:
    std::atomic<uint32_t> word_{0};  // 0: free; else 2 · (forks + 1), plus one where a thread may sleep
};

}  // namespace ipex_assist
