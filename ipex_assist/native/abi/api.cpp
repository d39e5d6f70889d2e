// The C interface, used through ctypes (ipex_assist/native/library.py). No exception crosses it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "operations/check_batch.h"
#include "kernels/dispatch.h"
#include "memory/numa_nodes.h"
#include "operations/operations.h"
#include "operations/shares.h"
#include "operations/single_linear.h"
#include "operations/workspace.h"
#include "packing/adapter.h"
#include "refuse.h"
#include "threads/lease.h"

using namespace ipex_assist;

namespace {

thread_local char last_error[1024];  // not a string: there may be no memory for one

void remember(const char* message) { std::snprintf(last_error, sizeof last_error, "%s", message); }

// What passes of one model share beside its weights.
struct Buffers {
    Activations activations;
    LinearBuffers linears;
    Memory logits;  // where the caller asks for tokens only
    Timing timing;
    int64_t experts_read = 0;  // by the last call
};

// The model itself is shared with what needs it for longer than this handle: blocks of its keys and values, and models
// that look tokens up in its table.
struct Handle {
    std::shared_ptr<PackedModel> model;
    Program program{*model};
    Leased<Buffers> buffers{};
};

// A model and its buffers, which one thread at a time uses.
class BufferLease {
public:
    explicit BufferLease(void* handle)
        : handle_(*static_cast<const Handle*>(handle)),
          lease_(static_cast<Handle*>(handle)->buffers) {}

    const PackedModel& model() const { return *handle_.model; }
    const Program& program() const { return handle_.program; }
    Buffers& buffers() const { return *lease_; }

private:
    const Handle& handle_;
    const Lease<Buffers> lease_;
};

PackedModel& model_of(void* handle) { return *static_cast<Handle*>(handle)->model; }

// Runs f; where it throws, keeps the message and returns `failed`.
template <class T, class F>
T guarded(T failed, F&& f) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        remember("out of memory");
    } catch (const std::exception& error) {
        remember(error.what());
    } catch (...) {
        remember("an exception that is none of ours");
    }
    return failed;
}

// Likewise, with a status of its own for NaN and infinity.
template <class F>
int32_t guarded_numbers(int32_t not_finite, F&& f) {
    return guarded(-1, [&]() -> int32_t {
        try {
            return f();
        } catch (const NotFinite& error) {
            remember(error.what());
            return not_finite;
        }
    });
}

// The best of `repeats` speeds: how much f(repeat) has done, which it returns, ÷ the seconds that it took.
template <class F>
double best_speed(int32_t repeats, F&& f) {
    double best = 0;
    for (int32_t i = 0; i < repeats; i++) {
        const auto started = std::chrono::steady_clock::now();
        const int64_t done = f(i);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
        best = std::max(best, double(done) / seconds.count());
    }
    return best;
}

// The batch with logits in memory of our own.
Batch with_logits(const BufferLease& lease, Batch batch) {
    const int64_t rows = std::clamp(batch.logit_row_count, 0, 1 << 24);
    batch.stride = lease.model().lm_head().blocks * LANES;
    lease.buffers().logits.grow(size_t(rows * batch.stride) * 4);
    batch.logits = lease.buffers().logits.as<float>();
    return batch;
}

void count(Buffers& buffers, const Pass& done) {
    buffers.timing.linear += done.timing.linear;
    buffers.timing.attention += done.timing.attention;
    buffers.timing.total += done.timing.total;
    buffers.experts_read = done.experts_read;
}

}  // namespace

#define IPEX_ASSIST_API extern "C" __attribute__((visibility("default")))

// The version of this interface, in `sizes` the bytes of ModelSpec, LayerSpec, Segment and Batch, and in `rows` the
// numbers of rows that Python knows as well (native/rows.py): Python compares them before it calls anything else.
// ABI_VERSION in structures.py is the same number; both change with any function or structure here.
IPEX_ASSIST_API int32_t ia_abi(int32_t* sizes, int32_t* rows) {
    sizes[0] = int32_t(sizeof(ModelSpec));
    sizes[1] = int32_t(sizeof(LayerSpec));
    sizes[2] = int32_t(sizeof(Segment));
    sizes[3] = int32_t(sizeof(Batch));
    rows[0] = DECODE_ROWS, rows[1] = PENDING_ROWS, rows[2] = BLOCK_POSITIONS;
    return 28;
}

