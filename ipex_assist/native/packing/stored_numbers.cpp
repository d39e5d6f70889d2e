// Matrices that a checkpoint stores as their format has its numbers, into the image without rounding them again.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "formats/stored.h"
#include "packing/model.h"
#include "refuse.h"

namespace ipex_assist {
namespace {

[[noreturn]] void refuse_at(const char* what, int64_t index, int64_t columns) {
    throw NotFinite(std::string(what) + " in row " + std::to_string(index / columns) +
                    (columns > 1 ? ", column " + std::to_string(index % columns) : ""));
}

void check_scales(const StoredNumbers& matrix) {
    for (int64_t i = 0; i < matrix.columns * matrix.groups; i++) {
        if (!std::isfinite(matrix.scales[i])) refuse_at("a scale that is no number", i, matrix.groups);
    }
}

// Of a matrix of which some value is NaN.
void refuse_nan(const StoredNumbers& matrix) {
    constexpr uint8_t NOT_A_NUMBER = 0x7f;  // E4M3, and 0xff
    const uint8_t *values = matrix.values, *end = values + matrix.columns * matrix.width;
    const auto nan = [](uint8_t value) { return (value & NOT_A_NUMBER) == NOT_A_NUMBER; };
    refuse_at("NaN", std::find_if(values, end, nan) - values, matrix.width);
}

// The columns that the i-th panel of a part has.
StoredNumbers of_panel(const StoredNumbers& matrix, int64_t i) {
    StoredNumbers columns = matrix;
    columns.values += i * LANES * matrix.width, columns.scales += i * LANES * matrix.groups;
    if (columns.zeros) columns.zeros += i * LANES * matrix.groups;
    columns.columns = std::min<int64_t>(LANES, matrix.columns - i * LANES);
    return columns;
}

}  // namespace

bool PackedModel::pack_stored(Pool& pool, std::string_view name, const StoredNumbers& matrix) {
    require_memory();
    if (!matrix.values || !matrix.scales) refuse("a matrix without values or scales");
    const Weight weight = find(name);
    const PackTarget& where = weight.part;
    if (!weight.is_matrix() || !where.linear || !weight.takes(matrix.columns, matrix.width)) return false;
    if (is_cached(*this, weight)) return false;
    const Linear& linear = *where.linear;
    if (!is_stored_as(linear.precision, matrix, linear.group)) return false;
    check_scales(matrix);
    std::atomic<bool> numbers{true}, fits{true};
    pool.run([&](int thread) {
        const auto [first, last] = slice(linear, thread, pool.threads());
        for (int64_t i = 0; i * LANES < matrix.columns; i++) {
            const int64_t panel = where.first + i * where.step;
            if (panel < first || panel >= last) continue;
            float* scales = linear.scales ? const_cast<float*>(linear.scales) + panel * LANES : nullptr;
            const Placed placed = place_stored(linear.precision, of_panel(matrix, i), linear.group, linear.depth,
                                               const_cast<uint8_t*>(weights_of(linear, panel)), scales);
            if (placed == Placed::NAN_VALUE) numbers = false;
            if (placed == Placed::UNEVEN_SCALES) fits = false;
        }
    });
    if (!numbers) refuse_nan(matrix);
    if (!fits) return false;
    if (!weight.table || skips_table(weight)) arrived(name);  // else the table is still to come
    return true;
}

}  // namespace ipex_assist
