"""A request in the engine, and the handle by which its owner receives tokens."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ipex_assist.executors.adapters import AdapterChoice
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import Sequence, TokenLogprob
from ipex_assist.speculative.choosing.grammar import Grammar, GrammarError, follow
from ipex_assist.speculative.choosing.logit_edits import SeenTokens
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.pass_drafts import PlannedRequest
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import RoundState, Schedule
from ipex_assist.speculative.sources.constrained_source import ConstrainedSource
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.head_assistant import HeadAssistant
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.suffix_lookup import LookupWithFallback
from ipex_assist.speculative.sources.two_assistants import TwoAssistants

log = logging.getLogger("ipex_assist")


@dataclass(eq=False)
class RoundQueue:
    """What a request's owner has not fetched yet, and how it is told that there is something."""

    rounds: deque[tuple[Round, float]] = field(default_factory=deque)  # and when each has ended
    listener: Callable[[], object] | None = None
    unheard: bool = False  # the listener failed: whoever asked is gone

    def put(self, round_: Round, ended: float | None = None) -> None:
        """Queue a round. ended: when its pass has ended, if that is not now."""
        self.rounds.append((round_, time.perf_counter() if ended is None else ended))
        if self.listener is not None:
            self.notify()

    def take(self) -> Round:
        """The first round that was not fetched yet."""
        round_, ended = self.rounds.popleft()
        return round_._replace(ended=ended)

    def notify(self) -> None:
        """Tell the owner that there is something new. One that cannot be told any more ends this request, and no other.

        Its event loop may have ended while it waited.
        """
        listener = self.listener
        if listener is None:
            return
        try:
            listener()
        except Exception as error:
            self.listener, self.unheard = None, True
            log.warning(
                "a text has ended early: who waits for it cannot be told of it (%s)", error or type(error).__name__
            )


