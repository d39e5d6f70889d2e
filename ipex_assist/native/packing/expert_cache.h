// The routed experts of a mixture that is larger than memory.
//
// Each layer has slots for some of its experts, as many as every other layer. What a pass wants of a layer and is in
// none of them is read from the checkpoint's file, in place of experts that were used least, by threads that do nothing
// else: a thread of a pass waits for a disk in `next` and nowhere else, and no page of a file is mapped. What is read is
// the file's own numbers: texts are those of a model that is in memory as a whole.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "memory/memory.h"
#include "packing/expert_slots.h"
#include "threads/lock.h"

namespace ipex_assist {

// What passes wanted of experts, each once a pass and layer, and what that took.
struct ExpertReads {
    int64_t wanted = 0, found = 0;   // the latter were in memory
    int64_t ahead = 0;               // of these, such as had been asked for just before, as they were expected
    int64_t read_bytes = 0;          // of the file
    int64_t waited_nanoseconds = 0;  // by passes
};

// How often a guess at what a pass will use, and would have to read, was right lately.
class Guesses {
public:
    void note(double made, double right) { made_ = made_ * KEPT + made, right_ = right_ * KEPT + right; }
    // Whether half of them are right: reading the others takes the disk's time, and the places of what is used.
    bool are_good() const { return right_ >= made_ / 2; }

private:
    static constexpr double KEPT = 0.99;  // of what was noted before, each time
    double made_ = 8, right_ = 8;
};

class ExpertCache {
public:
    static constexpr const char* READER = "expert reader";  // its threads' name

    // Of `bytes` at most, for slots and what is read into. Where these are too few for a token's experts it has as many
    // slots as those take.
    ExpertCache(std::vector<PackedLayer>& layers, int64_t bytes);
    ~ExpertCache();
    ExpertCache(const ExpertCache&) = delete;
    ExpertCache& operator=(const ExpertCache&) = delete;

    int64_t bytes() const { return slot_bytes_ + READERS * BUFFER; }
    void allocate();
    // Whether a linear is one of these experts'; then `add` says where a part of it is.
    bool has(int32_t layer, const Linear* linear) const {
        return layer >= 0 && layers_[size_t(layer)].expert_of(linear) >= 0;
    }
    void add(int32_t layer, const PackTarget& target, Precision format, const BlockMatrix& matrix);

    // A pass has come to a layer, of which it uses these (ascending): they are read as far as they are not there.
    void begin(int32_t layer, const std::vector<int32_t>& experts);
    // Experts among them that are there, until the next call, ascending; none: all were. By one thread of the pass.
    // Throws std::runtime_error where one cannot be read.
    std::vector<int32_t> next();
    // While a pass is in the layer before this one: what it will use of it, as far as f can tell, is read where nothing
    // else is. A thread of the cache calls f, which throws nothing but std::bad_alloc.
    void expect(int32_t layer, std::function<std::vector<int32_t>()> f);
    ExpertReads reads();

private:
    static constexpr int READERS = 8;
    static constexpr int64_t BUFFER = int64_t(2) << 20;

    using Guess = std::function<std::vector<int32_t>()>;
    struct Chunk {
        int32_t layer, expert;
        size_t source;
        int64_t number;
    };
    struct Task {
        enum Kind { NOTHING, STOP, GUESS, READ } kind = NOTHING;
        int32_t layer = -1;  // that is guessed
        Guess guess;
        Chunk chunk{};
    };
    // What threads change; in a child of fork() it may be half changed, and is left alone.
    struct Queues {
        std::deque<Chunk> wanted, expected;
        int32_t guessed_layer = -1;
        Guess guess;
    };

    void divide(int64_t bytes);
    void start();
    void end();
    void work(uint8_t* buffer);
    Task take();
    void read(const Chunk& chunk, uint8_t* buffer);
    void expect_experts(int32_t layer, const std::vector<int32_t>& experts);
    void give_up_expected(int32_t layer);
    void queue(int32_t layer, int32_t expert, std::deque<Chunk>& to);
    bool queue_wanted();
    void wait();
    void choose_wave(bool all_have_slots);
    void wake();

    std::vector<PackedLayer>& model_;
    std::vector<ExpertSlots> layers_;
    std::vector<std::shared_ptr<const DirectFile>> files_;
    int64_t slot_bytes_ = 0;
    Memory memory_;
    std::vector<Memory> buffers_;  // of each reader

    Lock lock_;  // of all below, and of layers_
    std::unique_ptr<Queues> queues_;
    int32_t layer_ = -1;           // that the pass is in
    std::vector<int32_t> wave_;    // that it multiplies with
    std::vector<int32_t> always_;  // of what it uses, what is always there and was not given yet
    std::string failure_;          // of what the pass waits for
    ExpertReads reads_;
    Guesses guesses_;
    bool stop_ = false;

    std::atomic<uint32_t> work_{0}, done_{0};  // change when there is something to do, and when something is done
    std::unique_ptr<std::vector<std::thread>> readers_;
    cpu_set_t cpus_{};  // that they may run on: those of whoever made them, and not a pass's thread's
    uint32_t forks_at_start_ = 0;
};

}  // namespace ipex_assist
