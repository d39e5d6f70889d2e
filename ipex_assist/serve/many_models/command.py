"""`ipex-assist serve` with many models. Never imports torch."""

from __future__ import annotations

import argparse
import functools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib, read_memory
from ipex_assist.executors.kv_memory import room_in
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.arguments import worker_settings
from ipex_assist.serve.connections import connection_limits
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.listen import address, curl_line
from ipex_assist.serve.log_limit import limited_logs
from ipex_assist.serve.model_options import ManyModelsOptions
from ipex_assist.serve.model_sources import ModelSource
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.server_log import ServerLog
from ipex_assist.serve.stop_signals import StopSignals
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.workers.capacity import DEFAULT_CONCURRENCY, InstanceNeed
from ipex_assist.workers.frozen_objects import freeze_objects
from ipex_assist.workers.local_machine import local_commands, local_pool
from ipex_assist.workers.settings import WorkerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.serve.observed_backend import Observer
    from ipex_assist.workers.local_pool import LocalPool


@dataclass(frozen=True)
class LocalLoader:
    """Loads a model into engine processes on this machine, on the cores of every instance; see ModelLoader."""

    args: argparse.Namespace
    options: ServeOptions
    model: ModelSource
    load: LoadOptions
    messages: ServerLog

    @property
    def name(self) -> str:
        """Its name in requests."""
        return self.model.name

    @property
    def source(self) -> str:
        """A hub id, a folder or a file."""
        return self.model.source

    @functools.cached_property
    def _planned(self) -> tuple[WorkerSettings, InstanceNeed]:
        """Settings of its processes, whose keys and values have a limit, and the bytes that each of them fills.

        Without a limit one model's would take what the weights leave: other models' memory.
        """
        open_checkpoint(self.source, revision=self.load.revision, offline=self.load.offline)  # sizes need its config
        settings = worker_settings(self.args, self.options, self.load)
        need = InstanceNeed.of(settings.load, settings.max_new_tokens, settings.lengths[:DEFAULT_CONCURRENCY])
        planned = sum(need.kv_each)
        if settings.load.kv_memory is None and planned:
            settings = replace(settings, load=replace(settings.load, kv_memory=planned))
        return settings, need

    def need(self) -> int | None:
        """Bytes that all its engines fill; a hub model is downloaded first."""
        settings, need = self._planned
        return None if need.total is None else need.total * len(local_commands(self.args, need, settings.concurrency))

    def make_pool(self) -> LocalPool:
        """Its engine processes, not started."""
        return local_pool(self.args, self._planned[0], self.messages.say, self.messages.once)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer, without torch."""
        from ipex_assist.deferred_imports import leave_torch_out
        from ipex_assist.tokenization.tokenizer import load_tokenizer

        leave_torch_out()
        made = load_tokenizer(open_checkpoint(self.source, revision=self.load.revision, offline=self.load.offline))
        freeze_objects()  # with the first one, the libraries are there
        return made

    def make_engines(self) -> Engines:
        """What runs the processes."""
        return Engines(
            self.name,
            self.options,
            DraftOptions.from_flags(self.args),
            say=lambda line: self.messages.say(f"{self.name}: {line}"),
            heard=self.messages.heard,
        )


@dataclass(frozen=True)
class ManyModelsCommand:
    """One run of the command: its options, its models and its listening socket."""

    args: argparse.Namespace
    options: ServeOptions
    load: LoadOptions
    models: Sequence[ModelSource]
    listener: socket.socket

    async def serve(self) -> int:
        """Serve until a signal ends it; returns the exit code."""
        messages, stop = ServerLog(self.args.verbose), StopSignals()
        with limited_logs(), stop.caught():
            return await self._serve_until(stop, messages)

    async def _serve_until(self, stop: StopSignals, messages: ServerLog) -> int:
        from ipex_assist.serve.app import app_of
        from ipex_assist.serve.many_models.managed_model import ManagedModel
        from ipex_assist.serve.many_models.registry import ModelRegistry
        from ipex_assist.serve.server import run

        many: ManyModelsOptions = self.args.many_models
        limit = many.models_memory or _free_memory()
        observers, finish = self._tracing()
        registry = ModelRegistry(
            [ManagedModel(LocalLoader(self.args, self.options, *each, messages), self.options, observers)
             for each in self._loads()],
            limit=limit,
            keep=many.keep,
            most_waiting=self.options.max_queue,
            timeout=self.options.timeout,
            say=messages.say,
        )  # fmt: skip
        messages.say(self.greeting(limit))
        return await run(
            stop,
            registry,
            app_of(registry, self.options, finish),
            self.listener,
            registry.live,
            grace=self.options.grace,
            limits=connection_limits(self.options),
            tls=self.options.tls(),
        )

    def _loads(self) -> list[tuple[ModelSource, LoadOptions]]:
        return [(model, model.load_options(self.load)) for model in self.models]

    def _tracing(self) -> tuple[list[Observer], Callable[[], None] | None]:
        """What traces the texts of each model, and what ends the tracing."""
        if self.options.otel is None:
            return [], None
        from ipex_assist.serve.tracing import Tracing, collector

        tracing = Tracing(collector(self.options.otel))
        return [tracing.observe], tracing.close

    def greeting(self, limit: int) -> str:
        """The ready message: address, models, memory and a curl example."""
        names, count = ", ".join(model.name for model in self.models[:8]), len(self.models)
        more = f" and {count - 8} more" if count > 8 else ""
        return (
            f"{count} model{'s' * (count != 1)} ({names}{more}) ready at {address(self.listener, self.options)}, each "
            f"loaded by the first request that names it, in {gib(limit)} of memory together. Ask the first:\n"
            f"  {curl_line(self.listener, self.options, self.models[0].name, chat=True)}"
        )


def _free_memory() -> int:
    """Bytes that are free, without a margin. Raises IpexAssistError where nobody knows."""
    available = read_memory().available
    if not available:
        raise IpexAssistError("the free memory is not known here: give --models-memory SIZE")
    return room_in(available)
