// A fixed set of threads on fixed CPUs that run one function together.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "threads/barrier.h"
#include "threads/lock.h"
#include "threads/team_nodes.h"

namespace ipex_assist {

class Pool {
public:
    // cpus: the CPU of each thread, or null to leave placement to the kernel. The calling thread is thread 0; it is
    // bound to its CPU during a run only. nodes: the memory node of each thread, ascending from 0 on (group_by_node);
    // empty for one node.
    Pool(int threads, const int32_t* cpus, std::vector<int32_t> nodes = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    int nodes() const { return node_of_.empty() ? 1 : node_of_.back() + 1; }
    int node(int thread) const { return node_of_.empty() ? 0 : node_of_[size_t(thread)]; }
    bool several_nodes() const { return nodes() > 1; }
    int32_t cpu(int thread) const { return cpus_.empty() ? -1 : cpus_[size_t(thread)]; }
    // A node's first thread; for the node after the last one, the number of threads.
    int first_thread(int node) const {
        if (node_of_.empty()) return node > 0 ? threads_ : 0;
        return int(std::lower_bound(node_of_.begin(), node_of_.end(), node) - node_of_.begin());
    }
    TeamNodes team_nodes(int threads) const { return {threads, node_of_}; }  // of the first threads
    // Within a run: returns when all its threads are here. Throws where one of them has failed.
    void wait(int thread) { team_->barrier.wait(thread); }
    // Binds the calling thread to the CPU of thread 0 for good: one that does nothing but run this pool.
    void bind_caller() const;
    // Of all runs so far; waits for the end of a run.
    PoolStatistics statistics();

    // f(thread) in each of the first `threads` threads (0, or more than there are: in all); returns when all have
    // ended. The other threads are left alone. One caller at a time; others wait. The threads' floating-point control
    // is the same whatever the caller's is. Where f throws, the other threads leave at their next `wait`, and the first
    // exception is thrown again here. A child of fork() starts threads of its own at its first run.
    template <class F>
    void run(F&& f, int threads = 0) {
        run_any([](void* context, int thread) { (*static_cast<F*>(context))(thread); }, &f, threads);
    }

private:
    using Function = void (*)(void* context, int thread);
    // The first threads, for runs of that size.
    struct Team {
        Team(int threads, const std::vector<int32_t>& nodes) : barrier(threads, nodes), end(threads, nodes) {}
        Barrier barrier, end;  // within a run; at its end, where every thread arrives even after a failure
    };
    // A run's number, and in the lowest bits its number of threads. In one value, because a thread that takes no part
    // in some runs may see only a later one, and must tell from one load what that one asks of it.
    static constexpr int JOB_BITS = 16;
    static bool takes_part(int thread, uint64_t job) { return thread < int(job & ((1u << JOB_BITS) - 1)); }
    static int sleep_group(int thread);
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
    Lock run_lock_;
    uint64_t runs_ = 0;
    std::vector<std::unique_ptr<Team>> teams_;  // by number of threads; made when first needed
    Team* team_ = nullptr;                      // of the run
    Function function_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;  // of the first thread that failed
    bool stop_ = false;
    uint32_t forks_at_start_ = 0;  // forks() when the workers were started
    std::unique_ptr<std::vector<std::thread>> workers_;
    alignas(64) std::atomic<uint64_t> job_{0};
    std::atomic<uint32_t> wake_count_{0};          // the futex at which workers sleep
    std::array<std::atomic<int>, 32> sleepers_{};  // of each sleep group
};

}  // namespace ipex_assist
