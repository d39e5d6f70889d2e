// What the kinds of scans differ in.
#include "mixers/mixer.h"
#include "mixers/scan/scan.h"

namespace ipex_assist {
namespace {

constexpr ScanKind GATED_DELTA_SCAN{true, false, false, NORM_THEN_SILU};
constexpr ScanKind KIMI_DELTA_SCAN{true, true, false, NORM_THEN_SIGMOID};
constexpr ScanKind MAMBA2_SCAN{};
constexpr ScanKind MAMBA1_SCAN{false, false, true};

}  // namespace

const ScanKind& scan_kind(const RecurrentSpec& spec) {
    switch (spec.kind) {
        case GATED_DELTA: return GATED_DELTA_SCAN;
        case KIMI_DELTA: return KIMI_DELTA_SCAN;
        case MAMBA2: return MAMBA2_SCAN;
        case MAMBA1: return MAMBA1_SCAN;
        default: refuse("mixer %d does not scan", spec.kind);
    }
}

int64_t norm_weights(const RecurrentSpec& spec) {
    return scan_kind(spec).delta ? spec.value_dim : spec.norm_groups ? spec.value_width() : 0;
}

int64_t norm_size(const RecurrentSpec& spec) {
    return scan_kind(spec).delta ? spec.value_dim : spec.norm_groups ? spec.value_width() / spec.norm_groups : 0;
}

ScanColumns::ScanColumns(const RecurrentSpec& r)
    : key(r.key_heads * r.key_depth()),
      value(2 * key),
      decay(value + r.heads * r.value_depth()) {
    const ScanKind& kind = scan_kind(r);
    const int64_t decays = round_up(kind.steps_by_channel ? r.value_width() : r.heads, LANES);
    recall = kind.decays_by_key ? decay + key : key;
    beta = decay + (kind.decays_by_key ? 2 * key : decays);
    width = beta + round_up(r.heads, LANES);
}

}  // namespace ipex_assist
