"""What `--json` says of the machine and the software a result came from."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ipex_assist.launch import LaunchPlan
from ipex_assist.launch.plan import without_plan
from ipex_assist.version import __version__

KEPT_VARIABLES = ("OMP_", "KMP_", "GOMP_", "MALLOC_CONF", "LD_PRELOAD")


def native_core() -> dict[str, str | None]:
    """The instruction set that the native core uses here, or why it cannot be used."""
    from ipex_assist.native.library import core_state

    state = core_state()
    return {
        "native_core": state.instruction_set,
        "native_core_unavailable": None if state.instruction_set else state.remark,
    }


class VersionAction(argparse.Action):
    """`--version`: the package's, then the native core's instruction set, which is looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            nargs=0,
            default=argparse.SUPPRESS,
            help="show the version and the native core's instruction set",
        )

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        core = native_core()
        isa = core["native_core"] or f"cannot be used: {core['native_core_unavailable']}"
        print(f"ipex-assist {__version__}\nnative core {isa}")
        parser.exit()


def environment_facts(plan: LaunchPlan | None, warnings: Sequence[str]) -> dict[str, Any]:
    """Return where this process runs, on what processor, and with which versions, for statistics and reports."""
    from ipex_assist.env.cpulist import format_cpulist
    from ipex_assist.env.isa import read_isa
    from ipex_assist.env.versions import versions
    from ipex_assist.executors.select_executor import compute_threads

    named = {name: version for name, version in versions().items() if name != "Python"}
    return {
        "cpus": format_cpulist(os.sched_getaffinity(0)),
        "threads": compute_threads(),
        "plan": asdict(plan) if plan else None,
        "kept": {name: value for name, value in without_plan(os.environ).items() if name.startswith(KEPT_VARIABLES)},
        "isa": read_isa().as_dict(),
        **native_core(),
        "python": platform.python_version(),
        "versions": named,
        "warnings": list(warnings),
    }
