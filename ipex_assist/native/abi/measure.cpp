// The C interface: what a machine can do, measured.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "abi/handle.h"
#include "refuse.h"

using namespace ipex_assist;

namespace {

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

}  // namespace

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
