// A fixed set of threads on fixed CPUs that run one function together.
#include "threads/pool.h"

#include <immintrin.h>
#include <sched.h>

#include <mutex>
#include <stdexcept>
#include <utility>

namespace ipex_assist {
namespace {

// The floating-point control of every thread of a run: round to nearest, keep denormals, no traps. A caller's may be
// another (a library built with -ffast-math, torch.set_flush_denormal), and a new thread inherits that.
class FloatControl {
public:
    FloatControl() : before_(_mm_getcsr()) { _mm_setcsr(_MM_MASK_MASK | _MM_ROUND_NEAREST); }
    ~FloatControl() { _mm_setcsr(before_); }
    FloatControl(const FloatControl&) = delete;
    FloatControl& operator=(const FloatControl&) = delete;

private:
    uint32_t before_;
};

bool bind_this_thread(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

// Binds the calling thread to a CPU for a run only: threads that Python starts later must not inherit that CPU.
class Binding {
public:
    Binding(bool binds, int cpu) : bound_(binds && sched_getaffinity(0, sizeof before_, &before_) == 0) {
        if (bound_) bind_this_thread(cpu);
    }
    ~Binding() {
        if (bound_) sched_setaffinity(0, sizeof before_, &before_);
    }
    Binding(const Binding&) = delete;
    Binding& operator=(const Binding&) = delete;

private:
    cpu_set_t before_;
    bool bound_;
};

}  // namespace

Pool::Pool(int threads, const int32_t* cpus, std::vector<int32_t> nodes)
    : threads_(threads),
      node_of_(std::move(nodes)),
      teams_(size_t(threads) + 1) {
    if (threads >> JOB_BITS) throw std::invalid_argument("more threads than a pool can have");
    if (cpus) cpus_.assign(cpus, cpus + threads);
    team(threads);
    start();
}

Pool::~Pool() { end(); }

void Pool::bind_caller() const {
    if (!cpus_.empty()) bind_this_thread(cpus_[0]);
}

void Pool::start() {
    forks_at_start_ = forks();
    workers_ = std::make_unique<std::vector<std::thread>>();
    try {
        workers_->reserve(size_t(threads_));
        for (int i = 1; i < threads_; i++) workers_->emplace_back([this, i, seen = job_.load()] { work(i, seen); });
    } catch (...) {
        end();  // destroying a thread that is not joined would end the program
        throw;
    }
}

void Pool::end() {
    if (!workers_) return;
    if (forks_at_start_ != forks()) {
        workers_.release();  // the parent's: nobody can join them here
        return;
    }
    stop_ = true;
    post(threads_);
    for (auto& worker : *workers_) worker.join();
    workers_.reset();
    stop_ = false;
}

PoolStatistics Pool::statistics() {
    const std::lock_guard<Lock> lock(run_lock_);
    PoolStatistics sum;
    sum.runs = runs_;
    for (const auto& team : teams_) {
        if (team) team->barrier.add_to(sum);
    }
    return sum;
}

// Workers are woken by groups, so that a run of fewer threads leaves the others asleep: 1, 2 and 3, 4 to 7, and so on.
int Pool::sleep_group(int thread) { return 31 - __builtin_clz(unsigned(thread)); }

Pool::Team& Pool::team(int threads) {
    auto& team = teams_[size_t(threads)];
    if (!team) team = std::make_unique<Team>(threads, node_of_);
    return *team;
}

void Pool::run_any(Function function, void* context, int threads) {
    const std::lock_guard<Lock> lock(run_lock_);
    if (threads < 1 || threads > threads_) threads = threads_;
    Team& team = this->team(threads);
    if (!workers_ || forks_at_start_ != forks()) {
        end();
        // The parent's threads may have been anywhere when it forked.
        for (const auto& each : teams_) {
            if (each) each->barrier.reset(), each->end.reset();
        }
        for (auto& sleepers : sleepers_) sleepers = 0;
        failed_ = false, error_ = nullptr;
        start();
    }
    const Binding binding(!cpus_.empty(), cpus_.empty() ? 0 : cpus_[0]);
    runs_++;
    team_ = &team;
    function_ = function;
    context_ = context;
    if (threads > 1) post(threads);
    call(0);
    if (!failed_.load(std::memory_order_relaxed)) return;
    team.barrier.reset();
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
}

// Publishes a run for the first threads and wakes those that sleep. Sequentially consistent with `sleep`, as at a
// barrier. The rest of the last one's sleep group wakes as well, and goes back to sleep.
void Pool::post(int threads) {
    const uint64_t job = job_.load(std::memory_order_relaxed);
    job_.store((((job >> JOB_BITS) + 1) << JOB_BITS) + uint64_t(threads), std::memory_order_seq_cst);
    uint32_t asleep = 0;
    for (int k = 0; threads > 1 && k <= sleep_group(threads - 1); k++) {
        if (sleepers_[size_t(k)].load(std::memory_order_seq_cst) > 0) asleep |= 1u << k;
    }
    if (!asleep) return;
    wake_count_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(wake_count_, INT32_MAX, asleep);
}

// The run's function in one thread, and the barrier at the run's end.
void Pool::call(int thread) {
    Team& team = *team_;
    try {
        const FloatControl control;
        function_(context_, thread);
    } catch (...) {
        // The first exception is the cause; Abandoned in other threads follows from it.
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
        team.barrier.abandon();
    }
    team.end.wait(thread);
}

// Returns when there is another job than `seen`, or for no reason.
void Pool::sleep(int thread, uint64_t seen) {
    auto& sleepers = sleepers_[size_t(sleep_group(thread))];
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t calls = wake_count_.load(std::memory_order_seq_cst);
    if (job_.load(std::memory_order_seq_cst) == seen) futex_wait(wake_count_, calls, 1u << sleep_group(thread));
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::work(int thread, uint64_t seen) {
    if (!cpus_.empty()) bind_this_thread(cpus_[size_t(thread)]);
    const auto called = [&] {
        const uint64_t job = job_.load(std::memory_order_acquire);
        // A job that this thread takes part in is not missed: the caller waits for it before the next one is posted.
        return job != std::exchange(seen, job) && takes_part(thread, job);
    };
    for (IdleSpin idle;;) {
        idle.wait(called, [&] { sleep(thread, seen); }, SystemTime());
        if (stop_) return;
        call(thread);
    }
}

}  // namespace ipex_assist
