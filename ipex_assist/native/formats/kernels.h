// How each format is multiplied and packed, for one instruction set.
#pragma once
#include "formats/bf16/kernels.h"
#include "formats/blocks/kernels.h"
#include "formats/fp32/kernels.h"
#include "formats/fp8/kernels.h"
#include "formats/int4/kernels.h"
#include "formats/int8/kernels.h"
#include "formats/mxfp4/kernels.h"
