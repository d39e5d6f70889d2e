"""Limits how often a message is logged, so that no client can fill the disk."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

MOST_OF_A_KIND = 5
INTERVAL_SECONDS = 60.0
MOST_KINDS = 500  # remembered; further ones are forgotten all at once
LOGGERS = ("asyncio", "uvicorn.error", "ipex_assist")


class RepeatLimit(logging.Filter):
    """Lets through `most` messages of a kind in `seconds`, and says how many there were more.

    Messages are of a kind if the first line is the same before it is formatted.
    """

    def __init__(
        self,
        most: int = MOST_OF_A_KIND,
        seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._seen: dict[str, tuple[float, int]] = {}  # a kind's interval: its beginning, and messages since
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is logged; the last of an interval and the first after it say what is left out."""
        kind = f"{record.name} {str(record.msg).partition(chr(10))[0][:200]}"
        with self._lock:
            now = self._clock()
            since, count = self._seen.get(kind, (now, 0))
            left_out = 0
            if now - since >= self._seconds:
                since, count, left_out = now, 0, max(0, count - self._most)
            if len(self._seen) >= MOST_KINDS:
                self._seen.clear()
            self._seen[kind] = since, count + 1
        if count >= self._most:
            return False
        if left_out:
            record.msg = f"{record.msg} (and {left_out:,} more before)"
        if count == self._most - 1:
            record.msg = f"{record.msg} (more of this kind are left out for {self._seconds:g} s)"
        return True


@contextlib.contextmanager
def limited_logs() -> Iterator[None]:
    """Limit the messages of the server and its libraries in this context."""
    limit = RepeatLimit()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(limit)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(limit)
