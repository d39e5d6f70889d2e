"""The models of a server as the routes see them: one that is there from the start, or many (many_models/)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ipex_assist.serve.backend import ModelFacts
from ipex_assist.serve.metrics import ServerMetrics
from ipex_assist.serve.service import Service


@dataclass(frozen=True)
class ModelEntry:
    """A line of /v1/models. facts: None of a model that is not loaded. source: what it is loaded from. size: bytes of
    memory that it takes or would take, where that is known. default_max_tokens: see ModelCard. parent: of an adapter,
    the model that it is one of."""

    name: str
    source: str
    created: int
    facts: ModelFacts | None
    size: int | None = None
    default_max_tokens: int | None = None
    parent: str | None = None


class ServedModels(Protocol):
    """What the routes need of the models."""

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""
        ...

    async def open(self, name: str | None) -> Service:
        """The service of a model, loaded by now and kept until the HTTP request has been answered; None: the first.

        Raises ApiError (404) for a model that there is not, NotReady, Failed, Busy, and TimeoutError.
        """
        ...

    @property
    def adapted(self) -> Service | None:
        """The service whose model may have adapters; None in a server of many models."""
        ...

    def entries(self) -> Sequence[ModelEntry]:
        """All names, adapters included. Raises NotReady before the one model is loaded."""
        ...

    def metrics(self) -> bytes:
        """The exposition for Prometheus."""
        ...

    def close(self) -> None:
        """Stop threads and helper processes; may be called twice."""
        ...


class OneModel:
    """ServedModels of a single model."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self.service.backend.ready

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""
        return self.service.backend.draining

    async def open(self, name: str | None) -> Service:
        """The one service. Raises ApiError (404) where it is not of this name, NotReady before it is loaded."""
        self.service.check_model(name)
        return self.service

    @property
    def adapted(self) -> Service:
        """The one service."""
        return self.service

    def entries(self) -> list[ModelEntry]:
        """The model by each of its names, then its adapters."""
        facts = self.service.facts
        room = self.service.most_new_tokens(1, None)
        names = [(name, facts.target, None) for name in self.service.names()]
        adapters = [(name, folder, facts.name) for name, folder in facts.adapters.items()]
        return [
            ModelEntry(name, source, facts.created, facts, default_max_tokens=room, parent=parent)
            for name, source, parent in (*names, *adapters)
        ]

    def metrics(self) -> bytes:
        """The exposition for Prometheus."""
        return ServerMetrics.exposition([self.service.metrics])

    def close(self) -> None:
        """Stop the service's threads and its grammar process."""
        self.service.close()
