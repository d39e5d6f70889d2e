// What the files of the C interface share: handles, and exceptions that become a status and a message.
#pragma once
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "operations/operations.h"
#include "operations/single_linear.h"
#include "threads/background.h"
#include "threads/lease.h"

#define IPEX_ASSIST_API extern "C" __attribute__((visibility("default")))

namespace ipex_assist {

void remember(const char* message);  // for ia_last_error, in this thread

// What passes of one model share beside its weights.
struct Buffers {
    Activations activations;
    LinearBuffers linears;
    Memory logits;  // where the caller asks for tokens only
    Timing timing;
    int64_t experts_read = 0;  // by the last call
};

// The model itself is shared with what needs it for longer than this handle: blocks of its keys and values, and models
// that look tokens up in its table.
struct Handle {
    std::shared_ptr<PackedModel> model;
    Program program{*model};
    Leased<Buffers> buffers{};
    int32_t status = 0;  // of the last call beside its caller, and its message
    std::string message;
    Background background{};  // the last member: its call uses the others
};

// A model and its buffers, which one thread at a time uses.
class BufferLease {
public:
    explicit BufferLease(void* handle)
        : handle_(*static_cast<const Handle*>(handle)),
          lease_(static_cast<Handle*>(handle)->buffers) {}

    const PackedModel& model() const { return *handle_.model; }
    const Program& program() const { return handle_.program; }
    Buffers& buffers() const { return *lease_; }

private:
    const Handle& handle_;
    const Lease<Buffers> lease_;
};

inline PackedModel& model_of(void* handle) { return *static_cast<Handle*>(handle)->model; }

// Runs f; where it throws, keeps the message and returns `failed`.
template <class T, class F>
T guarded(T failed, F&& f) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        remember("out of memory");
    } catch (const std::exception& error) {
        remember(error.what());
    } catch (...) {
        remember("an exception that is none of ours");
    }
    return failed;
}

// Likewise, with a status of its own for NaN and infinity.
template <class F>
int32_t guarded_numbers(int32_t not_finite, F&& f) {
    return guarded(-1, [&]() -> int32_t {
        try {
            return f();
        } catch (const NotFinite& error) {
            remember(error.what());
            return not_finite;
        }
    });
}

}  // namespace ipex_assist
