// An operation of a pass by name, and who watches what it writes.
#pragma once
#include <cstdint>

namespace ipex_assist {

struct Pass;
struct LayerStep;

// The buffers that an operation leaves behind for those after it (watch.cpp says where each of them is).
enum Written : uint32_t {
    NOTHING = 0,
    RESIDUAL_STREAM = 1 << 0,
    MIXER_INPUTS = 1 << 1,  // rows as the first linear of a mixer, and of an MLP, multiplies them
    MLP_INPUTS = 1 << 2,
    PROJECTED = 1 << 3,  // what the first linear of a mixer gives
    QUERIES = 1 << 4,    // of latent attention, before they are absorbed
    SCANNED = 1 << 5,    // rows as they pass over a recurrent state
    ATTENDED = 1 << 6,   // what a mixer gives, before its last linear
    VALUES = 1 << 7,     // of latent attention, likewise
    DELTA = 1 << 8,      // what is added to the residual stream next
    ACTIVE = 1 << 9,     // activated columns of an MLP or of routed experts
    ROUTER_LOGITS = 1 << 10,
    EXPERT_OUTPUTS = 1 << 11,
    LOGITS = 1 << 12,
};

// One step of a layer, run by every thread of a pass. When it returns, either all threads have done their part (it ends
// with a barrier), or what it gives to the next operation is the thread's own.
struct Operation {
    const char* name;
    void (*run)(Pass& pass, const LayerStep& step, int thread);
    uint32_t writes = NOTHING;  // a sum of Written
};

// A buffer after an operation of a pass. Part of the C interface: ipex_assist/native/watch.py mirrors it.
struct WatchedBuffer {
    const char* operation;
    const char* buffer;
    int32_t layer;                  // -1 before the first layer, the number of layers after the last
    int32_t pass_rows;              // rows of the pass as it goes on, fewer after those without logits were pruned
    int64_t rows, columns, stride;  // a row begins `stride` floats after the one before it
    const float* data;
    // (rows) which row of the batch each is; -1: a row of an earlier pass that a recurrent state has yet to take.
    const int32_t* batch_rows;
};

// Called by thread 0 while the others wait. What it is given is valid until it returns.
struct OperationWatch {
    void (*call)(void* context, const WatchedBuffer* buffer) = nullptr;
    void* context = nullptr;
};

// By every thread, after an operation: one call for each buffer of `writes`. step: null outside of layers.
void watch(Pass& pass, const char* name, uint32_t writes, const LayerStep* step, int thread);

}  // namespace ipex_assist
