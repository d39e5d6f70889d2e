"""From the answers of instances to figures: each, together, beside the memory's speed; as tables and plain data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import measure
from multi_socket_layouts import BASE, Layout

from ipex_assist.env.cpulist import format_cpulist

Answer = dict[str, Any]


def together(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Return the figures that instances reached at the same time.

    tokens_per_s: all new tokens ÷ seconds from the common beginning to the last one's end, prompts included.
    prompt_tokens_per_s: all prompts ÷ seconds until the last one has its first token.
    decode_tokens_per_s: tokens after the first of each ÷ seconds from the earliest first token to the last end, and
    GB_per_s, what was read meanwhile: None where it is not known.
    """
    started = min(answer["started"] for answer in answers)
    first = min(answer["first"] for answer in answers)
    ended = max(answer["ended"] for answer in answers)
    read = [answer["bytes"] for answer in answers]
    return {
        "tokens_per_s": sum(len(answer["tokens"]) for answer in answers) / (ended - started),
        "decode_tokens_per_s": sum(len(answer["tokens"]) - 1 for answer in answers) / (ended - first),
        "prompt_tokens_per_s": sum(answer["prompt_tokens"] for answer in answers)
        / (max(answer["first"] for answer in answers) - started),
        "GB_per_s": None if None in read else sum(read) / (ended - first) / 1e9,
    }


def alone(answer: Answer) -> dict[str, float | None]:
    """Return what one instance saw: time to the first token, time per token after it, tokens/s after it, acceptance."""
    decode, count = answer["ended"] - answer["first"], len(answer["tokens"]) - 1
    return {
        "ttft_ms": 1000 * (answer["first"] - answer["started"]),
        "tpot_ms": 1000 * decode / count,
        "tokens_per_s": count / decode,
        "acceptance_rate": answer["accepted"] / answer["drafted"] if answer["drafted"] else None,
    }


