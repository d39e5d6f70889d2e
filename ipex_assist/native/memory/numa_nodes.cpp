// The memory nodes of CPUs.
#include "memory/numa_nodes.h"

#include <unistd.h>

#include <algorithm>

namespace ipex_assist {

std::vector<int32_t> group_by_node(std::vector<int32_t>& cpus, const std::string& folder) {
    constexpr int MAX_NODES = 1024;
    const auto has = [&](int node, int cpu) {
        return access((folder + "/node" + std::to_string(node) + "/cpu" + std::to_string(cpu)).c_str(), F_OK) == 0;
    };
    std::vector<int> known;                     // the system's numbers, in the order in which the CPUs come to them
    std::vector<std::vector<int32_t>> of_node;  // the CPUs of each
    for (const int32_t cpu : cpus) {
        auto node = std::find_if(known.begin(), known.end(), [&](int each) { return has(each, cpu); });
        if (node == known.end()) {
            int number = 0;
            while (number < MAX_NODES && !has(number, cpu)) number++;
            if (number == MAX_NODES) return {};
            node = known.insert(known.end(), number);
            of_node.emplace_back();
        }
        of_node[size_t(node - known.begin())].push_back(cpu);
    }
    if (known.size() < 2) return {};
    std::vector<int32_t> nodes;
    cpus.clear();
    for (size_t i = 0; i < of_node.size(); i++) {
        cpus.insert(cpus.end(), of_node[i].begin(), of_node[i].end());
        nodes.insert(nodes.end(), of_node[i].size(), int32_t(i));
    }
    return nodes;
}

}  // namespace ipex_assist
