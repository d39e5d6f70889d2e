"""The lock of passes: one pass at a time has all cores, and the buffers that a model's passes share."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """A lock for `with`. A child of fork() finds it free, since the thread that held it is not in the child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        """Take the lock if it is free, without waiting. Whoever gets True must call `release`."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Free the lock after `try_acquire`."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


# The lock of this process. Two passes at once, of one model or of two, would only share the cores that one can fill.
pass_lock = ForkSafeLock()
