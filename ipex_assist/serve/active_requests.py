"""The unfinished requests of a server: admitted, queued, dispatched to engines, tried again, and ended."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from ipex_assist.serve.backend import Busy, Failed, Finished, GenerationRequest, InvalidField
from ipex_assist.serve.dispatcher import Dispatcher
from ipex_assist.serve.engine_slot import ActiveRequest, EngineSlot
from ipex_assist.serve.fair_queue import FairQueue
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.routing import block_keys
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.wire import Answered

MAX_TRIES = 2  # of a request whose engine died
MOST_RETRY_AFTER = 600.0
OTHER_TOKENS = "the engine of this request died, and another one did not continue with the same text"


class ActiveRequests:
    """All methods are called in one event loop."""

    def __init__(
        self, options: ServeOptions, drafts: DraftOptions, say: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """drafts: defaults for requests. say: prints a message for the operator. changed: called when one has ended."""
        self._options, self._drafts, self._say, self._changed = options, drafts, say, changed
        self._waiting = FairQueue()
        self._active: set[ActiveRequest] = set()
        self._pool: LocalPool | None = None
        self._slots: Sequence[EngineSlot] = ()
        self._dispatcher: Dispatcher | None = None
        self._seconds = 1.0  # moving average of a request's seconds

    @property
    def count(self) -> int:
        """How many have not ended."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many wait in the queue."""
        return len(self._waiting)

    def start(self, pool: LocalPool, slots: Sequence[EngineSlot]) -> None:
        """Dispatch them to the engines of this pool from now on."""
        self._pool, self._slots, self._dispatcher = pool, slots, Dispatcher(pool, slots, self._waiting)

    def stop(self) -> None:
        """Let go of the pool."""
        self._pool, self._dispatcher = None, None

    def feed(self) -> None:
        """Send waiting requests to engines that have room."""
        if self._dispatcher is not None:
            self._dispatcher.feed()

    def admit(self, request: GenerationRequest, timeout: float) -> ActiveRequest:
        """Dispatch or queue a text. Raises Busy for the first text of a request where the queue is full."""
        active = ActiveRequest.of(request, self._drafts)
        running = [each for slot in self._slots for each in slot.running]
        others = any(each.request.share is request.share for each in running) or request.share in self._waiting
        self._waiting.put(active)
        self.feed()
        if active.slot is None and not others and self._waiting.shares > self._options.max_queue:
            self._waiting.remove(active)
            raise Busy(f"{self._waiting.shares} requests wait already", self._retry_after())
        self._active.add(active)
        active.expiry = asyncio.get_running_loop().call_later(timeout, self._time_out, active, timeout)
        return active

    def answered(self, slot: EngineSlot, active: ActiveRequest, event: Answered) -> None:
        """Take the end of a request that was running in a slot."""
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
            self.retry(active, event.error or "it failed")
        else:
            error = event.error or "the request failed"
            grammar = active.request.grammar  # the rest of a request was checked here
            field = None if grammar is None else grammar.field
            self._fail(active, InvalidField(error, field) if event.refused else Failed(error))

    def retry(self, active: ActiveRequest, reason: str) -> None:
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

    def abort(self, active: ActiveRequest, error: BaseException) -> None:
        """Fail a request and cancel it wherever it is; does nothing if it has finished."""
        if active.expiry is not None:
            active.expiry.cancel()
        if active.output.over:
            return
        self._fail(active, error)
        if active.slot is None or active.paused:
            self._waiting.remove(active)
        if active.slot is not None and self._pool is not None:
            active.cancelled_at = time.monotonic()
            self._pool.cancel(active.slot, active.number)

    def abort_all(self, reason: str) -> int:
        """Abort every request, for a reason that another server may not have; returns how many there were."""
        left = list(self._active)
        for active in left:
            self.abort(active, Failed(reason, again=True))
        return len(left)

    def _time_out(self, active: ActiveRequest, seconds: float) -> None:
        """Abort a request that exceeded its timeout, and log it."""
        written = len(active.delivered)
        advice = f"{written} tokens were written: ask for fewer (max_tokens)" if written else "no token was written"
        self._say(f"a request took longer than --timeout ({seconds:g} s) and is ended; {written} tokens were written")
        self.abort(active, TimeoutError(f"the request took longer than {seconds:g} s; {advice}"))

    def _retry_after(self) -> float:
        """Estimated seconds until a running request finishes."""
        slots = sum(slot.concurrency for slot in self._slots if slot.ready) or 1
        return float(math.ceil(min(MOST_RETRY_AFTER, max(1.0, self._seconds / slots))))

    def _fail(self, active: ActiveRequest, error: BaseException) -> None:
        active.output.fail(error)
        self._forget(active)

    def _forget(self, active: ActiveRequest) -> None:
        self._active.discard(active)
        self._changed()
