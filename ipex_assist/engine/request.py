"""One text on its way through the engine, and the handle by which its owner hears of it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Protocol

from ipex_assist.executors.interface import Sequence, TokenLogprob
from ipex_assist.speculative.constrained import Constrained
from ipex_assist.speculative.draft import DraftSource, Proposal
from ipex_assist.speculative.grammar import Grammar, GrammarError, follow
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import RoundState, Schedule


@dataclass(eq=False)
class Request:
    """A text: what was asked for, how far it is, and what is held for it while it runs.

    tokens: the prompt's, then the text's. All but the last one are to be in `sequence`: what is missing there is read
    before the text goes on, so that a request may be put back and begun again at any moment. new_draft: makes the draft
    source when it is needed, None where nothing drafts. logprobs: how many likeliest tokens come with each token's
    log-probability; None for neither. prompt_logprobs: the same for the prompt's tokens but the first, which are
    gathered in prompt_choices. grammar: in the state behind the text's own tokens, between passes.
    """

    tokens: list[int]
    prompt_length: int
    limit: int
    eos: frozenset[int]
    sampling: Sampling
    logprobs: int | None
    new_draft: Callable[[], DraftSource | None]
    schedule: Schedule
    ended: Callable[[Request], None]
    assisted: bool = False
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    prompt_choices: list[TokenLogprob] = field(default_factory=list)
    number: int = 0
    sequence: Sequence | None = None
    draft: DraftSource | None = None
    proposal: Proposal | None = None  # that waits for its verification
    prompt_s: float = 0.0  # of passes with this prompt's chunks
    rounds: deque[Round] = field(default_factory=deque)  # that the owner has not fetched
    over: bool = False
    error: BaseException | None = None
    listener: Callable[[], object] | None = None

    @property
    def end(self) -> int:
        """The length at which the text is whole."""
        return self.prompt_length + self.limit

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self.end - len(self.tokens)

    @property
    def begun(self) -> bool:
        """Whether the text has tokens of its own."""
        return len(self.tokens) > self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens that a pass must read before the next one can be chosen."""
        return len(self.tokens) - (0 if self.sequence is None else self.sequence.length)

    @property
    def takes_likeliest(self) -> bool:
        """Whether the likeliest token is all that is wanted of a row."""
        plain = not self.sampling.do_sample and not self.sampling.changes_logits and self.grammar is None
        return plain and self.logprobs is None and not self.lists_prompt

    @property
    def sure(self) -> int:
        """How many tokens can be drafted that must follow, by the text's grammar."""
        return self.draft.sure(self.tokens) if isinstance(self.draft, Constrained) else 0

    @property
    def lists_prompt(self) -> bool:
        """Whether logits of the prompt's rows are wanted, so that all of them must be read."""
        return self.prompt_logprobs is not None and len(self.prompt_choices) < self.prompt_length - 1

    def unread(self, count: int) -> Tokens[int]:
        """Return the first `count` of the pending tokens."""
        assert self.sequence is not None
        return self.tokens[self.sequence.length : self.sequence.length + count]

    def state(self) -> RoundState:
        """Return where the text stands, for its schedule."""
        assert self.draft is not None
        return RoundState(len(self.tokens), self.remaining, self.draft.unread(self.tokens))

    def settle(self) -> None:
        """Bring what is held back in line with the tokens, whatever was under way when an error or signal came."""
        if self.draft is not None:
            self.draft.accept(0)
        if self.grammar is not None:
            self.grammar.truncate(min(len(self.grammar.tokens), len(self.tokens) - self.prompt_length))
        self.proposal = None
        if self.sequence is not None and self.sequence.length >= len(self.tokens):
            self.sequence.truncate(len(self.tokens) - 1)

    def recover(self) -> None:
        """`settle`, and begin the grammar anew: an interrupt may have come between any two of its steps."""
        self.settle()
        with contextlib.suppress(GrammarError):  # which the grammar says again when it is used, of this request alone
            if isinstance(self.draft, Constrained):
                self.draft.recover()
            if self.grammar is not None:
                self.grammar.truncate(0)
                follow(self.grammar, self.tokens[self.prompt_length :])

    def release(self) -> None:
        """Give back the memory that is held."""
        self.sequence = self.draft = self.proposal = None

    def put(self, round_: Round) -> None:
        """Give the owner a round."""
        self.rounds.append(round_)
        if self.listener is not None:
            self.listener()

    def finish(self, error: BaseException | None = None) -> None:
        """Say that there is no further one, and why, where that is an error."""
        self.error, self.over = error, True
        self.release()
        if self.listener is not None:
            self.listener()


class Driver(Protocol):
    """What a handle needs of its engine."""

    def advance(self, request: Request) -> None:
        """Run a pass, or wait until another thread has; returns at once where the request has news."""
        ...

    def cancel(self, request: Request) -> None:
        """End a request before the next pass."""
        ...


class Handle(Iterator[Round]):
    """Iterate, or iterate asynchronously, for the rounds of a text as they come.

    Where the engine has no thread of its own, whoever iterates runs its passes, for all requests that are under way.
    Raises what the request failed by. A handle that nobody keeps cancels its request.
    """

    def __init__(self, driver: Driver, request: Request) -> None:
        self._driver, self._request = driver, request

    def __iter__(self) -> Handle:
        return self

    def __next__(self) -> Round:
        request = self._request
        while not request.rounds:
            if request.over:
                raise self._end()
            self._driver.advance(request)
        return request.rounds.popleft()

    def _end(self) -> BaseException:
        error, self._request.error = self._request.error, None
        return error or StopIteration()

    def __aiter__(self) -> Handle:
        return self

    async def __anext__(self) -> Round:
        """The next round; needs an engine whose thread runs (`Engine.start`)."""
        import asyncio  # late: nobody who iterates in a thread needs it

        request, loop, arrived = self._request, asyncio.get_running_loop(), asyncio.Event()
        request.listener = lambda: loop.call_soon_threadsafe(arrived.set)
        while not request.rounds:
            if request.over:
                error = self._end()
                raise StopAsyncIteration if isinstance(error, StopIteration) else error
            await arrived.wait()
            arrived.clear()
        return request.rounds.popleft()

    @property
    def assisted(self) -> bool:
        """Whether anything may be drafted."""
        return self._request.assisted

    @property
    def has_round(self) -> bool:
        """Whether a round can be fetched without a pass."""
        return bool(self._request.rounds)

    def ready(self) -> bool:
        """Whether a round, or the end, can be fetched without another pass. Where not at first, one pass is run."""
        if not self.in_hand():
            self._driver.advance(self._request)
        return self.in_hand()

    def in_hand(self) -> bool:
        """Whether a round, or the end, can be fetched without another pass. None is run."""
        return bool(self._request.rounds) or self._request.over

    @property
    def ended(self) -> bool:
        """Whether no further round will come behind those that were not fetched yet."""
        return self._request.over

    def cancel(self) -> None:
        """End the request before the next pass; what came so far can still be read."""
        if not self._request.over:
            self._driver.cancel(self._request)

    close = cancel

    def __del__(self) -> None:
        if hasattr(self, "_request"):
            self.cancel()
