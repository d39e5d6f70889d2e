"""The plan a launched process carries in its environment, so that it can check it and does not launch itself again."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist

PLAN_VARIABLE = "IPEX_ASSIST_PLAN"

# Taken at import, which is before any OpenMP runtime binds the initial thread: later the two cannot be told apart.
MASK_AT_START = frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class LaunchPlan:
    """What the launcher arranged: CPUs, threads, memory policy and nodes, what it added to LD_PRELOAD, and the other
    variables it set. `pid` is the process it was made for, or `parent` that process's parent where the process had no
    number yet; both are None in a dry run."""

    cpus: tuple[int, ...]
    threads: int
    memory: str
    nodes: tuple[int, ...]
    preload: tuple[str, ...]
    variables: dict[str, str]
    pid: int | None = None
    parent: int | None = None

    def to_json(self) -> str:
        fields = {
            "cpus": format_cpulist(self.cpus),
            "threads": self.threads,
            "memory": self.memory,
            "nodes": list(self.nodes),
            "preload": list(self.preload),
            "variables": self.variables,
            "pid": self.pid,
            "parent": self.parent,
        }
        return json.dumps(fields, separators=(",", ":"))


def inherited_plan(
    environ: Mapping[str, str],
    *,
    pid: int | None = None,
    parent: int | None = None,
    mask: Collection[int] = MASK_AT_START,
) -> LaunchPlan | None:
    """Return the plan this very process was started with; None if it was not launched, or what is there is no plan.

    Environments are inherited without end, so that a plan may be an ancestor's: another `pid` (exec keeps it, a child
    has its own) or `parent`, or a `mask` without some of the planned CPUs, since something in between has set another.
    Such a plan says nothing about this process. A wider mask is a pinning that failed, which `check_start` reports. A
    plan with neither number comes from a dry run that was pasted.
    """
    plan = read_plan(environ)
    if plan is None or plan.pid not in (None, os.getpid() if pid is None else pid):
        return None
    if plan.parent not in (None, os.getppid() if parent is None else parent):
        return None
    return plan if set(plan.cpus) <= set(mask) else None


def for_this_process(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with its plan made out to this process, which is about to become the program by exec."""
    return _made_out(environ, pid=os.getpid())


def for_a_child(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with its plan made out to a process that this one is about to start."""
    return _made_out(environ, parent=os.getpid())


def _made_out(environ: Mapping[str, str], *, pid: int | None = None, parent: int | None = None) -> dict[str, str]:
    plan = read_plan(environ)
    if plan is None:
        return dict(environ)
    return {**environ, PLAN_VARIABLE: replace(plan, pid=pid, parent=parent).to_json()}


def read_plan(environ: Mapping[str, str]) -> LaunchPlan | None:
    """Return the plan in `environ`, whoever it was made for; None if there is none that can be read."""
    try:
        fields = json.loads(environ.get(PLAN_VARIABLE, ""))
        return LaunchPlan(
            cpus=parse_cpulist(fields["cpus"]),
            threads=int(fields["threads"]),
            memory=str(fields["memory"]),
            nodes=tuple(int(node) for node in fields["nodes"]),
            preload=tuple(str(path) for path in fields["preload"]),
            variables={str(name): str(value) for name, value in fields["variables"].items()},
            pid=None if fields.get("pid") is None else int(fields["pid"]),
            parent=None if fields.get("parent") is None else int(fields["parent"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def without_plan(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` as the user had it: without the plan of an outer launch and what that plan set.

    A nested launch must not take the outer launch's OMP_NUM_THREADS for the user's wish.
    """
    plan = read_plan(environ)
    own = {name: value for name, value in environ.items() if name != PLAN_VARIABLE}
    if plan is None:
        return own
    own = {name: value for name, value in own.items() if plan.variables.get(name) != value}
    if "LD_PRELOAD" in own:
        own["LD_PRELOAD"] = ":".join(entry for entry in own["LD_PRELOAD"].split(":") if entry not in plan.preload)
        if not own["LD_PRELOAD"]:
            del own["LD_PRELOAD"]
    return own
