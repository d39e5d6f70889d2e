// A fixed set of threads on fixed CPUs that run one function together.
#include "threads/pool.h"

#include <immintrin.h>
#include <sched.h>

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace ipex_assist {
namespace {

// Between two passes Python takes some hundred microseconds; after that a waiting thread gives its CPU back.
constexpr std::chrono::microseconds IDLE_SPIN{2000};

// How every thread of a run computes: to nearest, with denormals as they are, no traps. A caller may have it otherwise
// (a library built with -ffast-math, torch.set_flush_denormal), and a new thread inherits it.
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

// Binds the calling thread and undoes it: threads that Python starts later must not inherit one CPU.
class Binding {
public:
    Binding(bool wanted, int cpu) : bound_(wanted && sched_getaffinity(0, sizeof before_, &before_) == 0) {
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

Barrier::Barrier(int threads, const std::vector<int32_t>& nodes)
    : threads_(threads),
      words_(nodes.empty() ? 1 : size_t(nodes[size_t(threads) - 1]) + 1),
      waiters_(size_t(threads)) {
    const auto node = [&](int thread) { return nodes.empty() ? 0 : nodes[size_t(thread)]; };
    Counter* const root = count(int(words_.size()), nullptr);
    for (int first = 0, end; first < threads; first = end) {
        for (end = first + 1; end < threads && node(end) == node(first);) end++;
        const int groups = (end - first + GROUP - 1) / GROUP;
        Counter* const top = count(groups, root);
        for (int g = 0; g < groups; g++) {
            const int64_t from = first + share(end - first, g, groups), to = first + share(end - first, g + 1, groups);
            Counter* const group = count(int(to - from), top);
            for (int64_t t = from; t < to; t++) {
                waiters_[size_t(t)].counter = group, waiters_[size_t(t)].word = &words_[size_t(node(first))];
            }
        }
    }
}

// A counter of so many parts; where there is one, it counts above.
Barrier::Counter* Barrier::count(int parts, Counter* above) {
    return parts == 1 ? above : &counters_.emplace_back(parts, above);
}

void Barrier::wait(int thread) {
    Waiter& waiter = waiters_[size_t(thread)];
    waiter.waits++;
    if (threads_ == 1) return;
    Word& word = *waiter.word;
    const uint32_t generation = word.generation.load(std::memory_order_acquire);
    for (Counter* c = waiter.counter; c->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == c->parts;
         c = c->above) {
        c->arrived.store(0, std::memory_order_relaxed);
        if (!c->above) return next_generation();
    }
    const auto left = [&] {
        // Abandoning makes a generation of its own, so that who sees neither may sleep. In this order: who sees that
        // generation knows that it was abandoned.
        const bool another = word.generation.load(std::memory_order_acquire) != generation;
        if (abandoned_.load(std::memory_order_acquire)) throw Abandoned();
        return another;
    };
    const auto sleep = [&] {
        waiter.parks++;
        park(word, generation);
    };
    waiter.patience.wait(left, sleep, SystemTime());
}

// Lets everybody go, and then wakes who sleeps. In one order with `park`: either the sleeper is seen here, or it sees
// the new generation there.
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

void Barrier::add_to(Statistics& sum) const {
    sum.barriers += waiters_[0].waits;
    for (const Waiter& waiter : waiters_) sum.waits += waiter.waits, sum.parks += waiter.parks;
}

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

void Pool::start() {
    home_ = forks();
    workers_ = std::make_unique<std::vector<std::thread>>();
    try {
        workers_->reserve(size_t(threads_));
        for (int i = 1; i < threads_; i++) workers_->emplace_back([this, i, seen = job_.load()] { work(i, seen); });
    } catch (...) {
        end();  // threads that nobody joins would end the program
        throw;
    }
}

void Pool::end() {
    if (!workers_) return;
    if (home_ != forks()) {
        workers_.release();  // the parent's: nobody can join them here
        return;
    }
    stop_ = true;
    post(threads_);
    for (auto& worker : *workers_) worker.join();
    workers_.reset();
    stop_ = false;
}

Statistics Pool::statistics() {
    const std::lock_guard<Lock> lock(turn_);
    Statistics sum;
    sum.runs = runs_;
    for (const auto& team : teams_) {
        if (team) team->barrier.add_to(sum);
    }
    return sum;
}

// Workers that runs with fewer threads may leave asleep together: those of the upper half, of the next quarter, and so
// on.
int Pool::kind(int thread) { return 31 - __builtin_clz(unsigned(thread)); }

Pool::Team& Pool::team(int threads) {
    auto& team = teams_[size_t(threads)];
    if (!team) team = std::make_unique<Team>(threads, node_of_);
    return *team;
}

void Pool::run_any(Function function, void* context, int threads) {
    const std::lock_guard<Lock> lock(turn_);
    if (threads < 1 || threads > threads_) threads = threads_;
    Team& team = this->team(threads);
    if (!workers_ || home_ != forks()) {
        end();
        // A thread that the fork left behind may have been anywhere.
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

// Tells the first threads that there is something to do, and wakes those of them who sleep: in one order with `sleep`,
// as at a barrier. Others of the last one's kind wake with it, and look.
void Pool::post(int threads) {
    const uint64_t job = job_.load(std::memory_order_relaxed);
    job_.store((((job >> JOB_BITS) + 1) << JOB_BITS) + uint64_t(threads), std::memory_order_seq_cst);
    uint32_t asleep = 0;
    for (int k = 0; threads > 1 && k <= kind(threads - 1); k++) {
        if (sleepers_[size_t(k)].load(std::memory_order_seq_cst) > 0) asleep |= 1u << k;
    }
    if (!asleep) return;
    calls_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(calls_, INT32_MAX, asleep);
}

// One thread's part of a run, and its end.
void Pool::call(int thread) {
    Team& team = *team_;
    try {
        const FloatControl control;
        function_(context_, thread);
    } catch (...) {
        // Those who were abandoned come later than who abandoned them.
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
        team.barrier.abandon();
    }
    team.end.wait(thread);
}

// Returns when there is a job that is not the one that was seen, or for no reason.
void Pool::sleep(int thread, uint64_t seen) {
    auto& sleepers = sleepers_[size_t(kind(thread))];
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t calls = calls_.load(std::memory_order_seq_cst);
    if (job_.load(std::memory_order_seq_cst) == seen) futex_wait(calls_, calls, 1u << kind(thread));
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::work(int thread, uint64_t seen) {
    if (!cpus_.empty()) bind_this_thread(cpus_[size_t(thread)]);
    for (;;) {
        const auto idle_from = std::chrono::steady_clock::now();
        for (int i = 0;; i++) {
            const uint64_t job = job_.load(std::memory_order_acquire);
            // The caller waits for all who take part before it posts the next job: no such one is missed.
            if (job != std::exchange(seen, job) && takes_part(thread, job)) break;
            _mm_pause();
            if (i % 64 == 63 && std::chrono::steady_clock::now() - idle_from >= IDLE_SPIN) sleep(thread, seen);
        }
        if (stop_) return;
        call(thread);
    }
}

}  // namespace ipex_assist
