// Which of the kernels this processor can run.
#include "cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace ipex_assist {
namespace {

constexpr int ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr int XFEATURE_XTILEDATA = 18;

struct Features {
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
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return found;  // OSXSAVE
    const uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    const bool vectors = (state & 0xe6) == 0xe6;
    found.avx512 = vectors && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    found.vnni = found.avx512 && (c >> 11 & 1);
    const bool tiles = (d >> 24 & 1) && (d >> 25 & 1) && (d >> 22 & 1) && (state >> 17 & 3) == 3;
    uint32_t a1 = 0, b1, c1, d1;
    if (__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1)) found.bf16 = found.vnni && (a1 >> 5 & 1);
    found.amx = found.bf16 && tiles;
    return found;
}

bool tiles_permitted() { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0; }

// 0 forbids all, 4 nothing; -1 is no level's name.
int level_of(const char* limit) {
    const char* names[] = {"none", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
    if (!limit || !*limit) return 4;
    for (int i = 0; i < 5; i++) {
        if (std::strcmp(limit, names[i]) == 0) return i;
    }
    return -1;
}

}  // namespace

const Kernels* choose_kernels(const char* limit, const char** reason) {
    const Features found = features();
    const int level = level_of(limit);
    const Kernels* chosen = nullptr;
    *reason = nullptr;
    if (!found.avx512) {
        *reason = "this processor has no AVX-512 (F, BW, DQ and VL)";
        return nullptr;
    }
    if (level < 0) {
        *reason = "IPEX_ASSIST_ISA must be none, avx512, avx512_vnni, avx512_bf16 or amx";
        return nullptr;
    }
    if (level == 0) {
        *reason = "IPEX_ASSIST_ISA=none forbids it";
        return nullptr;
    }
#ifdef IPEX_ASSIST_EMULATE_AMX
    if (level >= 4) return kernels_amx();
#else
    if (level >= 4 && found.amx && kernels_amx() && tiles_permitted()) return kernels_amx();
#endif
    if (level >= 3 && found.bf16) chosen = kernels_avx512_bf16();
    if (!chosen && level >= 2 && found.vnni) chosen = kernels_avx512_vnni();
    if (!chosen) chosen = kernels_avx512();
    if (!chosen) *reason = "the library was built by a compiler without AVX-512";
    return chosen;
}

}  // namespace ipex_assist
