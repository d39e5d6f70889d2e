// int4 for one instruction set.
#pragma once
#include "formats/int4/linear.h"
#include "formats/int4/pack.h"
