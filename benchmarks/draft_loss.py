"""Assisted ÷ plain decoding of the same requests, their passes taking turns: what drafts cost, to a part in a thousand.

    ipex-launch -- python benchmarks/draft_loss.py -m TARGET --assistant-model MODEL --concurrency 1,4,8 --requests 16

Two engines serve the same requests on one loaded pair, one plainly and one with its assistant, and whoever is behind in
tokens runs the next pass. So both have the machine of the same moments: turns of whole runs differ by 5 to 40 % where
other machines share the memory, more than drafts may cost. Options are those of `ipex-assist bench --task throughput`;
of --repeats, each begins without acceptance rates. Seconds are those of submitting, passes and fetching.
clipped: steps of the same rows that took over CLIPPED times their median are counted as that: something else ran.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import measure

from ipex_assist.bench.arguments import pair_options, parse, task_options
from ipex_assist.bench.cases import contenders
from ipex_assist.bench.load_cases import load_cases
from ipex_assist.bench.loading import models
from ipex_assist.bench.measure import Contender, forget
from ipex_assist.bench.throughput import LoadCase, warm_up
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.options import GenerationOptions

CLIPPED = 1.5


@dataclass
class Side:
    """One engine, its requests, and what each of its steps took, by what it had to do."""

    engine: Any
    waiting: list[tuple[tuple[int, ...], GenerationOptions]]
    concurrency: int
    flying: list[Any] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: dict[tuple[int, bool], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def done(self) -> bool:
        """Whether every request has all of its tokens."""
        return not (self.waiting or self.flying)

    def step(self) -> None:
        """Submit what there is room for, run a pass, and fetch what came."""
        stats, started = self.engine.stats, time.perf_counter()
        read, drafted = stats.prompt_tokens, stats.drafted
        while self.waiting and len(self.flying) < self.concurrency:
            self.flying.append(self.engine.submit(*self.waiting.pop()))
        self.engine.step()
        for handle in self.flying:
            while handle.has_round:
                self.tokens += len(next(handle).tokens)
        self.flying = [handle for handle in self.flying if not handle.ended]
        seconds = time.perf_counter() - started
        self.drafted, self.accepted = stats.drafted, stats.accepted
        self.steps[stats.prompt_tokens - read, stats.drafted > drafted].append(seconds)

    def seconds(self, *, clipped: bool) -> float:
        """The seconds of all steps. Prompts are read in parts of many sizes, and not clipped."""
        total = 0.0
        for (read, _), steps in self.steps.items():
            most = CLIPPED * statistics.median(steps) if clipped and not read else max(steps)
            total += sum(min(step, most) for step in steps)
        return total


def compare(model: TextModel, case: LoadCase, contender: Contender, turn: int) -> tuple[Side, Side]:
    """Serve a case's requests plainly and with drafts, pass by pass."""
    forget(model)
    sides = []
    for each in (Contender(), contender):
        options = [GenerationOptions.of(**case.options, **each.options(None)) for _ in case.prompts]
        if case.options.get("do_sample"):
            first = case.seed + turn * len(case.prompts)
            options = [replace(asked, seed=first + place) for place, asked in enumerate(options)]
        waiting = list(reversed(list(zip(case.prompts, options, strict=True))))
        sides.append(Side(model.engine(), waiting, case.concurrency))  # type: ignore[attr-defined]
    while not all(side.done for side in sides):
        min((side for side in sides if not side.done), key=lambda side: side.tokens).step()
    for side in sides:
        side.engine.close()
    plain, assisted = sides
    return plain, assisted


def run(argv: list[str]) -> int:
    """Measure, print a table and JSON."""
    args = parse(["--task", "throughput", *argv])
    rows: list[dict[str, Any]] = []
    for model, _ in models(pair_options(args)):
        asked = task_options(args)
        contender = contenders(asked, model)[-1]
        for case in load_cases(asked, model, []):
            warm_up(model, case, (Contender(), contender))
            for turn in range(case.repeats):
                plain, assisted = compare(model, case, contender, turn)
                ratios = [plain.seconds(clipped=each) / assisted.seconds(clipped=each) for each in (False, True)]
                row = {
                    "in flight": case.concurrency,
                    "tokens": assisted.tokens,
                    "drafted": assisted.drafted,
                    "accepted": assisted.accepted,
                    "plain s": f"{plain.seconds(clipped=False):.2f}",
                    "assisted s": f"{assisted.seconds(clipped=False):.2f}",
                    "assisted ÷ plain": f"{ratios[0]:.3f}",
                    "clipped": f"{ratios[1]:.3f}",
                }
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    measure.report(rows, {"options": shlex.join(argv)})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(sys.argv[1:]), print))
