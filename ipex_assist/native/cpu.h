// Which of the kernels this processor can run.
#pragma once
#include <string>

#include "kernels.h"

namespace ipex_assist {

// The best kernels of this library that this processor has, none better than `limit` ("avx512", "avx512_vnni",
// "avx512_bf16", "amx"; null or empty: no limit). Null where it has none. `remark` says why, or why there are none as
// good as the processor is said to have or as `limit` names; else it is empty. Asks the system for the permission to
// use AMX's tiles.
const Kernels* choose_kernels(const char* limit, std::string& remark);

}  // namespace ipex_assist
