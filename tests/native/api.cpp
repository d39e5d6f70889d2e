// The C interface: memory that runs out anywhere in a call, threads that share a model, callers with floating-point
// control of their own, and children of fork(). Calls end with the right bits or with an error, and the next one is
// well.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "packing/expert_cache.h"
#include "small_model.h"

extern "C" {
const char* ia_last_error();
int32_t ia_abi(int32_t* sizes, int32_t* rows);
const void* ia_kernels(const char* limit);
void* ia_pool_new(int32_t threads, const int32_t* cpus);
void ia_pool_delete(void* pool);
int32_t ia_checksum(void* handle, void* pool, uint64_t* sum);
void* ia_model_new(const void* kernels, const ipex_assist::ModelSpec* spec, const ipex_assist::LayerSpec* layers,
                   const char* const* names, const int32_t* formats, int64_t count);
void ia_model_delete(void* handle);
int64_t ia_model_bytes(void* handle);
const void* ia_model_image(void* handle, int64_t offset, int64_t bytes, void* buffer);
int32_t ia_model_allocate(void* handle, void* pool);
int32_t ia_model_share_table(void* handle, const void* other);
int32_t ia_model_pack(void* handle, void* pool, const char* name, int32_t type, const void* data, int64_t rows,
                      int64_t columns);
void* ia_blocks_new(void* handle, int64_t count, int32_t precision);
void ia_blocks_delete(void* blocks);
int32_t ia_blocks_copy(void* blocks, void* pool, int32_t from, int32_t to);
int32_t ia_blocks_read(void* blocks, int32_t id, void* bytes);
int32_t ia_blocks_write(void* blocks, void* pool, int32_t id, const void* bytes);
int32_t ia_blocks_discard(void* blocks, const int32_t* ids, int64_t number);
int64_t ia_block_bytes(void* handle, int32_t precision);
int32_t ia_forward(void* handle, void* pool, const ipex_assist::Batch* batch);
int32_t ia_top_tokens(void* handle, void* pool, const ipex_assist::Batch* batch, const ipex_assist::TopTokens* choices);
int32_t ia_draft(void* handle, void* pool, const ipex_assist::Batch* batch, const ipex_assist::DraftRequest* drafts);
int32_t ia_linears(void* handle, void* pool, int32_t which, const float* x, int64_t rows, float* out, int64_t stride);
double ia_read_bandwidth(const void* kernels, void* pool, int64_t size, int32_t repeats);
double ia_peak(const void* kernels, void* pool, int32_t precision, int64_t steps, int32_t repeats);
}

// guard.cpp's, where that is linked.
extern std::atomic<long> mappings_left __attribute__((weak));

namespace {

// So many allocations succeed, in any thread, and then one does not; below zero all do.
std::atomic<long> allocations_left{-1};

// Whether this thread reads experts: where it has no memory it gives up a guess, of which nobody is told.
bool reads_experts() {
    char name[16];
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
           std::string_view(name) == ipex_assist::ExpertCache::READER;
}

void* allocate(size_t size, size_t alignment) {
    if (allocations_left >= 0 && !reads_experts() && allocations_left-- == 0) throw std::bad_alloc();
    void* given = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (!given) throw std::bad_alloc();
    return given;
}

}  // namespace

void* operator new(size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) { return allocate(size, size_t(alignment)); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }

namespace check {
namespace {

constexpr int32_t STRIDE = 64, ROOM = 80;

// A model behind the C interface, with a pool of its own and learned positions.
struct Loaded {
    // control: the caller's floating-point control where it calls the core.
    Loaded(const KernelTable& k, int threads, float final_norm = 1, uint32_t control_ = _mm_getcsr())
        : control(control_) {
        {
            const Calling calling(*this);
            pool = ia_pool_new(threads, nullptr);
        }
        spec = base_spec(FORMATS[0]);
        spec.positions = ROOM + 20, spec.rotary_dim = spec.rotary_tables = 0;
        handle = ia_model_new(&k, &spec, spec.layer_specs().data(), nullptr, nullptr, 0);
        CHECK(pool && handle && ia_model_allocate(handle, pool) == 0, "%s", ia_last_error());
        Random random(1);
        for (const Shape& shape : shapes(spec, spec.layer_specs())) {
            tensor.resize(size_t(shape.rows * shape.columns));
            for (float& value : tensor) value = random.normal() * (shape.is("final_norm") ? final_norm : 0.2f);
            const int32_t status = pack(shape.name.c_str(), shape.rows, shape.columns);
            CHECK(status == 0, "%s: %s", shape.name.c_str(), ia_last_error());
        }
    }
    ~Loaded() {
        forget_model();
        ia_pool_delete(pool);
    }
    void forget_model() { ia_model_delete(std::exchange(handle, nullptr)); }
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;

