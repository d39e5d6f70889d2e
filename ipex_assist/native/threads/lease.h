// Something that one thread at a time may use, and that a child of fork() can go on using.
#pragma once
#include "threads/lock.h"

namespace ipex_assist {

template <class T>
class Lease;

// A value and its lock. T must be valid at every moment of being changed, so that a child of fork() can destroy it
// whatever a thread of the parent was doing with it: Memory is, and numbers are; standard containers are not.
template <class T>
class Leased {
private:
    friend class Lease<T>;
    Lock lock_;
    T value_;
};

// Holds a value while it lives; other threads wait for it.
template <class T>
class Lease {
public:
    explicit Lease(Leased<T>& of) : of_(of) {
        // The thread that was changing the value is in the parent, and the value half changed: it is freed, and new.
        if (!of_.lock_.lock()) of_.value_ = T();
    }
    ~Lease() { of_.lock_.unlock(); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    T& operator*() const { return of_.value_; }
    T* operator->() const { return &of_.value_; }

private:
    Leased<T>& of_;
};

}  // namespace ipex_assist
