"""Requests with images: one at a time, while the rows of those before leave memory."""

from __future__ import annotations

import threading

import numpy as np

from ipex_assist.executors.image_rows import ImageRows, PromptImages
from ipex_assist.workers.image_queue import ImageQueue
from ipex_assist.workers.wire import Request, TextRequest

ROWS = PromptImages([ImageRows(0, np.zeros((10, 25), np.float32), b"")])  # 1,000 bytes


class Reader:
    """Notes which requests are read, and when none is for a while."""

    def __init__(self, limit: int) -> None:
        self.begun: list[int] = []
        self._more = threading.Condition()
        self.queue = ImageQueue(self._read, limit)
        for number in range(1, 6):
            self.queue.add(TextRequest(number, "what?", images=[b""]))

    def _read(self, request: Request) -> None:
        with self._more:
            self.begun.append(request.id)
            self._more.notify()

    def waits_with(self, begun: list[int]) -> bool:
        """Whether these are begun, and no further one."""
        with self._more:
            self._more.wait_for(lambda: len(self.begun) >= len(begun), 60)
            return not self._more.wait_for(lambda: len(self.begun) > len(begun), 0.05) and self.begun == begun


def test_rows_of_running_requests_are_limited() -> None:
    reader = Reader(2000)
    assert reader.waits_with([1])  # it is being read
    reader.queue.looked(1, ROWS)
    assert reader.waits_with([1, 2])
    reader.queue.looked(2, ROWS)
    assert reader.waits_with([1, 2])  # 2,000 bytes are held
    reader.queue.ended(7)  # a text
    assert reader.waits_with([1, 2])
    reader.queue.ended(1)
    assert reader.waits_with([1, 2, 3])
    reader.queue.looked(3, None)  # refused, or answered by that
    assert reader.waits_with([1, 2, 3, 4])


def test_one_request_may_have_more_than_all_together() -> None:
    reader = Reader(100)
    assert reader.waits_with([1])
    reader.queue.looked(1, ROWS)
    assert reader.waits_with([1])
    reader.queue.ended(1)
    assert reader.waits_with([1, 2])


def test_who_is_cancelled_while_waiting_is_not_read() -> None:
    reader = Reader(1000)
    assert reader.waits_with([1])
    reader.queue.ended(2)
    reader.queue.looked(1, None)
    assert reader.waits_with([1, 3])


def test_nobody_waits_when_no_more_come() -> None:
    """A paused request may never be answered, and the others would keep the worker from ending."""
    reader = Reader(1000)
    assert reader.waits_with([1])
    reader.queue.looked(1, ROWS)
    assert reader.waits_with([1])
    reader.queue.close()
    assert reader.waits_with([1, 2])
