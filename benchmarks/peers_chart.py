"""A comparison with other programs as bars, from which the README's chart and headline are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# A target's precision as programs call it, and the bits of its weights.
BITS = {
    "int4": "4 bits",
    "Q4_K_M": "4 bits",
    "int8": "8 bits",
    "Q8_0": "8 bits",
    "bf16": "16 bits",
    "bf16 IPEX": "16 bits",
}
OURS = "ipex-assist"


@dataclass(frozen=True)
class Bar:
    """A program's speed in tokens/s with targets of some bits, plain or assisted."""

    bits: str
    program: str
    assisted: bool
    speed: float


def bars_of(run: dict[str, Any]) -> list[Bar]:
    """The bars of a run of peers.py, in its order."""
    program, target, draft, speed = (run["columns"].index(name) for name in ("peer", "target", "draft", "tokens/s"))
    return [
        Bar(BITS[row[target]], row[program], row[draft] != "–", float(row[speed]))
        for row in run["rows"]
        if row[target] in BITS and row[speed]
    ]


@dataclass(frozen=True)
class Comparison:
    """Our fastest run with targets of some bits, and the fastest of another program."""

    ours: Bar
    other: Bar

    def cells(self) -> list[str]:
        """Our speed, the other's with its name, and the factor between them."""
        other = f"{self.other.speed:.1f} ({self.other.program})"
        return [f"{self.ours.speed:.1f}", other, f"{self.ours.speed / self.other.speed:.2f}"]


def comparisons(bars: list[Bar]) -> dict[str, Comparison]:
    """By bits, where there is another program with as many."""
    found = {}
    for bits in dict.fromkeys(bar.bits for bar in bars):
        ours = [bar for bar in bars if bar.bits == bits and bar.program == OURS]
        others = [bar for bar in bars if bar.bits == bits and bar.program != OURS]
        if ours and others:
            found[bits] = Comparison(*(max(each, key=lambda bar: bar.speed) for each in (ours, others)))
    return found


def headline(bars: list[Bar]) -> str:
    """The one number: our assisted speed with the fewest bits, and how many times the best other program's it is."""
    found = comparisons(bars)[bars[0].bits]
    times = found.ours.speed / found.other.speed
    return f"**{found.ours.speed:.0f} tokens/s, {times:.1f} times as many as the best other program**"
