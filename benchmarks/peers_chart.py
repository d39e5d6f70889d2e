"""The README's chart of a comparison with other programs, drawn by results.py from the newest run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plots import COLOURS

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


def describe(bars: list[Bar]) -> str:
    """What a chart shows, to be kept in its file."""
    return json.dumps([[bar.bits, bar.program, bar.assisted, bar.speed] for bar in bars])


def is_current(path: Path, bars: list[Bar]) -> bool:
    """Whether a chart in a file shows these bars."""
    escaped = describe(bars).replace('"', "&quot;")
    return path.exists() and any(text in path.read_text(encoding="utf-8") for text in (describe(bars), escaped))


def draw(path: Path, bars: list[Bar]) -> None:
    """Draw a row for each program and number of bits, with a bar for plain and one for assisted; the legend above."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys((bar.bits, bar.program) for bar in bars))
    figure = Figure(figsize=(7, 0.6 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasSVG(figure)
    axis = figure.subplots()
    for mode, colour, shift in (("plain", COLOURS["plain"], 0.2), ("assisted", COLOURS["assisted"], -0.2)):
        chosen = [bar for bar in bars if bar.assisted == (mode == "assisted")]
        places = [-rows.index((bar.bits, bar.program)) + shift for bar in chosen]
        drawn = axis.barh(places, [bar.speed for bar in chosen], 0.38, color=colour, label=mode)
        axis.bar_label(drawn, fmt="%.1f", padding=3, fontsize="small")
    axis.set_yticks([-number for number in range(len(rows))], [f"{program}, {bits}" for bits, program in rows])
    axis.set_xlabel("tokens/s")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "peers"}):  # the same file for the same bars
        figure.savefig(path, format="svg", metadata={"Date": None, "Description": describe(bars)})