IPEX_ASSIST_API const char* ia_last_error() { return last_error; }

// The best kernels for this processor, or null. ia_last_error() says why there are none, or none better where one could
// expect them; else it is empty.
IPEX_ASSIST_API const void* ia_kernels(const char* limit) {
    return guarded<const void*>(nullptr, [&] {
        std::string remark;
        const KernelTable* kernels = choose_kernels(limit, remark);
        remember(remark.c_str());
        return kernels;
    });
}

IPEX_ASSIST_API const char* ia_kernels_name(const void* kernels) {
    return static_cast<const KernelTable*>(kernels)->name;
}

// Threads are put on the CPUs of one memory node after those of another, in whatever order the CPUs come.
IPEX_ASSIST_API void* ia_pool_new(int32_t threads, const int32_t* cpus) {
    return guarded<void*>(nullptr, [&] {
        if (!cpus) return new Pool(threads, nullptr);
        std::vector<int32_t> grouped(cpus, cpus + threads);
        std::vector<int32_t> nodes = group_by_node(grouped);
        return new Pool(threads, grouped.data(), std::move(nodes));
    });
}

IPEX_ASSIST_API void ia_pool_delete(void* pool) { delete static_cast<Pool*>(pool); }

// How many of a pool's threads are on the first one's memory node.
IPEX_ASSIST_API int32_t ia_pool_first_node(void* pool) { return static_cast<Pool*>(pool)->first_thread(1); }

// Puts CPUs in the order in which a pool's threads have them, and gives the memory node of each, from 0 on. folder:
// where the system describes its nodes. Returns how many nodes these CPUs are on; 1 where nobody knows.
IPEX_ASSIST_API int32_t ia_group_by_node(int32_t* cpus, int32_t count, const char* folder, int32_t* nodes) {
    return guarded(-1, [&] {
        std::vector<int32_t> grouped(cpus, cpus + count);
        const std::vector<int32_t> found = group_by_node(grouped, folder);
        std::copy(grouped.begin(), grouped.end(), cpus);
        if (found.empty()) std::fill_n(nodes, count, 0);
        else std::copy(found.begin(), found.end(), nodes);
        return found.empty() ? 1 : found.back() + 1;
    });
}

// What each thread of a pass on paper gets (operations/shares.h). nodes: the memory node of each, ascending from 0 on.
IPEX_ASSIST_API int32_t ia_shares_of_linear(int64_t blocks, int64_t unit, int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        const std::vector<int64_t> shares = shares_of_linear(blocks, unit, threads);
        std::copy(shares.begin(), shares.end(), out);
        return 0;
    });
}

IPEX_ASSIST_API int32_t ia_shares_of_experts(int64_t blocks, int64_t unit, int32_t experts, const int32_t* nodes,
                                             int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        const std::vector<int64_t> shares =
            shares_of_experts(blocks, unit, experts, TeamNodes(threads, {nodes, nodes + threads}));
        std::copy(shares.begin(), shares.end(), out);
        return 0;
    });
}

// Returns whether partials are merged without a barrier.
IPEX_ASSIST_API int32_t ia_shares_of_attention(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window,
                                               int32_t position, const int32_t* nodes, int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        const AttentionShares shares = shares_of_attention(heads, kv_heads, head_dim, window, position,
                                                           TeamNodes(threads, {nodes, nodes + threads}));
        std::copy(shares.units.begin(), shares.units.end(), out);
        return int32_t(shares.merges_in_place);
    });
}