    class Calling {
    public:
        explicit Calling(const Loaded& x) { _mm_setcsr(x.control); }
        ~Calling() { _mm_setcsr(usual_); }

    private:
        const uint32_t usual_ = _mm_getcsr();
    };

    int32_t pack(const char* name, int64_t rows, int64_t columns) {
        const Calling calling(*this);
        return ia_model_pack(handle, pool, name, SOURCE_F32, tensor.data(), rows, columns);
    }

    const uint32_t control;
    UniformSpec spec;
    std::vector<float> tensor;
    void *pool, *handle;
};

// What a text of `rows` tokens and four drafted behind it gave; empty where a call failed.
struct Text {
    std::vector<float> logits, probabilities;
    std::vector<int32_t> drafted, chosen;
    bool operator==(const Text& other) const {
        return logits.size() == other.logits.size() && drafted == other.drafted && chosen == other.chosen &&
               same_bits(logits.data(), other.logits.data(), logits.size()) &&
               same_bits(probabilities.data(), other.probabilities.data(), probabilities.size());
    }
};

// A sequence of the model, with memory of its own for what calls read and write.
struct Sequence {
    Sequence(Loaded& x, int32_t rows, uint32_t seed)
        : model(x),
          blocks(ia_blocks_new(x.handle, 1, BF16)),
          tokens(some_tokens(rows, seed)) {
        CHECK(blocks, "%s", ia_last_error());
        for (int32_t i = 0; i < rows; i++) wanted.push_back(i);
        segment.blocks = &block, segment.block_count = 1, segment.rows = rows;
        logits.resize(size_t(rows) * STRIDE);
    }
    ~Sequence() { ia_blocks_delete(blocks); }
    Sequence(const Sequence&) = delete;
    Sequence& operator=(const Sequence&) = delete;

    Batch batch(int32_t last) const {
        Batch batch{};
        batch.segment_count = 1, batch.rows = int32_t(tokens.size());
        batch.segments = &segment, batch.tokens = tokens.data(), batch.blocks = static_cast<const Blocks*>(blocks);
        batch.logit_rows = wanted.data() + batch.rows - last, batch.logit_row_count = last;
        batch.stride = STRIDE;
        return batch;
    }
    bool forward() {
        Batch all = batch(segment.rows);
        all.logits = logits.data();
        const Loaded::Calling calling(model);
        return ia_forward(model.handle, model.pool, &all) == 0;
    }
    bool choose() {
        const Batch all = batch(1);
        const Loaded::Calling calling(model);
        return ia_top_tokens(model.handle, model.pool, &all, &choices) == 0;
    }
    bool draft() {
        const Batch all = batch(1);
        const Loaded::Calling calling(model);
        return ia_draft(model.handle, model.pool, &all, &drafts) == 0 && number == 4;
    }
    Text text() {
        if (!forward() || !draft() || !choose()) return {};
        return {logits, {probabilities, probabilities + 4}, {drafted, drafted + 4}, {chosen, chosen + 4}};
    }

