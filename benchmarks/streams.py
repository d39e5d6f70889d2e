"""How long the core waits between two passes while a worker streams texts: what cannot be done during a pass.

    ipex-launch -- python benchmarks/streams.py [--requests 1,8,32,64] [--pass-ms 15]

The loop of a worker (ipex_assist/workers/request_loop.py) generates for so many streamed requests, on a model with
random weights that is so small that its passes end before --pass-ms: each pass then takes that long, as one of a large
model does, and what Python does meanwhile costs nothing. waits: from a pass's end to the beginning of the next.
beside: what Python worked meanwhile, in the loop's only thread. Both are medians of the passes in which all requests
decode. greedy, drawn: how tokens are chosen, as in between_passes.py.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from typing import Any

import forward
import measure
from engine import DRAWN, tokens_of

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.generation.result import Identity
from ipex_assist.native.library import library
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.workers.request_loop import Outbox, RequestLoop
from ipex_assist.workers.wire import TextRequest

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
PR_SET_TIMERSLACK = 29  # sleeps end up to 50 µs late by default, which the core's, that are no timers, do not
KINDS: dict[str, dict[str, Any]] = {"greedy": {}, "drawn": DRAWN}


class SlowCore:
    """The core's functions; a pass beside which Python works takes `seconds`. rounds: of each, rows, wait and work."""

    def __init__(self, seconds: float) -> None:
        self._library, self._seconds = library(), seconds
        self._ended: float | None = None
        self._begun = self._worked = 0.0
        self.rounds: list[tuple[int, float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def ia_begin_sample(self, model: int, pool: int, batch: Any, *choices: Any) -> int:
        now = time.perf_counter()
        if self._ended is not None:
            self.rounds.append((batch._obj.rows, now - self._ended, time.thread_time() - self._worked))
        self._begun, self._worked = now, time.thread_time()
        return int(self._library.ia_begin_sample(model, pool, batch, *choices))

    def ia_sample_is_done(self, model: int) -> int:
        late = time.perf_counter() - self._begun >= self._seconds
        return int(late and self._library.ia_sample_is_done(model))

    def ia_end_sample(self, model: int) -> int:
        worked, end = time.thread_time() - self._worked, self._begun + self._seconds
        early = self._library.ia_sample_is_done(model)
        time.sleep(max(0.0, end - time.perf_counter()))
        status = int(self._library.ia_end_sample(model))
        self._ended = end if early else time.perf_counter()
        self._worked = time.thread_time() - worked
        return status


def small_model() -> AssistedModel:
    """A text model with the tokenizer of the one in our package."""
    tokenizer = load_tokenizer(open_checkpoint(str(demo_model_path())))
    sizes = {**SMALL, **HEADS, "vocab_size": len(tokenizer), "tie_word_embeddings": True}
    target = NativeModel(forward.load("qwen2.5-0.5b", "int4", **sizes))
    return AssistedModel(target, tokenizer, frozenset(), Identity("random", None, "int4", None, "native"))


def measured(model: AssistedModel, kind: str, requests: int, args: argparse.Namespace) -> tuple[float, float, int]:
    """Milliseconds of a wait and of work beside a pass, and how many passes these are medians of."""
    core = SlowCore(args.pass_ms / 1e3)
    model.target.packed.library = core  # type: ignore[attr-defined]
    outbox = Outbox(model, lambda lines: None)
    loop = RequestLoop(model, outbox.put, outbox.flush)
    options = GenerationOptions.of(max_new_tokens=args.rounds, ignore_eos=True, assisted=False, **KINDS[kind])
    for number in range(requests):
        loop.inbox.put(TextRequest(number, tokens_of(model, number, 16), options=options, stream=True))
    loop.inbox.put(None)
    loop.run()
    found = [(wait, work) for rows, wait, work in core.rounds if rows == requests][2:]
    waits, works = zip(*found, strict=True)
    return 1e3 * measure.summary(waits)["median"], 1e3 * measure.summary(works)["median"], len(found)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="1,8,32,64")
    parser.add_argument("--pass-ms", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=60, help="tokens of each request")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    leave_cores_to_native()
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    model = small_model()
    samples: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for _ in range(args.repeats):
        for requests in map(int, args.requests.split(",")):
            for kind in KINDS:
                samples.setdefault((kind, requests), []).append(measured(model, kind, requests, args))
    rows: list[dict[str, Any]] = []
    for (kind, requests), found in samples.items():
        waits, works, counts = zip(*found, strict=True)
        summary = measure.summary(waits)
        rows.append({"kind": kind, "requests": requests, "beside_ms": min(works), "passes": sum(counts), **summary})
    shown = [
        {
            "texts": row["kind"],
            "requests": row["requests"],
            "ms waits, median": f"{row['median']:.2f}",
            "min": f"{row['min']:.2f}",
            "max": f"{row['max']:.2f}",
            "ms beside": f"{row['beside_ms']:.2f}",
        }
        for row in rows
    ]
    measure.report(shown, {"pass_ms": args.pass_ms, "results": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
