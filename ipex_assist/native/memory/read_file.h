// Reading a part of a file whole.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

namespace ipex_assist {

// Not through a mapping: one whose file somebody truncates meanwhile ends the process (SIGBUS).
inline void read_file(int file, int64_t offset, uint8_t* to, int64_t bytes) {
    while (bytes > 0) {
        const ssize_t got = pread(file, to, size_t(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw std::system_error(errno, std::generic_category(), "the file cannot be read");
        if (got == 0) throw std::runtime_error("the file ends " + std::to_string(bytes) + " bytes too early");
        to += got, offset += got, bytes -= got;
    }
}

}  // namespace ipex_assist
