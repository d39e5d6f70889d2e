"""The launch plan that a process inherits in its environment, to check it and not to launch itself again."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist

PLAN_VARIABLE = "IPEX_ASSIST_PLAN"

# Read at import, before an OpenMP runtime can bind the initial thread and so hide the mask we were started with.
MASK_AT_START = frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class LaunchPlan:
    """What the launcher set up: CPUs, threads, memory policy and nodes, additions to LD_PRELOAD, and other variables.

    spare: the CPU of the threads that do not compute, beside `cpus`; None: they have those.
    instances: how many share the machine, this one among them.
    pid: the process that it was made for; parent: that process's parent, where the process did not exist yet. Both are
    None in a dry run.
    """

    cpus: tuple[int, ...]
    threads: int
    memory: str
    nodes: tuple[int, ...]
    preload: tuple[str, ...]
    variables: dict[str, str]
    instances: int = 1
    pid: int | None = None
    parent: int | None = None
    spare: int | None = None

    @property
    def mask(self) -> frozenset[int]:
        """All CPUs that its threads may use."""
        return frozenset(self.cpus) if self.spare is None else frozenset({*self.cpus, self.spare})

    def to_json(self) -> str:
        fields = {
            "cpus": format_cpulist(self.cpus),
            "threads": self.threads,
            "memory": self.memory,
            "nodes": list(self.nodes),
            "preload": list(self.preload),
            "variables": self.variables,
            "instances": self.instances,
            "pid": self.pid,
            "parent": self.parent,
            "spare": self.spare,
        }
        return json.dumps(fields, separators=(",", ":"))


def inherited_plan(
    environ: Mapping[str, str],
    *,
    pid: int | None = None,
    parent: int | None = None,
    mask: Collection[int] = MASK_AT_START,
) -> LaunchPlan | None:
    """The plan that this process itself was started with; None if it was not launched, or the plan cannot be read.

    Every descendant inherits the environment, so the plan may be an ancestor's: then its `pid` differs (exec keeps the
    pid, a child has its own), or its `parent`, or `mask` lacks planned CPUs because something in between has narrowed
    it. Such a plan says nothing about this process. A wider mask means that pinning failed, which `check_start`
    reports. A plan with neither pid nor parent is from a dry run that was pasted.
    """
    plan = read_plan(environ)
    if plan is None or plan.pid not in (None, os.getpid() if pid is None else pid):
        return None
    if plan.parent not in (None, os.getppid() if parent is None else parent):
        return None
    return plan if plan.mask <= set(mask) else None


def for_this_process(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with its plan addressed to this process, which is about to become the program by exec."""
    return _made_out(environ, pid=os.getpid())


def for_a_child(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with its plan addressed to a process that this one is about to start."""
    return _made_out(environ, parent=os.getpid())


def _made_out(environ: Mapping[str, str], *, pid: int | None = None, parent: int | None = None) -> dict[str, str]:
    plan = read_plan(environ)
    if plan is None:
        return dict(environ)
    return {**environ, PLAN_VARIABLE: replace(plan, pid=pid, parent=parent).to_json()}


def read_plan(environ: Mapping[str, str]) -> LaunchPlan | None:
    """The plan in `environ`, for whichever process it was made; None if there is none, or it cannot be read."""
    try:
        fields = json.loads(environ.get(PLAN_VARIABLE, ""))
        return LaunchPlan(
            cpus=parse_cpulist(fields["cpus"]),
            threads=int(fields["threads"]),
            memory=str(fields["memory"]),
            nodes=tuple(int(node) for node in fields["nodes"]),
            preload=tuple(str(path) for path in fields["preload"]),
            variables={str(name): str(value) for name, value in fields["variables"].items()},
            instances=int(fields.get("instances", 1)),
            pid=None if fields.get("pid") is None else int(fields["pid"]),
            parent=None if fields.get("parent") is None else int(fields["parent"]),
            spare=None if fields.get("spare") is None else int(fields["spare"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def without_plan(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the plan of an outer launch and the variables which that launch set.

    Otherwise a nested launch would take the outer launch's OMP_NUM_THREADS for the user's own.
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
