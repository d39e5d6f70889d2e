"""The engine processes of this machine as one backend: dispatches requests, watches and restarts processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.active_requests import OTHER_TOKENS, ActiveRequests
from ipex_assist.serve.backend import (
    Failed,
    Finished,
    GenerationRequest,
    ModelFacts,
    NotReady,
    OutputChunk,
    ServerStatistics,
)
from ipex_assist.serve.engine_slot import EngineSlot, statistics_of
from ipex_assist.serve.options import ServeOptions
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
ENDED = "the server has ended before this text"
WATCH_SECONDS = 1.0  # interval of checks that no event triggers
CANCEL_SECONDS = 30.0  # an engine that does not confirm a cancellation within this time is killed


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
        self._pool: LocalPool | None = None
        self._slots: list[EngineSlot] = []
        self._facts: ModelFacts | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._requests = ActiveRequests(self._options, drafts or DraftOptions(), say, self._changed.set)
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
    def concurrency(self) -> int:
        """The most concurrent requests of an engine."""
        return max((slot.concurrency for slot in self._slots), default=1)

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """See Backend. timeout: the options' where None."""
        if (reason := self._why_not_ready()) is not None:
            raise NotReady(reason)
        active = self._requests.admit(request, self._options.timeout if timeout is None else timeout)
        try:
            async for item in active.output:
                yield item
        finally:
            self._requests.abort(active, asyncio.CancelledError())

    def statistics(self) -> ServerStatistics:
        """Current statistics; engine counters are at most a second old, and exact when nothing runs."""
        return statistics_of(self._slots, self._requests.waiting)

    # Start and shutdown.

    def start(self, pool: LocalPool) -> None:
        """Start a process in every slot; they load in parallel. Does nothing if the server is draining already."""
        if self.draining:
            return
        self._pool = pool
        self._slots = [EngineSlot() for _ in range(pool.size)]
        self._requests.start(pool, self._slots)
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
        running = self._requests
        if running.count and seconds:
            count = f"{running.count} text{'s' * (running.count != 1)}"
            self._say(f"ending: {count} under way, {seconds:g} s left for that; a second signal ends at once")
        while running.count and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return running.abort_all(ENDED)

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
        self._requests.abort_all(ENDED)
        self._requests.stop()
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        if self._pool is not None:
            asyncio.get_running_loop().remove_reader(self._pool.fileno())
        if not self.failure.cancel() and not self.failure.cancelled():
            self.failure.exception()  # mark it as retrieved
        pool, self._pool = self._pool, None
        return pool

    # Events of engines.

    def _take_events(self) -> None:
        if self._pool is None:
            return
        for event in self._pool.wait(0.0):
            self._take(event)
        self._requests.feed()

    def _take(self, event: Event) -> None:
        slot = self._slots[event.instance]
        slot.heard_at = time.monotonic()
        if isinstance(event, Streamed):
            active = slot.requests.get(event.id)
            if active is not None and not active.deliver(event.chunk):
                self._requests.abort(active, Failed(OTHER_TOKENS, again=True))
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
        if active is not None and not active.output.over:  # else it was cancelled
            self._requests.answered(slot, active, event)

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
            self._requests.retry(active, f"the engine of this request {event.reason}")
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
        self._requests.abort_all("no engine is left")

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
