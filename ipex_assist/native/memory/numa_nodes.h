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

// The system's number of a CPU's node; -1 where it does not tell.
int32_t node_of_cpu(int32_t cpu, const std::string& folder = "/sys/devices/system/node");

// Pages from `start` on, a page's border, come from a node while that has some, whoever writes them first. Not where this
// process was told to interleave its memory, to prefer a node or to leave this one alone. False where the system refuses.
bool prefer_node(uint8_t* start, int64_t bytes, int32_t node);

}  // namespace ipex_assist
