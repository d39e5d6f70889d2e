"""What the benchmarks share: samples with spread, facts about the machine, a table, and JSON at the end."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and all samples."""
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": [round(sample, 4) for sample in samples],
    }


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, versions, commit and command."""
    import os

    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wanted = ("avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": facts.get("model name", "?"),
        "cpus": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in wanted if flag in facts.get("flags", "").split()],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of equal keys as an aligned text table."""
    columns = list(rows[0])
    cells = [columns, *([str(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def report(rows: Sequence[dict[str, Any]], result: dict[str, Any]) -> None:
    """The table, then everything as one line of JSON."""
    print(table(rows))
    print(json.dumps({"machine": machine(), **result}))
