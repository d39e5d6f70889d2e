"""What `ipex-assist serve` adds to the engine: the same requests inside this process and over HTTP, in one run.

    ipex-launch -- python benchmarks/serve_overhead.py -m TARGET --assistant-model ASSISTANT \\
        --precision int8 --assistant-precision int4 --kv-memory 2G --concurrency 1,8,16 --repeats 3

Requests, their number and the figures are those of `ipex-assist bench --task throughput`. In turns, the order of which
alternates, an engine in this process serves them, as there, and a server, a real `ipex-assist serve` of the same models
on the same cores, to which this process sends them over HTTP, streamed, from a thread and a connection a client. Both
are loaded once, and while one works the other one waits: how much processor time the server takes meanwhile is
reported. Both engines live all through, and remember prefixes and what drafts were worth, as a server does; so every
turn has prompts that neither has seen (--requests × --repeats for each of --concurrency, from the same source). What
memory gives is measured before each turn. Flags other than those below go to both sides, such as --no-assisted. On two
cores a pair of 1.5B and 0.5B takes about 25 minutes; a third of that with --requests 16 --max-new-tokens 64.

÷ engine: tokens/s over HTTP ÷ those in the engine, of the same turn: the prompts are the same there. 0.97 is a server
that adds 3 %. The clients' own processor time is part of it, as they run on the same cores.
ms/token: bench's, of each request: seconds from its first delivery to its last ÷ tokens after the first delivery.
ms between tokens: of each token after the first delivery: seconds since the delivery before ÷ tokens that it came with.
A delivery is what a pass brought to a request: in the engine a round, over HTTP an event of the stream.
Ends with exit code 1 where a text over HTTP is another one than the engine's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import http_load
import measure
from own_server import OwnServer, processor_seconds

from ipex_assist.bench.arguments import pair_options, parse, task_options
from ipex_assist.bench.cases import contenders
from ipex_assist.bench.load_cases import LEAST_REQUESTS, load_cases
from ipex_assist.bench.loading import models
from ipex_assist.bench.measure import Contender
from ipex_assist.bench.throughput import BenchEngine, BenchHandle, LoadSample, Served, engine_of, percentile, serve
from ipex_assist.commands.shared.demo_model import DRAFT_PRECISION, PRECISION, demo_model_path
from ipex_assist.executors.traffic import machine_gb_per_s
from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round
from ipex_assist.tokenization.detokenizer import IncrementalDetokenizer

ENGINE, HTTP = "engine", "HTTP"
WARM_UP_TOKENS = 16
Deliveries = list[tuple[float, int]]  # seconds, tokens


@dataclass(frozen=True)
class Turn:
    """All requests once. sample: as bench has it. between_s: of each token after its request's first delivery.

    processor: seconds of processor time ÷ seconds of the turn, of this process, of the server's front and of its
    engines.
    """

    sample: LoadSample
    between_s: tuple[float, ...]
    texts: tuple[str, ...]
    processor: dict[str, float]


class Watched:
    """A request of the engine, of which every delivery's time is kept."""

    def __init__(self, handle: BenchHandle) -> None:
        self._handle = handle
        self.deliveries: Deliveries = []
        self.tokens: list[int] = []

    @property
    def has_round(self) -> bool:
        """As the handle has it."""
        return self._handle.has_round

    @property
    def ended(self) -> bool:
        """As the handle has it."""
        return self._handle.ended

    def __next__(self) -> Round:
        found = next(self._handle)
        if found.tokens:
            self.deliveries.append((time.perf_counter(), len(found.tokens)))
            self.tokens += found.tokens
        return found


class WatchedEngine:
    """An engine whose requests are watched."""

    def __init__(self, engine: BenchEngine) -> None:
        self._engine = engine
        self.stats = engine.stats
        self.step, self.close = engine.step, engine.close
        self.requests: list[Watched] = []

    def submit(self, tokens: Sequence[int], options: GenerationOptions) -> Watched:
        """As the engine does."""
        self.requests.append(Watched(self._engine.submit(tokens, options)))
        return self.requests[-1]


@dataclass(frozen=True)
class Work:
    """What a turn is given."""

    prompts: Sequence[Sequence[int]]
    options: dict[str, Any]
    concurrency: int


