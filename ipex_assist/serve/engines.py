"""The engine processes of this machine as one backend: dispatches requests, watches and restarts processes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.backend import (
    Busy,
    Failed,
    Finished,
    GenerationRequest,
    InvalidField,
    ModelFacts,
    NotReady,
    OutputChunk,
    ServerStatistics,
)
from ipex_assist.serve.dispatcher import Dispatcher
from ipex_assist.serve.engine_slot import ActiveRequest, EngineSlot, statistics_of
from ipex_assist.serve.fair_queue import FairQueue
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.routing import block_keys
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.restarts import RESTART_DELAYS
from ipex_assist.workers.wire import (
    Answered,
    Ended,
    Event,
    LogLine,
    Measured,
    PhaseReport,
    Ready,
    Refused,
    Streamed,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLOWER_DELAYS = (*RESTART_DELAYS, 10.0, 30.0)  # of engines that have loaded before; restarted without limit
MAX_TRIES = 2  # of a request whose engine died
OTHER_TOKENS = "the engine of this request died, and another one did not continue with the same text"
WATCH_SECONDS = 1.0  # interval of checks that no event triggers
CANCEL_SECONDS = 30.0  # an engine that does not confirm a cancellation within this time is killed
MOST_RETRY_AFTER = 600.0


class Engines:
    """A Backend over a `LocalPool`. Runs in one event loop, that of the main thread (`spawn_command`).

    Accepts requests once one engine is ready. `failure` completes with an exception when every engine is given up.
    """

    def __init__(
        self,
        name: str,
        options: ServeOptions | None = None,
        drafts: DraftOptions | None = None,
        say: Callable[[str], None] = lambda line: None,
        heard: Callable[[int, str], None] = lambda engine, line: None,
        loading: Callable[[PhaseReport], None] = lambda report: None,
    ) -> None:
        """name: of the model in requests. drafts: defaults for requests.

        say: prints a message for the operator. heard: takes a line of an engine's standard error. loading: takes what
        an engine does until it is ready.
        """
        self._name, self._options, self._say, self._heard = name, options or ServeOptions(), say, heard
        self._loading = loading
        self._drafts = drafts or DraftOptions()
        self._pool: LocalPool | None = None
        self._dispatcher: Dispatcher | None = None
        self._slots: list[EngineSlot] = []
        self._waiting = FairQueue()
        self._active: set[ActiveRequest] = set()  # unfinished requests
        self._facts: ModelFacts | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._seconds = 1.0  # moving average of a request's seconds
        self._watch_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._refusal: IpexAssistError | None = None
        self.draining = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # The Backend interface.

    @property
    def ready(self) -> bool:
        """Whether requests are accepted, unless the queue is full."""
        return self._why_not_ready() is None

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "the server is about to end"
        if self._facts is None or self._tokenizer is None:
            return "the model is being loaded"
        if not any(slot.ready for slot in self._slots):
            return "the engines have died and are being restarted"
        return None

    @property
    def facts(self) -> ModelFacts:
        """The served model. Raises NotReady before it is loaded."""
        if self._facts is None:
            raise NotReady("the model is being loaded")
        return self._facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer. Raises NotReady before it is loaded."""
        if self._tokenizer is None:
            raise NotReady("the model is being loaded")
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._changed.set()

    @property
    def _running(self) -> list[ActiveRequest]:
        return [active for slot in self._slots for active in slot.running]

    @property
    def concurrency(self) -> int:
        """The most concurrent requests of an engine."""
        return max((slot.concurrency for slot in self._slots), default=1)

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """See Backend. timeout: the options' where None."""
        active = self._admit(request)
        seconds = self._options.timeout if timeout is None else timeout
        active.expiry = asyncio.get_running_loop().call_later(seconds, self._time_out, active, seconds)
        try:
            async for item in active.output:
                yield item
        finally:
            active.expiry.cancel()
            self._abort(active, asyncio.CancelledError())

    def statistics(self) -> ServerStatistics:
        """Current statistics; engine counters are at most a second old, and exact when nothing runs."""
        return statistics_of(self._slots, len(self._waiting))

    # Start and shutdown.

    def start(self, pool: LocalPool) -> None:
        """Start a process in every slot; they load in parallel. Does nothing if the server is draining already."""
        if self.draining:
            return
        self._pool = pool
        self._slots = [EngineSlot() for _ in range(pool.size)]
        self._dispatcher = Dispatcher(pool, self._slots, self._waiting)
        asyncio.get_running_loop().add_reader(pool.fileno(), self._take_events)
        self._watch()

    async def wait_ready(self) -> None:
        """Wait until requests are accepted. Raises IpexAssistError if no engine can load the model."""
        while not self.ready and not self.failure.done():
            self._changed.clear()
            news = asyncio.ensure_future(self._changed.wait())
            either: set[asyncio.Future[Any]] = {news, self.failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        if self.failure.done():
            self.failure.result()

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and wait up to `seconds` for running ones; returns how many were aborted."""
        self.draining = True
        deadline = time.monotonic() + seconds
        if self._active and seconds:
            count = f"{len(self._active)} text{'s' * (len(self._active) != 1)}"
            self._say(f"ending: {count} under way, {seconds:g} s left for that; a second signal ends at once")
        while self._active and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        left_over = list(self._active)
        for active in left_over:
            self._abort(active, Failed("the server has ended before this text", again=True))
        return len(left_over)

    def close(self, now: bool = False) -> None:
        """End all processes. now: kill them instead of letting them exit."""
        pool = self.leave_pool()
        if pool is not None:
            for number in range(pool.size) if now else ():
                pool.kill(number, "is ended")
            pool.close()

    def leave_pool(self) -> LocalPool | None:
        """Abort all requests and let go of the processes, which the caller ends by `close` of what is returned; that
        may take seconds, and may be in a thread."""
        self.draining = True
        for active in list(self._active):
            self._abort(active, Failed("the server has ended before this text", again=True))
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        if self._pool is not None:
            asyncio.get_running_loop().remove_reader(self._pool.fileno())
        if not self.failure.cancel() and not self.failure.cancelled():
            self.failure.exception()  # mark it as retrieved
        pool, self._pool, self._dispatcher = self._pool, None, None
        return pool

    # Requests.

    def _admit(self, request: GenerationRequest) -> ActiveRequest:
        """Dispatch or queue a text. Raises NotReady, or Busy for the first text of a request."""
        if (reason := self._why_not_ready()) is not None:
            raise NotReady(reason)
        active = ActiveRequest.of(request, self._drafts)
        others = any(each.request.share is request.share for each in self._running) or request.share in self._waiting
        self._waiting.put(active)
        self._feed()
        if active.slot is None and not others and self._waiting.shares > self._options.max_queue:
            self._waiting.remove(active)
            raise Busy(f"{self._waiting.shares} requests wait already", self._retry_after())
        self._active.add(active)
        return active

    def _retry_after(self) -> float:
        """Estimated seconds until a running request finishes."""
        slots = sum(slot.concurrency for slot in self._slots if slot.ready) or 1
        return float(math.ceil(min(MOST_RETRY_AFTER, max(1.0, self._seconds / slots))))

    def _feed(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.feed()

    def _abort(self, active: ActiveRequest, error: BaseException) -> None:
        """Fail a request and cancel it wherever it is; does nothing if it has finished."""
        if active.output.over:
            return
        self._fail(active, error)
        if active.slot is None or active.paused:
            self._waiting.remove(active)
        if active.slot is not None and self._pool is not None:
            active.cancelled_at = time.monotonic()
            self._pool.cancel(active.slot, active.number)

    def _time_out(self, active: ActiveRequest, seconds: float) -> None:
        """Abort a request that exceeded its timeout, and log it."""
        written = len(active.delivered)
        advice = f"{written} tokens were written: ask for fewer (max_tokens)" if written else "no token was written"
        self._say(f"a request took longer than --timeout ({seconds:g} s) and is ended; {written} tokens were written")
        self._abort(active, TimeoutError(f"the request took longer than {seconds:g} s; {advice}"))

    def _fail(self, active: ActiveRequest, error: BaseException) -> None:
        active.output.fail(error)
        self._forget(active)

    def _forget(self, active: ActiveRequest) -> None:
        self._active.discard(active)
        self._changed.set()

    # Events of engines.

    def _take_events(self) -> None:
        if self._pool is None:
            return
        for event in self._pool.wait(0.0):
            self._take(event)
        self._feed()

    def _take(self, event: Event) -> None:
        slot = self._slots[event.instance]
        slot.heard_at = time.monotonic()
        if isinstance(event, Streamed):
            active = slot.requests.get(event.id)
            if active is not None and not active.deliver(event.chunk):
                self._abort(active, Failed(OTHER_TOKENS, again=True))
        elif isinstance(event, Answered):
            self._on_answer(slot, event)
        elif isinstance(event, Measured):
            slot.measure(event)
        elif isinstance(event, Ready):
            self._on_ready(slot, event)
        elif isinstance(event, Ended):
            self._on_end(slot, event)
        elif isinstance(event, LogLine):
            self._heard(event.instance, event.line.rstrip("\r"))
        elif isinstance(event, PhaseReport):
            self._loading(event)

    def _on_answer(self, slot: EngineSlot, event: Answered) -> None:
        active = slot.requests.pop(event.id, None)
        slot.ends_in_a_row = 0
        if active is None or active.output.over:  # cancelled
            return
        if active.paused:  # it ended before its engine read that
            self._waiting.remove(active)
            active.paused = False
        if event.result is not None and active.seen < len(active.delivered):
            self._fail(active, Failed(OTHER_TOKENS, again=True))
        elif event.result is not None:
            self._seconds += (time.monotonic() - active.sent_at - self._seconds) / 8
            slot.known.keep(block_keys([*active.request.tokens, *event.result["tokens"]]))
            active.output.put(Finished(event.result))
            self._forget(active)
        elif event.again:
            self._retry(active, event.error or "it failed")
        else:
            error = event.error or "the request failed"
            grammar = active.request.grammar  # the rest of a request was checked here
            field = None if grammar is None else grammar.field
            self._fail(active, InvalidField(error, field) if event.refused else Failed(error))

    def _retry(self, active: ActiveRequest, reason: str) -> None:
        """Queue a request again after its engine failed; the retry continues its output."""
        assert active.slot is not None
        if active.paused:
            active.slot, active.paused = None, False
            return  # it is in the queue
        active.tried.append(active.slot)
        active.slot = None
        if len(active.tried) >= MAX_TRIES:
            self._fail(active, Failed(reason, again=True))
        else:
            self._waiting.put_back(active)

    def _on_ready(self, slot: EngineSlot, event: Ready) -> None:
        slot.ready = slot.was_ready = True
        slot.pauses, slot.concurrency = event.pauses, event.concurrent(self._options.max_concurrency)
        if self._facts is None:
            self._facts = ModelFacts(name=self._name, created=int(time.time()), **structs.asdict(event.model))
        self._changed.set()

    def _on_end(self, slot: EngineSlot, event: Ended) -> None:
        doing = "between requests" if slot.ready else "while loading"
        delays = SLOWER_DELAYS if slot.was_ready else RESTART_DELAYS
        lost = slot.take_over_requests()
        slot.count_end(refused=event.refusal is not None, delays=delays, for_ever=True)
        for active in reversed(lost):  # put_back restores their order
            self._retry(active, f"the engine of this request {event.reason}")
        if lost:
            failed = sum(active.output.over for active in lost)
            doing = f"at {len(lost)} requests, of which {failed} failed and {len(lost) - failed} are tried again"
        if (error := self._fatal_error(event)) is not None:
            self._end_by(error)
            return
        seconds = max(0.0, slot.restart_at - time.monotonic())
        then = "not restarted" if slot.given_up else f"restarted in {seconds:.0f} s"
        reason = event.refusal.message if event.refusal is not None else event.reason
        self._say(f"engine {event.instance}: {reason} ({doing}); {then}")
        if not slot.given_up:
            asyncio.get_running_loop().call_later(seconds, self._start_due)

    def _fatal_error(self, event: Ended) -> IpexAssistError | None:
        """The error to end with if every engine is given up; else None."""
        if event.refusal is not None:
            self._refusal = event.refusal.error()
            if isinstance(self._refusal, UsageError) and self._facts is None:  # the same for every engine
                return self._refusal
        if not all(slot.given_up for slot in self._slots):
            return None
        return self._refusal or IpexAssistError(
            f"engine {event.instance} {event.reason} while loading, {len(RESTART_DELAYS) + 1} times in a row: start "
            "with -v to see why"
        )

    def _end_by(self, error: IpexAssistError) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
        for active in list(self._active):
            self._abort(active, Failed("no engine is left", again=True))

    # Periodic checks.

    def _watch(self) -> None:
        self._watch_timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch)
        self._start_due()
        self._take_events()
        self._end_unresponsive()

    def _start_due(self) -> None:
        if self._pool is None or self.failure.done():
            return
        for number, slot in enumerate(self._slots):
            if slot.alive or slot.given_up or time.monotonic() < slot.restart_at:
                continue
            slot.alive = True
            slot.starts += 1
            try:
                self._pool.start(number)
            except IpexAssistError as error:
                self._on_end(slot, Ended("cannot be started", Refused(str(error), error.exit_code), instance=number))

    def _end_unresponsive(self) -> None:
        """Kill engines that do not confirm a cancellation, which takes effect between two passes."""
        for number, slot in enumerate(self._slots):
            since = slot.unresponsive_since()
            if self._pool is None or since is None or slot.ending:
                continue
            if time.monotonic() - since > CANCEL_SECONDS:
                slot.ending = True
                self._pool.kill(number, f"did not react for {CANCEL_SECONDS:g} s and was ended")
