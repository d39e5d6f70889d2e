"""Passes take turns: each has all cores for itself, and what a model's passes share is used by one at a time."""

from __future__ import annotations

import os
import threading


class Turn:
    """A lock for `with`; a child of fork() finds it free, as the thread that held it is not in the child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def take_at_once(self) -> bool:
        """Whether it could be had without waiting, and is now the caller's, who must give it back."""
        return self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        """Of what `take_at_once` gave."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


# Of this process. Two passes at a time, of one model or of two, would only share the cores that one of them can fill.
turn = Turn()
