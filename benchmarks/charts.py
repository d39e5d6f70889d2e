"""The charts of README and docs, drawn by results.py from the newest runs: each says its question and its machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers_chart import bars_of
from plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Run = dict[str, Any]
# Ten that are told apart (Okabe and Ito's, and two of Paul Tol's); markers and dashes differ as well.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#999933", "#332288")
MARKERS, STYLES = "os^Dv<>PX*", ("-", "--", "-.")


def look(number: int) -> dict[str, Any]:
    """What the line of this number looks like."""
    return {
        "color": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": STYLES[number % len(STYLES)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def peers(axis: Axes, run: Run) -> str:
    """A row for each program and number of bits, with a bar for plain and one for assisted. Returns the title."""
    bars = bars_of(run)
    rows = list(dict.fromkeys((bar.bits, bar.program) for bar in bars))
    for mode, shift in (("plain", 0.2), ("assisted", -0.2)):
        chosen = [bar for bar in bars if bar.assisted == (mode == "assisted")]
        places = [-rows.index((bar.bits, bar.program)) + shift for bar in chosen]
        drawn = axis.barh(places, [bar.speed for bar in chosen], 0.38, color=COLOURS[mode], label=mode)
        axis.bar_label(drawn, fmt="%.1f", padding=3, fontsize="small")
    axis.set_yticks([-number for number in range(len(rows))], [f"{program}, {bits}" for bits, program in rows])
    axis.set_xlabel("tokens/s")
    return "One prompt beside other programs"


def draft_length(axis: Axes, run: Run) -> str:
    """Speed relative to plain by the number of drafted tokens, a line for each prompt; the adaptive one at its end."""
    fixed = [number for number, name in enumerate(run["columns"]) if name.removeprefix("k = ").isdigit()]
    plain, adaptive = run["columns"].index("plain"), run["columns"].index("adaptive")
    prompts = [row for row in run["rows"] if row[0] != "mean"]
    for number, row in enumerate(prompts):
        speeds = [float(row[column]) / float(row[plain]) for column in (*fixed, adaptive)]
        axis.plot(range(1, len(fixed) + 1), speeds[:-1], label=row[0], **look(number))
        axis.plot([len(fixed) + 1], speeds[-1:], **look(number))
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_xticks(range(1, len(fixed) + 2), [*(str(number + 1) for number in range(len(fixed))), "adaptive"])
    axis.set(xlabel="drafted tokens a round", ylabel="speed ÷ plain", ylim=(0, None))
    return "Draft lengths by prompt"


def throughput(axis: Axes, run: Run) -> str:
    """Tokens/s of all requests by how many are in flight, a line for plain and assisted with each precision."""
    cells = [dict(zip(run["columns"], row, strict=True)) for row in run["rows"]]
    lines: dict[str, list[tuple[int, float]]] = {}
    for cell in cells:
        draft = "plain" if cell["draft"] == "–" else f"{cell['draft']} draft"
        name = f"{cell['target']}, {draft}"
        lines.setdefault(name, []).append((int(cell["in flight"]), float(cell["tokens/s"])))
    for number, (name, points) in enumerate(lines.items()):
        axis.plot(*zip(*sorted(points), strict=True), label=name, **look(number))
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set(xlabel="requests in flight", ylabel="tokens/s of all requests", ylim=(0, None))
    return "Many requests, plain and assisted"


# By question: the file beside this one, and what draws it.
CHARTS: dict[str, tuple[str, Callable[[Axes, Run], str]]] = {
    "peers": ("peers.svg", peers),
    "draft_length": ("draft_length.svg", draft_length),
    "throughput": ("throughput.svg", throughput),
}


def describe(run: Run) -> str:
    """What a chart shows, to be kept in its file."""
    return json.dumps([run["machine"], run["columns"], run["rows"]])


def is_current(path: Path, run: Run) -> bool:
    """Whether a chart in a file shows this run."""
    escaped = describe(run).replace("&", "&amp;").replace('"', "&quot;")
    return path.exists() and any(text in path.read_text(encoding="utf-8") for text in (describe(run), escaped))


def draw(path: Path, run: Run, chart: Callable[[Axes, Run], str]) -> None:
    """Draw a run into a file, the same one for the same run: title, machine, the chart, and the legend below."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    FigureCanvasSVG(figure)
    axis = figure.subplots()
    figure.suptitle(f"{chart(axis, run)}\n{run['machine']}", fontsize=10)
    if axis.patches:  # bars, a row each
        figure.set_size_inches(7, 1.2 + 0.42 * len(axis.get_yticks()))
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Description": describe(run)})
