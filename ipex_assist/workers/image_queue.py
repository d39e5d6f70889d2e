"""Requests with images: which one's are read next, and when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.vision.memory import running_bytes
from ipex_assist.workers.wire import Request


class ImageQueue:
    """Has the images of one request read at a time, in their order, while the rows of those before leave memory.

    Rows of a request stay until it is answered: whoever has waited for memory is computed again from its first one.
    """

    def __init__(self, look: Callable[[Request], None], limit: int | None = None) -> None:
        """look: called in another thread; `looked` has to follow. limit: bytes of rows (default: `running_bytes`)."""
        self._look = look
        if limit is not None:
            self._limit = float(limit)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._waiting: deque[Request] = deque()
        self._reading = False
        self._held: dict[int, int] = {}  # bytes of rows by request

    @cached_property
    def _limit(self) -> float:
        return float(running_bytes())

    def add(self, request: Request) -> None:
        """Read its images when its turn has come."""
        self._waiting.append(request)
        self._next()

    def looked(self, number: int, images: PromptImages | None) -> None:
        """A request's images were read; None: it is answered by that."""
        self._reading = False
        if images is not None:
            self._held[number] = sum(each.rows.nbytes for each in images.images)
        self._next()

    def ended(self, number: int) -> None:
        """A request was answered, whether or not it had images."""
        if self._held.pop(number, None) is None:
            self._waiting = deque(each for each in self._waiting if each.id != number)
        self._next()

    def close(self) -> None:
        """Read all that wait: who is paused may never be answered."""
        self._limit = math.inf
        self._next()

    def _next(self) -> None:
        """Nobody has to wait for rows where no request has any."""
        if self._waiting and not self._reading and (not self._held or sum(self._held.values()) < self._limit):
            self._reading = True
            self._thread.submit(self._look, self._waiting.popleft())
