"""What the benchmarks share: samples with spread, facts about the machine, a table, and JSON at the end."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.launch.plan import MASK_AT_START


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, the extremes and all samples as plain data."""
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": [round(sample, 4) for sample in samples],
    }


def machine() -> dict[str, Any]:
    """Return the processor, CPUs this process started with, versions, commit and command."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wanted = ("avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": facts.get("model name", "?"),
        "cpus": len(MASK_AT_START),  # OpenMP may have bound this thread to one of them since
        "isa": [flag for flag in wanted if flag in facts.get("flags", "").split()],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit,
        "command": shlex.join([program(), *sys.argv[1:]]),
    }


def program() -> str:
    """This program's path within the checkout."""
    path = Path(sys.argv[0]).resolve()
    root = Path(__file__).resolve().parents[1]
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows of equal keys as an aligned text table."""
    cells = [[str(cell) for cell in row.values()] for row in rows]
    return tabulate(cells, headers=list(rows[0]), tablefmt="plain", disable_numparse=True)


def now() -> str:
    """The time of day in UTC, as results have it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def report(rows: Sequence[dict[str, Any]], result: dict[str, Any]) -> None:
    """Print the table, then everything as one line of JSON, which results.py can keep."""
    print(table(rows))
    facts = {"benchmark": Path(sys.argv[0]).stem, "time": now(), "machine": machine(), "table": list(rows)}
    print(json.dumps({**facts, **result}))


def exit_code(run: Callable[[], int], say: Callable[[str], None]) -> int:
    """Return what `run` does; its errors become messages, with the codes that `ipex-assist` has for them."""
    try:
        return run()
    except IpexAssistError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
