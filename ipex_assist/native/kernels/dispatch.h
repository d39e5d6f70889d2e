// Chooses the best kernels that this processor can run.
#pragma once
#include <string>

#include "kernels/kernels.h"

namespace ipex_assist {

// The best kernels of this library for this processor, none better than `limit` ("avx2", "avx2_vnni", "avx512",
// "avx512_vnni", "avx512_bf16", "amx"; null or empty: no limit), or null where it can run none. `remark` says why there
// are none, or none as good as the processor's features or `limit` promise; else it is empty. Asks the operating system
// for the permission to use AMX's tiles.
const KernelTable* choose_kernels(const char* limit, std::string& remark);

}  // namespace ipex_assist
