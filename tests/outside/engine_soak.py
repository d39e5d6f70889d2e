"""An engine under random load for as long as you like: does every text stay right, memory flat, and no block get lost?

    python tests/outside/engine_soak.py --minutes 30
    ipex-launch -- python tests/outside/engine_soak.py --target FOLDER --assistant FOLDER --precision int8 --minutes 30

Requests come in waves, with prompts that begin alike, greedy and sampled, with and without a draft, an adapter and a
grammar; some are cancelled, of some the handle is dropped. The pool of keys and values is small, so that texts are put
back and read again. Once an interval all requests are let end: then the prefix cache alone has blocks. A share of all
texts is compared with the text alone, decoded plainly from memory of its own. Without --target it runs a small model of
random weights with three adapters, for which its own draft head, its own int4 copy and n-grams of the prompt draft.

Ends with exit code 1 where a text differs, a block is lost, or resident memory grows after the warm-up. Time in which
the process was stopped (SIGSTOP) does not count.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what the benchmarks share

import measure
from soak_models import SoakModels

sys.path.append(str(Path(__file__).parents[1]))  # what the tests share

from drafts import InTurn
from grammars import SPECS

from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import PrefixCache
from ipex_assist.engine.request import RequestHandle
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import resident_bytes
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions

PREFIXES = (0, 40, 256, 300, 512, 700)  # tokens that prompts have in common
TAILS, LIMITS = (1, 200), (1, 120)  # tokens of a prompt's own, and of texts
CANCELLED, DROPPED = 0.15, 0.05  # shares of requests
ADAPTED, CONSTRAINED, IN_TURN = 0.5, 0.3, 0.2  # likewise: with an adapter, with a grammar, drafted by chance
SCALES = (1.0, 1.0, 0.5)  # of adapters
WAVE = 150  # passes between two levels of load
LONGEST_STEP_S = 5.0  # what a step takes beyond that it was stopped for
SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7, "top_p": 0.95},
    {"top_k": 0},
    {"temperature": 0.3, "presence_penalty": 0.5},
)
DRAFTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_assistant_tokens_schedule": "constant", "num_assistant_tokens": 4},
    {"num_assistant_tokens_schedule": "heuristic"},
    {"assisted": False},
)


@dataclass
class Client:
    """A request: its handle is given up after so many rounds, by cancelling or silently; None reads to the end."""

    prompt: list[int]
    options: GenerationOptions
    grammar: GrammarSpec | None
    rounds: int | None
    drops: bool
    handle: RequestHandle
    text: list[int] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Sample:
    """One interval. blocks: of the target's that anybody has; lost: those that nobody should, of both models."""

    active_s: float
    rss_mib: float
    blocks: int
    lost: int
    tokens_per_s: float
    requests: int
    checked: int
    preempted: int


class Soak:
    """Random load on one engine."""

    def __init__(self, models: SoakModels, args: argparse.Namespace) -> None:
        self.models, self.args = models, args
        self.chance = random.Random(args.seed)
        self.prefixes = PrefixCache(models.blocks)
        limits = EngineLimits(requests=args.concurrency)
        self.engine = Engine(models.target, models.drafting, models.eos, limits=limits, prefixes=self.prefixes)
        self.common = [self._tokens(length) for length in PREFIXES]
        self.clients: list[Client] = []
        self.active_s = 0.0
        self.requests = self.checked = 0
        self.compared: Counter[str] = Counter()  # by what requests have
        self._level = self._steps = 0
        self._last = monotonic()

    def _tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(3, self.models.vocabulary) for _ in range(count)]

    def _arrive(self) -> None:
        chance = self.chance
        prompt = [*chance.choice(self.common), *self._tokens(chance.randint(*TAILS))]
        how: dict[str, Any] = {}
        if chance.random() < 0.5:
            how = {"do_sample": True, "seed": chance.randrange(1 << 30), **chance.choice(SAMPLED)}
        how |= chance.choice(DRAFTS)
        options = GenerationOptions.of(max_new_tokens=chance.randint(*LIMITS), ignore_eos=True, **how)
        if self.models.adapters and chance.random() < ADAPTED:
            options = replace(options, lora=chance.choice(self.models.adapters), lora_scale=chance.choice(SCALES))
        spec = chance.choice(SPECS) if chance.random() < CONSTRAINED else None
        turns = self.models.two and options.may_draft and chance.random() < IN_TURN
        fate = chance.random()
        rounds = chance.randrange(12) if fate < CANCELLED + DROPPED else None
        handle = self.engine.submit(
            prompt,
            options,
            schedule=InTurn(chance.randrange(1 << 30)) if turns else None,
            grammar=self.models.grammar(spec),
        )
        self.clients.append(Client(prompt, options, spec, rounds, fate < DROPPED, handle))
        self.requests += 1

    def step(self) -> None:
        """Run one pass; before it requests arrive, behind it they read and go."""
        if self._steps % WAVE == 0:
            self._level = self.chance.randint(1, 2 * self.args.concurrency)
        self._steps += 1
        while len(self.clients) < self._level and self.chance.random() < 0.5:
            self._arrive()
        self._pass()

    def _pass(self) -> None:
        self.engine.step()
        for client in self.clients:
            self._read(client)
        self.clients = [client for client in self.clients if not client.ended]
        now = monotonic()
        self.active_s += min(now - self._last, LONGEST_STEP_S)
        self._last = now

    def _read(self, client: Client) -> None:
        while client.handle.has_round:
            client.text += next(client.handle).tokens
            if client.rounds is not None:
                client.rounds -= 1
        client.ended = client.handle.ended
        if client.ended and next(client.handle, None) is not None:  # raises what the request failed by
            raise AssertionError("a round behind the last one")
        if client.rounds is not None and client.rounds <= 0 and not client.ended:
            if not client.drops:
                client.handle.cancel()
            client.ended = True
        if client.ended and self.chance.random() < self.args.check:
            self._check(client)

    def _check(self, client: Client) -> None:
        """IpexAssistError where a text is not the one it has alone, or the beginning of it."""
        alone = self.models.alone(client.prompt, client.options, client.grammar)
        whole = client.rounds is None
        if client.text != (alone if whole else alone[: len(client.text)]):
            raise IpexAssistError(
                f"a text of {len(client.text)} tokens behind {len(client.prompt)} differs from the text alone, with "
                f"--seed {self.args.seed} after {self.requests} requests: {client.options}, {client.grammar}"
            )
        self.checked += 1
        has = ("an adapter", client.options.lora), ("a grammar", client.grammar), ("noise", client.options.do_sample)
        self.compared.update(f"compared with {name}" for name, value in has if value)

    def drain(self) -> None:
        """Let all requests end, without new ones."""
        while self.clients:
            self._pass()

    def lost(self) -> int:
        """Blocks that neither a text nor the prefix cache has, and yet are not free, while there is no request."""
        gc.collect()
        return self.models.used() - len(self.prefixes)

    def run(self, seconds: float, interval: float, samples: list[Sample]) -> None:
        """Load for so long, with a sample at the end of each interval."""
        while self.active_s < seconds:
            started, before = self.active_s, self.engine.stats.new_tokens
            end = min(seconds, started + interval)
            while self.active_s < end:
                self.step()
            rate = (self.engine.stats.new_tokens - before) / max(1e-9, self.active_s - started)
            blocks = self.models.blocks.count - self.models.blocks.free
            self.drain()
            stats = self.engine.stats
            rss = resident_bytes() / (1 << 20)
            counts = self.requests, self.checked, stats.preempted
            samples.append(Sample(self.active_s, rss, blocks, self.lost(), rate, *counts))
            print(line_of(samples[-1]), flush=True)


