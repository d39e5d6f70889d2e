// Chooses the best kernels that this processor can run.
#include "kernels/dispatch.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace ipex_assist {
namespace {

constexpr int ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr int XFEATURE_XTILEDATA = 18;

struct Features {
    bool has_avx512 = false, has_amx = false;  // by the processor alone
    bool avx2 = false, avx2_vnni = false;
    bool avx512 = false, vnni = false, bf16 = false, amx = false;
};

uint64_t enabled_state() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

// Bits as in Intel's SDM, volume 2, CPUID; the operating system must save the registers, too (XCR0).
Features features() {
    Features found;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const uint64_t state = c >> 27 & 1 ? enabled_state() : 0;  // OSXSAVE
    const bool has_fma = (c >> 12 & 1) && (c >> 29 & 1);       // FMA, F16C
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = has_fma && (b >> 5 & 1) && (state & 6) == 6;
    found.has_avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    found.has_amx = (d >> 24 & 1) && (d >> 25 & 1) && (d >> 22 & 1);                      // TILE, INT8, BF16
    found.avx512 = found.has_avx512 && (state & 0xe6) == 0xe6;
    found.vnni = found.avx512 && (c >> 11 & 1);
    uint32_t a1 = 0, b1, c1, d1;
    if (__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1)) {
        found.avx2_vnni = found.avx2 && (a1 >> 4 & 1);
        found.bf16 = found.vnni && (a1 >> 5 & 1);
    }
    found.amx = found.bf16 && found.has_amx && (state >> 17 & 3) == 3;
    return found;
}

// AMX's kernels, or null with the reason where this processor has AMX and it cannot be used.
const KernelTable* usable_amx(const Features& found, std::string& remark) {
#ifdef IPEX_ASSIST_EMULATE_AMX
    return kernels_amx();
#endif
    if (!found.has_amx) return nullptr;
    if (!kernels_amx()) {
        remark = "the library was built by a compiler without it";
    } else if (!found.amx) {
        remark =
            "the operating system does not save its tiles (Linux does from 5.16 on; a virtual machine's host may not)";
    } else if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) {
        remark = std::string("the system does not permit its tiles (arch_prctl: ") + std::strerror(errno) + ")";
    } else {
        return kernels_amx();
    }
    remark = "this processor has AMX, but " + remark;
    return nullptr;
}

struct Level {
    const char* name;
    const KernelTable* (*kernels)();
    bool Features::* found;
};

// Each better than the one before it.
constexpr Level LEVELS[] = {{"avx2", kernels_avx2, &Features::avx2},
                            {"avx2_vnni", kernels_avx2_vnni, &Features::avx2_vnni},
                            {"avx512", kernels_avx512, &Features::avx512},
                            {"avx512_vnni", kernels_avx512_vnni, &Features::vnni},
                            {"avx512_bf16", kernels_avx512_bf16, &Features::bf16},
                            {"amx", kernels_amx, &Features::amx}};
constexpr int BEST = 6;

// 0 forbids all, BEST nothing; -1 is no level's name.
int level_of(const char* limit) {
    if (!limit || !*limit) return BEST;
    if (std::strcmp(limit, "none") == 0) return 0;
    for (int i = 0; i < BEST; i++) {
        if (std::strcmp(limit, LEVELS[i].name) == 0) return i + 1;
    }
    return -1;
}

// The best up to a level that this library and this processor have; `remark` is about what the system keeps from us.
const KernelTable* best_of(const Features& found, int level, std::string& remark) {
    const KernelTable* chosen = level == BEST ? usable_amx(found, remark) : nullptr;
    if (level >= 3 && found.has_avx512 && !found.avx512) {
        remark = "this processor has AVX-512, but the operating system does not save its registers";
    }
    for (int i = level < BEST ? level : BEST - 1; !chosen && i > 0; i--) {
        if (found.*LEVELS[i - 1].found) chosen = LEVELS[i - 1].kernels();
    }
    return chosen;
}

}  // namespace

const KernelTable* choose_kernels(const char* limit, std::string& remark) {
    const Features found = features();
    const int level = level_of(limit);
    remark.clear();
    if (level < 0) {
        remark = std::string("IPEX_ASSIST_ISA=") + limit +
                 " must be none, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx";
    } else if (level == 0) {
        remark = "IPEX_ASSIST_ISA=none forbids it";
    } else if (!found.avx2) {
        remark = "this processor has no AVX2 with FMA and F16C, or the operating system does not save its registers";
    }
    if (!remark.empty()) return nullptr;
    const KernelTable* chosen = best_of(found, level, remark);
    if (!chosen) {
        remark = "the library was built by a compiler without AVX2";
    } else if (remark.empty() && limit && *limit && std::strcmp(limit, chosen->name) != 0) {
        remark = std::string("IPEX_ASSIST_ISA=") + limit + ": this processor lacks that";
    }
    return chosen;
}

}  // namespace ipex_assist
