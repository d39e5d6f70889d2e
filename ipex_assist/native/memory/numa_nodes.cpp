// The memory nodes of CPUs.
#include "memory/numa_nodes.h"

#include <unistd.h>

namespace ipex_assist {

std::vector<int32_t> memory_nodes(const int32_t* cpus, int count, const std::string& folder) {
    constexpr int MAX_NODES = 1024;
    const auto has = [&](int node, int cpu) {
        return access((folder + "/node" + std::to_string(node) + "/cpu" + std::to_string(cpu)).c_str(), F_OK) == 0;
    };
    std::vector<int32_t> found;
    for (int i = 0, node = 0; i < count; i++) {
        const int before = node;
        if (!has(node, cpus[i])) node = 0;
        while (node < MAX_NODES && !has(node, cpus[i])) node++;
        if (node == MAX_NODES) return {};
        found.push_back(found.empty() ? 0 : found.back() + int32_t(node != before));
    }
    return found.empty() || found.back() == 0 ? std::vector<int32_t>() : found;
}

}  // namespace ipex_assist
