"""Milliseconds that the core's threads wait between passes, by the number of requests; drafts greedy and sampled.

    ipex-launch -- python benchmarks/between_passes.py [--requests 1,8,32,64] [--vocabulary 151936] [--only drawn …]

A round is a pass of the target with what is drafted for it; "outside" is its time outside of the core's passes:
scheduling, the description of passes, drafts, verification and handles. The models have random weights and are small:
what is outside does not depend on that, but for logits, of which nearly flat rows are the most work.
plain, drawn: without drafts, greedy and sampled. drafts, drawn drafts: the same with --drafts drafted tokens a round,
nearly all of them wrong. drawn requests have temperature, top-k, top-p and a penalty; "open" ones temperature alone.
by passes: drafts whose logits return to Python after each pass, where NumPy chooses, as a grammar's do. Kinds take
turns.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import forward
import measure
from engine import DRAWN, SMALL, SMALL_HEADS, TimedCore, timed_core, tokens_of

from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.step_drafts import StepDrafts

OPEN = {"do_sample": True, "top_k": 0, "temperature": 1.0}
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "plain": (False, {}),
    "drawn": (False, DRAWN),
    "drafts": (True, {}),
    "drawn drafts": (True, DRAWN),
    "open drafts": (True, OPEN),
    "drawn drafts by passes": (True, DRAWN),
}
ASSISTANT = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
ASSISTANT_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


class Pair:
    """Two small models of one vocabulary, and what their passes take."""

    def __init__(self, vocabulary: int) -> None:
        sizes = {**SMALL, "vocab_size": vocabulary}, {**ASSISTANT, "vocab_size": vocabulary}
        self.target = NativeModel(forward.load("qwen2.5-0.5b", "int4", **sizes[0], **SMALL_HEADS))
        self.assistant = NativeModel(forward.load("qwen2.5-0.5b", "int4", **sizes[1], **ASSISTANT_HEADS))
        self.vocab_size = vocabulary
        self.core: TimedCore = timed_core(self.target, self.assistant)

    def engine(self, requests: int) -> Engine:
        """A new engine, with the costs of a pair for which drafting pays."""
        costs = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)
        drafting = Drafting(self.vocab_size, lambda: costs, self.assistant)
        return Engine(self.target, drafting, limits=EngineLimits(requests=requests))


def outside(pair: Pair, kind: str, requests: int, args: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Milliseconds a round outside of the core's passes, and in them."""
    drafts, drawn = KINDS[kind]
    seeds = {"seed": seed} if drawn else {}
    options = GenerationOptions.of(
        max_new_tokens=4 * args.rounds + 20,
        ignore_eos=True,
        assisted=drafts,
        num_assistant_tokens=args.drafts,
        **drawn,
        **seeds,
    )
    in_one_call = StepDrafts.in_one_call
    if kind.endswith("by passes"):
        StepDrafts.in_one_call = lambda *_: False  # type: ignore[method-assign]
    engine = pair.engine(requests)
    handles = [engine.submit(tokens_of(pair, seed + i, 16), options) for i in range(requests)]
    for handle in handles:
        next(handle)
    for _ in range(3):
        engine.step()
    passes, inside, started = engine.stats.passes, pair.core.seconds, time.perf_counter()
    for _ in range(args.rounds):
        engine.step()
        for handle in handles:
            while handle.has_round:
                next(handle)
    seconds, passes, inside = time.perf_counter() - started, engine.stats.passes - passes, pair.core.seconds - inside
    StepDrafts.in_one_call = in_one_call  # type: ignore[method-assign]
    for handle in handles:
        handle.cancel()
    engine.close()
    return 1e3 * (seconds - inside) / passes, 1e3 * inside / passes


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="1,8,32,64")
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind of request; may be given again")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    leave_cores_to_native()
    pair, kinds = Pair(args.vocabulary), args.only or list(KINDS)
    samples: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for turn in range(args.repeats):
        for requests in map(int, args.requests.split(",")):
            for kind in random.Random(turn).sample(kinds, len(kinds)):
                found = outside(pair, kind, requests, args, turn)
                for values, value in zip(samples.setdefault((kind, requests), ([], [])), found, strict=True):
                    values.append(value)
    rows = [
        {"kind": kind, "requests": requests, "inside_ms": measure.summary(inside)["median"], **measure.summary(own)}
        for (kind, requests), (own, inside) in samples.items()
    ]
    shown = [
        {
            "drafts of": row["kind"],
            "requests": row["requests"],
            "ms in passes": f"{row['inside_ms']:.2f}",
            "ms outside, median": f"{row['median']:.2f}",
            "min": f"{row['min']:.2f}",
            "max": f"{row['max']:.2f}",
        }
        for row in rows
    ]
    measure.report(shown, {"vocabulary": args.vocabulary, "drafts": args.drafts, "results": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
