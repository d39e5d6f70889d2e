"""The report of a run: markdown as the field's tables have it, CSV, or JSON with every sample."""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ipex_assist import launch
from ipex_assist.bench import load_report
from ipex_assist.bench.conclusion import conclusion
from ipex_assist.bench.dataset import summaries
from ipex_assist.bench.measure import Row, Sample
from ipex_assist.bench.throughput import LoadRow
from ipex_assist.checkpoints.short_name import short_assistant, short_name
from ipex_assist.commands.shared.environment import environment_facts
from ipex_assist.commands.shared.output import by_position, by_source
from ipex_assist.env.isa import processor_facts
from ipex_assist.executors.traffic import machine_gb_per_s
from ipex_assist.generation.stats import SourceCounts
from ipex_assist.generation.text_model import TextModel

# The columns of published tables, then ours.
COLUMNS = (
    "Example#",
    "Prompt Length (tokens)",
    "New Tokens Generated",
    "Total Time (s)",
    "Prefill Phase (ms)",
    "Time/Token (ms)",
    "Tokens/Sec",
)
OURS = ("min–max", "Ratio", "min–max", "Accepted", "Tokens/Pass", "Read GB/s", "= Plain")
MISSING = "–"  # in tables for people; a spreadsheet gets an empty cell
SIMULATED = "the acceptance is simulated: each drafted token becomes the target's own with the probability given"
RANDOM = "random weights in the models' exact shapes: speeds are those of the shapes, texts mean nothing"


