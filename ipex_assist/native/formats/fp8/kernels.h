// fp8 for one instruction set.
#pragma once
#include "formats/fp8/linear.h"
#include "formats/fp8/pack.h"
