"""The loop of a worker: takes requests as they come, runs passes for all of them, and sends replies."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.runner import out_of_memory
from ipex_assist.workers.image_queue import ImageQueue
from ipex_assist.workers.wire import (
    Answered,
    BlockCounts,
    Cancel,
    FromWorker,
    Measured,
    OutputChunk,
    Pause,
    Request,
    Resume,
    Streamed,
    TextRequest,
    TokenDelta,
    ToWorker,
    encoded,
)
from ipex_assist.workers.worker_model import begin, has_images, look

if TYPE_CHECKING:
    from ipex_assist.generation.pictured import PicturedPrompt
    from ipex_assist.generation.result import Chunk
    from ipex_assist.workers.worker_model import RunningRequest, WorkerModel

log = logging.getLogger("ipex_assist")

STATS_SECONDS = 1.0  # between two reports of the engine's counts while it works


class Looked(NamedTuple):
    """A request whose images were read, or why they cannot be."""

    request: Request
    prompt: PicturedPrompt | Exception


class Outbox:
    """Sends the replies of a step in one write, and with them, now and then, the engine's counts.

    Counts go out when no request is running any more, in the same write as the last reply, and otherwise once a second.
    """

    def __init__(self, model: WorkerModel, write: Callable[[bytes], None]) -> None:
        self._model, self._write = model, write
        self._lines: list[bytes] = []
        self._sent: Measured | None = None
        self._sent_at = 0.0

    def put(self, reply: FromWorker) -> None:
        """Send it at the end of the step."""
        self._lines.append(encoded(reply))

    def flush(self, idle: bool) -> None:
        """Send what was put. idle: no request is running."""
        now = time.monotonic()
        counts = measured(self._model) if idle or now - self._sent_at >= STATS_SECONDS else None
        if counts is not None and counts != self._sent:
            self._sent, self._sent_at = counts, now
            self._lines.append(encoded(counts))
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            self._write(lines)


def measured(model: WorkerModel) -> Measured | None:
    """The counts of a model; None of one without an engine of ours."""
    stats, blocks = model.engine_stats, model.kv_blocks
    if stats is None:
        return None
    held = None if blocks is None else BlockCounts(blocks.count - blocks.free, blocks.count, model.prefix_blocks)
    return Measured(stats.as_dict(), held)


class RequestLoop:
    """Generates for all running requests, a pass at a time, until `inbox` brings None.

    Text, replies and statistics of a pass are made while the next one runs, a request at a time. Who ends by a stop
    string may be in that pass, and its result is dropped.

    A request that waits for memory keeps no other from being answered or cancelled. One thread does it all: requests
    that share passes need no more, and OpenMP would start a team of threads for each further one.
    A request that is streamed gets each of its chunks as it comes.
    """

    def __init__(
        self,
        model: WorkerModel,
        send: Callable[[FromWorker], None],
        after_step: Callable[[bool], None] = lambda idle: None,
    ) -> None:
        """after_step: called after the replies of each step, with whether no request is running."""
        self.inbox: queue.SimpleQueue[ToWorker | Looked | None] = queue.SimpleQueue()
        self._model, self._send_reply, self._after_step = model, send, after_step
        self._running: dict[int, RunningRequest] = {}
        self._paused: dict[int, RunningRequest] = {}
        self._streams: set[int] = set()
        self._alone: set[int] = set()  # requests that share no passes
        self._looking: dict[int, bool] = {}  # requests whose images are being read, and whether they are paused
        self._images = ImageQueue(self._look)
        # requests that have output which was not sent yet; None while that is not known of the last pass
        self._ready: deque[int] | None = None
        self._open = True

    def run(self) -> None:
        """Serve until `inbox` has brought None and every request is answered that is not paused."""
        while self._open or self._running or self._looking:
            self._receive()
            self._step()
            if self._running or not self._open:
                self._after_step(not self._running)

    def _receive(self) -> None:
        """Start and cancel what has arrived; wait for a request where none is running."""
        while (self._open or self._looking) and not (self._running and self.inbox.empty()):
            if not self._running:  # about to wait
                self._after_step(True)
            request = self.inbox.get()
            if request is None:
                self._open = False
                self._images.close()
            elif isinstance(request, Cancel):
                self._cancel(request.id)
            elif isinstance(request, Pause):
                self._pause(request.id)
            elif isinstance(request, Resume):
                self._resume(request.id)
            elif isinstance(request, Looked):
                self._begin_looked(request)
            elif has_images(request):
                self._looking[request.id] = False
                self._images.add(request)
            else:
                self._begin(request)

    def _step(self) -> None:
        """Run a pass, and send meanwhile what each request has of the one before; then what could not be sent yet."""
        self._ready = None
        alone = [number for number in self._alone if number in self._running and self._running[number].in_hand()]
        if self._running:
            try:
                self._model.step(self._meanwhile)
            except Exception as error:  # of none of them: the engine ends a request with an error of its own
                for number, generation in list(self._running.items()):
                    generation.interrupt()
                    self._reply(failure(number, error))
        self._in_hand().extend(alone)
        while self._send_one():
            pass

    def _in_hand(self) -> deque[int]:
        """The requests that have output of an earlier pass and have not sent it: asked when the next pass has begun."""
        if self._ready is None:
            self._ready = deque(n for n, each in self._running.items() if each.in_hand() and n not in self._alone)
        return self._ready

    def _meanwhile(self) -> bool:
        """`_send_one`, and the end of a step's replies after the last of them."""
        sent, left = bool(self._in_hand()), self._send_one()
        if sent and not left:
            self._after_step(not self._running)
        return left

    def _send_one(self) -> bool:
        """Send what one request has; False where no other has anything."""
        ready = self._in_hand()
        if ready:
            number = ready.popleft()
            if (generation := self._running.get(number)) is not None:
                self._advance(number, generation)
        return bool(ready)

    def _look(self, request: Request) -> None:
        try:
            self.inbox.put(Looked(request, look(self._model, request)))
        except Exception as error:
            self.inbox.put(Looked(request, error))

    def _begin_looked(self, looked: Looked) -> None:
        number, prompt = looked.request.id, looked.prompt
        if number not in self._looking or isinstance(prompt, Exception):
            self._images.looked(number, None)
        else:
            self._images.looked(number, prompt.images)
        if number not in self._looking:  # it was cancelled
            return
        paused = self._looking.pop(number)
        if isinstance(prompt, Exception):
            self._reply(failure(number, prompt))
        elif isinstance(looked.request, TextRequest) and looked.request.tokens_only:
            self._reply(Answered(number, {"prompt": prompt.tokens, "tokens": [], "stop_reason": "stop"}))
        else:
            self._begin(looked.request, prompt)
            if paused:
                self._pause(number)

    def _begin(self, request: Request, pictured: PicturedPrompt | None = None) -> None:
        try:
            begun = self._running[request.id] = begin(self._model, request, pictured)
            if not begun.shares_passes:
                self._alone.add(request.id)
            if isinstance(request, TextRequest) and request.stream:
                self._streams.add(request.id)
        except Exception as error:
            self._reply(failure(request.id, error))

    def _cancel(self, number: int) -> None:
        generation = self._running.get(number) or self._paused.pop(number, None)
        if generation is not None:  # None: it is answered already
            generation.interrupt()
        if generation is not None or number in self._looking:
            self._looking.pop(number, None)
            self._reply(Answered(number, error="cancelled"))

    def _pause(self, number: int) -> None:
        if number in self._looking:
            self._looking[number] = True
        elif number in self._running:
            self._paused[number] = self._running.pop(number)
            self._paused[number].pause()

    def _resume(self, number: int) -> None:
        if number in self._looking:
            self._looking[number] = False
        elif number in self._paused:
            self._running[number] = self._paused.pop(number)
            self._running[number].resume()

    def _advance(self, number: int, generation: RunningRequest) -> None:
        try:
            chunk = next(generation)
            if number in self._streams:
                self._send_reply(Streamed(number, output_chunk(chunk)))
        except StopIteration:
            self._reply(Answered(number, generation.result().as_dict()))
        except Exception as error:
            self._reply(failure(number, error))

    def _reply(self, answer: Answered) -> None:
        self._running.pop(answer.id, None)
        self._streams.discard(answer.id)
        self._alone.discard(answer.id)
        self._images.ended(answer.id)
        self._send_reply(answer)


def output_chunk(chunk: Chunk) -> OutputChunk:
    """What is sent of a chunk."""
    deltas = [
        TokenDelta(piece.text, token, piece.drafted) for piece, token in zip(chunk.pieces, chunk.tokens, strict=True)
    ]
    of = chunk.round
    return OutputChunk(deltas, chunk.logprobs, of.drafted, of.accepted, of.cached_tokens)


def failure(number: int, error: Exception) -> Answered:
    """The answer to a request that raised `error`: whether another try may succeed, or the request itself is wrong."""
    if isinstance(error, IpexAssistError):
        return Answered(number, error=str(error), refused=isinstance(error, UsageError))
    return Answered(number, error=describe(error), again=True)


def describe(error: BaseException) -> str:
    if out_of_memory(error):
        return "out of memory; use a smaller --precision or model, fewer --instances, --concurrency 1, or --no-assisted"
    log.info("%s", error, exc_info=error)
    return f"{type(error).__name__}: {error} (run with -v for the whole story)"
