"""A request's output queue between engine and HTTP response, so that a slow reader blocks nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from ipex_assist.serve.backend import Finished, OutputChunk


class OutputQueue(AsyncIterator[OutputChunk | Finished]):
    """Chunks in order, then `Finished` or an exception; anything put after that is ignored.

    For one event loop. Holds at most the request's whole output.
    """

    def __init__(self) -> None:
        self._items: deque[OutputChunk | Finished] = deque()
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self.over = False

    def put(self, item: OutputChunk | Finished) -> None:
        """Append a chunk, or the end."""
        if not self.over:
            self._items.append(item)
            self.over = isinstance(item, Finished)
            self._news.set()

    def fail(self, error: BaseException) -> None:
        """End the queue with an exception, raised after the chunks in it."""
        if not self.over:
            self._error, self.over = error, True
            self._news.set()

    def __aiter__(self) -> OutputQueue:
        return self

    async def __anext__(self) -> OutputChunk | Finished:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()
