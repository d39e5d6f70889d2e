"""The engine: one thread at a time runs passes; requests join, leave and are cancelled between passes."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.prefix_cache import PrefixCache, Prefixes
from ipex_assist.engine.request import Request, RequestHandle
from ipex_assist.engine.scheduler import Scheduler
from ipex_assist.engine.state_prefixes import StatePrefixes
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.adapters import AdapterChoice
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import Meanwhile, Model
from ipex_assist.speculative.choosing.grammar import Grammar
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.pass_drafts import PlannedRequest
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import LONGEST_DRAFT, ConstantSchedule, Schedule
from ipex_assist.speculative.sources.constrained_source import ConstrainedSource
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.earlier_text import Caller

log = logging.getLogger("ipex_assist")


class Engine:
    """Runs any number of requests on one target model. Thread-safe.

    Without `start` there is no engine thread: whoever iterates a handle runs passes, for all requests. So a single
    request costs no more than a plain decoding loop.
    """

    def __init__(
        self,
        target: Model,
        drafting: Drafting,
        eos: frozenset[int] = frozenset(),
        limits: EngineLimits | None = None,
        *,
        prefixes: Prefixes | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """prefixes: the prefix cache; by default one over the target's block pool, if it has one."""
        self.target, self.drafting, self.eos, self.limits = target, drafting, eos, limits or EngineLimits()
        self.stats = EngineStats()
        self._clock = clock
        if prefixes is None and target.blocks is not None:
            prefixes = (StatePrefixes if target.spec.keeps_states else PrefixCache)(target.blocks)
        self._scheduler = Scheduler(target, self.limits, prefixes, self.stats, clock)
        self._numbers = itertools.count()
        self._arrived: deque[Request] = deque()  # appended by any thread …
        self._cancelled: deque[Request] = deque()
        self._pass_lock = threading.Lock()  # … and taken by the thread that runs a pass
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._process: int | None = None  # in which the thread was started
        self._planner: Planner | None = None

    def submit(
        self,
        tokens: Sequence[int],
        options: GenerationOptions,
        *,
        limit: int | None = None,
        draft: DraftSource | None = None,
        schedule: Schedule | Planner | None = None,
        grammar: Grammar | None = None,
        images: PromptImages | None = None,
    ) -> RequestHandle:
        """Submit a request for at most `limit` tokens (default: options.max_new_tokens) following the prompt `tokens`.

        draft, schedule: replace the pair's own, for experiments; the pair then learns nothing from the request.
        grammar: constrains the output; in its initial state, and owned by this request from now on. Under a grammar an
        end-of-text token ends the output, whatever `options.ignore_eos` says. images: what stands in the place of some
        of the prompt's tokens.
        Raises IpexAssistError if the keys and values could never fit into the block pool.
        """
        self._check_process()
        limit = options.max_new_tokens if limit is None else limit
        self._check_fits(len(tokens) + limit - 1)  # the last token is never read
        request = self._request(list(tokens), options, limit, draft, schedule, grammar)
        request.number, request.images = next(self._numbers), images
        self._arrived.append(request)
        with self._changed:
            self._changed.notify_all()
        return RequestHandle(self, request)

    def advance(self, request: Request) -> None:
        """Run a pass, or wait until the engine's thread has run one; see Driver."""
        if self._thread is not None:
            self._check_process()
            with self._changed:
                if not request.outbox.rounds and not request.finished:
                    self._changed.wait(timeout=1.0)  # the thread may have been closed in the meantime
            return
        with self._pass_lock:
            if not request.outbox.rounds and not request.finished:
                self._step()

    def check_awaitable(self) -> None:
        """Raise UsageError where no thread runs passes while a coroutine waits."""
        self._check_process()
        if self._thread is None:
            raise UsageError("nothing runs the passes that `async for` waits for: call the model's start() before it")

    @property
    def _forked(self) -> bool:
        """Whether the thread is that of another process, of which this is a fork; locks may be held for ever then."""
        return self._thread is not None and self._process != os.getpid()

    def _check_process(self) -> None:
        if self._forked:
            raise UsageError(
                "this process was forked from the one in which the model was started, and has none of its threads: "
                "load the model here, or fork before start()"
            )

    def cancel(self, request: Request) -> None:
        """End a request before the next pass."""
        if self._forked:
            return
        self._cancelled.append(request)
        # There may never be another pass, so unless one is running the request's memory is released now. Acquiring must
        # not block: a handle can be garbage-collected at any moment, even during a pass of this very thread.
        if self._pass_lock.acquire(blocking=False):
            try:
                self._take_arrivals()
            finally:
                self._pass_lock.release()
        with self._changed:
            self._changed.notify_all()

    def pause(self, request: Request, paused: bool) -> None:
        """Preempt a request before the next pass, so that others have its place and memory; or let it run again."""
        request.paused = paused
        with self._changed:
            self._changed.notify_all()

    @property
    def prefix_blocks(self) -> int:
        """Blocks of the target's pool that the prefix cache holds."""
        return self._scheduler.block_budget.prefix_blocks

    def wrap_prefixes(self, wrap: Callable[[Prefixes], Prefixes]) -> None:
        """Put something around the prefix cache, if there is one; before the first request."""
        self._scheduler.block_budget.wrap_prefixes(wrap)

    def step(self, meanwhile: Meanwhile | None = None) -> bool:
        """Run one pass. Returns False if there is nothing to do. meanwhile: called while it runs."""
        with self._pass_lock:
            done = self._step(meanwhile)
        if self._thread is not None:
            with self._changed:
                self._changed.notify_all()
        return done

    def _step(self, meanwhile: Meanwhile | None = None) -> bool:
        started = self._clock()
        self._take_arrivals()
        done = self._scheduler.step(meanwhile)
        self.stats.step_s += self._clock() - started
        return done

    def start(self) -> None:
        """Run passes in a background thread until `close`."""
        if self._thread is None:
            self._closing, self._process = False, os.getpid()
            self._thread = threading.Thread(target=self._run, name="ipex-assist engine", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, cancel every request and empty the prefix cache."""
        if self._forked:
            return
        thread, self._closing = self._thread, True
        with self._changed:
            self._changed.notify_all()
        if thread is not None:
            thread.join()
            self._thread = None
        with self._pass_lock:
            self._take_arrivals()
            self._scheduler.end_all()
            self._scheduler.block_budget.clear_prefixes()

    def _run(self) -> None:
        while not self._closing:
            if not self._guarded_step():
                with self._changed:
                    if not (self._closing or self._arrived or self._cancelled or self._scheduler.busy):
                        self._changed.wait()

    def _guarded_step(self) -> bool:
        """`step` for the thread, which must not end: what fails beside the passes ends the requests, and no other."""
        try:
            return self.step()
        except Exception as error:
            log.exception("a pass failed outside of its requests, which end with it")
            with self._pass_lock:
                self._scheduler.fail_all(error)
            with self._changed:
                self._changed.notify_all()
            return True

    def _take_arrivals(self) -> None:
        while self._arrived:
            self._scheduler.add(self._arrived.popleft())
        while self._cancelled:
            self._scheduler.cancel(self._cancelled.popleft())

    def _check_fits(self, tokens: int) -> None:
        blocks = self.target.blocks
        if blocks is not None and -(-tokens // blocks.size) > blocks.count:
            raise IpexAssistError(
                f"the keys and values of {tokens} tokens, prompt and text, take {-(-tokens // blocks.size)} blocks of "
                f"{blocks.size}, and there is memory for {blocks.count}: shorten them, or give more by --kv-memory"
            )

    def _request(
        self,
        tokens: list[int],
        options: GenerationOptions,
        limit: int,
        draft: DraftSource | None,
        schedule: Schedule | Planner | None,
        grammar: Grammar | None,
    ) -> Request:
        sampling = Sampling.part_of(options, prompt_length=len(tokens))
        experiment = draft is not None or schedule is not None
        possible = draft is not None or self.drafting.possible
        assisted = options.may_draft and (possible or grammar is not None)
        length, caller = len(tokens) + limit, Caller(options.share, options.lora)

        def make_draft_source() -> DraftSource | None:
            if not assisted:
                return None
            if draft is None:
                return self.drafting.source(sampling, length, grammar, caller)
            return draft if grammar is None else ConstrainedSource(grammar.copy(), len(tokens), draft)

        planner: Planner | None = None
        planned: PlannedRequest | None = None
        if assisted and schedule is None:
            schedule = self.drafting.schedule(options) if possible else ConstantSchedule(0)  # for forced tokens
            schedule = schedule or self._planner_of_all() or ConstantSchedule(0)
        if isinstance(schedule, Planner):
            longest = LONGEST_DRAFT if options.num_assistant_tokens is None else options.num_assistant_tokens
            planner, planned, schedule = schedule, schedule.join(limit, longest, options.lora), None
        learns = options.is_adaptive and not experiment and assisted

        def on_finish(request: Request) -> None:
            if learns:
                self._learn(request)
            self.drafting.remember(request.tokens[request.prompt_length :], caller)

        return Request(
            tokens=tokens,
            prompt_length=len(tokens),
            limit=limit,
            eos=frozenset() if options.ignore_eos and grammar is None else self.eos,
            sampling=sampling,
            logprobs=options.logprobs,
            prompt_logprobs=options.prompt_logprobs,
            adapter=None if options.lora is None else AdapterChoice(options.lora, options.lora_scale),
            priority=options.priority,
            share=options.share,
            streamed=options.streamed,
            make_draft_source=make_draft_source,
            schedule=schedule,
            planner=planner,
            planned=planned,
            on_finish=on_finish,
            assisted=assisted,
            grammar=grammar,
        )

    def _planner_of_all(self) -> Planner | None:
        """Return the planner of running requests: a new one, with the pair's costs, whenever the engine was idle.

        None where those are not known and running requests hold all the memory that calibration needs.
        """
        if self._planner is not None and (self._scheduler.busy or self._arrived):
            return self._planner
        for _ in ("beside the prefixes that are kept", "without them"):
            try:
                self._planner = self.drafting.planner()
            except NoBlocksError:
                with self._pass_lock:
                    self._scheduler.block_budget.clear_prefixes()
            else:
                return self._planner
        return None

    def _learn(self, request: Request) -> None:
        if request.planner is not None and request.planned is not None:
            self.drafting.learn(request.planner, request.planned)
