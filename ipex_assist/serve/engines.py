"""The engine processes of this machine as one backend: started, fed, watched, and started anew when they die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.backend import (
    Busy,
    Done,
    Failed,
    ModelFacts,
    NotReady,
    Part,
    ServerStatistics,
    TextRequest,
)
from ipex_assist.serve.counts import total
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.place import Place, Text, model_facts, part_of
from ipex_assist.serve.routing import block_keys, choose
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.workers.events import Answered, Ended, Event, LogLine, Measured, Ready, Streamed
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.restarts import RESTART_DELAYS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLOWER_DELAYS = (*RESTART_DELAYS, 10.0, 30.0)  # of engines that could load before, and are started anew for ever
MAX_TRIES = 2  # of a text whose engine died
OTHER_TEXT = "the engine that was at this request died, and another one would not have gone on by the same text"
LOOK_SECONDS = 1.0  # how long what no event tells may go unnoticed
CANCEL_SECONDS = 30.0  # an engine that says nothing for so long though a text was cancelled is ended
MOST_RETRY_AFTER = 600.0


class Engines:
    """A Backend over a `LocalPool`. All of it runs in one event loop, that of the main thread (`spawn_command`).

    It takes requests when one engine is ready. `failure` is done, with an exception, when none is left to wait for.
    """

    def __init__(
        self,
        name: str,
        options: ServeOptions | None = None,
        drafts: DraftOptions | None = None,
        say: Callable[[str], None] = lambda line: None,
        heard: Callable[[int, str], None] = lambda engine, line: None,
    ) -> None:
        """name: of the model, as requests call it. drafts: for requests that do not ask otherwise.

        say: takes messages for whoever runs the server. heard: takes lines of an engine's standard error.
        """
        self._name, self._options, self._say, self._heard = name, options or ServeOptions(), say, heard
        self._drafts = drafts or DraftOptions()
        self._pool: LocalPool | None = None
        self._places: list[Place] = []
        self._waiting: deque[Text] = deque()
        self._texts: set[Text] = set()  # that somebody waits for
        self._numbers = itertools.count(1)
        self._facts: ModelFacts | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._seconds = 1.0  # that a text takes of late
        self._looking: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._refusal: IpexAssistError | None = None
        self.draining = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # What HTTP asks.

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now, but for a full queue."""
        return self._why_not_ready() is None

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "the server is about to end"
        if self._facts is None or self._tokenizer is None:
            return "the model is being loaded"
        if not any(place.ready for place in self._places):
            return "the engines have died and are being started anew"
        return None

    @property
    def facts(self) -> ModelFacts:
        """What is served; NotReady before it is loaded."""
        if self._facts is None:
            raise NotReady("the model is being loaded")
        return self._facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's; NotReady before it is loaded."""
        if self._tokenizer is None:
            raise NotReady("the model is being loaded")
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._news.set()

    @property
    def concurrency(self) -> int:
        """The most texts at a time in an engine."""
        return max((place.concurrency for place in self._places), default=1)

    async def generate(
        self, request: TextRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[Part | Done, None]:
        """See Backend. timeout None: that of the options."""
        text = self._admit(request)
        seconds = self._options.timeout if timeout is None else timeout
        text.expiry = asyncio.get_running_loop().call_later(seconds, self._too_late, text, seconds)
        try:
            async for item in text.delivery:
                yield item
        finally:
            text.expiry.cancel()
            self._give_up(text, asyncio.CancelledError())

    def statistics(self) -> ServerStatistics:
        """Figures of this moment; what engines count is at most a second old, and exact when nothing runs."""
        blocks = [place.blocks for place in self._places if place.blocks is not None]
        return ServerStatistics(
            waiting=len(self._waiting),
            running=sum(len(place.running) for place in self._places),
            engine=total([counts for place in self._places for counts in (place.past, place.counts)]),
            blocks_used=sum(each["used"] for each in blocks) if blocks else None,
            blocks_total=sum(each["total"] for each in blocks) if blocks else None,
            blocks_cached=sum(each.get("cached", 0) for each in blocks),
            blocks_least=min((each["total"] for each in blocks), default=None),
            places=len(self._places),
            alive=sum(place.ready for place in self._places),
            restarts=sum(max(0, place.starts - 1) for place in self._places),
        )

    # From its start to its end.

    def start(self, pool: LocalPool) -> None:
        """Start a process at every place; they load side by side. Nothing where the end has come meanwhile."""
        if self.draining:
            return
        self._pool = pool
        self._places = [Place() for _ in range(pool.size)]
        asyncio.get_running_loop().add_reader(pool.fileno(), self._take_events)
        self._look()

    async def wait_ready(self) -> None:
        """Wait until requests are taken. Raises IpexAssistError where no engine can load the model."""
        while not self.ready and not self.failure.done():
            self._news.clear()
            news = asyncio.ensure_future(self._news.wait())
            either: set[asyncio.Future[Any]] = {news, self.failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        if self.failure.done():
            self.failure.result()

    async def drain(self, seconds: float) -> int:
        """Take nothing new, and wait so long for what there is; returns how many texts were given up then."""
        self.draining = True
        deadline = time.monotonic() + seconds
        if self._texts and seconds:
            count = f"{len(self._texts)} text{'s' * (len(self._texts) != 1)}"
            self._say(f"ending: {count} under way, {seconds:g} s left for that; a second signal ends at once")
        while self._texts and (left := deadline - time.monotonic()) > 0:
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
        left_over = list(self._texts)
        for text in left_over:
            self._give_up(text, Failed("the server has ended before this text", again=True))
        return len(left_over)

    def close(self, now: bool = False) -> None:
        """End all processes. now: those too that would end by themselves."""
        self.draining = True
        for text in list(self._texts):
            self._give_up(text, Failed("the server has ended before this text", again=True))
        if self._looking is not None:
            self._looking.cancel()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            asyncio.get_running_loop().remove_reader(pool.fileno())
            for number in range(pool.size) if now else ():
                pool.kill(number, "is ended")
            pool.close()
        if not self.failure.cancel() and not self.failure.cancelled():
            self.failure.exception()  # nobody may have asked

    # Texts.

    def _admit(self, request: TextRequest) -> Text:
        """Begin with a request, or let it wait. Raises NotReady and Busy."""
        if (reason := self._why_not_ready()) is not None:
            raise NotReady(reason)
        text = Text.of(request, self._drafts)
        self._waiting.append(text)
        self._feed()
        if text.place is None and len(self._waiting) > self._options.max_queue:
            self._waiting.remove(text)
            raise Busy(f"{len(self._waiting)} requests wait already (--max-queue)", self._retry_after())
        self._texts.add(text)
        return text

    def _retry_after(self) -> float:
        """Seconds after which the queue may have room: that one of the texts under way takes."""
        slots = sum(place.concurrency for place in self._places if place.ready) or 1
        return float(math.ceil(min(MOST_RETRY_AFTER, max(1.0, self._seconds / slots))))

    def _feed(self) -> None:
        """Give waiting texts to places that have room."""
        while self._waiting and self._pool is not None:
            text = self._waiting[0]
            load = {number: place.load for number, place in enumerate(self._places) if place.has_room}
            load = {number: each for number, each in load.items() if number not in text.tried} or load
            if not load:
                return
            self._waiting.popleft()
            text.place = choose({number: self._places[number].known.find(text.keys) for number in load}, load)
            self._places[text.place].take(text, next(self._numbers))
            self._pool.submit(text.place, text.fields())

    def _give_up(self, text: Text, error: BaseException) -> None:
        """Nobody waits for a text any more, or shall: end it wherever it is. Nothing if it has ended."""
        if text.delivery.over:
            return
        self._fail(text, error)
        if text.place is None:
            self._waiting.remove(text)
        elif self._pool is not None:
            text.cancelled_at = time.monotonic()
            self._pool.cancel(text.place, text.number)

    def _too_late(self, text: Text, seconds: float) -> None:
        """Its time is over: its reader is told, and so is whoever runs the server."""
        written = len(text.delivered)
        advice = f"{written} tokens were written: ask for fewer (max_tokens)" if written else "no token was written"
        self._say(f"a request took longer than --timeout ({seconds:g} s) and is ended; {written} tokens were written")
        self._give_up(text, TimeoutError(f"the request took longer than {seconds:g} s; {advice}"))

    def _fail(self, text: Text, error: BaseException) -> None:
        text.delivery.fail(error)
        self._forget(text)

    def _forget(self, text: Text) -> None:
        self._texts.discard(text)
        self._news.set()

    # What engines report.

    def _take_events(self) -> None:
        if self._pool is None:
            return
        for event in self._pool.wait(0.0):
            self._take(event)
        self._feed()

    def _take(self, event: Event) -> None:
        place = self._places[event.instance]
        place.heard_at = time.monotonic()
        if isinstance(event, Streamed):
            text = place.running.get(event.request)
            if text is not None and not text.deliver(part_of(event.chunk)):
                self._give_up(text, Failed(OTHER_TEXT, again=True))
        elif isinstance(event, Answered):
            self._answered(place, event)
        elif isinstance(event, Measured):
            place.measure(event.stats)
        elif isinstance(event, Ready):
            self._is_ready(place, event)
        elif isinstance(event, Ended):
            self._ended(place, event)
        elif isinstance(event, LogLine):
            self._heard(event.instance, event.line.rstrip("\r"))

    def _answered(self, place: Place, event: Answered) -> None:
        text = place.running.pop(event.request, None)
        place.ends_in_a_row = 0
        if text is None or text.delivery.over:  # nobody waits for it any more
            return
        if event.result is not None and text.seen < len(text.delivered):
            self._fail(text, Failed(OTHER_TEXT, again=True))
        elif event.result is not None:
            self._seconds += (time.monotonic() - text.sent_at - self._seconds) / 8
            place.known.keep(block_keys([*text.request.tokens, *event.result["tokens"]]))
            text.delivery.put(Done(event.result))
            self._forget(text)
        elif event.again:
            self._lost(text, event.error or "it failed")
        else:
            error = event.error or "the request failed"
            self._fail(text, UsageError(error) if event.refused else Failed(error))

    def _lost(self, text: Text, reason: str) -> None:
        """A try has failed; another one goes on where it was."""
        assert text.place is not None
        text.tried.append(text.place)
        text.place = None
        if len(text.tried) >= MAX_TRIES:
            self._fail(text, Failed(reason, again=True))
        else:
            self._waiting.appendleft(text)

    def _is_ready(self, place: Place, event: Ready) -> None:
        facts = event.facts
        place.ready = place.was_ready = True
        asked = self._options.max_concurrency or facts.get("concurrency", 1)
        place.concurrency = min(asked, facts.get("concurrency", asked))
        if self._facts is None:
            self._facts = model_facts(self._name, facts)
        self._news.set()

    def _ended(self, place: Place, event: Ended) -> None:
        doing = "between requests" if place.ready else "while loading"
        delays = SLOWER_DELAYS if place.was_ready else RESTART_DELAYS
        lost = place.lose()
        place.count_end(refused=event.refusal is not None, delays=delays, for_ever=True)
        for text in reversed(lost):  # the first of them shall be the first again
            self._lost(text, f"the engine that was at this request {event.reason}")
        if lost:
            failed = sum(text.delivery.over for text in lost)
            doing = f"at {len(lost)} requests, of which {failed} failed and {len(lost) - failed} are tried again"
        if (error := self._hopeless(event)) is not None:
            self._end_by(error)
            return
        seconds = max(0.0, place.restart_at - time.monotonic())
        then = "left out from here on" if place.given_up else f"started anew in {seconds:.0f} s"
        reason = event.refusal[0] if event.refusal is not None else event.reason
        self._say(f"engine {event.instance}: {reason} ({doing}); {then}")
        if not place.given_up:
            asyncio.get_running_loop().call_later(seconds, self._start_due)

    def _hopeless(self, event: Ended) -> IpexAssistError | None:
        """Why no engine is left to wait for; None while there is one."""
        if event.refusal is not None:
            message, exit_code = event.refusal
            wrong_usage = exit_code == UsageError.exit_code
            self._refusal = UsageError(message) if wrong_usage else IpexAssistError(message)
            if wrong_usage and self._facts is None:  # what one cannot do, none can
                return self._refusal
        if not all(place.given_up for place in self._places):
            return None
        return self._refusal or IpexAssistError(
            f"engine {event.instance} {event.reason} while loading, {len(RESTART_DELAYS) + 1} times in a row: start "
            "with -v to see why"
        )

    def _end_by(self, error: IpexAssistError) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
        for text in list(self._texts):
            self._give_up(text, Failed("no engine is left", again=True))

    # What no event tells.

    def _look(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        self._start_due()
        self._take_events()
        self._end_deaf()

    def _start_due(self) -> None:
        if self._pool is None or self.failure.done():
            return
        for number, place in enumerate(self._places):
            if place.alive or place.given_up or time.monotonic() < place.restart_at:
                continue
            place.alive = True
            place.starts += 1
            try:
                self._pool.start(number)
            except IpexAssistError as error:
                self._ended(place, Ended(number, "cannot be started", (str(error), error.exit_code)))

    def _end_deaf(self) -> None:
        """End engines that do not react: a cancelled text ends between two passes."""
        for number, place in enumerate(self._places):
            since = place.deaf_since()
            if self._pool is None or since is None or place.ending:
                continue
            if time.monotonic() - since > CANCEL_SECONDS:
                place.ending = True
                self._pool.kill(number, f"did not react for {CANCEL_SECONDS:g} s and was ended")
