"""What the engine adds to the passes it runs, and how long new requests and conversations wait, on a real model.

    ipex-launch -- python benchmarks/engine.py --target FOLDER [--assistant FOLDER] [--precision int4] [--requests 16]
    ipex-launch -- python benchmarks/engine.py --random Qwen/Qwen3.5-9B [--layers N] --only conversation

own share: all time outside of the core's passes ÷ that in them, with that many requests in flight: scheduling, the
description of passes, verification, rounds and handles. "small" is that of a model with random weights, so small that
a pass of 16 rows takes two milliseconds.
newcomer: seconds to the first token of a request that arrives beside `--requests` others, ÷ (2 × that of the same
request alone). conversation: seconds to the first token of a question after 2,000 tokens that were read and written
before, with and without the prefix cache. sampled: tokens/s of that many requests that are drawn with temperature,
top-k, top-p and a presence penalty ÷ those of greedy ones. Every figure is repeated; the kinds take turns. --random
builds published shapes with random weights, of which N layers.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import forward
import measure

import ipex_assist
from ipex_assist.bench.loading import models
from ipex_assist.bench.options import PairOptions
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import NoPrefixes
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.native.library import library
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.assistant_name import NONE

KINDS = ("share", "newcomer", "conversation", "sampled")


def tokens_of(model: Any, seed: int, count: int) -> list[int]:
    """Random token ids, for which a model has to do as much as for any text."""
    chance = random.Random(seed)
    return [chance.randrange(100, model.vocab_size // 2) for _ in range(count)]


DRAWN = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "presence_penalty": 0.5}


def fill(
    engine: Engine, model: Any, args: argparse.Namespace, seed: int, tokens: int, drawn: dict[str, Any]
) -> list[Any]:
    """Requests in flight, every one of which has its first token. drawn: options by which, if not greedily."""
    options = GenerationOptions.of(max_new_tokens=tokens, ignore_eos=True, assisted=args.assistant is not None, **drawn)
    handles = [engine.submit(tokens_of(model, seed + i, 64), options) for i in range(args.requests)]
    for handle in handles:
        next(handle)
    return handles


class TimedCore:
    """The core's functions, and the seconds that passes take in them."""

    PASSES = ("ia_forward", "ia_sample", "ia_top_tokens", "ia_draft")

    def __init__(self, library: Any) -> None:
        self._library, self.seconds = library, 0.0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name in self.PASSES:
            function = self._timed(function)
        setattr(self, name, function)
        return function

    def _timed(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(*given: Any) -> int:
            started = time.perf_counter()
            try:
                return function(*given)
            finally:
                self.seconds += time.perf_counter() - started

        return call


def timed_core(*models: NativeModel | None) -> TimedCore:
    """Have the passes of these models timed."""
    core = TimedCore(library())
    for model in models:
        if model is not None:
            model.packed.library = core
    return core


def own_share(model: Any, core: TimedCore, args: argparse.Namespace, seed: int) -> tuple[float, float, float]:
    """Seconds outside of the core's passes ÷ those in them, and milliseconds of both a pass of the target."""
    engine = model.engine()
    handles = fill(engine, model, args, seed, 48, {})
    passes, inside, started = engine.stats.passes, core.seconds, time.perf_counter()
    for handle in handles:
        for _ in handle:
            pass
    seconds, passes, inside = time.perf_counter() - started, engine.stats.passes - passes, core.seconds - inside
    return seconds / inside - 1, 1e3 * (seconds - inside) / passes, 1e3 * inside / passes


# Of a pass of two milliseconds with 16 rows, on two cores of Zen 5.
SMALL = {"vocab_size": 32768, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 10}
SMALL_HEADS = {"num_attention_heads": 10, "num_key_value_heads": 2}


class SmallModel:
    """A model with random weights that is nothing but an engine's target."""

    def __init__(self) -> None:
        self.target = NativeModel(forward.load("qwen2.5-0.5b", "int4", **SMALL, **SMALL_HEADS))
        self.vocab_size = self.target.spec.vocab_size

    def engine(self) -> Engine:
        """Make a new engine, which drafts nothing."""

        def measure_costs() -> Costs:
            raise AssertionError("nothing is drafted")

        return Engine(self.target, Drafting(self.vocab_size, measure_costs))


def sampled(model: Any, args: argparse.Namespace, seed: int) -> float:
    """Seconds of greedy texts ÷ those of as many drawn ones: their tokens/s by those of greedy ones."""
    seconds = []
    for drawn in ({}, {**DRAWN, "seed": seed}):
        handles = fill(model.engine(), model, args, seed, 48, drawn)
        started = time.perf_counter()
        for handle in handles:
            for _ in handle:
                pass
        seconds.append(time.perf_counter() - started)
    return seconds[0] / seconds[1]


def first_token(engine: Engine, tokens: list[int], seed: int) -> float:
    """Seconds until a request has its first token."""
    started = time.perf_counter()
    handle = engine.submit(tokens, GenerationOptions.of(max_new_tokens=2, ignore_eos=True, assisted=False))
    next(handle)
    return time.perf_counter() - started


def newcomer(model: Any, args: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Seconds to the first token alone, and beside the others."""
    prompt = tokens_of(model, seed + 1000, 128)
    alone = first_token(model.engine(), prompt, seed)
    engine = model.engine()
    handles = fill(engine, model, args, seed, 96, {})
    beside = first_token(engine, prompt, seed)
    for handle in handles:
        handle.cancel()
    return alone, beside


def conversation(model: Any, args: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Seconds to the first token of a tenth turn of 40 tokens after 2,000: with the prefix cache, and without."""
    before, question = tokens_of(model, seed, 2000), tokens_of(model, seed + 1, 40)
    seconds = []
    for prefixes in (None, NoPrefixes()):
        engine = Engine(model.target, model.drafting, model.eos, prefixes=prefixes)
        first_token(engine, before, seed)
        seconds.append(first_token(engine, before + question, seed))
    return seconds[0], seconds[1]


def load(args: argparse.Namespace) -> Any:
    """The pair, or a model of published shapes."""
    if args.random is None:
        return ipex_assist.load(args.target, args.assistant, precision=args.precision, generation_config="none")
    loading = LoadOptions.of(target=args.random, assistant=NONE, calibrate=False, cache_packed=False)
    asked = PairOptions(loading, (args.precision,), (None,), True, 2048, 64, None, False, args.requests, args.layers)
    return next(models(asked))[0]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options: one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--target")
    which.add_argument("--random", metavar="MODEL")
    parser.add_argument("--assistant")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind of figure; may be given again")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    leave_cores_to_native()
    model, kinds = load(args), args.only or KINDS
    core = timed_core(model.target, model.assistant)
    small, plain = SmallModel(), argparse.Namespace(**vars(args) | {"assistant": None})
    small_core = timed_core(small.target)
    samples: dict[str, list[float]] = {}

    def keep(**figures: float) -> None:
        for name, figure in figures.items():
            samples.setdefault(name, []).append(figure)

    for turn in range(args.repeats):
        if "share" in kinds:
            share, own_ms, pass_ms = own_share(model, core, args, turn)
            small_share, small_own_ms, small_ms = own_share(small, small_core, plain, turn)
            keep(own_share=share, own_ms=own_ms, pass_ms=pass_ms)
            keep(small_own_share=small_share, small_own_ms=small_own_ms, small_pass_ms=small_ms)
        if "newcomer" in kinds:
            alone, beside = newcomer(model, args, turn)
            keep(newcomer_alone_s=alone, newcomer_s=beside, newcomer=beside / (2 * alone))
        if "conversation" in kinds:
            known, unknown = conversation(model, args, turn)
            keep(conversation_s=known, conversation_unknown_s=unknown, conversation=known / unknown)
        if "sampled" in kinds:
            keep(sampled=sampled(model, args, turn))
    rows = [{"what": name, **measure.summary(values)} for name, values in samples.items()]
    shown = [{key: row[key] for key in ("what", "median", "min", "max")} for row in rows]
    measure.report(shown, {"results": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
