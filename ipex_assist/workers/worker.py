"""A worker: loads the model once, then answers requests, several at a time; JSON lines in and JSON lines out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, NoReturn

from ipex_assist import launch
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.phase_display import SHOWN_AFTER
from ipex_assist.env.phases import LoadPhase, how_far, phase, watched
from ipex_assist.workers.capacity import concurrency_of
from ipex_assist.workers.frozen_objects import freeze_objects
from ipex_assist.workers.request_loop import Outbox, RequestLoop, describe
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import (
    FromWorker,
    MessageDecoder,
    ModelDescription,
    PhaseReport,
    Ready,
    Refused,
    encoded,
    to_worker,
)

if TYPE_CHECKING:
    from ipex_assist.generation.text_model import TextModel
    from ipex_assist.workers.worker_model import WorkerModel

_settings: MessageDecoder[WorkerSettings] = MessageDecoder(WorkerSettings)
SAVE_SECONDS = 1.5  # for prefixes that are being written at the end; local_pool.py waits for 2 s


def main(argv: Sequence[str]) -> NoReturn:
    """Serve until the requests end; never returns. Raises UsageError where a person has typed the command."""
    if argv or (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(
            "ipex-assist worker is the engine process of ipex-assist batch and serve, which start it: type one of these"
        )
    requests, replies = _take_over_pipes()
    # A scheduler signals every process of a job at once. The coordinator decides what is still done; when it is gone,
    # the kernel ends us (PR_SET_PDEATHSIG), and so does the end of the requests.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(requests, replies)
    except BrokenPipeError:  # the coordinator is gone
        pass
    finally:
        sys.stderr.flush()
        # Nothing is left to be saved, and tearing down the libraries takes its time.
        os._exit(0)


def _take_over_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Requests and replies, out of reach of libraries that print to standard output."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, replies


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    first = requests.readline()
    if not first:
        return
    started = time.perf_counter()
    settings = _settings.read(first)
    try:
        with watched(PhaseReporter(replies).show):
            model = _load(settings)
        concurrency = concurrency_of(model, settings)
        freeze_objects()
    except IpexAssistError as error:
        _send(replies, Refused(str(error), error.exit_code))
        return
    except Exception as error:
        _send(replies, Refused(f"{describe(error)} while loading", 1))
        return
    _send(replies, _ready(model, concurrency, time.perf_counter() - started))
    if model.identity.executor == "native":  # others compute in threads that this one starts
        launch.keep_to_spare_cpu(launch.inherited_plan(os.environ))
    outbox = Outbox(model, lambda lines: _write(replies, lines))
    loop = RequestLoop(model, outbox.put, outbox.flush)
    threading.Thread(target=_read, args=(requests, loop), name="requests", daemon=True).start()
    loop.run()
    model.close_prefixes(SAVE_SECONDS)


class PhaseReporter:
    """Sends what is being loaded, and how far that is, while nobody else writes replies."""

    def __init__(self, replies: IO[bytes]) -> None:
        self._replies = replies
        self._sent = ""

    def show(self, running: Sequence[LoadPhase]) -> None:
        """Report the innermost phase that has lasted for a moment, where what people see of it is new."""
        long = [each for each in running if each.seconds >= SHOWN_AFTER]
        if not long:
            return
        name, share, seconds = long[-1].name, long[-1].share, long[-1].seconds
        if (now := f"{name} {how_far(share, seconds)}") == self._sent:
            return
        self._sent = now
        with contextlib.suppress(OSError):  # the coordinator is gone, as the worker will notice
            _send(self._replies, PhaseReport(name, share, round(seconds, 1)))


def _ready(model: WorkerModel, concurrency: int, load_s: float) -> Ready:
    names = model.identity
    description = ModelDescription(
        target=names.target,
        precision=names.precision,
        executor=names.executor,
        assistant=names.assistant,
        draft_head=names.draft_head,
        context_length=model.context_length,
        vocab_size=model.vocab_size or 0,
        lm_head_rows=model.lm_head_rows or 0,
        adapters=dict(model.adapters),
        sampling=dict(model.sampling_defaults),
        embedding=model.facts,
        images=model.images is not None,
    )
    template = bool(model.tokenizer.chat_template)
    return Ready(description, load_s, chat_template=template, concurrency=concurrency, pauses=model.pauses)


def _read(requests: IO[bytes], loop: RequestLoop) -> None:
    for line in requests:
        loop.inbox.put(to_worker.read(line))
    loop.inbox.put(None)


def _send(replies: IO[bytes], reply: FromWorker) -> None:
    _write(replies, encoded(reply))


def _write(replies: IO[bytes], lines: bytes) -> None:
    view = memoryview(lines)
    while view:
        view = view[replies.write(view) :]


def _load(settings: WorkerSettings) -> WorkerModel:
    configure_messages(settings.verbose, "%(message)s", progress=False)  # phases are reported, not shown
    from ipex_assist.commands.shared.load import load_models
    from ipex_assist.commands.shared.load_embedder import load_for_task

    load = settings.load
    if settings.neighbours > 1 and load.kv_memory is None:
        load = replace(load, kv_share=1 / settings.neighbours)
    with phase(f"loading {short_name(load.target)}" if load.target else "loading"):
        embedder = load_for_task(
            *(load, settings.task, settings.threads),
            matryoshka=settings.matryoshka,
            verbose=settings.verbose,
            lengths=settings.concurrent_lengths,
        )
        if embedder is not None:
            return embedder
        model: TextModel
        model, _ = load_models(
            load,
            settings.max_new_tokens,
            settings.threads,
            verbose=settings.verbose,
            lengths=settings.concurrent_lengths,
        )
        model.keep_prefixes(settings.prefixes)
        if settings.grammars:
            with phase("preparing the vocabulary for grammars"):
                model.prepare_grammars()
    return model
