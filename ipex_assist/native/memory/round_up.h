// The one rounding of sizes and offsets.
#pragma once
#include <cstdint>

namespace ipex_assist {

// The smallest multiple of `unit` that is not below x.
inline constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

}  // namespace ipex_assist