@dataclass
class Case:
    """One layout at one precision, plain or assisted: every sample of every instance.

    `facts` and `homes` are what the instances said of themselves at the first start.
    """

    precision: str
    layout: Layout
    assisted: bool
    facts: list[dict[str, Any]]
    homes: list[dict[str, Any]]
    turns: list[list[Answer]] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    def add(self, answers: list[Answer], reads: Sequence[float | None]) -> None:
        """Add one turn: the answer of every instance, and the GB/s at which each read memory before."""
        self.turns.append(answers)
        known = [read for read in reads if read is not None]
        if len(known) == len(reads):
            self.reads.append(sum(known))

    def latest(self, figure: str) -> float:
        """Return a figure of the last turn."""
        return together(self.turns[-1])[figure] or 0.0

    def samples(self, figure: str) -> list[float]:
        """Return one figure of `together` from every turn in which it is known."""
        return [value for turn in self.turns if (value := together(turn)[figure]) is not None]

    def median(self, figure: str) -> float | None:
        """Return the median of `samples`."""
        samples = self.samples(figure)
        return statistics.median(samples) if samples else None

    @property
    def read(self) -> float | None:
        """Median GB/s at which the threads of all instances read memory together."""
        return statistics.median(self.reads) if self.reads else None

    @property
    def mode(self) -> str:
        return "assisted" if self.assisted else "plain"

    def each(self, figure: str) -> list[list[float]]:
        """Return the samples of one figure of `alone`, for every instance."""
        columns = zip(*self.turns, strict=True)
        return [[value for answer in column if (value := alone(answer)[figure]) is not None] for column in columns]

    def tokens(self) -> set[tuple[int, ...]]:
        """The texts that came out, as token ids; all samples of all instances should give the same."""
        return {tuple(answer["tokens"]) for turn in self.turns for answer in turn}

    def same_tokens(self, cases: Iterable[Case]) -> bool:
        """Whether this case and the plain one on the base's layout gave one and the same text, whenever asked."""
        return len(self.tokens() | base_of(self, cases, assisted=False).tokens()) == 1

    def as_dict(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Return everything as plain data."""
        base, ratio = base_of(self, cases), None
        if base is not self:
            ratio = _ratio(self.median("tokens_per_s"), base.median("tokens_per_s"))
        first = self.turns[0][0]
        return {
            "precision": self.precision,
            "layout": self.layout.name,
            "assisted": self.assisted,
            "instances": len(self.layout.placements),
            "threads": [place.threads for place in self.layout.placements],
            "prompt_tokens": first["prompt_tokens"],
            "new_tokens": len(first["tokens"]),
            "same_tokens": self.same_tokens(cases),
            "together": {
                name: measure.summary(samples) if (samples := self.samples(name)) else None
                for name in together([first])
            },
            "over": base.layout.name,
            "times": ratio,
            "read_GB_per_s": measure.summary(self.reads) if self.reads else None,
            # Between the first and the last to begin, which were told to begin at the same moment.
            "start_spread_ms": max(
                1000 * (max(a["started"] for a in turn) - min(a["started"] for a in turn)) for turn in self.turns
            ),
            "each": [self._instance(index) for index in range(len(self.layout.placements))],
        }

    def _instance(self, index: int) -> dict[str, Any]:
        place = self.layout.placements[index]
        figures = {name: self.each(name)[index] for name in alone(self.turns[0][0])}
        return {
            "cpus": format_cpulist(place.cpus),
            "memory": place.describe_memory(),
            **self.homes[index],
            **self.facts[index],
            **{name: measure.summary(samples) if samples else None for name, samples in figures.items()},
        }


def base_of(case: Case, cases: Iterable[Case], *, assisted: bool | None = None) -> Case:
    """Return what a case is compared with: the same on one core, or on the first layout that was measured."""
    assisted = case.assisted if assisted is None else assisted
    alike = [other for other in cases if other.precision == case.precision and other.assisted == assisted]
    return next((other for other in alike if other.layout.name == BASE), alike[0] if alike else case)


def speed_table(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Tokens: together, and as each instance saw it."""
    rows = []
    for case in cases:
        samples, base = case.samples("tokens_per_s"), base_of(case, cases)
        rows.append(
            {
                **_names(case),
                "tokens/s": f"{statistics.median(samples):.1f}",
                "spread": f"{min(samples):.1f} to {max(samples):.1f}",
                "÷ base": _times(case, base, "tokens_per_s"),
                "each: tokens/s": _range(case.each("tokens_per_s"), "{:.1f}"),
                "TTFT ms": _range(case.each("ttft_ms"), "{:.0f}"),
                "TPOT ms": _range(case.each("tpot_ms"), "{:.1f}"),
                "accepted": _range(case.each("acceptance_rate"), "{:.0%}"),
                "same tokens": "yes" if case.same_tokens(cases) else "NO",
            }
        )
    return rows


def memory_table(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Why: prompts, which compute, and decoding, which reads, beside the speed at which the same threads read."""
    rows = []
    for case in cases:
        base, read, decode = base_of(case, cases), case.read, case.median("GB_per_s")
        share = _ratio(decode, read)
        rows.append(
            {
                **_names(case),
                "prompt tokens/s": f"{case.median('prompt_tokens_per_s'):.0f}",
                "prompt ÷": _times(case, base, "prompt_tokens_per_s"),
                "decode tokens/s": f"{case.median('decode_tokens_per_s'):.1f}",
                "decode ÷": _times(case, base, "decode_tokens_per_s"),
                "decode GB/s": _number(decode, "{:.1f}"),
                "memory GB/s": _number(read, "{:.1f}"),
                "memory ÷": _number(_ratio(read, base.read), "{:.2f}"),
                "% of memory": _number(None if share is None else 100 * share, "{:.0f}"),
            }
        )
    return rows


def close_lines(cases: Sequence[Case]) -> list[str]:
    """Return in words what limits the sums: the memory's own gain over the base, for each layout."""
    lines, told = [], set()
    for case in cases:
        base = base_of(case, cases)
        gain = _ratio(case.read, base.read)
        if case is base or gain is None or case.layout.name in told or case.read is None or base.read is None:
            continue
        told.add(case.layout.name)
        lines.append(
            f"{case.layout.name} reads memory at {case.read:.1f} GB/s, {base.layout.name} at {base.read:.1f}: where "
            f"decoding takes all of it, {gain:.2f} × is the most to be had"
        )
    return lines


def _names(case: Case) -> dict[str, Any]:
    threads = sorted({place.threads for place in case.layout.placements})
    return {
        "precision": case.precision,
        "decoding": case.mode,
        "layout": case.layout.name,
        "instances": len(case.layout.placements),
        "threads": "-".join(map(str, [threads[0], *threads[1:][-1:]])),
    }


def _times(case: Case, base: Case, figure: str) -> str:
    return _number(_ratio(case.median(figure), base.median(figure)), "{:.2f}")


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _range(samples: Sequence[Sequence[float]], form: str) -> str:
    """The median of each instance, from the smallest to the largest."""
    medians = [statistics.median(each) for each in samples if each]
    if not medians:
        return "–"
    words = dict.fromkeys(form.format(value) for value in (min(medians), max(medians)))
    return " to ".join(words)
