#include "packing/expert_cache.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "refuse.h"

namespace ipex_assist {
namespace {

// A lock while it lives.
class Held {
public:
    explicit Held(Lock& lock) : lock_(lock) { lock_.lock(); }
    ~Held() { lock_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

private:
    Lock& lock_;
};

}  // namespace

ExpertCache::ExpertCache(std::vector<PackedLayer>& layers, int64_t bytes) : model_(layers) {
    for (PackedLayer& layer : layers) layers_.push_back(layer.mlp.experts ? ExpertSlots(layer) : ExpertSlots());
    divide(bytes - READERS * BUFFER);
}

// One slot more to each layer in turn, as long as there are bytes.
void ExpertCache::divide(int64_t bytes) {
    std::vector<int64_t> slots;
    for (size_t i = 0; i < layers_.size(); i++) {
        slots.push_back(layers_[i].is_cached() ? model_[i].mlp.experts_per_token : 0);
        slot_bytes_ += slots.back() * layers_[i].expert_bytes();
    }
    for (bool grew = true; grew;) {
        grew = false;
        for (size_t i = 0; i < layers_.size(); i++) {
            const int64_t each = layers_[i].expert_bytes();
            if (slots[i] == layers_[i].most() || slot_bytes_ + each > bytes) continue;
            slots[i]++, slot_bytes_ += each, grew = true;
        }
    }
    for (size_t i = 0; i < layers_.size(); i++) layers_[i].resize(slots[i]);
}

void ExpertCache::allocate() {
    memory_ = Memory(size_t(slot_bytes_));
    uint8_t* at = memory_.data();
    for (ExpertSlots& each : layers_) {
        each.place(at);
        at += each.slots() * each.expert_bytes();
    }
    while (buffers_.size() < READERS) buffers_.emplace_back(size_t(BUFFER));
    sched_getaffinity(0, sizeof cpus_, &cpus_);
    start();
}

// Threads of the cache; those of a parent are not in its child, and what they were doing is not done.
void ExpertCache::start() {
    if (readers_) readers_.release(), queues_.release();
    queues_ = std::make_unique<Queues>();
    for (ExpertSlots& layer : layers_) layer.forget_unread();
    readers_ = std::make_unique<std::vector<std::thread>>();
    forks_at_start_ = forks();
    try {
        readers_->reserve(READERS);
        for (const Memory& each : buffers_) readers_->emplace_back([this, to = each.data()] { work(to); });
    } catch (...) {
        end();  // destroying a thread that is not joined would end the program
        throw;
    }
}

ExpertCache::~ExpertCache() { end(); }

void ExpertCache::end() {
    if (!readers_) return;
    if (forks_at_start_ != forks()) {
        readers_.release(), queues_.release();
        return;
    }
    {
        const Held held(lock_);
        stop_ = true;
    }
    wake();
    for (std::thread& each : *readers_) each.join();
    readers_.reset();
    stop_ = false;
}

void ExpertCache::wake() {
    work_.fetch_add(1);
    futex_wake(work_, READERS);
}

void ExpertCache::add(int32_t layer, const PackTarget& target, Precision format, const BlockMatrix& matrix) {
    if (matrix.file < 0) refuse("an expert that is read as it is needed lies in no file");
    const auto same = [&](const std::shared_ptr<const DirectFile>& each) { return each->is(matrix.file); };
    auto file = std::find_if(files_.begin(), files_.end(), same);
    if (file == files_.end()) file = files_.insert(file, std::make_shared<const DirectFile>(matrix.file));
    ExpertSource source(target, format, matrix, *file);
    if (source.room() > BUFFER) refuse("rows of %lld columns in an expert", (long long)matrix.columns);
    const Held held(lock_);
    ExpertSlots& slots = layers_[size_t(layer)];
    slots.expert(slots.expert_of(target.linear)).sources.push_back(std::move(source));
}

void ExpertCache::begin(int32_t layer, const std::vector<int32_t>& experts) {
    const Held held(lock_);
    if (forks_at_start_ != forks()) start();
    if (layer_ >= 0) layers_[size_t(layer_)].want_nothing();  // where a pass ended early
    ExpertSlots& slots = layers_[size_t(layer)];
    layer_ = layer, wave_.clear(), always_.clear(), failure_.clear();
    for (const int32_t e : experts) {
        if (e >= slots.most()) {
            always_.push_back(e);
            continue;
        }
        const CachedExpert& expert = slots.expert(e);
        reads_.wanted++;
        reads_.found += expert.slot >= 0 && !expert.failed;
        reads_.ahead += expert.slot >= 0 && !expert.failed && expert.ahead;
    }
    const auto guessed = [](const CachedExpert& each) { return each.ahead; };
    const auto all = std::count_if(slots.experts().begin(), slots.experts().end(), guessed);
    guesses_.note(double(all), double(slots.want(experts)));
    give_up_expected(layer);
    queue_wanted();
}

// What was expected of a layer that the pass has come to: what is wanted goes on, with the others that are.
void ExpertCache::give_up_expected(int32_t layer) {
    queues_->guess = nullptr;
    std::deque<Chunk> rest;
    rest.swap(queues_->expected);
    for (const Chunk& chunk : rest) {
        ExpertSlots& slots = layers_[size_t(chunk.layer)];
        CachedExpert& expert = slots.expert(chunk.expert);
        if (chunk.layer == layer && expert.wanted) {
            queues_->wanted.push_back(chunk);
            continue;
        }
        expert.chunks--, expert.failed = true;
        if (!expert.chunks) slots.release(chunk.expert);
    }
}

void ExpertCache::queue(int32_t layer, int32_t expert, std::deque<Chunk>& to) {
    CachedExpert& e = layers_[size_t(layer)].expert(expert);
    try {
        for (size_t source = 0; source < e.sources.size(); source++) {
            for (int64_t i = 0; i < e.sources[source].chunks(); i++, e.chunks++) {
                to.push_back({layer, expert, source, i});
            }
        }
    } catch (const std::bad_alloc&) {  // what is queued is read for nothing
        e.failed = true;
        if (!e.chunks) layers_[size_t(layer)].release(expert);
        throw;
    }
}

// Whether every expert that the pass still wants has a slot by now.
bool ExpertCache::queue_wanted() {
    ExpertSlots& slots = layers_[size_t(layer_)];
    bool all = true, queued = false;
    for (int32_t e = 0; e < slots.most() && all; e++) {
        if (!slots.expert(e).wanted || slots.expert(e).slot >= 0) continue;
        all = slots.assign(e);
        if (!all) break;
        slots.expert(e).fresh = true;
        queue(layer_, e, queues_->wanted);
        queued = true;
    }
    if (queued) wake();
    return all;
}

// What is there; but where others have no slot yet, only some of it, so that they can be read meanwhile in the places
// of what has been used: those that are used least are the first.
void ExpertCache::choose_wave(bool all_have_slots) {
    const ExpertSlots& slots = layers_[size_t(layer_)];
    for (int32_t e = 0; e < slots.most(); e++) {
        const CachedExpert& expert = slots.experts()[size_t(e)];
        if (expert.wanted && expert.is_there()) wave_.push_back(e);
    }
    const size_t most = size_t(slots.some());
    if (all_have_slots || wave_.size() <= most) return;
    std::stable_sort(wave_.begin(), wave_.end(), [&](int32_t a, int32_t b) { return slots.uses(a) < slots.uses(b); });
    wave_.resize(most);
    std::sort(wave_.begin(), wave_.end());
}

// Until something has been read; by whoever holds the lock.
void ExpertCache::wait() {
    const uint32_t seen = done_.load();
    lock_.unlock();
    const auto started = std::chrono::steady_clock::now();
    futex_wait(done_, seen);
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - started;
    lock_.lock();
    reads_.waited_nanoseconds += waited.count();
}

std::vector<int32_t> ExpertCache::next() {
    const Held held(lock_);
    ExpertSlots& slots = layers_[size_t(layer_)];
    for (const int32_t e : wave_) slots.expert(e).wanted = false;
    wave_.clear();
    for (;; wait()) {
        if (!failure_.empty()) throw std::runtime_error(std::exchange(failure_, {}));
        choose_wave(queue_wanted());
        if (!wave_.empty() || !always_.empty() || !slots.wants()) break;
    }
    std::vector<int32_t> found = wave_;
    found.insert(found.end(), always_.begin(), always_.end());
    always_.clear();
    return found;
}

void ExpertCache::expect(int32_t layer, Guess f) {
    {
        const Held held(lock_);
        queues_->guess = std::move(f), queues_->guessed_layer = layer;
    }
    wake();
}

void ExpertCache::expect_experts(int32_t layer, const std::vector<int32_t>& experts) {
    {
        const Held held(lock_);
        if (layer_ != layer - 1) return;  // the pass was faster
        ExpertSlots& slots = layers_[size_t(layer)];
        for (const int32_t e : experts) slots.expert(e).expected = true;
        for (const int32_t e : experts) {
            CachedExpert& expert = slots.expert(e);
            if (expert.slot >= 0) continue;
            expert.ahead = true;
            if (guesses_.are_good() && slots.assign(e)) queue(layer, e, queues_->expected);
        }
    }
    wake();
}

ExpertReads ExpertCache::reads() {
    const Held held(lock_);
    return reads_;
}

ExpertCache::Task ExpertCache::take() {
    const Held held(lock_);
    Task task;
    if (stop_) {
        task.kind = Task::STOP;
    } else if (queues_->guess) {
        task.kind = Task::GUESS, task.layer = queues_->guessed_layer;
        task.guess.swap(queues_->guess);
    } else {
        std::deque<Chunk>& from = queues_->wanted.empty() ? queues_->expected : queues_->wanted;
        if (from.empty()) return task;
        task.kind = Task::READ, task.chunk = from.front();
        from.pop_front();
    }
    return task;
}

void ExpertCache::read(const Chunk& chunk, uint8_t* buffer) {
    ExpertSlots& slots = layers_[size_t(chunk.layer)];
    CachedExpert& expert = slots.expert(chunk.expert);
    const ExpertSource& source = expert.sources[chunk.source];
    std::string failure;
    try {
        source.read(chunk.number, buffer);
    } catch (const std::exception& error) {
        failure =
            "expert " + std::to_string(chunk.expert) + " of layer " + std::to_string(chunk.layer) + ": " + error.what();
    }
    {
        const Held held(lock_);
        reads_.read_bytes += source.file_bytes(chunk.number);
        expert.failed |= !failure.empty();
        if (!failure.empty() && expert.wanted) failure_ = failure;
        if (!--expert.chunks && expert.failed) slots.release(chunk.expert);
    }
    done_.fetch_add(1);
    futex_wake(done_, 1);
}

void ExpertCache::work(uint8_t* buffer) {
    pthread_setname_np(pthread_self(), READER);
    sched_setaffinity(0, sizeof cpus_, &cpus_);
    for (;;) {
        const uint32_t seen = work_.load();
        const Task task = take();
        switch (task.kind) {
            case Task::STOP: return;
            case Task::GUESS: try { expect_experts(task.layer, task.guess());
                } catch (const std::bad_alloc&) {  // then nothing more is expected
                }
                break;
            case Task::READ: read(task.chunk, buffer); break;
            case Task::NOTHING: futex_wait(work_, seen); break;
        }
    }
}

}  // namespace ipex_assist
