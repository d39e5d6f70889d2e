"""Starting ipex-launch from tests, and looking at what it started."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ipex_assist.launch.plan import PLAN_VARIABLE

LAUNCH = [sys.executable, "-m", "ipex_assist.launch"]
CPUS = sorted(os.sched_getaffinity(0))
OURS = ("OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "MALLOC_CONF", "IPEX_INSTANCE", "PYTHONUNBUFFERED", PLAN_VARIABLE)
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
TWO = ["--instances", "2"]


def launch(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    kind = {"capture_output": True, "text": True, "env": CLEAN, "timeout": 60, **options}
    return subprocess.run([*LAUNCH, *arguments], **kind)  # type: ignore[call-overload, no-any-return]


def shell(code: str) -> list[str]:
    return ["--", "sh", "-c", code]


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def times_of_python(argv: list[str], tries: int = 7) -> float:
    """The processor time of a command, in that of Python with what every command line imports.

    The best of some tries each, in turns: other processes on the same CPUs, and slow machines, cost both alike.
    """
    bare = [sys.executable, "-c", "import argparse, json, logging, subprocess"]
    used: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(tries):
        for ours, command in ((True, argv), (False, bare)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=CLEAN, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[ours].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(used[True]) / min(used[False])


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids_in(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.iterdir() if file.read_text().strip()]
