// The C interface: pools of threads, and what each of them gets.
#include <algorithm>
#include <chrono>

#include "abi/handle.h"
#include "memory/numa_nodes.h"
#include "operations/shares.h"

using namespace ipex_assist;

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

// Of attention of `texts` texts with `rows` rows each: out has TextEnds' three times. Returns whether blocks are shared.
IPEX_ASSIST_API int32_t ia_shares_of_texts(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t position,
                                           int32_t rows, int32_t texts, const int32_t* nodes, int32_t threads,
                                           int64_t* out) {
    return guarded(-1, [&] {
        const TextEnds found = shares_of_texts(heads, kv_heads, head_dim, position, rows, texts,
                                               TeamNodes(threads, {nodes, nodes + threads}));
        out[0] = found.even, out[1] = found.tiles, out[2] = found.chosen;
        return int32_t(found.splits_kv);
    });
}

// What each thread of a pass on paper gets (operations/shares.h). nodes: the memory node of each, ascending from 0 on.
IPEX_ASSIST_API int32_t ia_shares_of_linear(int64_t panels, int64_t granularity, int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        const std::vector<int64_t> shares = shares_of_linear(panels, granularity, threads);
        std::copy(shares.begin(), shares.end(), out);
        return 0;
    });
}

IPEX_ASSIST_API int32_t ia_shares_of_experts(int64_t panels, int64_t granularity, int32_t experts, const int32_t* nodes,
                                             int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        const std::vector<int64_t> shares =
            shares_of_experts(panels, granularity, experts, TeamNodes(threads, {nodes, nodes + threads}));
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
        std::copy(shares.blocks.begin(), shares.blocks.end(), out);
        return int32_t(shares.merges_in_place);
    });
}

// Of a linear in a pass of many rows, whose inputs have `row_bytes` each: (products, bytes of weights, bytes of rows) of
// each thread.
IPEX_ASSIST_API int32_t ia_shares_of_rows(int64_t panels, int64_t granularity, int64_t depth, int32_t precision,
                                          int32_t group, int64_t rows, int64_t row_bytes, const int32_t* nodes,
                                          int32_t threads, int64_t* out) {
    return guarded(-1, [&] {
        Linear linear{};
        linear.precision = Precision(precision), linear.group = group_of(linear.precision, group);
        linear.depth = padded_depth(linear.precision, depth);
        linear.panels = panels, linear.granularity = granularity;
        for (const LinearWork& each :
             shares_of_rows(linear, rows, row_bytes, TeamNodes(threads, {nodes, nodes + threads}))) {
            *out++ = each.products, *out++ = each.weight_bytes, *out++ = each.row_bytes;
        }
        return 0;
    });
}

// When each thread ends that takes query tiles of a prompt in turns.
IPEX_ASSIST_API int32_t ia_shares_of_tiles(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window,
                                           int32_t position, int32_t rows, const int32_t* nodes, int32_t threads,
                                           int64_t* out) {
    return guarded(-1, [&] {
        const std::vector<int64_t> ends = shares_of_tiles(heads, kv_heads, head_dim, window, position, rows,
                                                          TeamNodes(threads, {nodes, nodes + threads}));
        std::copy(ends.begin(), ends.end(), out);
        return 0;
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
