"""An instance: loads the model once, then answers prompts, JSON lines in and JSON lines out."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from ipex_assist.commands.messages import configure_messages
from ipex_assist.commands.relaunch import this_command
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.runner import out_of_memory
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import encode_messages

if TYPE_CHECKING:
    from ipex_assist.generation.text_model import TextModel

log = logging.getLogger("ipex_assist")

INSTANCE = "--instance"  # the word behind `ipex-assist batch` that makes it an instance


@dataclass(frozen=True)
class WorkerSettings:
    """What an instance is told before its first prompt. max_new_tokens: of the prompts, for which there must be room.

    threads: where no launcher has planned them. verbose: whether to talk about loading.
    """

    load: LoadOptions
    max_new_tokens: int
    threads: int | None = None
    verbose: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> WorkerSettings:
        """The inverse of `as_dict`."""
        return cls(**{**fields, "load": LoadOptions.of(**fields["load"])})


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
    try:
        model = _load(WorkerSettings.from_dict(json.loads(first)))
    except IpexAssistError as error:
        _send(replies, {"refusal": str(error), "exit_code": error.exit_code})
        return
    except Exception as error:
        _send(replies, {"refusal": f"{_describe(error)} while loading", "exit_code": 1})
        return
    names = model.identity
    facts = {"target": names.target, "precision": names.precision, "executor": names.executor}
    _send(replies, {"ready": {**facts, "load_s": time.perf_counter() - started}})
    for line in requests:
        _send(replies, answer(model, json.loads(line)))


def _send(replies: IO[bytes], reply: Mapping[str, Any]) -> None:
    view = memoryview(json.dumps(reply).encode() + b"\n")
    while view:
        view = view[replies.write(view) :]


def _load(settings: WorkerSettings) -> TextModel:
    configure_messages(settings.verbose, "%(message)s", progress=False)
    from ipex_assist.commands.load import load_models

    return load_models(settings.load, settings.max_new_tokens, settings.threads, verbose=settings.verbose)[0]


def answer(model: TextModel, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of one prompt, or what went wrong and whether another instance may do better."""
    try:
        prompt, chat = request["prompt"], request["chat"]
        if request["messages"] is not None:
            prompt, chat = encode_messages(model.tokenizer, request["messages"]), False
        options = GenerationOptions.of(**request["options"])
        return {"result": model.generate(prompt, options, chat=chat).as_dict()}
    except IpexAssistError as error:
        return {"result": None, "error": str(error)}
    except Exception as error:
        return {"result": None, "error": _describe(error), "again": True}


def _describe(error: BaseException) -> str:
    if out_of_memory(error):
        return "out of memory; use a smaller --precision or model, fewer --instances, or --no-assisted"
    log.info("%s", error, exc_info=error)
    return f"{type(error).__name__}: {error} (run with -v for the whole story)"