// Runs, barriers, and what all threads waited and parked at them, since the pool was made.
IPEX_ASSIST_API int32_t ia_pool_statistics(void* pool, uint64_t* out) {
    return guarded(-1, [&] {
        const PoolStatistics found = static_cast<Pool*>(pool)->statistics();
        out[0] = found.runs, out[1] = found.barriers, out[2] = found.waits, out[3] = found.parks;
        return 0;
    });
}

// Seconds that `count` barriers take with nothing between them.
IPEX_ASSIST_API double ia_barrier_seconds(void* pool_handle, int64_t count) {
    return guarded(-1.0, [&] {
        Pool& pool = *static_cast<Pool*>(pool_handle);
        double seconds = 0;
        pool.run([&](int thread) {
            pool.wait(thread);  // the threads start at different times
            const auto started = std::chrono::steady_clock::now();
            for (int64_t i = 0; i < count; i++) pool.wait(thread);
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
            if (thread == 0) seconds = passed.count();
        });
        return seconds;
    });
}

// Of a model's image.
IPEX_ASSIST_API int32_t ia_checksum(void* handle, void* pool, uint64_t* sum) {
    return guarded(-1, [&] { return *sum = model_of(handle).checksum(*static_cast<Pool*>(pool)), 0; });
}

// See PackedModel: layers (spec->layers).
IPEX_ASSIST_API void* ia_model_new(const void* kernels, const ModelSpec* spec, const LayerSpec* layers) {
    return guarded<void*>(nullptr, [&] {
        return new Handle{std::make_shared<PackedModel>(*spec, layers, static_cast<const KernelTable*>(kernels))};
    });
}

IPEX_ASSIST_API void ia_model_delete(void* handle) { delete static_cast<Handle*>(handle); }
IPEX_ASSIST_API int64_t ia_model_bytes(void* handle) { return model_of(handle).image_bytes(); }

// Bytes of the buffers that passes of this model take at most (LargestPass), by so many threads on as many nodes.
IPEX_ASSIST_API int64_t ia_workspace_bytes(void* handle, int32_t rows, int32_t logit_rows, int32_t context,
                                           int32_t threads, int32_t nodes) {
    return guarded<int64_t>(-1, [&] {
        if (rows < 1 || logit_rows < 0 || context < 1 || nodes < 1 || threads < nodes)
            refuse("passes of %d rows up to position %d by %d threads on %d nodes", rows, context, threads, nodes);
        std::vector<int32_t> node_of_thread;
        for (int32_t i = 0; i < threads; i++) node_of_thread.push_back(i * nodes / threads);
        const TeamNodes team(threads, node_of_thread);
        return workspace_bytes(static_cast<const Handle*>(handle)->program, {rows, logit_rows, context}, team);
    });
}

// See PackedModel::image; null where there is none, or less of it.
IPEX_ASSIST_API const void* ia_model_image(void* handle, int64_t offset, int64_t bytes, void* buffer) {
    return guarded<const void*>(nullptr, [&] {
        const PackedModel& model = model_of(handle);
        if (!model.has_memory() || offset < 0 || bytes < 1 || bytes > model.image_bytes() - offset) {
            refuse("%lld bytes from %lld on of an image of %lld", (long long)bytes, (long long)offset,
                   (long long)model.image_bytes());
        }
        return model.image(offset, bytes, static_cast<uint8_t*>(buffer));
    });
}

IPEX_ASSIST_API int32_t ia_model_allocate(void* handle, void* pool) {
    return guarded(-1, [&] { return model_of(handle).allocate(*static_cast<Pool*>(pool)), 0; });
}

// how: 0 maps, 1 copies, 2 maps what ia_model_settle is to copy, where that makes sense. 0 done, 1 it is to settle,
// -1 failed.
IPEX_ASSIST_API int32_t ia_model_adopt(void* handle, void* pool, int32_t file, int64_t offset, int32_t how) {
    return guarded(-1, [&] {
        PackedModel& model = model_of(handle);
        return model.adopt(*static_cast<Pool*>(pool), file, offset, PackedModel::Adoption(how)) ? 0 : 1;
    });
}