    Loaded& model;
    void* blocks;
    const int32_t block = 0, count = 4;
    const float least = 0;
    Segment segment{};
    std::vector<int32_t> tokens, wanted;
    std::vector<float> logits;
    int32_t drafted[4], chosen[4], number;
    float probabilities[4], logs[5];
    const DraftRequest drafts{&count, &least, 4, drafted, probabilities, &number};
    const TopTokens choices{3, chosen, logs, logs + 1, chosen + 1, logs + 2};
};

// `call` with its first allocation failing, then its second, and so on until it needs no more; each time it must say
// so.
void starve(const char* what, std::atomic<long>& left, const std::function<bool()>& call) {
    for (long count = 0;; count++) {
        left = count;
        const bool well = call();
        const bool starved = left < 0;
        left = -1;
        if (!starved) {
            CHECK(well, "%s with all its memory: %s", what, ia_last_error());
            return;
        }
        CHECK(!well, "%s has all its memory but one, and does not say so", what);
        CHECK(std::string(ia_last_error()) == "out of memory", "%s: %s", what, ia_last_error());
        CHECK(count < 1000, "%s needs ever more", what);
    }
}

void starve(const char* what, const std::function<bool()>& call) {
    starve(what, allocations_left, call);
    if (&mappings_left) starve(what, mappings_left, call);
}

// Memory runs out at each place of each call, in whichever thread asks for it.
void test_memory(const KernelTable& k) {
    for (int threads = 1; threads <= 3; threads++) {
        Loaded x(k, threads);
        const int64_t hidden = x.spec.hidden_size;
        for (const int32_t rows : {3, 40}) {
            Sequence fed(x, rows, 5);
            const Text whole = fed.text();
            CHECK(!whole.logits.empty(), "%s", ia_last_error());
            starve("ia_forward", [&] { return fed.forward(); });
            starve("ia_draft", [&] { return fed.draft(); });
            starve("ia_top_tokens", [&] { return fed.choose(); });
            CHECK(fed.text() == whole, "other bits behind failed calls");
        }
        uint64_t sum = 0, again = 0;
        CHECK(ia_checksum(x.handle, x.pool, &sum) == 0, "%s", ia_last_error());
        starve("ia_checksum", [&] { return ia_checksum(x.handle, x.pool, &again) == 0; });
        CHECK(sum == again, "another checksum");
        x.tensor.assign(size_t(50 * hidden), 0.5f);
        starve("ia_model_pack, a matrix", [&] { return x.pack("layers.0.q_proj.weight", hidden, hidden) == 0; });
        starve("ia_model_pack, a table", [&] { return x.pack("embed_tokens.weight", 50, hidden) == 0; });
        std::vector<float> out(size_t(20 * 256));
        starve("ia_linears",
               [&] { return ia_linears(x.handle, x.pool, 0, x.tensor.data(), 20, out.data(), 256) == 0; });
        starve("ia_read_bandwidth", [&] { return ia_read_bandwidth(&k, x.pool, 1 << 20, 1) > 0; });
        starve("ia_peak", [&] { return ia_peak(&k, x.pool, INT8, 10, 1) > 0; });
        const auto made = [](void* thing, void (*free)(void*)) {
            if (thing) free(thing);
            return thing != nullptr;
        };
        const std::vector<LayerSpec> layers = x.spec.layer_specs();
        starve("ia_blocks_new", [&] { return made(ia_blocks_new(x.handle, 20, INT8), ia_blocks_delete); });
        Sequence pair(x, 3, 5);
        const int32_t none = 0;
        starve("ia_blocks_copy", [&] { return ia_blocks_copy(pair.blocks, x.pool, 0, 0) == 0; });
        starve("ia_blocks_discard", [&] { return ia_blocks_discard(pair.blocks, &none, 1) == 0; });
        starve("ia_model_new",
               [&] { return made(ia_model_new(&k, &x.spec, layers.data(), nullptr, nullptr, 0), ia_model_delete); });
        starve("ia_pool_new", [&] { return made(ia_pool_new(threads, nullptr), ia_pool_delete); });
    }
    starve("a new model's first pass", [&] {
        // Only the pass starves; what it needs first is what it keeps.
        const long allocations = allocations_left.exchange(-1),
                   mappings = &mappings_left ? mappings_left.exchange(-1) : -1;
        Loaded fresh(k, 2);
        Sequence fed(fresh, 20, 5);
        allocations_left = allocations;
        if (&mappings_left) mappings_left = mappings;
        return fed.forward();
    });
}

// Threads that feed sequences of one model at once: each gets the bits it gets alone.
void test_callers(const KernelTable& k) {
    Loaded x(k, 2);
    constexpr int CALLERS = 4;
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Text> alone;
    for (int i = 0; i < CALLERS; i++) {
        // Of different lengths, so that buffers grow while others are in use.
        sequences.push_back(std::make_unique<Sequence>(x, 1 + 19 * i, uint32_t(i)));
        Loaded own(k, 2);
        alone.push_back(Sequence(own, 1 + 19 * i, uint32_t(i)).text());
    }
    std::atomic<int> right{0};
    std::vector<std::thread> callers;
    for (size_t i = 0; i < CALLERS; i++) {
        callers.emplace_back([&, i] {
            for (int j = 0; j < 5; j++) right += sequences[i]->text() == alone[i];
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(right == 5 * CALLERS, "%d of %d texts have the right bits", right.load(), 5 * CALLERS);
}

// A caller that flushes denormals gets the logits of one that does not, though all of them are denormal.
void test_denormals(const KernelTable& k) {
    std::vector<Text> texts;
    for (int threads = 1; threads <= 2; threads++) {
        for (const uint32_t control : {_mm_getcsr(), _mm_getcsr() | 0x8040}) {
            Loaded x(k, threads, 1e-39f, control);
            texts.push_back(Sequence(x, 20, 5).text());
        }
    }
    float most = 0;
    for (const float logit : texts[0].logits) most = std::max(most, std::abs(logit));
    CHECK(most > 0 && most < 1e-37f, "%g is not what this test is about", double(most));
    for (const Text& text : texts) CHECK(text == texts[0], "a caller's control changed the bits");
}

#ifdef FORKS_AMONG_THREADS

// A child of fork() goes on with the parent's model, whatever the parent's threads were doing with it.
void test_forks(const KernelTable& k) {
    Loaded x(k, 2);
    Sequence fed(x, 20, 5), other(x, 60, 6);
    const Text whole = fed.text();
    std::atomic<bool> stop{false};
    std::thread caller([&] {
        while (!stop) other.forward();
    });
    for (int i = 0; i < 12; i++) {
        std::fflush(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            std::_Exit(fed.text() == whole ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0, "child %d: status %x", i, unsigned(status));
        std::this_thread::sleep_for(std::chrono::microseconds(150 * i));
    }
    stop = true;
    caller.join();
    CHECK(fed.text() == whole, "the parent's bits changed");
}

#endif

void test_versions() {
    int32_t sizes[4] = {}, rows[3] = {};
    CHECK(ia_abi(sizes, rows) > 0, "no version");
    CHECK(sizes[0] == sizeof(ModelSpec) && sizes[1] == sizeof(LayerSpec) && sizes[2] == sizeof(Segment) &&
              sizes[3] == sizeof(Batch),
          "%d, %d, %d and %d bytes", sizes[0], sizes[1], sizes[2], sizes[3]);
    CHECK(rows[0] == DECODE_ROWS && rows[1] == PENDING_ROWS && rows[2] == BLOCK_POSITIONS, "%d, %d and %d rows",
          rows[0], rows[1], rows[2]);
}

// A handle keeps what it points to: the table of a model that is deleted, and the model of blocks.
void test_lifetimes(const KernelTable& k) {
    auto owner = std::make_unique<Loaded>(k, 2);
    Loaded x(k, 2);
    Text whole;
    {
        Sequence fed(x, 20, 5);
        whole = fed.text();
        CHECK(ia_model_share_table(x.handle, owner->handle) == 0, "%s", ia_last_error());
        CHECK(ia_model_share_table(owner->handle, x.handle) == -1, "each other's table");
        CHECK(ia_model_share_table(x.handle, x.handle) == -1, "its own table");
        owner.reset();
        CHECK(fed.text() == whole, "another model's table that was deleted");
    }
    void* blocks = ia_blocks_new(x.handle, 2, INT8);
    CHECK(blocks, "%s", ia_last_error());
    Loaded other(k, 2);
    x.forget_model();
    Sequence fed(other, 3, 5);
    std::swap(fed.blocks, blocks);
    CHECK(!fed.forward() && std::string(ia_last_error()).find("blocks of another model") != std::string::npos, "%s",
          ia_last_error());
    // A block's bytes are those that were written, whichever way they came; blocks that there are not are refused.
    std::vector<uint8_t> written(size_t(ia_block_bytes(other.handle, INT8))), read(written.size());
    for (size_t i = 0; i < written.size(); i++) written[i] = uint8_t(i * 7 + i / 251);
    CHECK(ia_blocks_write(fed.blocks, x.pool, 0, written.data()) == 0 &&
              ia_blocks_copy(fed.blocks, x.pool, 0, 1) == 0 && ia_blocks_read(fed.blocks, 1, read.data()) == 0 &&
              read == written,
          "a block of %zu bytes is read as another", written.size());
    CHECK(ia_blocks_read(fed.blocks, 2, read.data()) < 0 && ia_blocks_write(fed.blocks, x.pool, -1, read.data()) < 0,
          "a block is read that there is not");
    CHECK(ia_blocks_write(fed.blocks, x.pool, 0, nullptr) < 0, "a block is written without bytes");
    const int32_t both[] = {0, 1};
    CHECK(ia_blocks_copy(fed.blocks, x.pool, 0, 1) == 0 && ia_blocks_discard(fed.blocks, both, 2) == 0, "%s",
          ia_last_error());
    std::swap(fed.blocks, blocks);
    ia_blocks_delete(blocks);
}

// Bytes that an image does not have would be read from wherever that is.
void test_image(const KernelTable& k) {
    Loaded x(k, 2);
    const int64_t size = ia_model_bytes(x.handle);
    std::vector<uint8_t> buffer(100);
    const auto read = [&](int64_t offset, int64_t bytes) {
        return ia_model_image(x.handle, offset, bytes, buffer.data()) != nullptr;
    };
    CHECK(read(0, size) && read(size - 100, 100), "%s", ia_last_error());
    for (const auto& [offset, bytes] :
         std::vector<std::pair<int64_t, int64_t>>{{-1, 10}, {0, 0}, {size - 99, 100}, {size, 1}, {5, INT64_MAX}}) {
        CHECK(!read(offset, bytes) && std::string(ia_last_error()).find("of an image of") != std::string::npos,
              "%ld, %ld", long(offset), long(bytes));
    }
}

}  // namespace

void test_api(const KernelTable& k) {
    test_versions();
    test_lifetimes(k);
    test_image(k);
    test_callers(k);
    test_denormals(k);
#ifdef FORKS_AMONG_THREADS
    test_forks(k);
#endif
    test_memory(k);
}

}  // namespace check
