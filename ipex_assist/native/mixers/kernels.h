// The kernels that mixers bring along, a structure for each folder that has any; in the code of an instruction set
// (kernels.cpp) with that one's functions.
#pragma once
#include "mixers/latent/kernels.h"
#include "mixers/scan/kernels.h"

namespace ipex_assist {

struct MixerKernels {
    IndexKernels index;
    ScanKernels scan;
};

#ifdef IPEX_ASSIST_KERNELS
static constexpr MixerKernels MIXER_KERNELS{INDEX_KERNELS, SCAN_KERNELS};
#endif

}  // namespace ipex_assist
