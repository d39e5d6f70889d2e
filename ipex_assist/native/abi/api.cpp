// The C interface, used through ctypes (ipex_assist/native/library.py). No exception crosses it. Here: models and what
// belongs to them. passes.cpp has passes, threads.cpp pools, measure.cpp what is measured.
#include "abi/handle.h"
#include "kernels/dispatch.h"
#include "operations/workspace.h"
#include "packing/adapter.h"
#include "refuse.h"

namespace ipex_assist {

thread_local char last_error[1024];  // not a string: there may be no memory for one

void remember(const char* message) { std::snprintf(last_error, sizeof last_error, "%s", message); }

}  // namespace ipex_assist

using namespace ipex_assist;

// What these sources declare for Python (build.py: interface_number), in `sizes` the bytes of ModelSpec, LayerSpec, Segment and Batch, and in `rows` the
// numbers of rows that Python knows as well (native/rows.py): Python compares them before it calls anything else.
IPEX_ASSIST_API int32_t ia_abi(int32_t* sizes, int32_t* rows) {
    sizes[0] = int32_t(sizeof(ModelSpec));
    sizes[1] = int32_t(sizeof(LayerSpec));
    sizes[2] = int32_t(sizeof(Segment));
    sizes[3] = int32_t(sizeof(Batch));
    rows[0] = DECODE_ROWS, rows[1] = PENDING_ROWS, rows[2] = BLOCK_POSITIONS;
    return IPEX_ASSIST_INTERFACE;
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

// Of a model's image.
IPEX_ASSIST_API int32_t ia_checksum(void* handle, void* pool, uint64_t* sum) {
    return guarded(-1, [&] { return *sum = model_of(handle).checksum(*static_cast<Pool*>(pool)), 0; });
}

// See PackedModel: layers (spec->layers). names, formats: (count) of linears and tables that have a format of their own.
// most_bytes: of weights in memory, 0: all of them.
IPEX_ASSIST_API void* ia_model_new(const void* kernels, const ModelSpec* spec, const LayerSpec* layers,
                                   const char* const* names, const int32_t* formats, int64_t count,
                                   int64_t most_bytes) {
    return guarded<void*>(nullptr, [&] {
        WeightFormats named;
        for (int64_t i = 0; i < count; i++) {
            if (!is_precision(formats[i])) refuse("there is no format %d, of %s", formats[i], names[i]);
            named[names[i]] = Precision(formats[i]);
        }
        const auto* table = static_cast<const KernelTable*>(kernels);
        return new Handle{std::make_shared<PackedModel>(*spec, layers, table, std::move(named), most_bytes)};
    });
}

IPEX_ASSIST_API void ia_model_delete(void* handle) { delete static_cast<Handle*>(handle); }
IPEX_ASSIST_API int64_t ia_model_bytes(void* handle) { return model_of(handle).image_bytes(); }
// Bytes of its weights in memory: more, or fewer where experts are read as they are needed.
IPEX_ASSIST_API int64_t ia_model_resident_bytes(void* handle) { return resident_bytes(model_of(handle)); }

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

// Whether the system refuses to put its memory on the nodes of the pool: then pages lie where they are written first.
IPEX_ASSIST_API int32_t ia_nodes_refused(void* handle) { return model_of(handle).nodes_refused; }

// Small pages of its memory joined: 1 where none is left.
IPEX_ASSIST_API int32_t ia_model_join_pages(void* handle, double seconds) {
    return guarded(-1, [&] { return join_pages(model_of(handle), seconds) ? 1 : 0; });
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

// A matrix that is quantized already, see PackedModel::pack_stored; zeros: null where it has none. Likewise 0, 1, 2 or
// -1.
IPEX_ASSIST_API int32_t ia_model_pack_stored(void* handle, void* pool, const char* name, const uint8_t* values,
                                             const float* scales, const uint8_t* zeros, int64_t groups, int64_t columns,
                                             int64_t width) {
    return guarded_numbers(2, [&] {
        const StoredNumbers matrix{values, scales, zeros, groups, columns, width};
        return model_of(handle).pack_stored(*static_cast<Pool*>(pool), name, matrix) ? 0 : 1;
    });
}

// The format (Precision) of a weight that is part of a linear; -2: it is none.
IPEX_ASSIST_API int32_t ia_model_format(void* handle, const char* name) {
    return guarded(-1, [&]() -> int32_t {
        const Weight weight = model_of(handle).find(name);
        return weight.is_matrix() && weight.part.linear ? panel_format(*weight.part.linear, weight.part.first) : -2;
    });
}

// A matrix of blocks in an open file or in memory, see BlockMatrix. Likewise 0, 1, 2 (a scale is no number) or -1.
IPEX_ASSIST_API int32_t ia_model_pack_blocks(void* handle, void* pool, const char* name, int32_t file,
                                             const int64_t* offsets, int64_t rows, int64_t columns,
                                             const float* row_scales) {
    return guarded_numbers(2, [&] {
        const BlockMatrix matrix{file, offsets, rows, columns, row_scales};
        return model_of(handle).pack_blocks(*static_cast<Pool*>(pool), name, matrix) ? 0 : 1;
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

// Bytes of a sequence's state, in all layers of this model, with keys and values in this precision; 0 where it has none.
IPEX_ASSIST_API int64_t ia_state_bytes(void* handle, int32_t precision) {
    return guarded<int64_t>(-1, [&] { return States::bytes_each(model_of(handle), Precision(precision)); });
}

// A pool of `count` states, whose memory is taken when it is written.
IPEX_ASSIST_API void* ia_states_new(void* handle, int64_t count, int32_t precision) {
    return guarded<void*>(nullptr,
                          [&] { return new States(static_cast<Handle*>(handle)->model, count, Precision(precision)); });
}

IPEX_ASSIST_API void ia_states_delete(void* states) { delete static_cast<States*>(states); }

IPEX_ASSIST_API int32_t ia_states_copy(void* states, void* pool, int32_t from, int32_t to) {
    return guarded(-1, [&] { return static_cast<States*>(states)->copy(*static_cast<Pool*>(pool), from, to), 0; });
}

// The bytes of a state, ia_state_bytes of them, as ia_states_write takes them; no pass may write to it meanwhile.
IPEX_ASSIST_API int32_t ia_states_read(void* states, int32_t state, void* bytes) {
    return guarded(-1, [&] { return static_cast<States*>(states)->read(state, static_cast<uint8_t*>(bytes)), 0; });
}

IPEX_ASSIST_API int32_t ia_states_write(void* states, void* pool, int32_t state, const void* bytes) {
    return guarded(-1, [&] {
        return static_cast<States*>(states)->write(*static_cast<Pool*>(pool), state,
                                                   static_cast<const uint8_t*>(bytes)),
               0;
    });
}

// Gives the memory of states back that no sequence has.
IPEX_ASSIST_API int32_t ia_states_discard(void* states, const int32_t* numbers, int64_t count) {
    return guarded(-1, [&] { return static_cast<States*>(states)->discard(numbers, count), 0; });
}

// Gives the memory of blocks back that no sequence has.
IPEX_ASSIST_API int32_t ia_blocks_discard(void* blocks, const int32_t* ids, int64_t number) {
    return guarded(-1, [&] { return static_cast<Blocks*>(blocks)->discard(ids, number), 0; });
}
