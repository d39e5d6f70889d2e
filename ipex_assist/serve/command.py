"""The command `ipex-assist serve`. Never imports torch."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.short_name import short_assistant
from ipex_assist.commands.shared.arguments import load_options
from ipex_assist.commands.shared.demo_model import demo_options
from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.commands.shared.server_files import announced
from ipex_assist.embedding.task import EMBED, GENERATE
from ipex_assist.env.errors import UsageError
from ipex_assist.env.phases import phase
from ipex_assist.env.versions import install_command
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.arguments import check_files, model_name, parse, shown_name, worker_settings
from ipex_assist.serve.connections import connection_limits
from ipex_assist.serve.listen import address, close, curl_line, listen
from ipex_assist.serve.log_limit import limited_logs
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.server_log import ServerLog
from ipex_assist.serve.stop_signals import StopSignals
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.workers.frozen_objects import freeze_objects
from ipex_assist.workers.loading_workers import LoadingWorkers
from ipex_assist.workers.local_machine import instance_need, local_commands, local_pool, measure_ways
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import PhaseReport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.serve.backend import ModelFacts
    from ipex_assist.serve.engines import Engines

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "llguidance")


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist serve`; returns the exit code.

    Raises:
        IpexAssistError: it cannot listen, the models cannot be loaded, or no engine is left.
    """
    args = parse(argv)
    load = load_options(args)
    options = ServeOptions.from_flags(args, allow_special_tokens=load.allow_special_tokens)
    check_files(options, load)
    if args.many_models.many:
        return _serve_many(args, options, load)
    if load.target is None:
        load = demo_options(load)
    settings = worker_settings(args, options, load)
    if args.dry_run:
        return _dry_run(args, settings)
    _prepare(args, options)
    assert load.target is not None
    if args.ray is not None:
        from ipex_assist.serve.ray_serve import run_on_ray

        return run_on_ray(args, options, settings, model_name(options, load.target))
    listener = listen(options)
    command = ServeCommand(args, options, settings, model_name(options, load.target), listener)
    return _run(command.serve, listener, options)


def _serve_many(args: argparse.Namespace, options: ServeOptions, load: LoadOptions) -> int:
    from ipex_assist.serve.many_models.command import ManyModelsCommand
    from ipex_assist.serve.model_sources import read_sources

    models = read_sources(args.many_models.models, args.many_models.models_dir)
    for model in models:
        model.load_options(load)  # raises UsageError for a wrong assistant or precision now
    _prepare(args, options)
    listener = listen(options)
    return _run(ManyModelsCommand(args, options, load, models, listener).serve, listener, options)


def _prepare(args: argparse.Namespace, options: ServeOptions) -> None:
    """Check that the libraries are there, and set up messages. Raises UsageError."""
    check_packages()
    if options.otel is not None:
        from ipex_assist.serve import tracing

        tracing.check_packages()
    configure_messages(args.verbose, progress=not args.quiet)


def _run(serve: Callable[[], Coroutine[Any, Any, int]], listener: socket.socket, options: ServeOptions) -> int:
    """Serve in an event loop; returns the exit code, or ends the process."""
    try:
        with announced(address(listener, options), keys=bool(options.keys())):
            code = asyncio.run(serve())
    finally:
        close(listener, options)
    if code or threading.active_count() > 1:  # do not wait for threads that still compute or download
        sys.stderr.flush()
        os._exit(code)
    return code


def check_packages() -> None:
    """Raise UsageError if a library of the [serve] extra is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {', '.join(missing)}: type {install_command('serve')}")


@dataclass(frozen=True)
class ServeCommand:
    """One run of the command: its options and its listening socket."""

    args: argparse.Namespace
    options: ServeOptions
    settings: WorkerSettings
    name: str
    listener: socket.socket

    @property
    def shown_name(self) -> str:
        """The model's name in messages."""
        return shown_name(self.options, self.settings.load.target or self.name)

    async def serve(self) -> int:
        """Serve until a signal ends it; returns the exit code."""
        messages, stop = ServerLog(self.args.verbose), StopSignals()
        with limited_logs(), stop.caught():  # installed before the first message, when people may press Ctrl-C
            return await self._serve_until(stop, messages)

    async def _serve_until(self, stop: StopSignals, messages: ServerLog) -> int:
        messages.say(
            f"{self.shown_name} is being loaded; {address(self.listener, self.options)} answers /health already"
        )
        from ipex_assist.serve.app import create_app
        from ipex_assist.serve.engines import Engines
        from ipex_assist.serve.server import live, run

        with ExitStack() as while_loading:
            loading, workers = while_loading.enter_context(phase(f"loading {self.shown_name}")), LoadingWorkers()

            def note(report: PhaseReport) -> None:
                workers.note(report)
                if (first := workers.first) is not None:  # engines are alike: one of them stands for all
                    loading.becomes(first.name, first.share)

            def greet() -> None:
                while_loading.close()
                freeze_objects()
                messages.say(self.greeting(engines))

            engines = Engines(
                self.name,
                self.options,
                DraftOptions.from_flags(self.args),
                say=messages.say,
                heard=messages.heard,
                loading=note,
            )
            return await run(
                stop,
                engines,
                create_app(engines, self.options),
                self.listener,
                partial(
                    live,
                    engines,
                    make_pool=lambda: local_pool(self.args, self.settings, messages.say, messages.once),
                    load_tokenizer=self.load_tokenizer,
                    when_ready=greet,
                ),
                grace=self.options.grace,
                limits=connection_limits(self.options),
                tls=self.options.tls(),
            )

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the target's tokenizer without torch."""
        from ipex_assist.deferred_imports import leave_torch_out
        from ipex_assist.tokenization.tokenizer import load_tokenizer

        leave_torch_out()
        load = self.settings.load
        assert load.target is not None
        return load_tokenizer(open_checkpoint(load.target, revision=load.revision, offline=load.offline))

    def greeting(self, engines: Engines) -> str:
        """The ready message: model, address and a curl example."""
        facts = engines.facts
        drafts = f"drafted by {short_assistant(facts.assistant)}" if facts.assistant else "nothing drafts"
        if facts.draft_head is not None and facts.draft_head not in drafts:
            drafts += f", a {facts.draft_head} head"
        if facts.embedding is not None:
            drafts = "gives vectors" if facts.embedding.task == EMBED else "scores documents"
        count = engines.statistics().slots
        where = address(self.listener, self.options)
        chat = bool(getattr(engines.tokenizer, "chat_template", None))
        return (
            f"{self.shown_name} ({facts.precision}, {facts.executor}; {drafts}) is ready at {where}, "
            f"with {count} engine{'s' * (count != 1)} of up to {engines.concurrency} texts at a time. Ask it:\n"
            f"  {curl_line(self.listener, self.options, facts.name, chat=chat, task=_task(facts))}"
        )


def _task(facts: ModelFacts) -> str:
    return GENERATE if facts.embedding is None else facts.embedding.task


def _dry_run(args: argparse.Namespace, settings: WorkerSettings) -> int:
    from ipex_assist.launch.table import format_instances

    if settings.load.recalibrate:
        measure_ways(args, settings, lambda line: print(f"# {line}", flush=True))
    print(format_instances(local_commands(args, instance_need(settings), settings.concurrency)), flush=True)
    return 0