def line_of(sample: Sample) -> str:
    """One interval as text."""
    return (
        f"{sample.active_s / 60:6.1f} min  RSS {sample.rss_mib:8.1f} MiB  blocks {sample.blocks:4d}  lost "
        f"{sample.lost}  {sample.tokens_per_s:8.1f} tokens/s  requests {sample.requests}  checked {sample.checked}  "
        f"put back {sample.preempted}"
    )


def complaints(samples: Sequence[Sample], warm_up_s: float, most_growth_mib: float) -> list[str]:
    """What is wrong with a run. Memory: medians of the first and the last third of all intervals after the warm-up."""
    found = [
        f"{sample.lost} blocks of keys and values are lost after {sample.active_s / 60:.1f} minutes"
        for sample in samples
        if sample.lost
    ][:1]
    warm = [sample.rss_mib for sample in samples if sample.active_s > warm_up_s]
    third = len(warm) // 3
    if third:
        first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
        if last - first > most_growth_mib:
            found.append(f"resident memory grew by {last - first:.1f} MiB after the warm-up, from {first:.1f} MiB")
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="hub id, folder or .gguf file (default: a small model of random weights)")
    parser.add_argument("--assistant", help="likewise, or mtp, self or two of them, as mtp+self (default: self)")
    parser.add_argument("--lora", action="append", default=[], help="folder of an adapter of --target; repeatable")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--assistant-precision", default="int4")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--warm-up", type=float, help="minutes (default: a fifth of all)")
    parser.add_argument("--interval", type=float, default=60, help="seconds between two samples (default: 60)")
    parser.add_argument("--concurrency", type=int, default=16, help="texts under way at a time; twice as many may wait")
    parser.add_argument("--kv-memory", type=int, help="MiB (default: one block of each model for each of these texts)")
    parser.add_argument("--check", type=float, default=0.05, help="share of texts that are compared (default: 0.05)")
    parser.add_argument("--most-growth", type=float, default=8, help="MiB of resident memory after the warm-up")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def soak(args: argparse.Namespace) -> int:
    """Run, print a line an interval, the totals and JSON; 1 where something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        models = SoakModels(args, Path(folder))
    leave_cores_to_native()
    load, samples = Soak(models, args), []
    load.run(60 * args.minutes, args.interval, samples)
    load.engine.close()
    warm_up = args.minutes / 5 if args.warm_up is None else args.warm_up
    found = complaints(samples, 60 * warm_up, args.most_growth)
    if left := load.lost() + len(load.prefixes):
        found.append(f"{left} blocks are not free in the end")
    stats = load.engine.stats
    totals: dict[str, Any] = {
        "requests": load.requests,
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "put back": stats.preempted,
        "prefix tokens": stats.prefix_tokens,
        "new tokens": stats.new_tokens,
        "accepted": stats.accepted,
        **{f"accepted of {name}": stats.accepted_by[name] for name in sorted(stats.drafted_by)},
        "compared": load.checked,
        **dict(sorted(load.compared.items())),
        "blocks": models.blocks.count,
        "minutes": round(load.active_s / 60, 1),
    }
    measure.report([totals], {"samples": [asdict(sample) for sample in samples], "complaints": found})
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    arguments = parse()
    sys.exit(measure.exit_code(lambda: soak(arguments), lambda text: print(f"error: {text}", file=sys.stderr)))