// 0 all is there, 1 there is more, -1 failed: what is mapped stays so.
IPEX_ASSIST_API int32_t ia_model_settle(void* handle, void* pool, int64_t bytes) {
    return guarded(-1, [&] { return model_of(handle).settle(*static_cast<Pool*>(pool), bytes) ? 0 : 1; });
}

// 0 done, 1 where the tables differ in shape.
IPEX_ASSIST_API int32_t ia_model_share_table(void* handle, const void* other) {
    return guarded(-1, [&] { return model_of(handle).share_table(static_cast<const Handle*>(other)->model) ? 0 : 1; });
}

// Likewise where the heads differ.
IPEX_ASSIST_API int32_t ia_model_share_head(void* handle, const void* other) {
    return guarded(-1, [&] { return model_of(handle).share_head(static_cast<const Handle*>(other)->model) ? 0 : 1; });
}

// 0 done, 1 no such weight in this model, or another shape, 2 it holds NaN or infinity (ia_last_error says where),
// -1 failed.
IPEX_ASSIST_API int32_t ia_model_pack(void* handle, void* pool, const char* name, int32_t type, const void* data,
                                      int64_t rows, int64_t columns) {
    return guarded_numbers(2, [&] {
        const StoredMatrix matrix{SourceType(type), data, rows, columns};
        return model_of(handle).pack(*static_cast<Pool*>(pool), name, matrix) ? 0 : 1;
    });
}

// Likewise rows [first, first + rows) of a matrix, see PackedModel::pack_rows.
IPEX_ASSIST_API int32_t ia_model_pack_rows(void* handle, void* pool, const char* name, int32_t type, const void* data,
                                           int64_t first, int64_t rows, int64_t columns) {
    return guarded_numbers(2, [&] {
        const StoredMatrix matrix{SourceType(type), data, rows, columns};
        return model_of(handle).pack_rows(*static_cast<Pool*>(pool), name, first, matrix) ? 0 : 1;
    });
}

// Likewise a weight that lies in an open file, from byte `offset` on: every thread reads what it packs.
IPEX_ASSIST_API int32_t ia_model_pack_file(void* handle, void* pool, const char* name, int32_t type, int32_t file,
                                           int64_t offset, int64_t rows, int64_t columns) {
    return guarded_numbers(2, [&] {
        const StoredMatrix matrix{SourceType(type), nullptr, rows, columns, file, offset};
        return model_of(handle).pack(*static_cast<Pool*>(pool), name, matrix) ? 0 : 1;
    });
}

// Weights that are quantized already, see PackedModel::pack_int4. Likewise 0, 1, 2 or -1.
IPEX_ASSIST_API int32_t ia_model_pack_int4(void* handle, void* pool, const char* name, const uint8_t* values,
                                           const float* scales, const uint8_t* zeros, int64_t columns, int64_t width) {
    return guarded_numbers(2, [&] {
        PackedModel& model = model_of(handle);
        Pool& threads = *static_cast<Pool*>(pool);
        return model.pack_int4(threads, name, values, scales, zeros, columns, width) ? 0 : 1;
    });
}

// Weights that are stored in 8 bits, see PackedModel::pack_bytes. Likewise 0, 1, 2 or -1.
IPEX_ASSIST_API int32_t ia_model_pack_bytes(void* handle, void* pool, const char* name, const uint8_t* values,
                                            const float* scales, int64_t groups, int64_t columns, int64_t width) {
    return guarded_numbers(2, [&] {
        PackedModel& model = model_of(handle);
        Pool& threads = *static_cast<Pool*>(pool);
        return model.pack_bytes(threads, name, values, scales, groups, columns, width) ? 0 : 1;
    });
}

// The order of a linear's input columns, see PackedModel::set_order. Likewise 0, 1 or -1.
IPEX_ASSIST_API int32_t ia_model_set_order(void* handle, const char* name, const int32_t* order, int64_t width) {
    return guarded(-1, [&] { return model_of(handle).set_order(name, order, width) ? 0 : 1; });
}

