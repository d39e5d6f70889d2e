// The one rounding of sizes and offsets.
#pragma once
#include <cstdint>

namespace ipex_assist {

// The smallest multiple of `multiple` that is not below x.
inline constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace ipex_assist
