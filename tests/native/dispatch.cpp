// Which kernels a processor gets, and which memory nodes its threads are on.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"
#include "memory/numa_nodes.h"

// guard.cpp's, where that is linked.
extern std::atomic<bool> arch_prctl_refused __attribute__((weak));

namespace check {
namespace {

// Processors of one node and of two, as the system's folders tell it; a node without processors is nobody's.
void test_nodes() {
    char made[] = "/tmp/nodes-XXXXXX";
    const std::string folder = mkdtemp(made);
    for (const char* name : {"/node0", "/node1", "/node3"}) std::filesystem::create_directory(folder + name);
    for (const char* name : {"/node1/cpu2", "/node1/cpu7", "/node3/cpu12", "/node3/cpu13"})
        std::filesystem::create_directory(folder + name);
    using Numbers = std::vector<int32_t>;
    const auto check = [&](const char* name, const Numbers& given, const Numbers& nodes, const Numbers& grouped) {
        Numbers cpus = given;
        CHECK(group_by_node(cpus, folder) == nodes, "%s: their nodes", name);
        CHECK(cpus == grouped, "%s: their order", name);
    };
    check("one node", {2, 7}, {}, {2, 7});
    check("two nodes", {2, 7, 12}, {0, 0, 1}, {2, 7, 12});
    check("processors that are numbered by turns", {12, 2, 13, 7}, {0, 0, 1, 1}, {12, 13, 2, 7});
    check("one processor", {12}, {}, {12});
    check("nodes that the system does not tell", {12, 2, 5}, {}, {12, 2, 5});
    std::filesystem::remove_all(folder);
}

}  // namespace

void test_cpu() {
    test_nodes();
    const char* names[] = {"none", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
    constexpr int best = 6;
    int before = 0;
    for (int limit = 0; limit <= best; limit++) {
        std::string remark;
        const KernelTable* kernels = choose_kernels(names[limit], remark);
        std::printf("%s: %s\n", names[limit], kernels ? kernels->name : remark.c_str());
        const bool as_named = kernels && std::string(kernels->name) == names[limit];
        CHECK(as_named == remark.empty(), "%s: less than is named without a remark, or a remark without need: %s",
              names[limit], remark.c_str());
        int level = 0;
        for (int i = 0; kernels && i <= best; i++) level = std::string(kernels->name) == names[i] ? i : level;
        CHECK(level <= limit && level >= before, "%s gives level %d, a lower limit %d", names[limit], level, before);
        before = level;
    }
    std::string remark, other;
    if (&arch_prctl_refused && before == best) {
        arch_prctl_refused = true;  // as an old kernel or a filter of system calls does
        for (const char* limit : {"", "amx"}) {
            const KernelTable* kernels = choose_kernels(limit, remark);
            CHECK(kernels && std::string(kernels->name) == "avx512_bf16", "AMX without permission");
            CHECK(remark ==
                      "this processor has AMX, but the system does not permit its tiles (arch_prctl: Operation not "
                      "permitted)",
                  "%s", remark.c_str());
        }
        CHECK(choose_kernels("avx512_vnni", remark) && remark.empty(), "AMX was not asked for: %s", remark.c_str());
        arch_prctl_refused = false;
    }
    CHECK(choose_kernels(nullptr, remark) == choose_kernels("amx", other), "no limit is the best");
    CHECK(choose_kernels("", remark) == choose_kernels("amx", other), "an empty limit is none");
    for (const char* wrong : {"avx", "avx2-vnni", "AMX", "amx "}) {
        CHECK(!choose_kernels(wrong, remark), "%s is no level's name and must not mean any of them", wrong);
        CHECK(remark.find("none, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx") != std::string::npos, "%s",
              remark.c_str());
    }
}

}  // namespace check
