// Where the threads of a run wait for each other.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "threads/adaptive_spin.h"

namespace ipex_assist {

// What a pool's threads have done; `waits` and `parks` are sums over the threads.
struct PoolStatistics {
    uint64_t runs = 0, barriers = 0, waits = 0, parks = 0;
};

// A thread spins first and then sleeps (adaptive_spin.h). Arrivals are counted by a tree: groups of up to 8 threads of
// a memory node, the groups of a node, the nodes; so a hundred threads do not queue for one cache line. Each node's
// threads wait at a word of their own, so that their release crosses from socket to socket once a node, not once a
// thread.
class Barrier {
public:
    // Thrown by `wait` where a thread will not come: see `abandon`.
    struct Abandoned {};

    // nodes: the memory node of each thread, ascending from 0 on, or empty for one node; may be longer than `threads`.
    explicit Barrier(int threads, const std::vector<int32_t>& nodes = {});
    void wait(int thread);
    // Ends all waits, and those to come until `reset`, which is called when no thread is in `wait`.
    void abandon();
    void reset();
    // Called when no thread is in `wait`.
    void add_to(PoolStatistics& sum) const;

private:
    static constexpr int GROUP = 8;
    struct Counter {
        Counter(int children_, Counter* parent_) : children(children_), parent(parent_) {}
        alignas(64) std::atomic<int> arrived{0};
        alignas(64) const int children;  // not in the cache line of `arrived`, which moves between cores
        Counter* const parent;           // where the last child to arrive counts next; null at the root
    };
    struct alignas(64) Word {  // of a node
        std::atomic<uint32_t> generation{0};
        std::atomic<uint32_t> parked{0};  // threads that sleep, or are about to
    };
    struct alignas(64) Waiter {
        AdaptiveSpin spin;
        uint64_t waits = 0, parks = 0;
        Counter* counter = nullptr;
        Word* word = nullptr;
    };
    Counter* add_counter(int children, Counter* parent);
    void next_generation();
    void park(Word& word, uint32_t generation);

    int threads_;
    std::deque<Counter> counters_;
    std::vector<Word> words_;      // of each node
    std::vector<Waiter> waiters_;  // of each thread
    alignas(64) std::atomic<bool> abandoned_{false};
};

// The first of the items of worker `index`, where `total` items are divided among `workers` in contiguous shares that
// differ by one item at most. Its share ends where the next one begins.
inline int64_t share(int64_t total, int index, int workers) { return total * index / workers; }

}  // namespace ipex_assist
