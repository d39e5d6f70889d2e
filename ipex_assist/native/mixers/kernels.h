// The kernels that mixers bring along, a structure for each folder that has any: what they are, and, where an instruction
// set is compiled for, those of that.
#pragma once
#include "mixers/latent/kernels.h"

namespace ipex_assist {

struct MixerKernels {
    IndexKernels index;
};

#ifdef IPEX_ASSIST_KERNELS
static constexpr MixerKernels MIXER_KERNELS{INDEX_KERNELS};
#endif

}  // namespace ipex_assist