@dataclass(eq=False)
class Request:
    """A request: its parameters, its progress, and what it holds while it runs.

    tokens: the prompt's, then the output's. All but the last must be in `sequence` before the next token is chosen;
    whatever is missing is read first, so that a request can be preempted and resumed at any moment.
    limit: output tokens at most. make_draft_source: called when the request starts to run; None where nothing drafts.
    planner, planned: who chooses draft lengths, and its place there. schedule: where the request names them itself.
    logprobs: how many top log-probabilities come with each token; None for none at all. prompt_logprobs: the same for
    the prompt's tokens but the first, gathered in prompt_choices. grammar: between passes, in the state after the
    output tokens. adapter: of all its rows. images: of the prompt. number: order of arrival. priority: lower ones come
    first. share: who asked, of whom there may be many requests. streamed: its tokens are read as they come. paused:
    holds no memory and is not resumed before its owner says so.
    """

    tokens: list[int]
    prompt_length: int
    limit: int
    eos: frozenset[int]
    sampling: Sampling
    logprobs: int | None
    make_draft_source: Callable[[], DraftSource | None]
    on_finish: Callable[[Request], None]
    planner: Planner | None = None
    planned: PlannedRequest | None = None
    schedule: Schedule | None = None
    assisted: bool = False
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    adapter: AdapterChoice | None = None
    images: PromptImages | None = None
    prompt_choices: list[TokenLogprob] = field(default_factory=list)
    number: int = 0
    priority: int = 0
    share: str | None = None
    streamed: bool = True
    branch: int = 0
    sequence: Sequence | None = None
    draft: DraftSource | None = None
    seen: SeenTokens | None = None
    seen_before: SeenTokens | None = None  # whose edits the running pass may read
    proposal: Proposal | None = None  # to be verified in the current pass
    prompt_s: float = 0.0  # seconds of the passes that read this prompt
    cached_tokens: int = 0  # of the prompt, that the prefix cache had when the request began
    outbox: RoundQueue = field(default_factory=RoundQueue)
    paused: bool = False
    finished: bool = False
    error: BaseException | None = None

    @cached_property
    def end(self) -> int:
        """Length of prompt and output at which the request is complete."""
        return self.prompt_length + self.limit

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among others: by priority, then by arrival."""
        return self.priority, self.number

    @property
    def position(self) -> int:
        """Tokens that were read."""
        return 0 if self.sequence is None else self.sequence.length

    @property
    def remaining(self) -> int:
        """Output tokens that may still come."""
        return self.end - len(self.tokens)

    @property
    def has_output(self) -> bool:
        """Whether any output token was generated."""
        return len(self.tokens) > self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens that must be read before the next one can be chosen."""
        return len(self.tokens) - (0 if self.sequence is None else self.sequence.length)

    @property
    def decodes(self) -> bool:
        """Whether its next pass is a step: it has output, and one pending token."""
        length = len(self.tokens)
        return length > self.prompt_length and self.sequence is not None and length - self.sequence.length == 1

    @property
    def unbranched(self) -> int:
        """Of the pending tokens, those before `branch`, or all where that is passed."""
        ahead = self.branch - len(self.tokens) + self.pending
        return ahead if 0 < ahead < self.pending else self.pending

    @property
    def at_branch(self) -> bool:
        """Whether the tokens before `branch`, and no more, are read."""
        return bool(self.branch) and self.sequence is not None and self.sequence.length == self.branch

    def seen_tokens(self, width: int) -> SeenTokens | None:
        """What biases and penalties are for, in rows of `width` logits; None where they change nothing."""
        if self.seen is None and self.sampling.changes_logits:
            self.seen = SeenTokens(self.sampling, width)
        return self.seen

    @cached_property
    def takes_likeliest(self) -> bool:
        """Whether each of its tokens is the likeliest by the model's logits alone."""
        return not self.sampling.do_sample and not self.sampling.changes_logits and self.grammar is None

    @property
    def head(self) -> HeadAssistant | None:
        """The part of its draft source that reads the target's hidden states; None where there is none."""
        return None if self.draft is None else self.draft.find(HeadAssistant)

    @property
    def assistants(self) -> TwoAssistants | None:
        """The part of its draft source that has two assistants; None where there is none."""
        return None if self.draft is None else self.draft.find(TwoAssistants)

    @property
    def may_pause(self) -> bool:
        """Whether a pause of the planner means that it needs no draft of a model."""
        return self.draft is not None and self.draft.may_pause and self.planned is not None

    @property
    def copies(self) -> bool:
        """Whether its next draft would be a copy of earlier text, which no pause of the planner is about."""
        return isinstance(self.draft, LookupWithFallback) and self.draft.copies(self.tokens)

    @property
    def forced_count(self) -> int:
        """How many tokens the grammar forces next."""
        return self.draft.forced_count(self.tokens) if isinstance(self.draft, ConstrainedSource) else 0

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether logits of prompt rows are still needed, so that no cached prefix can stand in for them."""
        return self.prompt_logprobs is not None and len(self.prompt_choices) < self.prompt_length - 1

    def unread(self, count: int) -> Tokens[int]:
        """Return the first `count` of the pending tokens."""
        assert self.sequence is not None
        return self.tokens[self.sequence.length : self.sequence.length + count]

    def prefix_keys(self, count: int) -> Tokens[int]:
        """Return what its first `count` tokens are to the prefix cache."""
        tokens = self.tokens[:count]
        return tokens if self.images is None else self.images.keys(tokens)

    def state(self) -> RoundState:
        """Return the request's progress, for the planner."""
        assert self.draft is not None
        return self.state_with(self.draft.unread(self.tokens))

    def state_with(self, unread: int) -> RoundState:
        """Return its progress where its first assistant has `unread` tokens to read; 0 where none will be asked."""
        if not unread:
            return RoundState(len(self.tokens), self.remaining)
        if (assistants := self.assistants) is not None:
            second = assistants.model_unread(self.tokens)
            return RoundState(len(self.tokens), self.remaining, (unread, second), (False, True))
        return RoundState(len(self.tokens), self.remaining, (unread,), (self.head is None,))

    def roll_back(self) -> None:
        """Undo a pass that an error or a signal interrupted: draft, grammar and sequence again agree with `tokens`."""
        if self.draft is not None:
            self.draft.accept(0)
        if self.grammar is not None:
            self.grammar.truncate(min(len(self.grammar.tokens), len(self.tokens) - self.prompt_length))
        self.proposal = None
        if self.sequence is not None and self.sequence.length >= len(self.tokens):
            self.sequence.truncate(len(self.tokens) - 1)

    def recover(self) -> None:
        """`roll_back`, and rebuild the grammar's state: an interrupt may have left it between two steps."""
        self.roll_back()
        with contextlib.suppress(GrammarError):  # raised again when the grammar is next used, by this request alone
            if isinstance(self.draft, ConstrainedSource):
                self.draft.recover()
            if self.grammar is not None:
                self.grammar.truncate(0)
                follow(self.grammar, self.tokens[self.prompt_length :])

    def release(self) -> None:
        """Release the request's memory."""
        self.sequence = self.draft = self.proposal = None

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the request as finished; error: what it failed with, if it did."""
        self.error, self.finished = error, True
        if self.planner is not None and self.planned is not None:
            self.planner.leave(self.planned)
        self.release()
        self.outbox.notify()


class Driver(Protocol):
    """The part of the engine that a handle uses."""

    def advance(self, request: Request) -> None:
        """Run a pass, or wait until another thread has; returns at once if the request has a round or is finished."""
        ...

    def cancel(self, request: Request) -> None:
        """End a request before the next pass."""
        ...

    def check_awaitable(self) -> None:
        """Raise UsageError where nobody runs passes while a coroutine waits."""
        ...

    def pause(self, request: Request, paused: bool) -> None:
        """Preempt a request before the next pass, or let it run again."""
        ...


class RequestHandle(Iterator[Round]):
    """Iterate, synchronously or asynchronously, over the rounds of a request as they come.

    If the engine has no thread, iterating runs its passes, for all running requests. Raises what the request failed
    with. Dropping the handle cancels the request.
    """

    def __init__(self, driver: Driver, request: Request) -> None:
        self._driver, self._request = driver, request

    def __iter__(self) -> RequestHandle:
        return self

    def __next__(self) -> Round:
        request = self._request
        while not request.outbox.rounds:
            if request.finished:
                raise self._end()
            self._driver.advance(request)
        return request.outbox.take()

    def _end(self) -> BaseException:
        error, self._request.error = self._request.error, None
        return error or StopIteration()

    def __aiter__(self) -> RequestHandle:
        return self

    async def __anext__(self) -> Round:
        """The next round; needs an engine with a running thread (`Engine.start`)."""
        import asyncio  # deferred: synchronous iteration does not need it

        self._driver.check_awaitable()
        request, loop, arrived = self._request, asyncio.get_running_loop(), asyncio.Event()
        request.outbox.listener = lambda: loop.call_soon_threadsafe(arrived.set)
        while not request.outbox.rounds:
            if request.finished:
                error = self._end()
                raise StopAsyncIteration if isinstance(error, StopIteration) else error
            await arrived.wait()
            arrived.clear()
        return request.outbox.take()

    @property
    def assisted(self) -> bool:
        """Whether anything may be drafted."""
        return self._request.assisted

    @property
    def has_round(self) -> bool:
        """Whether a round can be fetched without a pass."""
        return bool(self._request.outbox.rounds)

    def ready(self) -> bool:
        """Whether a round, or the end, can be fetched; runs one pass first if there is neither."""
        if not self.in_hand():
            self._driver.advance(self._request)
        return self.in_hand()

    def in_hand(self) -> bool:
        """Whether a round, or the end, can be fetched without another pass; never runs one."""
        return bool(self._request.outbox.rounds) or self._request.finished

    @property
    def ended(self) -> bool:
        """Whether no round will come after those that are queued already."""
        return self._request.finished

    def cancel(self) -> None:
        """End the request before the next pass; queued rounds can still be fetched."""
        if not self._request.finished:
            self._driver.cancel(self._request)

    close = cancel

    def pause(self) -> None:
        """Release the request's memory before the next pass and keep its tokens; queued rounds can still be fetched."""
        self._driver.pause(self._request, True)

    def resume(self) -> None:
        """Let a paused request run again: it reads its tokens again, and its output is the same."""
        self._driver.pause(self._request, False)

    def __del__(self) -> None:
        if hasattr(self, "_request"):
            self.cancel()
