"""What a worker asks of the model that it has loaded, which writes text or gives vectors. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.embedding.facts import EmbeddingFacts
    from ipex_assist.engine.stats import EngineStats
    from ipex_assist.executors.blocks import BlockPool
    from ipex_assist.generation.result import Identity


class RequestResult(Protocol):
    """What a request got."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        ...


class RunningRequest(Protocol):
    """A request that was begun: a text that is written, or texts that are read."""

    def in_hand(self) -> bool:
        """Whether a part of it, or its end, can be fetched without another pass."""
        ...

    def ready(self) -> bool:
        """Run a pass unless something is in hand; whether something is now."""
        ...

    def __next__(self) -> Any:
        """The next part. Raises StopIteration at its end, and its error."""
        ...

    def pause(self) -> None:
        """Set it aside, without memory."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    def interrupt(self) -> str:
        """End it here."""
        ...

    def result(self) -> RequestResult:
        """Of a request that has ended."""
        ...


class WorkerModel(Protocol):
    """See TextModel and EmbeddingModel, which are such models."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def facts(self) -> EmbeddingFacts | None:
        """Of a model that gives vectors; None of one that writes text."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """Folders by the names that requests may give."""
        ...

    @property
    def context_length(self) -> int | None: ...

    @property
    def vocab_size(self) -> int | None: ...

    @property
    def one_at_a_time(self) -> bool: ...

    @property
    def pauses(self) -> bool:
        """Whether requests can be paused."""
        ...

    @property
    def kv_blocks(self) -> BlockPool | None: ...

    @property
    def prefix_blocks(self) -> int: ...

    @property
    def engine_stats(self) -> EngineStats | None: ...

    def begin_request(self, request: Mapping[str, Any]) -> RunningRequest:
        """Begin what the worker was sent. Raises UsageError for a request of the other kind, and for a wrong one."""
        ...

    def close_prefixes(self, seconds: float) -> None:
        """Write the prefixes that are to be kept, within `seconds`."""
        ...