// An adapter of a model, without parts. It keeps the model's weights as long as it lives.
IPEX_ASSIST_API void* ia_adapter_new(void* handle) {
    return guarded<void*>(nullptr, [&] { return new Adapter(static_cast<Handle*>(handle)->model); });
}

IPEX_ASSIST_API void ia_adapter_delete(void* adapter) { delete static_cast<Adapter*>(adapter); }
IPEX_ASSIST_API int64_t ia_adapter_bytes(void* adapter) { return static_cast<Adapter*>(adapter)->bytes(); }

// See Adapter::pack: a (rank, width), b (columns, rank). 0 done, 1 no such weight, or another shape, -1 failed.
IPEX_ASSIST_API int32_t ia_adapter_pack(void* adapter, void* pool, const char* name, const float* a, const float* b,
                                        int64_t rank, int64_t columns, int64_t width, float scale) {
    return guarded(-1, [&] {
        const Adapter::Matrices matrices{a, b, rank, columns, width, scale};
        return static_cast<Adapter*>(adapter)->pack(*static_cast<Pool*>(pool), name, matrices) ? 0 : 1;
    });
}

// Bytes of a block of keys and values of this model in a precision that Blocks takes; -1 for another.
IPEX_ASSIST_API int64_t ia_block_bytes(void* handle, int32_t precision) {
    return guarded<int64_t>(-1, [&] { return Blocks::bytes_each(model_of(handle), Precision(precision)); });
}

// A pool of `count` blocks, whose memory is taken when it is written.
IPEX_ASSIST_API void* ia_blocks_new(void* handle, int64_t count, int32_t precision) {
    return guarded<void*>(nullptr,
                          [&] { return new Blocks(static_cast<Handle*>(handle)->model, count, Precision(precision)); });
}

IPEX_ASSIST_API void ia_blocks_delete(void* blocks) { delete static_cast<Blocks*>(blocks); }

IPEX_ASSIST_API int32_t ia_blocks_copy(void* blocks, void* pool, int32_t from, int32_t to) {
    return guarded(-1, [&] { return static_cast<Blocks*>(blocks)->copy(*static_cast<Pool*>(pool), from, to), 0; });
}

// The bytes of a block, ia_block_bytes of them, as ia_blocks_write takes them; no pass may write to it meanwhile.
IPEX_ASSIST_API int32_t ia_blocks_read(void* blocks, int32_t id, void* bytes) {
    return guarded(-1, [&] { return static_cast<Blocks*>(blocks)->read(id, static_cast<uint8_t*>(bytes)), 0; });
}

IPEX_ASSIST_API int32_t ia_blocks_write(void* blocks, void* pool, int32_t id, const void* bytes) {
    return guarded(-1, [&] {
        return static_cast<Blocks*>(blocks)->write(*static_cast<Pool*>(pool), id, static_cast<const uint8_t*>(bytes)),
               0;
    });
}

// Bytes of a slot of the states of this model's recurrent layers; 0 where it has none.
IPEX_ASSIST_API int64_t ia_state_bytes(void* handle) {
    return guarded<int64_t>(-1, [&] { return States::bytes_each(model_of(handle)); });
}

// A pool of `count` slots, whose memory is taken when it is written.
IPEX_ASSIST_API void* ia_states_new(void* handle, int64_t count) {
    return guarded<void*>(nullptr, [&] { return new States(static_cast<Handle*>(handle)->model, count); });
}

IPEX_ASSIST_API void ia_states_delete(void* states) { delete static_cast<States*>(states); }

IPEX_ASSIST_API int32_t ia_states_copy(void* states, void* pool, int32_t from, int32_t to) {
    return guarded(-1, [&] { return static_cast<States*>(states)->copy(*static_cast<Pool*>(pool), from, to), 0; });
}