class Sides:
    """The engine in this process, and the server."""

    def __init__(self, model: TextModel, server: OwnServer) -> None:
        self.model, self.server = model, server
        self.engine = engine_of(model)

    def turn(self, side: str, work: Work) -> Turn:
        """Run one, with what memory gives measured before."""
        speed = machine_gb_per_s(self.model)
        before, started = self._processor(), time.perf_counter()
        turn = self._in_engine(work) if side == ENGINE else self._over_http(work)
        seconds = time.perf_counter() - started
        used = {name: (spent - before[name]) / seconds for name, spent in self._processor().items()}
        return replace(turn, sample=replace(turn.sample, memory_gb_per_s=speed), processor=used)

    def _processor(self) -> dict[str, float]:
        return {"here": time.process_time(), **processor_seconds(self.server.process.pid)}

    def _in_engine(self, work: Work) -> Turn:
        watched = WatchedEngine(self.engine)
        options = [GenerationOptions.of(**work.options)] * len(work.prompts)
        sample, _ = serve(watched, work.prompts, options, work.concurrency)
        texts = []
        for request in watched.requests:  # after the turn: over HTTP, this is the server's work
            stream = IncrementalDetokenizer(self.model.tokenizer)
            texts.append("".join(map(stream.push, request.tokens)) + stream.finish())
        return Turn(sample, between([each.deliveries for each in watched.requests]), tuple(texts), {})

    def _over_http(self, work: Work) -> Turn:
        asked = dict(work.options)
        asked["max_tokens"] = asked.pop("max_new_tokens")
        if not asked.pop("do_sample"):
            asked["temperature"] = 0
        bodies = [http_load.body(prompt, asked) for prompt in work.prompts]
        passes = self.server.passes()
        arrived = http_load.load(self.server.address, bodies, work.concurrency, MASK_AT_START)
        sample = LoadSample(
            max(each.deliveries[-1][0] for each in arrived),
            self.server.passes() - passes,
            tuple(served(each) for each in arrived),
        )
        return Turn(sample, between([each.deliveries for each in arrived]), tuple(each.text for each in arrived), {})


def served(arrived: http_load.Arrived) -> Served:
    """A text that came over HTTP, as bench has one."""
    first_s, first_tokens = arrived.deliveries[0]
    return Served(
        arrived.prompt_tokens,
        arrived.submitted_s,
        first_s,
        arrived.deliveries[-1][0],
        first_tokens,
        arrived.new_tokens,
        len(arrived.deliveries),
        arrived.drafted,
        arrived.accepted,
    )


def between(requests: Sequence[Deliveries]) -> tuple[float, ...]:
    """Seconds of each token after its request's first delivery: since the one before, shared by those it came with."""
    return tuple(
        (at - before) / tokens
        for deliveries in requests
        for (before, _), (at, tokens) in itertools.pairwise(deliveries)
        for _ in range(tokens)
    )


@dataclass(frozen=True)
class Measured:
    """All turns of one concurrency: of each side as many, those of one number with the same prompts."""

    concurrency: int
    turns: dict[str, list[Turn]]

    @property
    def ratios(self) -> list[float]:
        """Tokens/s over HTTP ÷ in the engine, of each turn."""
        pairs = zip(self.turns[HTTP], self.turns[ENGINE], strict=True)
        return [ours.sample.tokens_per_s / plain.sample.tokens_per_s for ours, plain in pairs]

    @property
    def equal(self) -> bool:
        """Whether every text over HTTP is the engine's."""
        pairs = zip(self.turns[HTTP], self.turns[ENGINE], strict=True)
        return all(ours.texts == plain.texts for ours, plain in pairs)

    def cells(self, side: str) -> dict[str, str]:
        """A row of the table."""
        turns, over_http = self.turns[side], side == HTTP
        samples = [turn.sample for turn in turns]
        requests = [request for sample in samples for request in sample.requests]
        speeds, memory = [s.tokens_per_s for s in samples], [s.memory_gb_per_s for s in samples if s.memory_gb_per_s]
        drafted = sum(request.drafted for request in requests)
        waits = [request.token_s for request in requests if request.token_s is not None]
        passes = sum(sample.passes for sample in samples)
        return {
            "in flight": str(self.concurrency),
            "side": side,
            "requests": str(len(samples[0].requests)),
            "tokens/s": f"{statistics.median(speeds):.2f}",
            "spread": _range(speeds, 2),
            "÷ engine": f"{statistics.median(self.ratios):.3f}" if over_http else "",
            "in the turns": _range(self.ratios, 3) if over_http else "",
            "first token ms, p50 / p99": _percentiles([request.ttft_s for request in requests]),
            "ms/token, p50 / p99": _percentiles(waits),
            "ms between tokens, p50 / p99": _percentiles([each for turn in turns for each in turn.between_s]),
            "tokens/pass": f"{sum(s.new_tokens for s in samples) / passes:.2f}" if passes else "",
            "accepted": f"{sum(request.accepted for request in requests) / drafted:.0%}" if drafted else "",
            "read GB/s before": _range(memory, 1),
            "processor %, here / front / engines": " / ".join(
                f"{100 * statistics.median(turn.processor[name] for turn in turns):.1f}"
                for name in ("here", "front", "engines")
            ),
            "equal texts": ("yes" if self.equal else "NO") if over_http else "",
        }

    def as_dict(self) -> dict[str, Any]:
        """All samples, as JSON has them."""
        return {
            "concurrency": self.concurrency,
            "ratios": self.ratios,
            "ratio_median": statistics.median(self.ratios),
            "equal_texts": self.equal,
            "sides": {side: [_turn_figures(turn) for turn in turns] for side, turns in self.turns.items()},
        }


