// A lock that survives fork(), and what is needed to notice a fork.
#pragma once
#include <atomic>
#include <cstdint>

namespace ipex_assist {

// How often this process and its ancestors were forked since the core was first used; a child of fork() has one more
// than its parent. Threads, and who holds a lock, are worth nothing in a process with another number.
uint32_t forks();

// Sleep while `word` is `value`, and wake so many sleepers; of those only whose `kinds` have a bit in common.
constexpr uint32_t ANY_KIND = ~0u;
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, uint32_t kinds = ANY_KIND);
void futex_wake(std::atomic<uint32_t>& word, int32_t count, uint32_t kinds = ANY_KIND);

// As std::mutex, but a child of fork() finds it free whoever held it: that thread is not in the child. After Drepper,
// "Futexes are tricky" (2011), mutex 2, with the number of forks in the word.
class Lock {
public:
    // False where the holder was left behind by a fork: what it was changing may be half changed.
    bool lock();
    void unlock();

private:
    std::atomic<uint32_t> word_{0};  // 0: free; else 2 · (forks + 1), one more where somebody may sleep
};

}  // namespace ipex_assist
