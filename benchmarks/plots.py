"""Plots of benchmark results through matplotlib; as a command, of the JSON that a benchmark ended with.

python benchmarks/plots.py RESULT.txt FILE.png
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.versions import install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by colour-blind people, and on grey paper: one is light, the other dark.
COLOURS = {"plain": "#88ccee", "assisted": "#332288"}


def require() -> None:
    """UsageError where matplotlib is missing; better before hours of measuring than after."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"drawing needs matplotlib, which is not installed: {install_command('plot')}")


def multi_socket(result: dict[str, Any], path: str) -> Figure:
    """Draw a row for each precision: tokens/s of all instances together, and GB/s of decoding beside the memory's.

    Bars are medians, dots the samples, lines the speed at which the same threads read memory.
    Returns what was drawn into `path`. Raises IpexAssistError where that cannot be written.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = result["cases"]
    precisions = list(dict.fromkeys(case["precision"] for case in cases))
    layouts = list(dict.fromkeys(case["layout"] for case in cases))
    figure = Figure(figsize=(4 + 1.6 * len(layouts), 0.8 + 2.8 * len(precisions)), layout="constrained")
    FigureCanvasAgg(figure)  # no display is needed, and pyplot's global state is not touched
    axes = figure.subplots(len(precisions), 2, squeeze=False)
    figure.suptitle(f"{_short(result['target'])}: instances × cores")
    for (left, right), precision in zip(axes, precisions, strict=True):
        rows = [case for case in cases if case["precision"] == precision]
        _bars(left, rows, layouts, "tokens_per_s")
        left.set_ylabel(f"{precision}: tokens/s together")
        _bars(right, rows, layouts, "GB_per_s")
        right.set_ylabel("GB/s of decoding")
        for axis in (left, right):
            axis.set_ylim(bottom=0)
    named = {label: handle for axis in figure.axes
             for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(named.values(), named, loc="outside lower center", ncols=len(named), fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # the latter for an ending that matplotlib does not know
        raise IpexAssistError(f"{path} cannot be written: {error}") from None
    return figure


def _bars(axis: Axes, cases: list[dict[str, Any]], layouts: list[str], figure: str) -> None:
    """One group for each layout, with a bar for plain and one for assisted where both were measured."""
    modes = [mode for mode in COLOURS if any(_mode(case) == mode for case in cases)]
    width = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        label = mode
        for case in cases:
            summary = case["together"][figure]
            if _mode(case) != mode or summary is None:
                continue
            at = layouts.index(case["layout"]) + (number - (len(modes) - 1) / 2) * width
            axis.bar(at, statistics.median(summary["samples"]), width * 0.95, color=COLOURS[mode], label=label)
            dots = {"marker": "o", "linestyle": "none", "color": "#ee7733", "markersize": 4, "markeredgecolor": "white"}
            axis.plot([at] * len(summary["samples"]), summary["samples"], label="single turns", **dots)
            if figure == "GB_per_s" and case["read_GB_per_s"] is not None:
                read = case["read_GB_per_s"]["median"]
                axis.hlines(read, at - width / 2, at + width / 2, colors="black", label="reading memory")
            label = "_nolegend_"
    axis.set_xticks(range(len(layouts)), layouts)


def _mode(case: dict[str, Any]) -> str:
    return "assisted" if case["assisted"] else "plain"


def _short(target: str) -> str:
    """A path's last part; a hub id as it is."""
    return Path(target).name if Path(target).exists() else target


def main(argv: list[str]) -> int:
    """Draw the last line of a benchmark's output."""
    if len(argv) != 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    try:
        multi_socket(json.loads(Path(argv[0]).read_text().splitlines()[-1]), argv[1])
    except IpexAssistError as error:
        print(f"plots.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
