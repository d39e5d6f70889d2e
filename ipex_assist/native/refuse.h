// Refusing what a caller got wrong: std::invalid_argument with a message that has the numbers.
#pragma once
#include <cstdint>

namespace ipex_assist {

// std::invalid_argument with a message as printf makes it.
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Refuses a value that is not from `least` to `most`.
void check_range(const char* name, int64_t value, int64_t least, int64_t most);

}  // namespace ipex_assist
