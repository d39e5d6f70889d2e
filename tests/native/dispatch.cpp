// Which kernels a processor gets, which memory nodes its threads are on, and which pages its memory has.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"
#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "memory/numa_nodes.h"

// guard.cpp's, where that is linked.
extern std::atomic<long> refused_call __attribute__((weak));

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
    CHECK(node_of_cpu(7, folder) == 1 && node_of_cpu(12, folder) == 3 && node_of_cpu(5, folder) == -1, "nodes of CPUs");
    std::filesystem::remove_all(folder);
}

// What the system says of the memory at an address: its policy and where its pages are; empty where it does not say.
std::string policy_at(const void* address) {
    char start[32];
    std::snprintf(start, sizeof start, "%lx ", (unsigned long)(uintptr_t(address)));
    std::ifstream maps("/proc/self/numa_maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.rfind(start, 0) == 0) return line;
    }
    return "";
}

// Memory prefers a node unless the process was told something else, or the system refuses.
void test_preferred_nodes() {
    constexpr int64_t BYTES = 1 << 16;
    const auto map = [] {
        void* got = mmap(nullptr, size_t(BYTES), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return static_cast<uint8_t*>(got);
    };
    const int node = node_of_cpu(sched_getcpu());
    uint8_t* const memory = map();
    CHECK(prefer_node(memory, BYTES, -1) && prefer_node(memory, 0, 0), "nothing to prefer");
    const long policies = syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0);
    if (policies == 0 && node >= 0) {
        CHECK(prefer_node(memory, BYTES, node), "node %d", node);
        memory[0] = 1;
        const std::string said = policy_at(memory), wanted = "prefer:" + std::to_string(node);
        CHECK(said.empty() || said.find(wanted) != std::string::npos, "%s", said.c_str());
        CHECK(!prefer_node(memory, BYTES, 1000), "a node that there is not");
        unsigned long all = 1ul << node;
        constexpr int INTERLEAVED = 3;
        syscall(SYS_set_mempolicy, INTERLEAVED, &all, 65);
        uint8_t* const other = map();
        CHECK(prefer_node(other, BYTES, node), "a process that interleaves");
        other[0] = 1;
        CHECK(policy_at(other).find("prefer") == std::string::npos, "%s", policy_at(other).c_str());
        syscall(SYS_set_mempolicy, 0, nullptr, 0);
        munmap(other, size_t(BYTES));
    }
    for (const long call : {long(SYS_get_mempolicy), long(SYS_mbind)}) {
        if (!&refused_call || node < 0) break;
        refused_call = call;
        CHECK(!prefer_node(memory, BYTES, node), "call %ld is refused", call);
        refused_call = -1;
    }
    munmap(memory, size_t(BYTES));
}

// KiB of the process that lie in huge pages; -1 where the system does not say.
long huge_kib() {
    std::ifstream file("/proc/self/smaps_rollup");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("AnonHugePages:", 0) == 0) return std::strtol(line.c_str() + 14, nullptr, 10);
    }
    return -1;
}

// Memory that was written while no huge page was to be had lies in some afterwards, with what was written.
void test_huge_pages() {
    constexpr size_t BYTES = size_t(9) << 20, PAGE = 4096;
    const Memory memory = Memory::at_border(BYTES);
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) return;
    for (size_t i = 0; i < BYTES; i += PAGE) memory.data()[i] = uint8_t(i / PAGE % 251);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    char never[] = "/tmp/never-XXXXXX";
    close(mkstemp(never));
    std::ofstream(never) << "always madvise [never]\n";
    const long before = huge_kib();
    CHECK(!join_pages(memory.data(), BYTES, 9, never) && huge_kib() == before, "where they are switched off");
    CHECK(join_pages(memory.data(), PAGE, 9, never), "less than a huge page");
    std::remove(never);
    const bool joined = join_pages(memory.data(), BYTES, 9);
    std::printf("huge pages: %s, %ld KiB before, %ld after\n", joined ? "joined" : "none", before, huge_kib());
    CHECK(!joined || before < 0 || huge_kib() - before == 8192, "%ld KiB after %ld", huge_kib(), before);
    for (size_t i = 0; i < BYTES; i += PAGE) CHECK(memory.data()[i] == uint8_t(i / PAGE % 251), "at %zu", i);
}

}  // namespace

void test_cpu() {
    test_nodes();
    test_preferred_nodes();
    test_huge_pages();
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
    if (&refused_call && before == best) {
        refused_call = SYS_arch_prctl;  // as an old kernel or a filter of system calls does
        for (const char* limit : {"", "amx"}) {
            const KernelTable* kernels = choose_kernels(limit, remark);
            CHECK(kernels && std::string(kernels->name) == "avx512_bf16", "AMX without permission");
            CHECK(remark ==
                      "this processor has AMX, but the system does not permit its tiles (arch_prctl: Operation not "
                      "permitted)",
                  "%s", remark.c_str());
        }
        CHECK(choose_kernels("avx512_vnni", remark) && remark.empty(), "AMX was not asked for: %s", remark.c_str());
        refused_call = -1;
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
