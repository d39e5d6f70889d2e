// A fixed set of threads on fixed CPUs that run one function together.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "threads/lock.h"
#include "threads/patience.h"

namespace ipex_assist {

// What happened at a pool's barrier; `waits` and `parks` of all threads together.
struct Statistics {
    uint64_t runs = 0, barriers = 0, waits = 0, parks = 0;
};

// Spins first, because the threads of a pass arrive within microseconds of each other; then parks, for machines whose
// CPUs are shared with others (patience.h). Counted in groups of a memory node's threads, then by nodes, so that a
// hundred threads do not queue up at one cache line; and each node's threads wait at a word of their own, so that what
// lets them go crosses from one socket to another once a node, and not once a thread.
class Barrier {
public:
    // What `wait` throws where a thread will not come: see `abandon`.
    struct Abandoned {};

    // nodes: the memory node of each thread, and perhaps of others behind them; ascending from 0 on, or empty for one.
    explicit Barrier(int threads, const std::vector<int32_t>& nodes = {});
    void wait(int thread);
    // Nobody waits any longer, and nobody will until `reset`, which is called when no thread is in `wait`.
    void abandon();
    void reset();
    // Of the time before; no thread is in `wait`.
    void add_to(Statistics& sum) const;

private:
    static constexpr int GROUP = 8;
    struct Counter {
        Counter(int parts_, Counter* above_) : parts(parts_), above(above_) {}
        alignas(64) std::atomic<int> arrived{0};
        alignas(64) const int parts;  // not in the line that is counted in: that may be gone again
        Counter* const above;         // where the last to arrive counts next; null: at none, all are here
    };
    struct alignas(64) Word {  // of a node
        std::atomic<uint32_t> generation{0};
        std::atomic<uint32_t> parked{0};  // threads that sleep, or are about to
    };
    struct alignas(64) Waiter {
        Patience patience;
        uint64_t waits = 0, parks = 0;
        Counter* counter = nullptr;
        Word* word = nullptr;
    };
    Counter* count(int parts, Counter* above);
    void next_generation();
    void park(Word& word, uint32_t generation);

    int threads_;
    std::deque<Counter> counters_;
    std::vector<Word> words_;      // of each node
    std::vector<Waiter> waiters_;  // of each thread
    alignas(64) std::atomic<bool> abandoned_{false};
};

class Pool {
public:
    // cpus: one for each thread, or null to leave placement to the kernel. The calling thread is thread 0; it is bound
    // for the duration of a run only. nodes: the memory node of each, ascending from 0 on (memory_nodes); empty for
    // one.
    Pool(int threads, const int32_t* cpus, std::vector<int32_t> nodes = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    int nodes() const { return node_of_.empty() ? 1 : node_of_.back() + 1; }
    int node(int thread) const { return node_of_.empty() ? 0 : node_of_[size_t(thread)]; }
    bool several_nodes() const { return nodes() > 1; }
    // A node's first thread; of one more than there are, the number of threads.
    int first_thread(int node) const {
        if (node_of_.empty()) return node > 0 ? threads_ : 0;
        return int(std::lower_bound(node_of_.begin(), node_of_.end(), node) - node_of_.begin());
    }
    // Within a run: until all threads are here. Throws where one of them has failed.
    void wait(int thread) { team_->barrier.wait(thread); }
    // Of all runs so far; waits for its turn.
    Statistics statistics();

    // f(thread) in every thread; returns when all have ended. Callers take turns. All threads compute alike, whatever
    // the caller's own floating-point control is. Where f throws, the others leave at their next `wait`, and the first
    // exception is thrown again here. A child of fork() gets threads of its own at its first run.
    // threads: only the first so many take part, and the others are left alone; 0, or more than there are: all.
    template <class F>
    void run(F&& f, int threads = 0) {
        run_any([](void* context, int thread) { (*static_cast<F*>(context))(thread); }, &f, threads);
    }

private:
    using Function = void (*)(void* context, int thread);
    // Of the first threads, as many as some run had.
    struct Team {
        Team(int threads, const std::vector<int32_t>& nodes) : barrier(threads, nodes), end(threads, nodes) {}
        Barrier barrier, end;  // within a run, and at its end, where all of them come whatever happened
    };
    // A run and its number of threads in one value, so that a thread which took no part in others, and has perhaps not
    // seen them, tells from one look what it is asked: the number of the run, and in the last bits that of its threads.
    static constexpr int JOB_BITS = 16;
    static bool takes_part(int thread, uint64_t job) { return thread < int(job & ((1u << JOB_BITS) - 1)); }
    static int kind(int thread);
    void run_any(Function function, void* context, int threads);
    Team& team(int threads);
    void post(int threads);
    void call(int thread);
    void work(int thread, uint64_t seen);
    void sleep(int thread, uint64_t seen);
    void start();
    void end();

    int threads_;
    std::vector<int32_t> cpus_, node_of_;
    Lock turn_;
    uint64_t runs_ = 0;
    std::vector<std::unique_ptr<Team>> teams_;  // by their number of threads; made when it is first asked for
    Team* team_ = nullptr;                      // of the run
    Function function_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;  // of the first thread that failed
    bool stop_ = false;
    uint32_t home_ = 0;  // forks() where the workers are
    std::unique_ptr<std::vector<std::thread>> workers_;
    alignas(64) std::atomic<uint64_t> job_{0};
    std::atomic<uint32_t> calls_{0};               // where workers sleep; changes where some are to wake
    std::array<std::atomic<int>, 32> sleepers_{};  // of each kind
};

// Share `index` of `total` things among `threads`, contiguous and as equal as can be.
inline int64_t share(int64_t total, int thread, int threads) { return total * thread / threads; }

}  // namespace ipex_assist
