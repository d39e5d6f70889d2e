// Which of the kernels this processor can run.
#pragma once
#include "kernels.h"

namespace ipex_assist {

// The best kernels of this library that this processor has, none better than `limit` ("avx512", "avx512_vnni",
// "avx512_bf16", "amx"; null or empty: no limit). Null, with `reason` set, where it has none. Asks the kernel for the
// permission to use AMX's tiles.
const Kernels* choose_kernels(const char* limit, const char** reason);

}  // namespace ipex_assist
