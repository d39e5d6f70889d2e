// Matrices that a checkpoint stores in 8 bits, integers or FP8, into the image without rounding them again.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "refuse.h"
#include "packing/model.h"

namespace ipex_assist {
namespace {

constexpr uint8_t FP8_NAN = 0x7f;  // and 0xff

// Column `lane` of an int8 block; 128 is zero.
void place_int8_column(const uint8_t* values, int64_t width, int64_t depth, uint8_t* block, int lane) {
    for (int64_t k = 0; k < depth; k++) {
        block[k / 4 * 64 + lane * 4 + k % 4] = uint8_t((k < width ? values[k] : 0) ^ 0x80);
    }
}

// See kernels.h. False where a value is NaN.
bool place_fp8_column(const uint8_t* values, int64_t width, int64_t depth, uint8_t* block, int lane) {
    uint8_t* lines = block + fp8_head_bytes(depth) + lane / 4 * 16 + lane % 4 * 2;
    bool numbers = true;
    for (int64_t k = 0; k < depth; k++) {
        const uint8_t value = k < width ? values[k] : 0;
        numbers &= (value & FP8_NAN) != FP8_NAN;
        lines[k / 4 * 64 + k % 4 / 2 * 8 + k % 2] = value;
    }
    return numbers;
}

// The scales of a block's spans and columns, from those of each of its columns (count, spans): the columns have the
// same ones, or each has one for all spans. False where neither is so.
bool place_fp8_scales(const float* scales, int64_t count, int64_t spans, uint8_t* block, float* of_columns) {
    bool same = true, single = true;
    for (int64_t c = 0; c < count; c++) {
        for (int64_t s = 0; s < spans; s++) {
            same &= scales[c * spans + s] == scales[s];
            single &= scales[c * spans + s] == scales[c * spans];
        }
    }
    auto* of_spans = reinterpret_cast<float*>(block);
    for (int64_t s = 0; s < spans; s++) of_spans[s] = same ? scales[s] : 1.0f;
    for (int64_t c = 0; c < LANES; c++) of_columns[c] = same || c >= count ? 1.0f : scales[c * spans];
    return same || single;
}

void refuse_nan(const uint8_t* values, int64_t columns, int64_t width) {
    for (int64_t i = 0; i < columns * width; i++) {
        if ((values[i] & FP8_NAN) != FP8_NAN) continue;
        throw NotFinite("NaN in row " + std::to_string(i / width) + ", column " + std::to_string(i % width));
    }
}

}  // namespace

bool PackedModel::pack_bytes(Pool& pool, std::string_view name, const uint8_t* values, const float* scales,
                             int64_t groups, int64_t columns, int64_t width) {
    require_memory();
    if (!values || !scales) refuse("a matrix without values or scales");
    const Weight weight = find(name);
    const PackTarget& where = weight.part;
    if (!weight.is_matrix() || !where.linear || !weight.takes(columns, width)) return false;
    const Linear& linear = *where.linear;
    const int64_t spans = linear.depth / SCALE_COLUMNS;
    if (linear.precision == INT8 ? groups != 1 : linear.precision != FP8 || groups != spans) return false;
    for (int64_t i = 0; i < columns * groups; i++) {
        if (!std::isfinite(scales[i]))
            throw NotFinite("a scale that is no number in row " + std::to_string(i / groups));
    }
    std::atomic<bool> numbers{true}, fits{true};
    pool.run([&](int thread) {
        const auto [first, last] = slice(linear, thread, pool.threads());
        for (int64_t i = 0; i * LANES < columns; i++) {
            const int64_t at = where.first + i * where.step, count = std::min<int64_t>(LANES, columns - i * LANES);
            if (at < first || at >= last) continue;
            uint8_t* block = const_cast<uint8_t*>(weights_of(linear, at));
            float* of_columns = const_cast<float*>(linear.scales) + at * LANES;
            const float* own = scales + i * LANES * groups;
            if (linear.precision == FP8 && !place_fp8_scales(own, count, spans, block, of_columns)) fits = false;
            for (int lane = 0; lane < LANES; lane++) {
                const bool used = lane < count;
                const uint8_t* column = values + (i * LANES + lane) * width;
                const int64_t length = used ? width : 0;
                if (linear.precision == INT8) {
                    place_int8_column(column, length, linear.depth, block, lane);
                    of_columns[lane] = used ? own[lane] : 0.0f;
                } else if (!place_fp8_column(column, length, linear.depth, block, lane)) {
                    numbers = false;
                }
            }
        }
    });
    if (!numbers) refuse_nan(values, columns, width);
    if (!fits) return false;
    if (!weight.table || skips_table(weight)) arrived(name);  // else the table is still to come
    return true;
}

}  // namespace ipex_assist
