"""An instance: loads the model once, then answers prompts, several at a time; JSON lines in and JSON lines out."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.commands.shared.relaunch import this_command
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.runner import out_of_memory
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import encode_messages
from ipex_assist.workers.capacity import concurrency_of

if TYPE_CHECKING:
    from ipex_assist.generation.result import Chunk
    from ipex_assist.generation.stream import Generation
    from ipex_assist.generation.text_model import TextModel

log = logging.getLogger("ipex_assist")

Reply = dict[str, Any]

STATS_SECONDS = 1.0  # between two reports of what was done, while there is something to do
INSTANCE = "--instance"  # the word behind `ipex-assist batch` that makes it an instance


@dataclass(frozen=True)
class WorkerSettings:
    """What an instance is told before its first prompt. max_new_tokens: of the prompts, for which there must be room.

    threads: where no launcher has planned them. verbose: whether to talk about loading. concurrency: the most prompts
    at a time; None leaves it to the instance. texts: tokens of the longest texts to come, the longest first.
    neighbours: how many instances share the machine's memory, this one among them. grammars: whether texts may have
    some, so that the vocabulary is read for them before the instance is ready.
    """

    load: LoadOptions
    max_new_tokens: int
    threads: int | None = None
    verbose: bool = False
    concurrency: int | None = None
    texts: tuple[int, ...] = ()
    neighbours: int = 1
    grammars: bool = False

    @property
    def texts_at_once(self) -> tuple[int, ...]:
        """Of these lengths there must be room for texts; empty where the instance takes what there is."""
        return () if self.concurrency is None else self.texts[: self.concurrency]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> WorkerSettings:
        """The inverse of `as_dict`."""
        return cls(**{**fields, "load": LoadOptions.of(**fields["load"]), "texts": tuple(fields["texts"])})


def worker_program() -> list[str]:
    """Return the argv that starts an instance: of the same installation as the command that starts it."""
    return [*this_command(), "batch", INSTANCE]


def main() -> None:
    """Serve until the requests end; never returns."""
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
    settings = WorkerSettings.from_dict(json.loads(first))
    try:
        model = _load(settings)
        concurrency = concurrency_of(model, settings)
    except IpexAssistError as error:
        _send(replies, {"refusal": str(error), "exit_code": error.exit_code})
        return
    except Exception as error:
        _send(replies, {"refusal": f"{_describe(error)} while loading", "exit_code": 1})
        return
    _send(replies, {"ready": {**_facts(model), "concurrency": concurrency, "load_s": time.perf_counter() - started}})
    outbox = Outbox(model, lambda lines: _write(replies, lines))
    desk = Desk(model, outbox.put, outbox.empty)
    threading.Thread(target=_read, args=(requests, desk), name="requests", daemon=True).start()
    desk.work()


def _facts(model: TextModel) -> dict[str, Any]:
    names = model.identity
    return {
        "target": names.target,
        "assistant": names.assistant,
        "precision": names.precision,
        "executor": names.executor,
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
    }


def _read(requests: IO[bytes], desk: Desk) -> None:
    for line in requests:
        desk.inbox.put(json.loads(line))
    desk.inbox.put(None)


def _send(replies: IO[bytes], reply: Mapping[str, Any]) -> None:
    _write(replies, _line(reply))


def _line(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def _write(replies: IO[bytes], lines: bytes) -> None:
    view = memoryview(lines)
    while view:
        view = view[replies.write(view) :]


def _load(settings: WorkerSettings) -> TextModel:
    configure_messages(settings.verbose, "%(message)s", progress=False)
    from ipex_assist.commands.shared.load import load_models

    load = settings.load
    if settings.neighbours > 1 and load.kv_memory is None:
        load = replace(load, kv_share=1 / settings.neighbours)
    model, _ = load_models(
        load,
        settings.max_new_tokens,
        settings.threads,
        verbose=settings.verbose,
        texts=settings.texts_at_once,
    )
    if settings.grammars:
        model.prepare_grammars()
    return model


class Outbox:
    """Replies of a turn go out together, and now and then what the engine has done so far.

    That is said when nothing is under way any more, before the last answer is read, and else once a second.
    """

    def __init__(self, model: TextModel, write: Callable[[bytes], None]) -> None:
        self._model, self._write = model, write
        self._lines: list[bytes] = []
        self._said: dict[str, Any] = {}
        self._said_at = 0.0

    def put(self, reply: Reply) -> None:
        """Send it at the end of the turn."""
        self._lines.append(_line(reply))

    def empty(self, idle: bool) -> None:
        """A turn is over. idle: nothing is under way."""
        now = time.monotonic()
        if (idle or now - self._said_at >= STATS_SECONDS) and (stats := measured(self._model)) != self._said:
            self._said, self._said_at = stats, now
            self._lines.append(_line({"stats": stats}))
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            self._write(lines)


def measured(model: TextModel) -> dict[str, Any]:
    """What `Measured` reports of a model; nothing of one that has no engine of ours."""
    stats, blocks = model.engine_stats, model.kv_blocks
    if stats is None:
        return {}
    held = None
    if blocks is not None:
        held = {"used": blocks.count - blocks.free, "total": blocks.count, "cached": model.prefix_blocks}
    return {"engine": stats.as_dict(), "blocks": held}


class Desk:
    """Generates for all requests that are under way, in turns of a round, until `inbox` brings None.

    A text that must wait until others have ended, for want of memory, keeps nobody from being answered or cancelled.
    One thread does it all: texts that share passes need no more, and OpenMP would start a team of threads for each.
    `inbox` takes requests, and {"cancel": id}. A request with "stream" gets each of its chunks as it comes.
    """

    def __init__(
        self, model: TextModel, send: Callable[[Reply], None], turn_over: Callable[[bool], None] = lambda idle: None
    ) -> None:
        """turn_over: called behind each turn's replies, with whether nothing is under way."""
        self.inbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._model, self._send_reply, self._turn_over = model, send, turn_over
        self._running: dict[int, Generation] = {}
        self._streams: set[int] = set()
        self._open = True

    def work(self) -> None:
        """Serve until nobody asks any more and every text is done."""
        while self._open or self._running:
            self._take_in()
            self._turn()
            if self._running or not self._open:
                self._turn_over(not self._running)

    def _take_in(self) -> None:
        """Begin and cancel what has come meanwhile; wait for it where there is nothing else to do."""
        while self._open and not (self._running and self.inbox.empty()):
            if not self._running:  # before it waits
                self._turn_over(True)
            request = self.inbox.get()
            if request is None:
                self._open = False
            elif "cancel" in request:
                self._cancel(request["cancel"])
            else:
                self._begin(request)

    def _turn(self) -> None:
        """Run a pass, unless something is in hand, and give each text what it has: nothing waits for a second pass."""
        if self._running and not any(generation.in_hand() for generation in self._running.values()):
            number, first = next(iter(self._running.items()))
            try:
                first.ready()
            except Exception as error:
                self._reply(number, failure(error))
        for number, generation in list(self._running.items()):
            if generation.in_hand():
                self._go_on(number, generation)

    def _begin(self, request: Mapping[str, Any]) -> None:
        try:
            self._running[request["id"]] = begin(self._model, request)
            if request.get("stream"):
                self._streams.add(request["id"])
        except Exception as error:
            self._reply(request["id"], failure(error))

    def _cancel(self, number: int) -> None:
        generation = self._running.get(number)
        if generation is not None:  # else it is answered already
            generation.interrupt()
            self._reply(number, {"result": None, "error": "cancelled"})

    def _go_on(self, number: int, generation: Generation) -> None:
        try:
            chunk = next(generation)
            if number in self._streams:
                self._send_reply({"id": number, "chunk": chunk_fields(chunk)})
        except StopIteration:
            self._reply(number, {"result": generation.result().as_dict()})
        except Exception as error:
            self._reply(number, failure(error))

    def _reply(self, number: int, reply: Reply) -> None:
        self._running.pop(number, None)
        self._streams.discard(number)
        self._send_reply({"id": number, **reply})


