"""The signals that ask a command to end: the first asks for it, a second one insists."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ipex_assist.env.runner import REPEAT_SECONDS

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal:
    """Remembers SIGINT, SIGTERM and SIGHUP; nothing is interrupted by them in the middle."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.twice = False
        self._first = 0.0
        self._numbers: list[signal.Signals] = []

    @contextmanager
    def caught(self) -> Iterator[StopSignal]:
        """Take the signals meanwhile; those that were ignored (nohup) stay ignored."""
        previous = {number: signal.getsignal(number) for number in STOPPING}
        self._numbers = [number for number in STOPPING if previous[number] is not signal.SIG_IGN]
        self.catch()
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def catch(self) -> None:
        """Take the signals again, from a library that has taken them meanwhile."""
        for number in self._numbers:
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._first = number, now
        elif now - self._first >= REPEAT_SECONDS:
            self.twice = True
