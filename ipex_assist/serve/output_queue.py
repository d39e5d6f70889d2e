"""One text on its way from an engine to whoever waits for it: parts queue here, so that a slow reader stops nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from ipex_assist.serve.backend import Finished, OutputChunk


class OutputQueue(AsyncIterator[OutputChunk | Finished]):
    """Parts in their order, and at last `Done` or an exception, behind which nothing is taken any more.

    For one event loop. What waits here is at most the text itself.
    """

    def __init__(self) -> None:
        self._items: deque[OutputChunk | Finished] = deque()
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self.over = False

    def put(self, item: OutputChunk | Finished) -> None:
        """Give the reader a part, or the end."""
        if not self.over:
            self._items.append(item)
            self.over = isinstance(item, Finished)
            self._news.set()

    def fail(self, error: BaseException) -> None:
        """End it by an exception, which the reader gets behind the parts there are."""
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
