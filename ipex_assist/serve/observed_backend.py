"""A backend whose generations are watched, for metrics and traces: observers see each part and change none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ipex_assist.serve.backend import Backend, Finished, GenerationRequest, ModelFacts, OutputChunk, ServerStatistics

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Observation(Protocol):
    """Follows one generation from its request to its end."""

    def take(self, part: OutputChunk | Finished) -> None:
        """Called with each part, before the reader gets it."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Called once, after the last part. error: what ended it early, a cancellation as well."""
        ...


Observer: TypeAlias = Callable[[str, GenerationRequest], Observation]  # by the model's name in requests


class ObservedBackend:
    """Passes everything on to `backend`, and tells observers of its generations."""

    def __init__(self, backend: Backend, observers: Sequence[Observer]) -> None:
        self._backend, self._observers = backend, observers

    @property
    def ready(self) -> bool:
        return self._backend.ready

    @property
    def draining(self) -> bool:
        return self._backend.draining

    @property
    def facts(self) -> ModelFacts:
        return self._backend.facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._backend.tokenizer

    def statistics(self) -> ServerStatistics:
        return self._backend.statistics()

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """`Backend.generate`, observed."""
        name = self.facts.name  # now: a model whose engines have died has no facts when its text ends
        watching = [observe(name, request) for observe in self._observers]
        ended_by: BaseException | None = None
        try:
            async with aclosing(self._backend.generate(request, timeout=timeout)) as parts:
                async for part in parts:
                    for each in watching:
                        each.take(part)
                    yield part
        except BaseException as error:
            ended_by = error
            raise
        finally:
            for each in watching:
                each.end(ended_by)
