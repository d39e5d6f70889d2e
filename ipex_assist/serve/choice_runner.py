"""Runs the n choices of one HTTP request together: merges their outputs, with one error and one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

from ipex_assist.serve.backend import CALLER, Busy, Finished, GenerationRequest, OutputChunk, RequestShare

AT_ONCE = 32  # choices of one request submitted at a time
LONGEST_WAIT = 1.0  # seconds before a choice is submitted to a full queue again


def seconds_left(deadline: float) -> float:
    """Seconds until a deadline by the clock of the event loop. Raises TimeoutError after it."""
    remaining = deadline - asyncio.get_running_loop().time()
    if remaining <= 0:
        raise TimeoutError("the request took longer than this server allows")
    return remaining


class Generate(Protocol):
    """`Backend.generate`, or a wrapper of it."""

    def __call__(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """See Backend."""
        ...


@dataclass(frozen=True)
class ChoiceEvent:
    """An output chunk, or the end, of choice `index`."""

    index: int
    output: OutputChunk | Finished


class ChoiceRunner:
    """A context manager; leaving it cancels unfinished choices. All of them count against one share of the engines.

    If the queue has no room for any of the choices, Busy is raised; if it has room for some, the others are retried, so
    that a request with more choices than the queue holds completes, too.
    """

    def __init__(self, generate: Generate, requests: Sequence[GenerationRequest], deadline: float | None) -> None:
        """deadline: of all choices together, by the clock of the event loop."""
        self._generate, self._requests, self._deadline = generate, requests, deadline
        self._share = RequestShare(CALLER.get())
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
        """Whether all choices have finished."""
        return not self._open

    async def next(self, patience: float | None = None) -> ChoiceEvent | None:
        """The next event; None if none comes within `patience` seconds. Raises the error of a failed choice."""
        try:
            choice_event = self._events.get_nowait()
        except asyncio.QueueEmpty:
            # Not wait_for, which until Python 3.12 can swallow a cancellation that coincides with a result.
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
        """Run one choice; returns False if the queue was full and it must be retried."""
        request = self._requests[index]
        options = replace(request.options, share=self._share.caller)
        request = replace(request, options=options, share=self._share)
        try:
            async with aclosing(self._generate(request, timeout=self._remaining())) as parts:
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
        return None if self._deadline is None else seconds_left(self._deadline)
