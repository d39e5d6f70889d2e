"""What `--json` says of the machine and the software a result came from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ipex_assist.launch import Plan
from ipex_assist.launch.plan import without_plan

PACKAGES = ("ipex-assist", "torch", "transformers", "intel-extension-for-pytorch", "optimum-intel")


KEPT_VARIABLES = ("OMP_", "KMP_", "GOMP_", "MALLOC_CONF", "LD_PRELOAD")


def environment_facts(plan: Plan | None, warnings: Sequence[str]) -> dict[str, Any]:
    """Return where this process runs, on what processor, and with which versions, for statistics and reports."""
    from ipex_assist.env.cpulist import format_cpulist
    from ipex_assist.env.isa import read_isa
    from ipex_assist.executors.choose import compute_threads

    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpus": format_cpulist(os.sched_getaffinity(0)),
        "threads": compute_threads(),
        "plan": asdict(plan) if plan else None,
        "kept": {name: value for name, value in without_plan(os.environ).items() if name.startswith(KEPT_VARIABLES)},
        "isa": read_isa().as_dict(),
        "python": platform.python_version(),
        "versions": versions,
        "warnings": list(warnings),
    }
