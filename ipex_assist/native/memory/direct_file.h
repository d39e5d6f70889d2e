// A file that is read past the system's cache of pages, where its file system allows that.
#pragma once
#include <cstdint>
#include <string>

namespace ipex_assist {

class DirectFile {
public:
    static constexpr int64_t PAGE = 4096;  // what such reads begin and end at

    explicit DirectFile(int file);  // an open one, which is opened again
    ~DirectFile();
    DirectFile(const DirectFile&) = delete;
    DirectFile& operator=(const DirectFile&) = delete;

    // Reads bytes [offset, offset + bytes), which `buffer` has from what it returns on: it begins at a page's border, and
    // has room for the whole pages that they are in. Throws std::runtime_error, which names the file.
    const uint8_t* read(int64_t offset, int64_t bytes, uint8_t* buffer) const;
    // Room for `bytes` wherever they begin.
    static int64_t room(int64_t bytes) { return (bytes / PAGE + 2) * PAGE; }
    bool is(int file) const;  // whether it is the same file

private:
    [[noreturn]] void fail(const std::string& why) const;
    std::string name_;
    int file_;
};

}  // namespace ipex_assist
