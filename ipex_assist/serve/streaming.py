"""Sends responses, whole or as server-sent events, and cancels generation when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ipex_assist.serve.answers.writer import AnswerWriter, compact
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.choice_runner import ChoiceRunner
from ipex_assist.serve.errors import api_error
from ipex_assist.serve.service import Service

KEEP_ALIVE_SECONDS = 10.0  # of silence, after which something is sent so that nobody takes the stream for dead
FEW = 16  # texts whose response is written in the event loop
# Proxies must neither cache nor buffer the stream.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class GenerationResponse(Response):
    """A response that generates while it is sent.

    Before anything is sent, an error gets its own status; in a started stream it is the last event. A stream starts
    with the first chunk, or after KEEP_ALIVE_SECONDS without one.
    """

    def __init__(
        self,
        service: Service,
        requests: Sequence[GenerationRequest],
        writer: AnswerWriter,
        *,
        deadline: float,
        stream: bool,
    ) -> None:
        """deadline: see `Service.deadline`."""
        self._service, self._requests, self._writer, self._stream = service, requests, writer, stream
        self._deadline = deadline
        self.status_code, self.background = 200, None
        self.media_type = "text/event-stream" if stream else "application/json"
        self.init_headers(STREAM_HEADERS if stream else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or stop when the client disconnects."""
        work = asyncio.create_task(self._run(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()

    def _choices(self) -> ChoiceRunner:
        return ChoiceRunner(self._service.backend.generate, self._requests, self._deadline)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await (self._streamed(send) if self._stream else self._answered())
        if response is not None:
            await response(scope, receive, send)

    async def _answered(self) -> Response:
        try:
            async with self._choices() as choices:
                while not choices.over:
                    choice_event = await choices.next()
                    assert choice_event is not None
                    for _ in self._writer.take(choice_event):
                        pass
            return Response(await self._whole(), media_type="application/json")
        except Exception as error:
            return self._writer.refusal(api_error(error))

    async def _whole(self) -> str:
        if len(self._requests) <= FEW:
            return compact(self._writer.whole())
        return await self._service.in_thread(lambda: compact(self._writer.whole()))

    async def _streamed(self, send: Send) -> Response | None:
        """Stream the response. Returns None, or the error response if the stream has not started."""
        begun, now = False, asyncio.get_running_loop().time
        try:
            async with self._choices() as choices:
                choice_event = await choices.next(KEEP_ALIVE_SECONDS)
                await self._start(send)
                begun, sent = True, now()
                events = [*self._writer.begin()]
                while True:
                    if choice_event is not None:
                        events += self._writer.take(choice_event)
                    if choices.over:
                        break
                    # What was generated may be held back: the arguments of a call, say.
                    if not events and (choice_event is None or now() - sent >= KEEP_ALIVE_SECONDS):
                        events.append(self._writer.keep_alive())
                    if events:
                        await _send(send, events)
                        sent = now()
                    events, choice_event = [], await choices.next(KEEP_ALIVE_SECONDS)
                await _send(send, [*events, *self._writer.end()])
        except Exception as error:
            told = api_error(error)
            if not begun:
                return self._writer.refusal(told)
            await _send(send, self._writer.failed(told))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def _send(send: Send, events: Iterable[str]) -> None:
    text = "".join(events)
    if text:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
