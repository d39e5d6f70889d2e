// mxfp4 for one instruction set.
#pragma once
#include "formats/mxfp4/linear.h"
#include "formats/mxfp4/pack.h"
