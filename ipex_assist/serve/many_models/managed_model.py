"""A model of a server of many: how it is loaded and unloaded, and what is counted of it beyond that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ipex_assist.serve.backend import (
    Finished,
    GenerationRequest,
    ModelFacts,
    NotReady,
    OutputChunk,
    ServerStatistics,
)
from ipex_assist.serve.count_sums import sum_counts
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.metrics import ServerMetrics
from ipex_assist.serve.observed_backend import Observer
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.served_models import ModelEntry
from ipex_assist.serve.server import in_thread, load_engines
from ipex_assist.serve.service import Service

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.workers.local_pool import LocalPool


class ModelLoader(Protocol):
    """How one model is loaded; all but `make_engines` may take long, and are called in threads."""

    @property
    def name(self) -> str:
        """Its name in requests."""
        ...

    @property
    def source(self) -> str:
        """A hub id, a folder or a file."""
        ...

    def need(self) -> int | None:
        """Bytes that all its engines fill; None where that is not known. Raises IpexAssistError."""
        ...

    def make_pool(self) -> LocalPool:
        """Its engine processes, not started. Raises IpexAssistError where they do not fit."""
        ...

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer, without torch. Raises IpexAssistError."""
        ...

    def make_engines(self) -> Engines:
        """What runs the processes; in the event loop."""
        ...


@dataclass(frozen=True)
class Loaded:
    """What there is of a model while it is loaded. at: time.monotonic. seconds: that loading took."""

    engines: Engines
    service: Service
    at: float
    seconds: float


class ManagedModel:
    """A backend whose engines come and go. All methods are called in the event loop.

    holds: HTTP requests that it must stay loaded for. closing: it is unloaded when the last of these has ended, and
    takes no more. used: time.monotonic of the last request. need: bytes, where known.
    """

    def __init__(self, loader: ModelLoader, options: ServeOptions, observers: Sequence[Observer] = ()) -> None:
        """observers: of its generations, such as what traces them; the metrics are one as well."""
        self.loader, self.name = loader, loader.name
        self._options, self._observers = options, observers
        self.metrics = ServerMetrics(self, self.name)
        self.created = int(time.time())
        self.loaded: Loaded | None = None
        self.need: int | None = None
        self.holds, self.closing, self.used = 0, False, time.monotonic()
        self._past = ServerStatistics()  # counts of earlier engines

    async def load(self) -> None:
        """Load, where nothing is loaded. Raises IpexAssistError; then nothing is."""
        started, engines = time.monotonic(), self.loader.make_engines()
        try:
            await load_engines(engines, self.loader.make_pool, self.loader.load_tokenizer)
        except BaseException:
            engines.close(now=True)
            raise
        now = time.monotonic()
        service = Service(self, self._options, self.metrics, self._observers)
        self.loaded, self.closing, self.used = Loaded(engines, service, now, now - started), False, now

    async def unload(self) -> None:
        """End its processes; returns when their memory is free."""
        loaded, self.loaded = self.loaded, None
        if loaded is None:
            return
        self._count_past(loaded.engines.statistics())
        loaded.service.close()
        if (pool := loaded.engines.leave_pool()) is not None:
            await asyncio.shield(in_thread(pool.close))
        self.closing = False

    def _count_past(self, last: ServerStatistics) -> None:
        engine = sum_counts([self._past.engine, last.engine])
        self._past = ServerStatistics(engine=engine, restarts=self._past.restarts + last.restarts)

    @property
    def entry(self) -> ModelEntry:
        """Its line of /v1/models."""
        loaded, source = self.loaded, self.loader.source
        if loaded is None:
            return ModelEntry(self.name, source, self.created, None, self.need)
        room = loaded.service.most_new_tokens(1, None)
        return ModelEntry(self.name, source, self.created, loaded.engines.facts, self.need, room)

    # The Backend interface.

    @property
    def _engines(self) -> Engines:
        if self.loaded is None:
            raise NotReady(f"{self.name} is not loaded")
        return self.loaded.engines

    @property
    def ready(self) -> bool:
        """Whether requests are accepted, unless the queue is full."""
        return self.loaded is not None and self.loaded.engines.ready

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""
        return self.loaded is not None and self.loaded.engines.draining

    @property
    def facts(self) -> ModelFacts:
        """The model. Raises NotReady while it is not loaded."""
        return self._engines.facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer. Raises NotReady while it is not loaded."""
        return self._engines.tokenizer

    def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """See Backend."""
        return self._engines.generate(request, timeout=timeout)

    def statistics(self) -> ServerStatistics:
        """Current statistics; counts are those since the start of the server."""
        if self.loaded is None:
            return self._past
        now = self.loaded.engines.statistics()
        engine = sum_counts([self._past.engine, now.engine])
        return replace(now, engine=engine, restarts=self._past.restarts + now.restarts)
