#pragma once
#include "packing/checks.h"

namespace ipex_assist {

void check_attention(const ModelSpec& spec, const AttentionSpec& attention);

}  // namespace ipex_assist
