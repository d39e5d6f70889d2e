// The memory nodes of CPUs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ipex_assist {

// The memory node of each of `count` CPUs. Nodes are numbered from 0 on in the order in which the CPUs come to them, so
// the numbers ascend: a node that comes a second time counts as another. Empty where all CPUs are on one node, or the
// system does not tell. folder: where the system describes its nodes.
std::vector<int32_t> memory_nodes(const int32_t* cpus, int count,
                                  const std::string& folder = "/sys/devices/system/node");

}  // namespace ipex_assist
