"""A CPU time limit for untrusted Python code: the chat templates of checkpoints."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY = 0.02  # seconds


class TimeLimitExceeded(Exception):
    """Raised when a computation exceeds its time limit."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. Raises what it raises, or TimeLimitExceeded.

    seconds: CPU time, so that a busy machine does not matter. The thread is interrupted between two bytecodes: a Python
    loop ends, a single call into a library does not.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    clocks: list[int] = []

    def run() -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        try:
            results.append(work())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="time limit", daemon=True)
    thread.start()
    try:
        while thread.is_alive() and _spent(clocks) < seconds:
            thread.join(_LOOK_EVERY)
    finally:
        late = thread.is_alive()
        if late:
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimitExceeded)
            )
    if late:
        thread.join(seconds)
        raise TimeLimitExceeded(f"it takes longer than {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]


def _spent(clocks: list[int]) -> float:
    with contextlib.suppress(IndexError, OSError):  # the thread has not begun yet, or has just ended
        return time.clock_gettime(clocks[0])
    return 0.0
