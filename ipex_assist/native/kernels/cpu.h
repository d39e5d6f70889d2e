// Which of the kernels this processor can run.
#pragma once
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_assist {

// The best kernels of this library that this processor has, none better than `limit` ("avx2", "avx2_vnni", "avx512",
// "avx512_vnni", "avx512_bf16", "amx"; null or empty: no limit). Null where it has none. `remark` says why, or why
// there are none as good as the processor is said to have or as `limit` names; else it is empty. Asks the system for
// the permission to use AMX's tiles.
const Kernels* choose_kernels(const char* limit, std::string& remark);

// On which memory node each of some processors lies, from 0 on in the order in which they come: neighbours of one node
// are one, and where a node comes again it is another. Empty where all are on one, or the system does not tell. folder:
// of the nodes.
std::vector<int32_t> memory_nodes(const int32_t* cpus, int count,
                                  const std::string& folder = "/sys/devices/system/node");

}  // namespace ipex_assist
