// Block formats for one instruction set.
#pragma once
#include "formats/blocks/linear.h"
