"""Curves of speed-up against whatever varies in a run: draft length, acceptance, prompt length, new tokens."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipex_assist.bench.measure import Row
from ipex_assist.bench.report import BenchReport
from ipex_assist.bench.throughput import LoadRow
from ipex_assist.checkpoints.short_name import short_assistant, short_name

Axis = tuple[str, Callable[[Row], float | None]]

# Okabe and Ito's colours, which colour-blind people tell apart, and two of Paul Tol's; curves differ by line style and
# marker as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442", "#882255", "#999933")
MOST_NAMED = 12  # curves of a legend
STYLES, MARKERS = ("-", "--", "-.", ":"), "os^Dv<>PX*"


def curve(number: int) -> dict[str, Any]:
    """What the plot of the curve of this number looks like."""
    again = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[(number + again) % len(STYLES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
    }


def _draft_length(row: Row) -> float | None:
    return row.contender.draft if isinstance(row.contender.draft, int) else None


def _acceptance(row: Row) -> float | None:
    return row.acceptance_rate if row.contender.acceptance is None else row.contender.acceptance


def _prompt_tokens(row: Row) -> float | None:
    return row.prompt_tokens


def _new_tokens(row: Row) -> float | None:
    return row.median(lambda sample: sample.new_tokens)


AXES: tuple[Axis, ...] = (
    ("drafted tokens a round, k", _draft_length),
    ("acceptance", _acceptance),
    ("prompt length (tokens)", _prompt_tokens),
    ("new tokens", _new_tokens),
)
SHORT: dict[Callable[[Row], float | None], str] = {
    _draft_length: "k =",
    _acceptance: "acceptance",
    _prompt_tokens: "prompt",
    _new_tokens: "new",
}


def draw(report: BenchReport, path: Path) -> None:
    """One panel for each axis on which the assisted rows differ; a point is a row, bars are its turns' extremes.

    A dataset's prompts differ in all of them: its panels are points against acceptance and prompt length, and the
    distribution of speed-ups.
    """
    if report.task == "throughput":
        _draw_loads(report, path)
        return
    rows = [row for row in report.rows if row.speedup]
    axes = AXES[1:3] if report.task == "dataset" else varying(rows)
    panels = len(axes) + (report.task == "dataset")
    figure, places = _figure(max(1, panels))
    for place, axis in zip(places, axes, strict=False):
        _panel(place, rows, axis, axes, scattered=report.task == "dataset")
    if report.task == "dataset":
        places[-1].hist([statistics.median(row.speedup) for row in rows], bins="auto", color=COLOURS[0])
        places[-1].set(xlabel="speed-up", ylabel="prompts")
    _finish(figure, title(report), path)


def _finish(figure: Any, heading: str, path: Path) -> None:
    figure.suptitle(heading, fontsize=10)
    figure.savefig(path, dpi=150)


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _draw_loads(report: BenchReport, path: Path) -> None:
    """Tokens/s of all requests against how many are in flight, and what one of them waits for its tokens."""
    figure, (speed, first, token) = _figure(3)
    lines: dict[str, list[LoadRow]] = {}
    for row in report.loads:
        pair = f"{row.precision} target" + (f", {row.assistant_precision} draft" if row.assistant_precision else "")
        lines.setdefault(f"{pair}, {row.contender.label}", []).append(row)
    for number, (label, rows) in enumerate(lines.items()):
        rows.sort(key=lambda row: row.concurrency)
        x = [row.concurrency for row in rows]
        y = [statistics.median(row.speeds) for row in rows]
        below = [middle - min(row.speeds) for middle, row in zip(y, rows, strict=True)]
        above = [max(row.speeds) - middle for middle, row in zip(y, rows, strict=True)]
        solid = {**curve(number), "linestyle": "-"}
        speed.errorbar(x, y, (below, above), capsize=2, **solid)
        for percent, look in ((50, solid), (99, {**solid, "linestyle": ":", "markerfacecolor": "none"})):
            named = f"{label}, {'median' if percent == 50 else f'p{percent}'}"
            first.plot(x, [row.ttft_s(percent) for row in rows], label=named, **look)
            token.plot(x, [1000 * (row.token_s(percent) or 0) for row in rows], label=named, **look)
    names = "tokens/s of all requests", "time to first token (s)", "time per token (ms)"
    for place, name in zip((speed, first, token), names, strict=True):
        place.set_xscale("log", base=2)
        place.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        place.set(xlabel="requests in flight", ylabel=name)
        place.set_ylim(bottom=0)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    _finish(figure, title(report), path)


def varying(rows: list[Row]) -> list[Axis]:
    """The axes on which rows differ; new tokens where they differ on none."""
    found = [axis for axis in AXES if len({axis[1](row) for row in rows} - {None}) > 1]
    if any(row.contender.acceptance is None for row in rows):
        found = [axis for axis in found if axis[1] is not _acceptance]  # a result, not a setting
    return found or [AXES[-1]]


def title(report: BenchReport) -> str:
    """The pair, what is not real about it, and the machine."""
    processor = report.environment.get("isa", {}).get("model")
    machine = f"\n{processor}, {report.environment['threads']} threads" if processor else ""
    pair = short_name(report.target) + (f" + {short_assistant(report.assistant)}" if report.assistant else "")
    return pair + (" (simulated acceptance)" if report.simulated else "") + machine


def _panel(place: Any, rows: list[Row], axis: Axis, axes: list[Axis] | tuple[Axis, ...], *, scattered: bool) -> None:
    """A line for each combination of everything else that varies.

    A schedule that finds its own draft length has no place on the axis of k: there it is a level, the median of its
    rows, which any fixed k has to beat.
    """
    name, value = axis
    lines: dict[str, list[tuple[float, Row]]] = {}
    levels: dict[str, list[Row]] = {}
    for row in rows:
        at = value(row)
        others = [f"{SHORT[of]} {of(row):g}" for other, of in axes if other != name and of(row) is not None]
        label = _name(row, [] if scattered else others)
        if at is not None:
            lines.setdefault(label, []).append((at, row))
        elif value is _draft_length:
            levels.setdefault(label, []).append(row)
    for number, (label, points) in enumerate(sorted(lines.items())):
        points.sort(key=lambda point: point[0])
        x = [at for at, _ in points]
        y = [statistics.median(row.speedup) for _, row in points]
        if scattered:
            place.plot(x, y, alpha=0.6, label=label, **{**curve(number), "linestyle": "none"})
            continue
        below = [middle - min(row.speedup) for middle, (_, row) in zip(y, points, strict=True)]
        above = [max(row.speedup) - middle for middle, (_, row) in zip(y, points, strict=True)]
        place.errorbar(x, y, (below, above), capsize=2, label=label, **curve(number))
    for number, (label, members) in enumerate(sorted(levels.items()), len(lines)):
        level = statistics.median(statistics.median(row.speedup) for row in members)
        place.axhline(level, label=label, **{**curve(number), "marker": None})
    place.axhline(1.0, color="grey", linewidth=0.8)
    place.set(xlabel=name, ylabel="speed-up (plain ÷ assisted)")
    place.set_ylim(bottom=0)
    if 0 < len(lines) + len(levels) <= MOST_NAMED:  # below the panel, where no curve is
        place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=7)


def _name(row: Row, others: list[str]) -> str:
    precisions = f"{row.precision} target, {row.assistant_precision or 'no'} draft"
    draft = row.contender.draft
    schedule = [] if isinstance(draft, int) else [str(draft)]
    return ", ".join([precisions, *schedule, *others])
