// What callers can get wrong, refused with std::invalid_argument before any memory is touched.
#pragma once
#include "forward.h"

namespace ipex_assist {

// The spec, if a model can have it; `windows` are its layers' attention windows.
const Spec& checked(const Spec& spec, const int32_t* windows);

// The batch, if it fits the model, the caches and the tables, with `further` tokens drafted behind it.
const Batch& checked(const Model& model, const Batch& batch, int32_t further);

// std::invalid_argument with a message as printf makes it.
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ipex_assist
