"""The seam between HTTP and the engines: what is asked for, what comes back, and what may go wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ipex_assist.speculative.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class GenerationRequest:
    """One text to generate. tokens: the whole prompt's ids, with the special ones that it shall have."""

    tokens: list[int]
    options: GenerationOptions
    grammar: GrammarSpec | None = None


@dataclass(frozen=True)
class TokenDelta:
    """A bit of text. token: the id with which it came (a text may be of several tokens). drafted: whether that one was
    drafted and accepted."""

    text: str
    token: int
    drafted: bool


@dataclass(frozen=True)
class OutputChunk:
    """What one pass of the target brought. logprobs: for each piece, where they were asked for.

    drafted, accepted: tokens that were drafted for this pass, and those of them that were taken.
    """

    token_deltas: list[TokenDelta]
    logprobs: list[dict[str, Any]] | None
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Finished:
    """The end of a text. result: `Result.as_dict()`, the whole text and all figures among it."""

    result: dict[str, Any]


class Busy(Exception):
    """The queue is full (HTTP 429). retry_after: seconds after which there may be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReady(Exception):
    """Nothing is taken: models are being loaded, or the server is about to end (HTTP 503)."""


class Failed(Exception):
    """The request failed, or the engine that ran it died. again: whether another try may do better (503, else 500)."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True)
class ModelFacts:
    """What is served. name: as requests call it. context_length: in tokens. created: seconds since 1970."""

    name: str
    target: str
    assistant: str | None
    precision: str
    executor: str
    context_length: int | None
    vocab_size: int
    created: int


@dataclass(frozen=True)
class ServerStatistics:
    """How the server is at this moment.

    waiting: requests that no engine has begun. running: those that one has. engine: sums over the places of what
    `EngineStats` counts, since the start of the server; by a name that is a text, numbers, or lists and objects of
    numbers. blocks_used, blocks_total: of keys and values, over all places; None where an executor has none.
    blocks_cached: those in use that are only kept for texts that begin alike. blocks_least: of the place with fewest.
    places: engine processes that there should be. alive: those that answer. restarts: how often one was started anew.
    """

    waiting: int = 0
    running: int = 0
    engine: dict[str, Any] = field(default_factory=dict)
    blocks_used: int | None = None
    blocks_total: int | None = None
    blocks_cached: int = 0
    blocks_least: int | None = None
    slots: int = 0
    alive: int = 0
    restarts: int = 0


class Backend(Protocol):
    """What the HTTP side needs of the engines."""

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now, but for a full queue."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the server is about to end: what runs goes on, nothing new is taken."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """What is served; NotReady before it is loaded."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's, loaded in this process without torch; NotReady before."""
        ...

    def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """The parts of a text as they come, and `Done` at last; closing the generator cancels the text.

        timeout: seconds for the whole of it. Raises, at the first iteration or a later one, Busy, NotReady, Failed or
        TimeoutError; UsageError where the request itself cannot be met, by its grammar, say.
        """
        ...

    def statistics(self) -> ServerStatistics:
        """Figures of this moment; waits for nothing."""
        ...