// The bytes of a slot, ia_state_bytes of them, as ia_states_write takes them; no pass may write to it meanwhile.
IPEX_ASSIST_API int32_t ia_states_read(void* states, int32_t slot, void* bytes) {
    return guarded(-1, [&] { return static_cast<States*>(states)->read(slot, static_cast<uint8_t*>(bytes)), 0; });
}

IPEX_ASSIST_API int32_t ia_states_write(void* states, void* pool, int32_t slot, const void* bytes) {
    return guarded(-1, [&] {
        return static_cast<States*>(states)->write(*static_cast<Pool*>(pool), slot, static_cast<const uint8_t*>(bytes)),
               0;
    });
}

// Gives the memory of slots back that no sequence has.
IPEX_ASSIST_API int32_t ia_states_discard(void* states, const int32_t* slots, int64_t number) {
    return guarded(-1, [&] { return static_cast<States*>(states)->discard(slots, number), 0; });
}

// Gives the memory of blocks back that no sequence has.
IPEX_ASSIST_API int32_t ia_blocks_discard(void* blocks, const int32_t* ids, int64_t number) {
    return guarded(-1, [&] { return static_cast<Blocks*>(blocks)->discard(ids, number), 0; });
}

IPEX_ASSIST_API int32_t ia_forward(void* handle, void* pool, const Batch* batch) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        Pass pass(lease.program(), *static_cast<Pool*>(pool), lease.buffers().activations, *batch);
        forward(pass);
        count(lease.buffers(), pass);
        return 0;
    });
}

// The most likely tokens after the rows with logits: see TopTokens. The batch's logits are not used.
IPEX_ASSIST_API int32_t ia_top_tokens(void* handle, void* pool, const Batch* batch, const TopTokens* found) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        const Batch own = with_logits(lease, *batch);
        const int32_t columns = own.vocabulary > 0 ? own.vocabulary : lease.model().spec.lm_head_rows();
        if (found->top < 0 || found->top > columns) refuse("the most likely %d of %d tokens", found->top, columns);
        Pass pass(lease.program(), *static_cast<Pool*>(pool), lease.buffers().activations, own);
        top_tokens(pass, *found);
        count(lease.buffers(), pass);
        return 0;
    });
}

// A token for each row with logits: see RowChoice. The batch's logits are not used.
IPEX_ASSIST_API int32_t ia_sample(void* handle, void* pool, const Batch* batch, const RowChoice* choices,
                                  int32_t* tokens) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        const Batch own = with_logits(lease, *batch);
        Pass pass(lease.program(), *static_cast<Pool*>(pool), lease.buffers().activations, own);
        check_choices(choices, own.logit_row_count, vocabulary_columns(pass));
        sample(pass, choices, tokens);
        count(lease.buffers(), pass);
        return 0;
    });
}

// Greedy tokens after each segment: see GreedyDraft. The batch's logits are not used.
IPEX_ASSIST_API int32_t ia_draft(void* handle, void* pool, const Batch* batch, const GreedyDraft* request) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        const Batch own = with_logits(lease, *batch);
        const bool blocks = lease.model().spec.draft_head.kind == DFLASH;
        Pass pass(lease.program(), *static_cast<Pool*>(pool), lease.buffers().activations, own,
                  blocks ? nullptr : request->counts);
        if (blocks) check_draft_blocks(own, request->counts);
        for (int32_t i = 0; i < own.segment_count; i++) {
            if (request->counts[i] > request->stride) {
                refuse("%d drafted tokens where there is room for %lld", request->counts[i],
                       (long long)request->stride);
            }
        }
        check_target_tokens(pass.model.spec, request->target_tokens);
        if (blocks) draft_blocks(pass, *request);
        else draft(pass, *request);
        count(lease.buffers(), pass);
        return 0;
    });
}

// One of the linears of every layer (qkv, output, up, down by number): see operations/single_linear.h.
IPEX_ASSIST_API int32_t ia_linears(void* handle, void* pool, int32_t which, const float* x, int64_t rows, float* out,
                                   int64_t stride) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        LinearBuffers& buffers = lease.buffers().linears;
        return run_linears(lease.model(), *static_cast<Pool*>(pool), buffers, Which(which), x, rows, out, stride), 0;
    });
}