@dataclass
class BenchReport:
    """Rows of all cases, of --task throughput in `loads`, and what they were measured on."""

    task: str
    command: str
    rows: list[Row] = field(default_factory=list)
    loads: list[LoadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    target: str = ""
    assistant: str | None = None
    draft_head: str | None = None
    executor: str = ""
    sampling_defaults: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    machine_gb_per_s: float | None = None
    commit: str | None = field(default_factory=lambda: _commit())
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def describe(self, model: TextModel, warnings: Sequence[str]) -> None:
        """Take in what a loaded pair is, and, of the first one, where it runs."""
        names = model.identity
        self.target, self.assistant, self.executor = names.target, names.assistant, names.executor
        self.draft_head, self.sampling_defaults = names.draft_head, dict(model.sampling_defaults)
        if not self.environment:
            plan = launch.inherited_plan(os.environ)
            self.environment = environment_facts(plan, warnings) | {"processor": processor_facts()}
            self.environment["threads"] = plan.threads if plan is not None else self.environment["threads"]
            self.environment["draft_threads"] = model.draft_threads
            self.machine_gb_per_s = machine_gb_per_s(model)

    @property
    def conclusion(self) -> str | None:
        """What was measured, in one sentence; None where nothing was."""
        return conclusion(self.rows, self.loads)

    @property
    def simulated(self) -> bool:
        """Whether any acceptance was chosen instead of found."""
        return any(row.contender.acceptance is not None for row in self.rows)

    @property
    def random_weights(self) -> bool:
        """Whether the models were built instead of loaded."""
        return self.target.endswith("(random weights)")

    @property
    def warnings(self) -> list[str]:
        """The remarks that every form of the report begins with."""
        return [*([SIMULATED] if self.simulated else []), *([RANDOM] if self.random_weights else []), *self.notes]


def _commit() -> str | None:
    """Return the commit of the checkout this package runs from; None where it is installed.

    An environment may lie in a repository of somebody else's, whose commit says nothing of this package.
    """
    checkout = Path(__file__).parents[2]
    try:
        ours = 'name="ipex-assist"' in (checkout / "setup.py").read_text(encoding="utf-8")
        if not ours or not (checkout / ".git").exists():
            return None
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=checkout, capture_output=True, text=True)
    except (OSError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None


def render(report: BenchReport, form: str, seed: int = 0) -> str:
    """The report as "markdown", "csv" or "json"; of a dataset, markdown has its summaries. seed: of the intervals."""
    if form == "json":
        return json.dumps(as_dict(report, seed))
    if form == "csv":
        return load_report.as_csv(report.loads) if report.task == "throughput" else as_csv(report)
    sentence = report.conclusion
    return as_markdown(report, seed) + (f"\n\n{sentence}" if sentence else "")


def as_dict(report: BenchReport, seed: int) -> dict[str, Any]:
    """Return the whole report as JSON has it, with every sample."""
    facts = {name: value for name, value in asdict(report).items() if name not in ("rows", "loads")}
    return {
        **facts,
        "simulated": report.simulated,
        "random_weights": report.random_weights,
        "warnings": report.warnings,
        "conclusion": report.conclusion,
        "rows": [
            {
                **row.as_dict(),
                "label": row.contender.label,
                "acceptance_rate": row.acceptance_rate,
                "tokens_per_pass": row.tokens_per_pass,
                "median": {
                    "total_s": row.median(lambda sample: sample.total_s),
                    "prefill_s": row.median(lambda sample: sample.prefill_s),
                    "token_s": row.median(lambda sample: sample.token_s),
                    "speedup": statistics.median(row.speedup) if row.speedup else None,
                },
            }
            for row in report.rows
        ]
        or [{**row.as_dict(), **load_report.figures(row)} for row in report.loads],
        **({"summaries": summaries(report.rows, seed)} if report.task == "dataset" else {}),
    }


def as_csv(report: BenchReport) -> str:
    """A line a row, with medians and extremes; the columns do not depend on the task. What is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ["Mode", "Target Precision", "Draft Precision", "Simulated Acceptance", "Random Weights", "Kind"]
    spread = ["Tokens/Sec Min", "Tokens/Sec Max", "Ratio", "Ratio Min", "Ratio Max", "Total Ratio"]
    writer.writerow([*COLUMNS, *names, *spread, "Accepted", "Tokens/Pass", "Read GB/s", "Equals Plain", "Repeats"])
    for row in report.rows:
        speeds = _speeds(row)
        simulated = "" if row.contender.acceptance is None else f"{row.contender.acceptance:g}"
        facts = [row.contender.label, row.precision, row.assistant_precision or "", simulated]
        writer.writerow(
            [
                *_published(row, missing=""),
                *facts,
                "yes" if report.random_weights else "no",
                row.kind,
                *(_number(f(speeds), 3, "") for f in (_least, _most)),
                *(_number(f(row.speedup), 4, "") for f in (_middle, _least, _most)),
                _number(_middle(row.total_speedup), 4, ""),
                _number(row.acceptance_rate, 4, ""),
                _number(row.tokens_per_pass, 3, ""),
                _number(row.median(lambda sample: sample.read_gb_per_s), 2, ""),
                {None: "", True: "yes", False: "no"}[row.equals_plain],
                len(row.samples),
            ]
        )
    return out.getvalue().rstrip("\n")


def as_markdown(report: BenchReport, seed: int) -> str:
    """Return what was measured on what, then a table for each contender at each pair of precisions."""
    assistant = f", assistant {short_assistant(report.assistant)}" if report.assistant else ", no assistant"
    if report.draft_head is not None and report.draft_head not in assistant:
        assistant += f" ({report.draft_head} head)"
    lines = [
        f"# ipex-assist bench, task {report.task}",
        "",
        f"Target {short_name(report.target)}{assistant}, {report.executor}.",
    ]
    lines += [_machine(report), "", f"    {report.command}", ""]
    lines += [f"**Note:** {warning}.\n" for warning in report.warnings]
    if report.task == "dataset":
        return "\n".join([*lines, *_dataset_tables(report, seed)]).rstrip()
    if report.task == "throughput":
        return "\n".join([*lines, *_load_tables(report.loads)]).rstrip()
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in report.rows:
        groups.setdefault((row.precision, row.assistant_precision, row.contender), []).append(row)
    for (precision, draft_precision, contender), rows in groups.items():
        plain = contender.draft is None
        beside = "beside " if plain else ""
        drafted = f", {beside}{draft_precision} draft" if draft_precision else ""
        lines += [f"## {precision} target{drafted}: {contender.label}", ""]
        ours = (OURS[0], OURS[5]) if plain else OURS
        lines += _table([*COLUMNS, *ours], [[*_published(row), *_ours(row, plain)] for row in rows])
        ratios = [_middle(row.speedup) for row in rows if row.speedup]
        if ratios:
            lines += ["", f"Mean ratio: {statistics.fmean(r for r in ratios if r):.2f}"]
        if positions := _positions(rows):
            lines += ["", f"Accepted by position: {positions}"]
        if sources := _sources(rows):
            lines += ["", f"Drafted tokens by source, accepted: {sources}"]
        lines.append("")
    return "\n".join(lines).rstrip()


def _positions(rows: Sequence[Row]) -> str:
    """The accepted share of first, second, … drafted tokens, of all samples."""
    found = [sample for row in rows for sample in row.samples]
    drafted, accepted = (
        [sum(each) for each in zip_longest(*(part(sample) or () for sample in found), fillvalue=0)]
        for part in (lambda sample: sample.drafted_by_position, lambda sample: sample.accepted_by_position)
    )
    return by_position(drafted, accepted)


def _sources(rows: Sequence[Row]) -> str:
    """What each of several sources drafted, of all samples."""
    summed: dict[str, SourceCounts] = {}
    for sample in (sample for row in rows for sample in row.samples):
        for name, each in (sample.by_source or {}).items():
            summed.setdefault(name, SourceCounts()).add(each.drafted, each.accepted)
    return by_source([(name, each.drafted, each.accepted) for name, each in summed.items()])


def _machine(report: BenchReport) -> str:
    facts = report.environment
    if not facts:
        return "Nothing was loaded."
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    speed = "" if report.machine_gb_per_s is None else f" that read {report.machine_gb_per_s:.1f} GB/s"
    commit = f" (commit {report.commit})" if report.commit else ""
    processor = facts["isa"]["model"] or "Processor unknown"
    return (
        f"{processor}, {facts['threads']} threads on CPUs {facts['cpus']}{speed}; {versions}{commit}; {report.started}."
    )


def _dataset_tables(report: BenchReport, seed: int) -> list[str]:
    columns = ["Draft", "Target", "Draft Precision", "Prompts", "Mean Ratio", "95 % Interval", "Median", "min–max"]
    columns += ["Mean Total Ratio", "Slower", "Accepted"]
    found = summaries(report.rows, seed)
    if not found:
        speeds = [speed for row in report.rows for speed in _speeds(row)]
        return [f"{len(speeds)} plain runs: {_number(_middle(speeds), 2)} tokens/s ({_range(speeds, 2)})."]
    lines = _table(columns, [_summary(s["contender"], s["precision"], s["assistant_precision"], s) for s in found])
    for summary in found:
        if len(summary["kinds"]) > 1:
            names = summary["precision"], summary["assistant_precision"]
            lines += ["", f"By kind of prompt, {summary['contender']}:", ""]
            kinds = [_summary(kind, *names, of) for kind, of in summary["kinds"].items()]
            lines += _table(["Kind", *columns[1:]], kinds)
    lines += ["", "Ratios are seconds a token after the first, plain ÷ assisted; Total has the first token, too."]
    return [*lines, "Intervals are of the mean over prompts, by bootstrap."]


def _load_tables(loads: Sequence[LoadRow]) -> list[str]:
    lines = []
    for (precision, draft_precision), rows in load_report.groups(loads).items():
        lines += [f"## {precision} target" + (f", {draft_precision} draft" if draft_precision else ""), ""]
        lines += _table([*load_report.COLUMNS, *load_report.WAITS], [load_report.cells(row) for row in rows])
        lines.append("")
    return [*lines, load_report.EXPLAINED]


def _summary(name: str, precision: str, draft_precision: str | None, figures: dict[str, Any]) -> list[str]:
    interval = figures["interval_95"]
    return [
        name,
        precision,
        draft_precision or "–",
        str(figures["prompts"]),
        _number(figures["mean_speedup"], 2),
        "–" if interval is None else f"{interval[0]:.2f}–{interval[1]:.2f}",
        _number(figures["median_speedup"], 2),
        f"{figures['min_speedup']:.2f}–{figures['max_speedup']:.2f}",
        _number(figures["mean_total_speedup"], 2),
        str(figures["slower_than_plain"]),
        _percent(figures["acceptance_rate"]),
    ]


def _published(row: Row, missing: str = MISSING) -> list[str]:
    def milliseconds(figure: Callable[[Sample], float | None]) -> float | None:
        value = row.median(figure)
        return None if value is None else value * 1000

    token_s = row.median(lambda sample: sample.token_s)
    return [
        row.example,
        str(row.prompt_tokens),
        f"{row.median(lambda sample: sample.new_tokens) or 0:.0f}",
        _number(row.median(lambda sample: sample.total_s), 3, missing),
        _number(milliseconds(lambda sample: sample.prefill_s), 1, missing),
        _number(milliseconds(lambda sample: sample.token_s), 2, missing),
        _number(1 / token_s if token_s else None, 2, missing),
    ]


def _ours(row: Row, plain: bool) -> list[str]:
    speeds, read = _range(_speeds(row), 2), _number(row.median(lambda sample: sample.read_gb_per_s), 1)
    if plain:
        return [speeds, read]
    return [
        speeds,
        _number(_middle(row.speedup), 2),
        _range(row.speedup, 2),
        _percent(row.acceptance_rate),
        _number(row.tokens_per_pass, 2),
        read,
        {None: "drawn", True: "yes", False: "NO"}[row.equals_plain],
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return tabulate(cells, headers=columns, tablefmt="pipe", disable_numparse=True).splitlines()


def _speeds(row: Row) -> list[float]:
    return [1 / sample.token_s for sample in row.samples if sample.token_s]


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _least(values: Sequence[float]) -> float | None:
    return min(values, default=None)


def _most(values: Sequence[float]) -> float | None:
    return max(values, default=None)


def _number(value: float | None, digits: int, missing: str = MISSING) -> str:
    return missing if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def _range(values: Sequence[float], digits: int) -> str:
    return MISSING if not values else f"{min(values):.{digits}f}–{max(values):.{digits}f}"
