#include "memory/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace ipex_assist {
namespace {

std::string name_of(const std::string& link) {
    char name[1024];
    const ssize_t length = readlink(link.c_str(), name, sizeof name);
    return length > 0 ? std::string(name, size_t(length)) : "the file";
}

}  // namespace

DirectFile::DirectFile(int file) {
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    name_ = name_of(link);
    file_ = open(link.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file_ < 0) file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);  // one that is not read so, or has no name any more
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), name_ + " cannot be opened again");
}

DirectFile::~DirectFile() { close(file_); }

bool DirectFile::is(int file) const {
    struct stat one{}, other{};
    return !fstat(file_, &one) && !fstat(file, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void DirectFile::fail(const std::string& why) const {
    throw std::runtime_error(name_ + " cannot be read: " + why + ". Was it replaced meanwhile? Start again");
}

const uint8_t* DirectFile::read(int64_t offset, int64_t bytes, uint8_t* buffer) const {
    const int64_t first = offset / PAGE * PAGE, end = offset + bytes;
    bool direct = true;
    for (int64_t at = first; at < end;) {
        const int64_t wanted = (end - at + PAGE - 1) / PAGE * PAGE;
        const ssize_t got = pread(file_, buffer + (at - first), size_t(wanted), at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EINVAL && direct) {  // the file system has other pages, or none
            fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) & ~O_DIRECT);
            direct = false;
            continue;
        }
        if (got < 0) fail(std::strerror(errno));
        if (at + got < end && got < PAGE) fail("it ends " + std::to_string(end - at - got) + " bytes too early");
        at += at + got < end ? got / PAGE * PAGE : got;
    }
    return buffer + (offset - first);
}

}  // namespace ipex_assist
