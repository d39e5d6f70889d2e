// The memory nodes of CPUs.
#include "memory/numa_nodes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace ipex_assist {
namespace {

constexpr int MAX_NODES = 1024;

bool has(const std::string& folder, int node, int cpu) {
    return access((folder + "/node" + std::to_string(node) + "/cpu" + std::to_string(cpu)).c_str(), F_OK) == 0;
}

// As linux/mempolicy.h has them, which need not be installed; the kernel's flags are in higher bits of the policy.
enum Policy : int { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL };
constexpr int FLAGS = 0xff00;
constexpr unsigned long WORD = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, MAX_NODES / WORD>;

}  // namespace

int32_t node_of_cpu(int32_t cpu, const std::string& folder) {
    for (int node = 0; node < MAX_NODES; node++) {
        if (has(folder, node, cpu)) return node;
    }
    return -1;
}

bool prefer_node(uint8_t* start, int64_t bytes, int32_t node) {
    if (node < 0 || bytes == 0) return true;
    int policy = DEFAULT;
    NodeMask allowed{}, wanted{};
    if (syscall(SYS_get_mempolicy, &policy, allowed.data(), MAX_NODES, nullptr, 0)) return false;
    wanted[size_t(node) / WORD] = 1ul << (size_t(node) % WORD);
    policy &= ~FLAGS;
    const bool is_bound = policy == BIND && (allowed[size_t(node) / WORD] & wanted[size_t(node) / WORD]);
    if (policy != DEFAULT && policy != LOCAL && !is_bound) return true;
    return syscall(SYS_mbind, start, bytes, PREFERRED, wanted.data(), MAX_NODES + 1, 0) == 0;
}

std::vector<int32_t> group_by_node(std::vector<int32_t>& cpus, const std::string& folder) {
    std::vector<int> known;                     // the system's numbers, in the order in which the CPUs come to them
    std::vector<std::vector<int32_t>> of_node;  // the CPUs of each
    for (const int32_t cpu : cpus) {
        auto node = std::find_if(known.begin(), known.end(), [&](int each) { return has(folder, each, cpu); });
        if (node == known.end()) {
            const int32_t number = node_of_cpu(cpu, folder);
            if (number < 0) return {};
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
