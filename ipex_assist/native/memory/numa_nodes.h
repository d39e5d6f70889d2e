// The memory nodes of CPUs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ipex_assist {

// Puts CPUs of one memory node side by side: nodes in the order in which the CPUs come to them, a node's CPUs in the
// order that they had. Some systems number CPUs by turns over their sockets. Returns each CPU's node, numbered from 0
// on and so ascending; empty, and nothing moved, where all CPUs are on one node or the system does not tell. folder:
// where the system describes its nodes.
std::vector<int32_t> group_by_node(std::vector<int32_t>& cpus, const std::string& folder = "/sys/devices/system/node");

}  // namespace ipex_assist
