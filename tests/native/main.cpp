// Runs one part of the core's tests: program PART [LEVEL]. On every instruction set of this processor, but where these
// show the same; on one; or, with LEVEL all, on every one, with what shows the same in other formats, too.
#include <string>

#include "check.h"
#include "kernels/dispatch.h"

using namespace check;

namespace {

// Each of the library's kernels that this processor can run.
std::vector<const KernelTable*> levels() {
    std::vector<const KernelTable*> found;
    for (const char* name : {"avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"}) {
        std::string remark;
        const KernelTable* kernels = choose_kernels(name, remark);
#ifdef EMULATED_AMX
        // These are compiled with the instructions of the level below, and with plain arrays for tiles.
        const bool below = !found.empty() && std::string(found.back()->name) == "avx512_bf16";
        if (std::string(name) == "amx") kernels = below ? kernels_amx() : nullptr;
#endif
        if (kernels && std::string(kernels->name) == name) {
            found.push_back(kernels);
        } else {
            std::printf("%s: not on this processor\n", name);
        }
    }
    return found;
}

}  // namespace

int main(int count, char** arguments) {
    const std::string part = count > 1 ? arguments[1] : "";
    std::string only = count > 2 ? arguments[2] : "";
    if (only == "all") everything = true, only.clear();
    if (part == "cpu") {
        test_cpu();
    } else if (part == "threads") {
        test_threads();
    } else if (part == "plan") {
        test_pass_plan();
        test_attention_work();
    } else if (part == "thread-limit") {
        test_thread_limit();
    } else if (part == "levels") {
        const std::vector<const KernelTable*> all = levels();
        test_levels_agree(all);
        test_rows_agree(all);
        test_attention_agree(all);
        test_sampling_agrees(all);
    } else {
        void (*test)(const KernelTable&) = part == "packing"     ? test_packing
                                           : part == "linears"   ? test_linears
                                           : part == "rows"      ? test_rows
                                           : part == "attention" ? test_attention
                                           : part == "model"     ? test_model
                                           : part == "pruning"   ? test_pruning
                                           : part == "adapters"  ? test_adapters
                                           : part == "heads"     ? test_draft_heads
                                           : part == "sampling"  ? test_sampling
                                           : part == "refusals"  ? test_refusals
                                           : part == "recurrent" ? test_recurrent
                                           : part == "open"      ? test_open_rows
                                           : part == "api"       ? test_api
                                                                 : nullptr;
        if (!test) return std::fprintf(stderr, "no part %s\n", part.c_str()), 2;
        const std::vector<const KernelTable*> all = levels();
        for (const KernelTable* kernels : all) {
            if (!only.empty() && only != kernels->name) continue;
            // Passes differ by level in the form of their rows only: the first and the last have both.
            if ((part == "model" || part == "pruning" || part == "adapters" || part == "heads" || part == "sampling" ||
                 part == "refusals" || part == "api") &&
                kernels != all.front() && kernels != all.back())
                continue;
            // These differ from "avx2" in linears of integers alone.
            if (part == "attention" && std::string(kernels->name) == "avx2_vnni" && only.empty()) continue;
            // A scan has two forms, of AVX2 and of AVX-512; the last level has rows in tiles.
            if ((part == "recurrent" || part == "open") && !everything && only.empty() && kernels != all.back() &&
                std::string(kernels->name) != "avx2" && std::string(kernels->name) != "avx512")
                continue;
            std::printf("on %s\n", kernels->name);
            std::fflush(stdout);
            test(*kernels);
        }
    }
    std::printf("%ld checks, %ld failed\n", passed, failed);
    return failed || !passed;
}
