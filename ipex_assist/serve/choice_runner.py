"""Several texts of one request, run together: their parts as they come, one error for all, one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from ipex_assist.serve.backend import Busy, Finished, GenerationRequest, OutputChunk

AT_ONCE = 32  # texts of one request that are offered to the queue at a time
LONGEST_WAIT = 1.0  # seconds until a text is offered to a full queue again


class Generate(Protocol):
    """`Backend.generate`, or the same with something around it."""

    def __call__(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """See Backend."""
        ...


@dataclass(frozen=True)
class ChoiceEvent:
    """Which of the texts has a part, or its end."""

    index: int
    output: OutputChunk | Finished


class ChoiceRunner:
    """Use as a context: leaving it cancels what is not done.

    Where the queue has no room for any of the texts, Busy is raised; where it has room for some of them, the others
    wait for their turn, so that a request of more texts than the queue holds ends, too.
    """

    def __init__(self, generate: Generate, requests: Sequence[GenerationRequest], timeout: float | None) -> None:
        """timeout: seconds, for all of them together."""
        self._generate, self._requests = generate, requests
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._events: asyncio.Queue[ChoiceEvent | Exception] = asyncio.Queue()
        self._waiting = iter(range(len(requests)))
        self._tasks: list[asyncio.Task[None]] = []
        self._open = len(requests)
        self._started = False
        self._refused: set[int] = set()

    async def __aenter__(self) -> ChoiceRunner:
        self._tasks = [asyncio.create_task(self._work()) for _ in self._requests[:AT_ONCE]]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def over(self) -> bool:
        """Whether every text has ended."""
        return not self._open

    async def next(self, patience: float | None = None) -> ChoiceEvent | None:
        """The next news; None where nothing comes within `patience` seconds. Raises what a text failed by."""
        try:
            choice_event = self._events.get_nowait()
        except asyncio.QueueEmpty:
            # Not by wait_for, which until Python 3.12 forgets that it was cancelled where news come at that moment.
            coming = asyncio.ensure_future(self._events.get())
            try:
                await asyncio.wait({coming}, timeout=patience)
            finally:
                if not coming.done():
                    coming.cancel()
            if not coming.done() or coming.cancelled():
                return None
            choice_event = coming.result()
        if isinstance(choice_event, Exception):
            raise choice_event
        self._open -= isinstance(choice_event.output, Finished)
        return choice_event

    async def _work(self) -> None:
        try:
            for index in self._waiting:
                while not await self._try(index):
                    pass
        except Exception as error:
            self._events.put_nowait(error)

    async def _try(self, index: int) -> bool:
        """Run a text; False where the queue was full, and it is to be tried again."""
        try:
            async with aclosing(self._generate(self._requests[index], timeout=self._remaining())) as parts:
                async for output in parts:
                    self._started = True
                    self._events.put_nowait(ChoiceEvent(index, output))
            return True
        except Busy as error:
            self._refused.add(index)
            if not self._started and len(self._refused) == len(self._tasks):
                raise
            await asyncio.sleep(min(error.retry_after, LONGEST_WAIT, self._remaining() or LONGEST_WAIT))
            self._refused.discard(index)
            return False

    def _remaining(self) -> float | None:
        if self._deadline is None:
            return None
        remaining = self._deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            raise TimeoutError("the request took longer than this server allows (--timeout)")
        return remaining
