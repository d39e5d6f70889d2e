"""What drafting costs where it never helps, and brings where it does, by a clock that only passes move.

    python benchmarks/draft_planning.py [--random N] [--only PART] [--lines]

An engine serves texts whose drafts were recorded from a real pair (tests/speculative/recorded_drafts.json), or are
never right, on machines whose passes take what a table says: two cores that are soon bound by arithmetic, 256 threads
on which 64 rows are nearly free, and random ones. Each line is one machine and source, alone or many at a time.

A pass with drafts costs what drafting took, and what its drafted rows add to it; it brings, for each accepted token,
what a token takes in a pass of as many requests without drafts. Loss is the most that all passes together had cost at
any moment, in percent of plain decoding of the tokens that had come, and of those that running requests lacked to 33
(or to their limit); and in plain passes of as many requests as there are at a time. Short answers may have 512 tokens,
and end after 8, 16 or 32. Gain is assisted ÷ plain tokens/s of all texts
together, prompts and the last texts' passes of few rows included.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

import measure
import simulated
from simulated import VOCABULARY, WRONG, Clock, SimulatedAssistant, SimulatedHead, SimulatedTarget, grown

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import NoPrefixes
from ipex_assist.speculative.costs.calibration import interpolate
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round

FIRST_TOKENS = 33  # tokens of a request from which on the loss is bounded by a share of its time
MEASURED = 64  # rows that calibration measures

# Milliseconds of the target's pass by rows; of a draft pass by requests; of reading a token.
MACHINES: dict[str, tuple[dict[int, float], dict[int, float], float]] = {
    "2 cores, AMX, int8": (
        {1: 52, 8: 55, 9: 62, 16: 64, 17: 100, 32: 100, 33: 117, 48: 130, 64: 167, 256: 523, 512: 1015},
        {1: 11.5, 8: 14.2, 16: 20.7},
        0.57,
    ),
    "2 cores, AMX, int4": (
        {1: 36, 4: 38, 8: 41, 9: 50, 16: 52, 17: 87, 32: 88, 33: 110, 48: 140, 64: 172, 256: 650, 512: 1284},
        {1: 11.5, 8: 14.2, 16: 20.7},
        0.57,
    ),
    "2 cores, Zen 5, int4": (
        {1: 24, 2: 27, 4: 33, 8: 52, 16: 96, 24: 140, 32: 170, 64: 320, 256: 1200, 512: 2400},
        {1: 9, 4: 12, 8: 19, 16: 34},
        1.3,
    ),
    "Qwen 1.5B, int4, 2 cores": (
        {1: 19.5, 2: 20, 4: 22, 8: 24, 12: 30, 16: 39, 20: 48, 24: 58, 28: 68, 32: 78, 64: 145, 256: 530, 512: 1040},
        {1: 6.5, 4: 7, 16: 12},
        0.5,
    ),
    "Qwen 1.5B, bf16, 2 cores": (
        {1: 64, 4: 69, 8: 72, 12: 82, 16: 83, 20: 100, 24: 106, 28: 123, 32: 135, 64: 245, 256: 930, 512: 1850},
        {1: 6.5, 4: 7, 16: 12},
        0.5,
    ),
    "256 threads, bf16": (
        {1: 30, 16: 30.5, 32: 32, 64: 36, 128: 50, 256: 80, 512: 150, 1024: 300},
        {1: 4.5, 16: 5.0},
        0.04,
    ),
    "256 threads, slow draft": (
        {1: 12, 16: 12.5, 32: 13, 64: 16, 128: 24, 256: 40, 512: 76, 1024: 150},
        {1: 7.0, 16: 7.5},
        0.03,
    ),
}


def costs_of(passes: dict[int, float], drafts: dict[int, float], read: float) -> Costs:
    """Costs in seconds, of every number of rows, from milliseconds of some."""
    known = sorted(passes)
    verify = interpolate(known, [passes[rows] / 1e3 for rows in known], range(1, known[-1] + 1))
    counts = sorted(drafts)
    rows = tuple(interpolate(counts, [drafts[count] / 1e3 for count in counts], range(1, 17)))
    return Costs(tuple(verify), rows[0], rows, read / 1e3)


def random_machine(chance: random.Random) -> Costs:
    """One on which rows are free up to a number, and then cost more and more, perhaps in steps."""
    plain, free = chance.uniform(5, 200), 2 ** chance.uniform(0, 7)
    step, steepness = chance.choice((1, 1, 8, 16)), chance.uniform(0.5, 1.0)
    passes = {rows: plain * max(1 + 0.002 * rows, steepness * step * -(-rows // step) / free) for rows in range(1, 513)}
    draft, slope = plain * 10 ** chance.uniform(-1.5, -0.2), chance.uniform(0.0, 0.15)
    drafts = {count: draft * (1 + slope * (count - 1)) for count in range(1, 17)}
    reading = (passes[512] - passes[256]) / 256 * draft / plain * chance.uniform(0.5, 2)
    return costs_of(passes, drafts, min(reading, draft))


def as_head(true: Costs, block: bool) -> Costs:
    """A head of one layer beside a target of 28."""
    step = tuple(true.verifying(rows) / 9 for rows in range(1, 17))
    read = (true.verifying(512) - true.verifying(256)) / 256 / 28
    if block:
        return replace(true, draft=0.0, rows=step, read=read, block=tuple(1.5 * row for row in step[:8]))
    return replace(true, draft=step[0], rows=step, read=read)


def disturbed(true: Costs, chance: random.Random) -> Costs:
    """What calibration finds beside other programs: sizes that take up to three times as long, and drafts too."""
    verify = list(true.verify[:MEASURED])
    for first in range(0, MEASURED, 4):
        factor = chance.choice((1, 1, chance.uniform(1, 3)))
        verify[first : first + 4] = [seconds * factor for seconds in verify[first : first + 4]]
    for at in range(1, MEASURED):
        verify[at] = max(verify[at - 1], verify[at])
    slow, reading = chance.uniform(1, 3), chance.uniform(1, 10)
    return Costs(
        tuple(verify), true.draft * slow, tuple(row * slow for row in true.rows), true.read * reading,
        block=tuple(each * slow for each in true.block),
    )  # fmt: skip


class CountedTarget(SimulatedTarget):
    """The target. rows: of its last pass."""

    rows = 0

    def take(self, rows: int) -> None:
        self.rows = rows
        super().take(rows)


class WrongAssistant(SimulatedAssistant):
    """As sure as the recorded one, and never right."""

    def _draft(self, request: Any) -> tuple[list[int], list[float]]:
        tokens, confidence = super()._draft(request)
        return [WRONG] * len(tokens), confidence


def drafting_for(source: str, true: Costs, believed: Costs, clock: Clock) -> Drafting:
    """What drafts: good, wrong; head, wrong head, block head, wrong block head; head and good, wrong head and good."""

    def model(kind: type[SimulatedAssistant] = SimulatedAssistant) -> SimulatedAssistant:
        return kind(clock, lambda rows: true.draft * grown(true, rows), true.read)

    kinds = {"good": SimulatedAssistant, "wrong": WrongAssistant}
    if source in kinds:
        return Drafting(
            VOCABULARY, lambda: believed, model(WrongAssistant if source == "wrong" else SimulatedAssistant)
        )
    first, _, second = source.partition(" and ")
    costs = as_head(true, "block" in first)
    head = SimulatedHead(clock, costs, random="wrong" in first)
    known = replace(costs, verify=believed.verify)
    if not second:
        return Drafting(VOCABULARY, lambda: known, head)
    other = Drafting(VOCABULARY, lambda: believed, model(kinds[second]))
    return Drafting(VOCABULARY, lambda: known, head, second=other)


@dataclass
class Serving:
    """What a run took. lost: after each pass, seconds that loss is a share of, what drafts had cost, plain ones."""

    seconds: float = 0.0
    lost: list[tuple[float, float, float]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def note(self, true: Costs, took_s: float, rows: int, lacking: int, rounds: Sequence[Round]) -> None:
        """Note a pass of so many rows that brought these rounds. lacking: tokens of running requests to 33 each."""
        drafted, accepted = (sum(each) for each in zip(*((of.drafted, of.accepted) for of in rounds), strict=True))
        decoding = [each for each in rounds if not each.prompt]
        token_s = true.verifying(len(decoding)) / len(decoding) if decoding else 0.0
        _, lost_s, plain_s = self.lost[-1] if self.lost else (0.0, 0.0, 0.0)
        lost_s += took_s - true.verifying(rows - drafted) - accepted * token_s
        plain_s += token_s * sum(len(each.tokens) for each in decoding)
        self.lost.append((plain_s + lacking * token_s, lost_s, plain_s))
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted


def serve(
    true: Costs,
    drafting_of: Callable[[Clock], Drafting] | None,
    at_a_time: int,
    limits: Sequence[int],
    prompts: Sequence[int],
    adapters: Sequence[str | None] = (None,),
    ends: int | None = None,
) -> Serving:
    """Serve texts of these limits and prompts, `at_a_time` at once; without drafts where drafting_of is None.

    ends: tokens after which each text ends.
    """
    clock = Clock()
    target = CountedTarget(clock, true.verifying)
    drafting = drafting_of(clock) if drafting_of else Drafting(VOCABULARY, lambda: Costs(true.verify[:MEASURED]), None)
    engine = Engine(
        target, drafting, limits=EngineLimits(requests=max(64, at_a_time)), clock=clock, prefixes=NoPrefixes()
    )
    waiting = [
        (
            simulated.prompt(i, prompts[i % len(prompts)]),
            GenerationOptions.of(max_new_tokens=limits[i], ignore_eos=True, lora=adapters[i % len(adapters)]),
        )
        for i in range(len(limits))
    ]
    flying: list[Any] = []
    found, lacks, came = Serving(), dict[Any, int](), dict[Any, int]()
    while waiting or flying:
        while waiting and len(flying) < at_a_time:
            tokens, options = waiting.pop(0)
            flying.append(engine.submit(tokens, options))
            lacks[flying[-1]], came[flying[-1]] = min(FIRST_TOKENS, options.max_new_tokens), 0
        before, target.rows = clock.now, 0
        engine.step()
        rounds: list[Round] = []
        for handle in list(flying):
            while handle.has_round:
                rounds.append(next(handle))
                lacks[handle] -= len(rounds[-1].tokens)
                came[handle] += len(rounds[-1].tokens)
            if ends is not None and came[handle] >= ends:
                handle.cancel()
                flying.remove(handle)
            elif handle.ended:
                flying.remove(handle)
        if target.rows and rounds:
            lacking = sum(max(0, lacks[handle]) for handle in flying)
            found.note(true, clock.now - before, target.rows, lacking, rounds)
    found.seconds = clock.now
    return found


@dataclass(frozen=True)
class Case:
    """One line: texts served on a machine."""

    part: str
    machine: str
    source: str
    at_a_time: int
    true: Costs
    believed: Costs
    limits: tuple[int, ...]
    prompts: tuple[int, ...] = (100,)
    adapters: tuple[str | None, ...] = (None,)
    ends: int | None = None

    def run(self) -> dict[str, Any]:
        """Assisted and plain."""
        plain = serve(self.true, None, self.at_a_time, self.limits, self.prompts, self.adapters, self.ends)
        assisted = serve(
            self.true,
            lambda clock: drafting_for(self.source, self.true, self.believed, clock),
            self.at_a_time, self.limits, self.prompts, self.adapters, self.ends,
        )  # fmt: skip
        loss = max(lost_s / plain_s for plain_s, lost_s, _ in assisted.lost if plain_s)
        _, lost_s, plain_s = assisted.lost[-1]
        passes = max(each for _, each, _ in assisted.lost) / self.true.verifying(self.at_a_time)
        return {
            "part": self.part, "machine": self.machine, "source": self.source, "at_a_time": self.at_a_time,
            "tokens": sum(min(limit, self.ends or limit) for limit in self.limits),
            "gain": round(plain.seconds / assisted.seconds, 4),
            "loss_percent": round(100 * loss, 2), "end_loss_percent": round(100 * lost_s / plain_s, 2),
            "loss_passes": round(passes, 2),
            "drafted": assisted.drafted, "accepted": assisted.accepted,
        }  # fmt: skip


GOOD = ("good", "head", "block head", "head and good", "wrong head and good")
BAD = ("wrong", "wrong head", "wrong block head", "wrong head and wrong")


def cases(random_count: int) -> list[Case]:
    """All lines."""
    made: list[Case] = []
    machines = {name: costs_of(*of) for name, of in MACHINES.items()}

    def add(part: str, name: str, source: str, n: int, true: Costs, limits: Sequence[int], **others: Any) -> None:
        believed = others.pop("believed", replace(true, verify=true.verify[:MEASURED]))
        made.append(Case(part, name, source, n, true, believed, tuple(limits), **others))

    for name, true in machines.items():
        for source in (*GOOD, *BAD):
            for n in (1, 4, 8, 16, 32, 64):
                if n in (8, 64) and source not in ("good", "wrong"):
                    continue
                add("short prompts", name, source, n, true, [128] * (n if source in BAD else 2 * n + 2))
        for n in (1, 4, 16, 32):
            add("one after the other", name, "wrong", n, true, [128] * (4 * n))
            add("long prompts", name, "wrong", n, true, [128] * n, prompts=(1000, 300))
            add("long prompts", name, "good", n, true, [128] * (2 * n), prompts=(1000, 300))
        for length in (8, 16, 32, 64, 512):
            add("lengths", name, "wrong", 1, true, [length])
            add("lengths", name, "good", 1, true, [length])
            add("lengths, six texts", name, "good", 1, true, [length] * 6)
        for end in (8, 16, 32):
            for source in ("good", "wrong", "head", "wrong head"):
                for n in (1, 8):
                    add("short answers", name, source, n, true, [512] * n, ends=end)
                add("short answers, six texts", name, source, 1, true, [512] * 6, ends=end)
        for n in (1, 4, 8):
            add("adapters", name, "good", n, true, [128] * (4 * n), adapters=(None, "changes"))
            add("adapters", name, "good", n, true, [128] * (4 * n), adapters=(*(None,) * 3, "changes"))
    chance = random.Random(1)
    for number in range(random_count):
        true = random_machine(chance)
        n = chance.choice((1, 1, 2, 4, 8, 16, 32, 64))
        source = chance.choice((*GOOD, *BAD, "good", "wrong", "good", "wrong"))
        prompts = tuple(chance.choice((20, 100, 300, 1000)) for _ in range(3))
        beside = number % 2 == 1
        believed = disturbed(true, chance) if beside else replace(true, verify=true.verify[:MEASURED])
        part = "costs measured beside other work" if beside else "random costs"
        limits = [chance.choice((32, 128, 256)) for _ in range(n if source in BAD else 2 * n)]
        add(part, f"random {number}", source, n, true, limits, prompts=prompts, believed=believed)
    return made


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table's rows: each part's lines on each machine or on all random ones, by whether drafts are ever right."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        machine = "random ones" if line["machine"].startswith("random") else line["machine"]
        kind = "never right" if line["source"] in BAD else "good"
        groups.setdefault((line["part"], machine, kind), []).append(line)
    return [
        {
            "texts": part, "machine": machine, "drafts": kind, "runs": len(of),
            "gain, mean": f"{math.exp(sum(math.log(each['gain']) for each in of) / len(of)):.3f}",
            "least": f"{min(each['gain'] for each in of):.3f}", "most": f"{max(each['gain'] for each in of):.3f}",
            "passes": f"{max(each['loss_passes'] for each in of):.1f}",
            "loss at most, %": f"{max(each['loss_percent'] for each in of):.1f}",
            "above 3.05 %": sum(each["loss_percent"] > 3.05 for each in of),
        }
        for (part, machine, kind), of in groups.items()
    ]  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=120, help="random machines")
    parser.add_argument("--only", default="", help="parts whose names begin so")
    parser.add_argument("--lines", action="store_true", help="each line as JSON, in place of the table")
    args = parser.parse_args()
    lines = [case.run() for case in cases(args.random) if case.part.startswith(args.only)]
    if args.lines:
        print(json.dumps(lines))
    else:
        measure.report(summary(lines), {})


if __name__ == "__main__":
    main()
