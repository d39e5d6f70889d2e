"""A lock on a folder, for processes of one machine that decide together what they write there. Never imports torch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOCK_SECONDS = 2.0


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes of this machine while they decide what to write and delete.

    Goes on without the lock where the file system has none, or after _LOCK_SECONDS, since its holder may be stopped.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(number)
