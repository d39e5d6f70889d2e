// Where the threads of a run wait for each other.
#include "threads/barrier.h"

#include "threads/lock.h"

namespace ipex_assist {

Barrier::Barrier(int threads, const std::vector<int32_t>& nodes)
    : threads_(threads),
      words_(nodes.empty() ? 1 : size_t(nodes[size_t(threads) - 1]) + 1),
      waiters_(size_t(threads)) {
    const auto node = [&](int thread) { return nodes.empty() ? 0 : nodes[size_t(thread)]; };
    Counter* const root = add_counter(int(words_.size()), nullptr);
    for (int first = 0, end; first < threads; first = end) {
        for (end = first + 1; end < threads && node(end) == node(first);) end++;
        const int groups = (end - first + GROUP - 1) / GROUP;
        Counter* const of_node = add_counter(groups, root);
        for (int g = 0; g < groups; g++) {
            const int64_t from = first + share(end - first, g, groups), to = first + share(end - first, g + 1, groups);
            Counter* const group = add_counter(int(to - from), of_node);
            for (int64_t t = from; t < to; t++) {
                waiters_[size_t(t)].counter = group, waiters_[size_t(t)].word = &words_[size_t(node(first))];
            }
        }
    }
}

// A counter with one child would count nothing: the child counts in its parent.
Barrier::Counter* Barrier::add_counter(int children, Counter* parent) {
    return children == 1 ? parent : &counters_.emplace_back(children, parent);
}

void Barrier::wait(int thread) {
    Waiter& waiter = waiters_[size_t(thread)];
    waiter.waits++;
    if (threads_ == 1) return;
    Word& word = *waiter.word;
    const uint32_t generation = word.generation.load(std::memory_order_acquire);
    for (Counter* c = waiter.counter; c->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == c->children;
         c = c->parent) {
        c->arrived.store(0, std::memory_order_relaxed);
        if (!c->parent) return next_generation();
    }
    const auto released = [&] {
        // Abandoning starts a new generation, too, so that no thread sleeps through it. Loaded in this order: a thread
        // that sees that generation also sees that it was abandoned.
        const bool another = word.generation.load(std::memory_order_acquire) != generation;
        if (abandoned_.load(std::memory_order_acquire)) throw Abandoned();
        return another;
    };
    const auto sleep = [&] {
        waiter.parks++;
        park(word, generation);
    };
    waiter.spin.wait(released, sleep, SystemTime());
}

// Releases all threads, and then wakes those that sleep. Sequentially consistent with `park`: either the sleeper is
// seen here, or it sees the new generation there.
void Barrier::next_generation() {
    for (Word& word : words_) word.generation.fetch_add(1, std::memory_order_seq_cst);
    for (Word& word : words_) {
        if (word.parked.load(std::memory_order_seq_cst) > 0) futex_wake(word.generation, INT32_MAX);
    }
}

void Barrier::park(Word& word, uint32_t generation) {
    word.parked.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(word.generation, generation);
    word.parked.fetch_sub(1, std::memory_order_seq_cst);
}

void Barrier::abandon() {
    abandoned_.store(true, std::memory_order_release);
    next_generation();
}

void Barrier::reset() {
    for (Counter& counter : counters_) counter.arrived.store(0, std::memory_order_relaxed);
    for (Word& word : words_) word.parked.store(0, std::memory_order_relaxed);
    abandoned_.store(false, std::memory_order_relaxed);
}

void Barrier::add_to(PoolStatistics& sum) const {
    sum.barriers += waiters_[0].waits;
    for (const Waiter& waiter : waiters_) sum.waits += waiter.waits, sum.parks += waiter.parks;
}

}  // namespace ipex_assist
