// Which of the kernels this processor can run.
#pragma once
#include <string>

#include "kernels.h"

namespace ipex_assist {

// The best kernels of this library that this processor has, none better than `limit` ("avx2", "avx2_vnni", "avx512",
// "avx512_vnni", "avx512_bf16", "amx"; null or empty: no limit). Null where it has none. `remark` says why, or why there are none as
// good as the processor is said to have or as `limit` names; else it is empty. Asks the system for the permission to
// use AMX's tiles.
const Kernels* choose_kernels(const char* limit, std::string& remark);

// Whether some processors lie on several memory nodes; false where the system does not tell. folder: of the nodes.
bool on_several_nodes(const int32_t* cpus, int count, const std::string& folder = "/sys/devices/system/node");

}  // namespace ipex_assist
