"""What held-out texts said of heads while they were trained, as curves over the minutes of training.

python benchmarks/distill_curve.py FILE.svg NAME=HEAD.work …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ipex_assist.bench.plots import curve

Tries = list[dict[str, Any]]


def tries_of(work: Path) -> Tries:
    """Of the folder that `distill` worked in, the tries of its training."""
    found: Tries = json.loads((work / "state" / "held_out.json").read_text(encoding="utf-8"))
    return found


def draw(path: Path, runs: dict[str, Tries]) -> None:
    """Draw tokens a draft that are right in a row, and of one run the share that is right at each position."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    alone = len(runs) == 1
    figure = Figure(figsize=(9 if alone else 6, 3.4), layout="constrained")
    FigureCanvasSVG(figure)
    places = figure.subplots(1, 1 + alone, squeeze=False)[0]
    for number, (name, tries) in enumerate(runs.items()):
        minutes = [each["seconds"] / 60 for each in tries]
        places[0].plot(minutes, [each["length"] for each in tries], label=name, **curve(number))
        for position in range(len(tries[0]["by_position"]) if alone else 0):
            shares = [each["by_position"][position] for each in tries]
            places[1].plot(minutes, shares, label=f"token {position + 1}", **curve(position + 1))
    places[0].set_ylabel("drafted tokens right in a row")
    places[-1].legend(fontsize="small")
    if alone:
        places[1].set_ylabel("right up to this token")
    for axis in places:
        axis.set_xlabel("minutes of training")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "distill"}):  # the same file for the same curves
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(argv: list[str]) -> int:
    if len(argv) < 2 or not all("=" in each for each in argv[1:]):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    named = (each.partition("=") for each in argv[1:])
    draw(Path(argv[0]), {name: tries_of(Path(work)) for name, _, work in named})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
