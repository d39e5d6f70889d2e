"""Tables of --task throughput: one line for each concurrency and contender; CSV; and what JSON adds to the samples."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from typing import Any

from ipex_assist.bench.throughput import LoadRow

COLUMNS = (
    "Concurrency",
    "Mode",
    "Requests",
    "New Tokens",
    "Total Time (s)",
    "Tokens/Sec",
    "min–max",
    "Ratio",
    "min–max",
)
WAITS = (
    "First Token p50 (ms)",
    "p99",
    "Time/Token p50 (ms)",
    "p99",
    "Tokens/Pass",
    "Accepted",
    "Memory GB/s",
    "= Plain",
)
CSV_COLUMNS = (
    *("Concurrency", "Mode", "Target Precision", "Draft Precision", "Requests", "New Tokens", "Total Time (s)"),
    *("Tokens/Sec", "Tokens/Sec Min", "Tokens/Sec Max", "Ratio", "Ratio Min", "Ratio Max"),
    *("First Token p50 (ms)", "First Token p99 (ms)", "Time/Token p50 (ms)", "Time/Token p99 (ms)"),
    *("Tokens/Pass", "Accepted", "Memory GB/s", "Equals Plain", "Repeats"),
)
EXPLAINED = """\
Tokens/Sec are all requests' new tokens ÷ seconds from the first request to the last token, prompts included; Ratio is
assisted ÷ plain of a turn. First Token is from the request on, its waiting for others included. Percentiles are over
the requests of all turns. Tokens/Pass are all requests' tokens ÷ passes of the target."""


def figures(row: LoadRow) -> dict[str, Any]:
    """Return what the samples of a row come to: medians over its turns, percentiles over its requests."""
    memory = [sample.memory_gb_per_s for sample in row.samples if sample.memory_gb_per_s is not None]
    return {
        "label": row.contender.label,
        "tokens_per_s": _median(row.speeds),
        "speedup_median": _median(row.speedup),
        "ttft_s": {"p50": row.ttft_s(50), "p99": row.ttft_s(99)},
        "token_s": {"p50": row.token_s(50), "p99": row.token_s(99)},
        "tokens_per_pass": row.tokens_per_pass,
        "acceptance_rate": row.acceptance_rate,
        "memory_gb_per_s": [min(memory), max(memory)] if memory else None,
    }


def groups(rows: Sequence[LoadRow]) -> dict[tuple[str, str | None], list[LoadRow]]:
    """Return rows by the pair's precisions, in the order of their measuring."""
    found: dict[tuple[str, str | None], list[LoadRow]] = {}
    for row in rows:
        found.setdefault((row.precision, row.assistant_precision), []).append(row)
    return found


def cells(row: LoadRow) -> list[str]:
    """Return a row of the table for people, in the order of COLUMNS and WAITS."""
    found = figures(row)
    memory = found["memory_gb_per_s"]
    return [
        str(row.concurrency),
        row.contender.label,
        str(len(row.samples[0].requests)),
        str(row.samples[0].new_tokens),
        _number(statistics.median(sample.total_s for sample in row.samples), 2),
        _number(found["tokens_per_s"], 2),
        _range(row.speeds, 2),
        _number(found["speedup_median"], 2),
        _range(row.speedup, 2),
        *(_milliseconds(found["ttft_s"][name], 0) for name in ("p50", "p99")),
        *(_milliseconds(found["token_s"][name], 1) for name in ("p50", "p99")),
        _number(row.tokens_per_pass, 2),
        "–" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
        "–" if memory is None else _range(memory, 1),
        {None: "–", True: "yes", False: "NO"}[row.equals_plain],
    ]


def as_csv(rows: Sequence[LoadRow]) -> str:
    """A line a row, with medians and extremes. What is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        found = figures(row)
        memory = [sample.memory_gb_per_s for sample in row.samples if sample.memory_gb_per_s is not None]
        first, token = found["ttft_s"], found["token_s"]
        writer.writerow(
            [
                *(row.concurrency, row.contender.label, row.precision, row.assistant_precision or ""),
                *(len(row.samples[0].requests), row.samples[0].new_tokens),
                _number(statistics.median(sample.total_s for sample in row.samples), 4, ""),
                *(_number(value, 3, "") for value in (found["tokens_per_s"], min(row.speeds), max(row.speeds))),
                _number(found["speedup_median"], 4, ""),
                *(_number(pick(row.speedup, default=None), 4, "") for pick in (min, max)),
                *(_milliseconds(value, 3, "") for value in (first["p50"], first["p99"], token["p50"], token["p99"])),
                _number(row.tokens_per_pass, 3, ""),
                _number(row.acceptance_rate, 4, ""),
                _number(_median(memory), 2, ""),
                {None: "", True: "yes", False: "no"}[row.equals_plain],
                len(row.samples),
            ]
        )
    return out.getvalue().rstrip("\n")


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _number(value: float | None, digits: int, missing: str = "–") -> str:
    return missing if value is None else f"{value:.{digits}f}"


def _milliseconds(seconds: float | None, digits: int, missing: str = "–") -> str:
    return _number(None if seconds is None else seconds * 1000, digits, missing)


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f}–{max(values):.{digits}f}" if values else "–"
