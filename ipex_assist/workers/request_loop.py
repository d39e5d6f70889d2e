"""The loop of a worker: takes requests as they come, runs passes for all of them, and sends replies."""

from __future__ import annotations

import json
import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.runner import out_of_memory
from ipex_assist.workers.worker_model import RunningRequest, WorkerModel

if TYPE_CHECKING:
    from ipex_assist.generation.result import Chunk

log = logging.getLogger("ipex_assist")

Reply = dict[str, Any]

STATS_SECONDS = 1.0  # between two reports of the engine's counts while it works


def encoded(reply: Mapping[str, Any]) -> bytes:
    """A reply as a line of JSON."""
    return json.dumps(reply).encode() + b"\n"


class Outbox:
    """Sends the replies of a step in one write, and with them, now and then, the engine's counts.

    Counts go out when no request is running any more, in the same write as the last reply, and otherwise once a second.
    """

    def __init__(self, model: WorkerModel, write: Callable[[bytes], None]) -> None:
        self._model, self._write = model, write
        self._lines: list[bytes] = []
        self._sent: dict[str, Any] = {}
        self._sent_at = 0.0

    def put(self, reply: Reply) -> None:
        """Send it at the end of the step."""
        self._lines.append(encoded(reply))

    def flush(self, idle: bool) -> None:
        """Send what was put. idle: no request is running."""
        now = time.monotonic()
        if (idle or now - self._sent_at >= STATS_SECONDS) and (stats := measured(self._model)) != self._sent:
            self._sent, self._sent_at = stats, now
            self._lines.append(encoded({"stats": stats}))
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            self._write(lines)


def measured(model: WorkerModel) -> dict[str, Any]:
    """What `Measured` reports of a model; empty for one without an engine of ours."""
    stats, blocks = model.engine_stats, model.kv_blocks
    if stats is None:
        return {}
    held = None
    if blocks is not None:
        held = {"used": blocks.count - blocks.free, "total": blocks.count, "cached": model.prefix_blocks}
    return {"engine": stats.as_dict(), "blocks": held}


class RequestLoop:
    """Generates for all running requests, a pass at a time, until `inbox` brings None.

    A request that waits for memory keeps no other from being answered or cancelled. One thread does it all: requests
    that share passes need no more, and OpenMP would start a team of threads for each further one.
    `inbox` takes requests, and {"cancel": id}, {"pause": id} and {"resume": id}. A request with "stream" gets each of
    its chunks as it comes.
    """

    def __init__(
        self, model: WorkerModel, send: Callable[[Reply], None], after_step: Callable[[bool], None] = lambda idle: None
    ) -> None:
        """after_step: called after the replies of each step, with whether no request is running."""
        self.inbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._model, self._send_reply, self._after_step = model, send, after_step
        self._running: dict[int, RunningRequest] = {}
        self._paused: dict[int, RunningRequest] = {}
        self._streams: set[int] = set()
        self._open = True

    def run(self) -> None:
        """Serve until `inbox` has brought None and every request is answered that is not paused."""
        while self._open or self._running:
            self._receive()
            self._step()
            if self._running or not self._open:
                self._after_step(not self._running)

    def _receive(self) -> None:
        """Start and cancel what has arrived; wait for a request where none is running."""
        while self._open and not (self._running and self.inbox.empty()):
            if not self._running:  # about to wait
                self._after_step(True)
            request = self.inbox.get()
            if request is None:
                self._open = False
            elif "cancel" in request:
                self._cancel(request["cancel"])
            elif "pause" in request:
                self._pause(request["pause"])
            elif "resume" in request:
                self._resume(request["resume"])
            else:
                self._begin(request)

    def _step(self) -> None:
        """Run a pass unless some output is ready already; then send what each request has, before a second pass."""
        if self._running and not any(generation.in_hand() for generation in self._running.values()):
            number, first = next(iter(self._running.items()))
            try:
                first.ready()
            except Exception as error:
                self._reply(number, failure(error))
        for number, generation in list(self._running.items()):
            if generation.in_hand():
                self._advance(number, generation)

    def _begin(self, request: Mapping[str, Any]) -> None:
        try:
            self._running[request["id"]] = self._model.begin_request(request)
            if request.get("stream"):
                self._streams.add(request["id"])
        except Exception as error:
            self._reply(request["id"], failure(error))

    def _cancel(self, number: int) -> None:
        generation = self._running.get(number) or self._paused.pop(number, None)
        if generation is not None:  # None: it is answered already
            generation.interrupt()
            self._reply(number, {"result": None, "error": "cancelled"})

    def _pause(self, number: int) -> None:
        if number in self._running:
            self._paused[number] = self._running.pop(number)
            self._paused[number].pause()

    def _resume(self, number: int) -> None:
        if number in self._paused:
            self._running[number] = self._paused.pop(number)
            self._running[number].resume()

    def _advance(self, number: int, generation: RunningRequest) -> None:
        try:
            chunk = next(generation)
            if number in self._streams:
                self._send_reply({"id": number, "chunk": chunk_fields(chunk)})
        except StopIteration:
            self._reply(number, {"result": generation.result().as_dict()})
        except Exception as error:
            self._reply(number, failure(error))

    def _reply(self, number: int, reply: Reply) -> None:
        self._running.pop(number, None)
        self._streams.discard(number)
        self._send_reply({"id": number, **reply})


def chunk_fields(chunk: Chunk) -> dict[str, Any]:
    """A chunk as `Streamed` has it."""
    return {
        "pieces": [[piece.text, token, piece.drafted] for piece, token in zip(chunk.pieces, chunk.tokens, strict=True)],
        "logprobs": None if chunk.logprobs is None else [asdict(choice) for choice in chunk.logprobs],
        "drafted": chunk.round.drafted,
        "accepted": chunk.round.accepted,
        "cached": chunk.round.cached_tokens,
    }


def failure(error: Exception) -> Reply:
    """The reply to a request that raised `error`: whether another try may succeed, or the request itself is wrong."""
    if isinstance(error, IpexAssistError):
        return {"result": None, "error": str(error), "refused": isinstance(error, UsageError)}
    return {"result": None, "error": describe(error), "again": True}


def describe(error: BaseException) -> str:
    if out_of_memory(error):
        return "out of memory; use a smaller --precision or model, fewer --instances, --concurrency 1, or --no-assisted"
    log.info("%s", error, exc_info=error)
    return f"{type(error).__name__}: {error} (run with -v for the whole story)"