// Seconds in which this thread adds a row to another, takes its RMS norm and quantizes it for int4 weights, `count`
// times; negative where it fails.
IPEX_ASSIST_API double ia_row_seconds(const void* kernels, int64_t values, int64_t count) {
    return guarded(-1.0, [&] {
        const KernelTable& k = *static_cast<const KernelTable*>(kernels);
        if (values < SCALE_COLUMNS || values % SCALE_COLUMNS) refuse("a row of %lld values", (long long)values);
        const size_t size = size_t(values);
        std::vector<float> x(size, 1.0f), delta(size, 1e-6f), norm(size), scales(size / SCALE_COLUMNS);
        std::vector<uint8_t> bytes(size);
        std::vector<int32_t> sums(size / 32);
        const LinearRows to{bytes.data(), scales.data(), sums.data(), values};
        const auto started = std::chrono::steady_clock::now();
        for (int64_t i = 0; i < count; i++) {
            k.add(x.data(), delta.data(), values);
            k.normalize(true, x.data(), delta.data(), nullptr, 1e-6f, values, norm.data());
            k.quantize(INT4, 64, norm.data(), values, 0, values, 0, to);
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    });
}

// Bytes a second at which all threads together read `size` bytes of memory they wrote before; the best of `repeats`.
IPEX_ASSIST_API double ia_read_bandwidth(const void* kernels, void* pool_handle, int64_t size, int32_t repeats) {
    return guarded(-1.0, [&] {
        Pool& pool = *static_cast<Pool*>(pool_handle);
        const int64_t part = size / pool.threads() / 4096 * 4096;
        const Memory memory(size_t(part * pool.threads()));
        std::vector<uint64_t> sums(size_t(pool.threads()));
        pool.run([&](int thread) { std::memset(memory.data() + part * thread, thread + 1, size_t(part)); });
        return best_speed(repeats, [&](int32_t i) {
            pool.run([&](int thread) {
                const int64_t ahead = i % 2 ? 4096 : 0;  // which is faster differs between processors
                sums[size_t(thread)] =
                    static_cast<const KernelTable*>(kernels)->read(memory.data() + part * thread, part, ahead);
            });
            return part * pool.threads();
        });
    });
}

// Products a second that all threads together can add up in a precision, with nothing to read; the best of `repeats`.
IPEX_ASSIST_API double ia_peak(const void* kernels, void* pool_handle, int32_t precision, int64_t steps,
                               int32_t repeats) {
    return guarded(-1.0, [&] {
        Pool& pool = *static_cast<Pool*>(pool_handle);
        std::vector<int64_t> products(size_t(pool.threads()));
        return best_speed(repeats, [&](int32_t) {
            pool.run([&](int thread) {
                products[size_t(thread)] =
                    static_cast<const KernelTable*>(kernels)->multiply(Precision(precision), steps);
            });
            return std::accumulate(products.begin(), products.end(), int64_t(0));
        });
    });
}

// Who is called after each operation of this model's passes from now on; null: nobody.
IPEX_ASSIST_API void ia_watch(void* handle, const OperationWatch* watch) {
    const BufferLease lease(handle);  // no pass runs meanwhile
    static_cast<Handle*>(handle)->program.watch = watch ? *watch : OperationWatch{};
}

// How many experts the passes of the last call read, those of all layers together, each once a pass; shared ones do not
// count.
IPEX_ASSIST_API int64_t ia_experts_read(void* handle) {
    const BufferLease lease(handle);
    return lease.buffers().experts_read;
}

// Cycles of linears, of attention, and of all passes since the last call.
IPEX_ASSIST_API void ia_timing(void* handle, uint64_t* cycles) {
    const BufferLease lease(handle);
    Timing& timing = lease.buffers().timing;
    cycles[0] = timing.linear;
    cycles[1] = timing.attention;
    cycles[2] = timing.total;
    timing = {};
}
