"""The interface between HTTP and the engines: requests, output chunks, results and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ipex_assist.embedding.jobs import EmbeddingInputs
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.wire import ModelDescription
from ipex_assist.workers.wire import OutputChunk as OutputChunk
from ipex_assist.workers.wire import TokenDelta as TokenDelta

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Of the request that is being answered: its API key, by a name that tells nothing of it.
CALLER: ContextVar[str | None] = ContextVar("CALLER", default=None)


@dataclass(eq=False, frozen=True)
class RequestShare:
    """Whom a text's time in the engines counts against: one object for all texts of an HTTP request.

    caller: the same for all requests with the same API key; None where there are no keys.
    """

    caller: str | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """One generation. tokens: ids of the whole prompt, including special tokens. share: compared by identity alone.

    inputs: of an embedding model, how the tokens are cut into texts; nothing is written then. continues: whether the
    text goes on after the tokens, and is no answer in a conversation. images: contents of files, for the placeholders
    among the tokens. tokens_only: nothing is written, and the result's "prompt" has the tokens with those of
    images.
    """

    tokens: list[int]
    options: GenerationOptions
    grammar: GrammarSpec | None = None
    share: RequestShare = field(default_factory=RequestShare, compare=False)
    inputs: EmbeddingInputs | None = None
    continues: bool = False
    images: tuple[bytes, ...] = ()
    tokens_only: bool = False


@dataclass(frozen=True)
class Finished:
    """The end of a generation. result: `Result.as_dict()`, with the whole text and all statistics; of texts for an
    embedding model, `JobResult.as_dict()`."""

    result: dict[str, Any]


class Busy(Exception):
    """A queue is full (HTTP 429). retry_after: seconds until there may be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InvalidField(UsageError):
    """A field of a request is wrong (HTTP 400). param: its path in the body, such as tools[0].function.parameters."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


class NotReady(Exception):
    """The server is loading or draining (HTTP 503)."""


class Failed(Exception):
    """The request failed, or its engine died. again: whether a retry may succeed (HTTP 503, else 500)."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class ModelFacts(ModelDescription, kw_only=True):
    """The served model. name: in requests. created: Unix time in seconds."""

    name: str
    created: int


@dataclass(frozen=True)
class ServerStatistics:
    """A snapshot of the server's statistics.

    waiting, running: requests in the queue, and in engines. engine: `EngineStats.as_dict()` summed over all engine
    processes since the start of the server. blocks_used, blocks_total: KV blocks over all engines; None if an executor
    has none. blocks_cached: used blocks that only the prefix cache holds. blocks_least: total blocks of the smallest
    engine. slots: configured engine processes. alive: those that answer. restarts: of engine processes.
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
        """Whether requests are accepted, unless the queue is full."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the server is draining: running requests continue, new ones are refused."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """The served model. Raises NotReady before it is loaded."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer, loaded without torch. Raises NotReady before that."""
        ...

    def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """Yield output chunks as they come, and finally `Finished`; closing the generator cancels the request.

        timeout: seconds for the whole request. Raises, on any iteration, Busy, NotReady, Failed or TimeoutError;
        UsageError if the request itself is invalid, for example its grammar.
        """
        ...

    def statistics(self) -> ServerStatistics:
        """Current statistics; does not block."""
        ...
