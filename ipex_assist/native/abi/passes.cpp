// The C interface: passes of a model, and what they took.
#include <algorithm>

#include "abi/handle.h"
#include "operations/check_batch.h"
#include "refuse.h"

using namespace ipex_assist;

IPEX_ASSIST_API const char* ia_last_error();

namespace {

// The batch with logits in memory of our own.
Batch with_logits(const BufferLease& lease, Batch batch) {
    const int64_t rows = std::clamp(batch.logit_row_count, 0, 1 << 24);
    batch.stride = lease.model().lm_head().panels * LANES;
    lease.buffers().logits.grow(size_t(rows * batch.stride) * 4);
    batch.logits = lease.buffers().logits.as<float>();
    return batch;
}

void count(Buffers& buffers, const Pass& done) {
    buffers.timing.linear += done.timing.linear;
    buffers.timing.attention += done.timing.attention;
    buffers.timing.total += done.timing.total;
    buffers.timing.scores += done.timing.scores;
    buffers.timing.choice += done.timing.choice;
    buffers.experts_read = done.experts_read;
}

}  // namespace

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

// `ia_sample` in a thread of its own: the caller goes on, and leaves what it gave as it is until `ia_end_sample`, which
// follows each of these.
IPEX_ASSIST_API int32_t ia_begin_sample(void* handle, void* pool, const Batch* batch, const RowChoice* choices,
                                        int32_t* tokens) {
    return guarded(-1, [&] {
        Handle& model = *static_cast<Handle*>(handle);
        model.background.start([=, &model] {
            static_cast<const Pool*>(pool)->bind_caller();  // its caller's CPU may be another one for good
            model.status = ia_sample(handle, pool, batch, choices, tokens);
            if (model.status < 0) model.status = guarded(-1, [&] { return model.message = ia_last_error(), -1; });
        });
        return 0;
    });
}

// Whether it would not have to wait.
IPEX_ASSIST_API int32_t ia_sample_is_done(void* handle) { return static_cast<Handle*>(handle)->background.done(); }

// Waits for the end; the result is that of `ia_sample`.
IPEX_ASSIST_API int32_t ia_end_sample(void* handle) {
    Handle& model = *static_cast<Handle*>(handle);
    model.background.wait();
    if (model.status < 0) remember(model.message.c_str());
    return model.status;
}

// Tokens after each segment: see DraftRequest. The batch's logits are not used.
IPEX_ASSIST_API int32_t ia_draft(void* handle, void* pool, const Batch* batch, const DraftRequest* request) {
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
        check_draft_choices(pass.model.spec, *request, own.segment_count, vocabulary_columns(pass));
        if (blocks) draft_blocks(pass, *request);
        else draft(pass, *request);
        count(lease.buffers(), pass);
        return 0;
    });
}

// One of the linears of every layer (qkv, output, up, down by number): see operations/single_linear.h.
IPEX_ASSIST_API int32_t ia_linears(void* handle, void* pool, int32_t role, const float* x, int64_t rows, float* out,
                                   int64_t stride) {
    return guarded(-1, [&] {
        const BufferLease lease(handle);
        LinearBuffers& buffers = lease.buffers().linears;
        return run_linears(lease.model(), *static_cast<Pool*>(pool), buffers, LinearRole(role), x, rows, out, stride),
               0;
    });
}

// Bytes of the weights that ia_linears reads, which are only read here; negative where it fails.
IPEX_ASSIST_API int64_t ia_read_linears(void* handle, void* pool, int32_t role, int64_t ahead) {
    return guarded<int64_t>(-1, [&] {
        const BufferLease lease(handle);
        return read_linears(lease.model(), *static_cast<Pool*>(pool), LinearRole(role), ahead);
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

// What passes so far found of experts that are read as they are needed (ExpertReads): five numbers, 0 where all are in
// memory.
IPEX_ASSIST_API void ia_expert_reads(void* handle, int64_t* counts) {
    ExpertCache* cache = model_of(handle).expert_cache.get();
    const ExpertReads reads = cache ? cache->reads() : ExpertReads{};
    counts[0] = reads.wanted, counts[1] = reads.found, counts[2] = reads.ahead;
    counts[3] = reads.read_bytes, counts[4] = reads.waited_nanoseconds;
}

// Cycles of linears, of attention, of all passes, and of the scores and the choice of indexers since the last call.
IPEX_ASSIST_API void ia_timing(void* handle, uint64_t* cycles) {
    const BufferLease lease(handle);
    Timing& timing = lease.buffers().timing;
    cycles[0] = timing.linear;
    cycles[1] = timing.attention;
    cycles[2] = timing.total;
    cycles[3] = timing.scores, cycles[4] = timing.choice;
    timing = {};
}