def begin(model: TextModel, request: Mapping[str, Any]) -> Generation:
    """Start the text of one request: `Prompt.request()`, or one with token ids for a prompt.

    Its "grammar", where there is one, is {"kind": …, "value": …}.
    """
    prompt, chat = request["prompt"], request["chat"]
    if request["messages"] is not None:
        prompt, chat = encode_messages(model.tokenizer, request["messages"]), False
    more: dict[str, Any] = {}
    if request.get("grammar") is not None:
        from ipex_assist.speculative.grammar import GrammarSpec

        more["grammar"] = GrammarSpec(**request["grammar"])
    return model.stream(prompt, GenerationOptions.of(**request["options"]), chat=chat, **more)


def chunk_fields(chunk: Chunk) -> dict[str, Any]:
    """A chunk as `Streamed` has it."""
    return {
        "pieces": [[piece.text, token, piece.drafted] for piece, token in zip(chunk.pieces, chunk.tokens, strict=True)],
        "logprobs": None if chunk.logprobs is None else [asdict(choice) for choice in chunk.logprobs],
        "drafted": chunk.round.drafted,
        "accepted": chunk.round.accepted,
    }


def answer(model: TextModel, request: Mapping[str, Any]) -> Reply:
    """Return the result of one prompt, or what went wrong and whether another try may do better."""
    try:
        generation = begin(model, request)
        for _ in generation:
            pass
        return {"result": generation.result().as_dict()}
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> Reply:
    """What is said of a request that failed by `error`: whether another try may do better, or the request is wrong."""
    if isinstance(error, IpexAssistError):
        return {"result": None, "error": str(error), "refused": isinstance(error, UsageError)}
    return {"result": None, "error": _describe(error), "again": True}


def _describe(error: BaseException) -> str:
    if out_of_memory(error):
        return "out of memory; use a smaller --precision or model, fewer --instances, --concurrency 1, or --no-assisted"
    log.info("%s", error, exc_info=error)
    return f"{type(error).__name__}: {error} (run with -v for the whole story)"
