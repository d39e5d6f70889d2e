#include "refuse.h"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace ipex_assist {

void refuse(const char* format, ...) {
    char message[400];
    va_list values;
    va_start(values, format);
    std::vsnprintf(message, sizeof message, format, values);
    va_end(values);
    throw std::invalid_argument(message);
}

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        refuse("%s is %lld and must be from %lld to %lld", name, static_cast<long long>(value),
               static_cast<long long>(least), static_cast<long long>(most));
    }
}

}  // namespace ipex_assist