def _turn_figures(turn: Turn) -> dict[str, Any]:
    sample = turn.sample
    waits = [request.token_s for request in sample.requests if request.token_s is not None]
    firsts = [request.ttft_s for request in sample.requests]
    return {
        "tokens_per_s": sample.tokens_per_s,
        "total_s": sample.total_s,
        "new_tokens": sample.new_tokens,
        "passes": sample.passes,
        "memory_gb_per_s": sample.memory_gb_per_s,
        "processor": turn.processor,
        **{
            name: {f"p{percent}": percentile(values, percent) for percent in (50, 90, 99)}
            for name, values in (("ttft_s", firsts), ("token_s", waits), ("between_s", turn.between_s))
        },
    }


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}" if values else ""


def _percentiles(seconds: Sequence[float]) -> str:
    """Both, and the one ÷ the other."""
    middle, worst = percentile(seconds, 50), percentile(seconds, 99)
    if middle is None or worst is None or not middle:
        return ""
    return f"{1000 * middle:.1f} / {1000 * worst:.1f} ({worst / middle:.2f} ×)"


def run(model: TextModel, server: OwnServer, args: argparse.Namespace, asked: argparse.Namespace) -> list[Measured]:
    """Warm both sides up, then measure in turns. args: ours; asked: as bench's parser has read them."""
    contender: Contender = contenders(task_options(asked), model)[-1]
    counts = {each: args.requests or max(LEAST_REQUESTS, 4 * each) for each in args.concurrency}
    most, notes = max(args.concurrency), list[str]()
    total = most + args.repeats * sum(counts.values())
    (case,) = load_cases(replace(task_options(asked), concurrency=(most,), requests=total), model, notes)
    for line in notes:
        say(line)
    options = {**case.options, **contender.options(asked.num_assistant_tokens_schedule)}
    unseen: Iterator[tuple[int, ...]] = iter(case.prompts)

    def some(count: int) -> list[tuple[int, ...]]:
        return [next(unseen) for _ in range(count)]

    sides, found = Sides(model, server), [Measured(each, {ENGINE: [], HTTP: []}) for each in counts]
    short = Work(some(most), {**options, "max_new_tokens": min(WARM_UP_TOKENS, options["max_new_tokens"])}, most)
    for side in (ENGINE, HTTP):
        sides.turn(side, short)
    for repeat in range(args.repeats):
        for place, each in enumerate(found):
            work = Work(some(counts[each.concurrency]), options, each.concurrency)
            for side in (ENGINE, HTTP) if (repeat + place) % 2 == 0 else (HTTP, ENGINE):
                each.turns[side].append(sides.turn(side, work))
            speeds = ", ".join(f"{side} {turns[-1].sample.tokens_per_s:.2f}" for side, turns in each.turns.items())
            say(f"turn {repeat + 1} of {args.repeats}, {each.concurrency} in flight: {speeds} tokens/s")
    sides.engine.close()
    return found


def say(text: str) -> None:
    """A line for whoever waits."""
    print(f"serve_overhead: {text}", file=sys.stderr, flush=True)


def read_flags(argv: Sequence[str]) -> tuple[argparse.Namespace, argparse.Namespace, list[str]]:
    """Our flags, what bench's parser makes of them and the others, and the others, which the server gets as they are.

    Raises UsageError.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    ours = ("concurrency", "requests", "repeats", "max_new_tokens", "prompt_tokens", "dataset", "text", "seed")
    for name, default in zip(ours, ("1,8,16", None, "3", "128", None, None, None, None), strict=True):
        parser.add_argument("--" + name.replace("_", "-"), default=default, help="of ipex-assist bench")
    parser.add_argument("--json", action="store_true", help="JSON alone")
    args, pair = parser.parse_known_args(argv)
    if not {"-m", "--model"} & set(pair):
        pair += ["-m", str(demo_model_path()), "--precision", PRECISION]
        pair += ["--assistant-model", "self", "--assistant-precision", DRAFT_PRECISION]
    given = [f"--{name.replace('_', '-')}={value}" for name in ours if (value := getattr(args, name)) is not None]
    asked = parse(["--task", "throughput", *given, *pair])
    args.concurrency, args.repeats, args.requests = asked.concurrency, asked.repeats, asked.requests
    return args, asked, pair


def main(argv: Sequence[str]) -> int:
    """Measure, print a table and JSON; 1 where texts differ."""
    args, asked, pair = read_flags(argv)
    with OwnServer([*pair, "--max-concurrency", str(max(args.concurrency))]) as server:
        say(f"the server is ready at http://{server.address[0]}:{server.address[1]}")
        pairs = models(pair_options(asked))
        model, warnings = next(pairs)
        for line in warnings:
            say(line)
        found = run(model, server, args, asked)
    rows = [each.cells(side) for each in found for side in (ENGINE, HTTP)]
    facts = {"results": [each.as_dict() for each in found], "pair": pair}
    if args.json:
        print(json.dumps({"benchmark": "serve_overhead", "time": measure.now(), "machine": measure.machine(),
                          "table": rows, **facts}))  # fmt: skip
    else:
        measure.report(rows, facts)
    return 0 if all(each.equal for each in found) else 1


if __name__ == "__main__":
    sys.exit(measure.exit_code(lambda: main(sys.argv[1:]), say))
