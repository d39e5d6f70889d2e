"""The plan a launched process carries in its environment, so that it can check it and does not launch itself again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist

PLAN_VARIABLE = "IPEX_ASSIST_PLAN"


@dataclass(frozen=True)
class Plan:
    """What the launcher arranged: CPUs, threads, memory policy and nodes, what it added to LD_PRELOAD, and the other
    variables it set."""

    cpus: tuple[int, ...]
    threads: int
    memory: str
    nodes: tuple[int, ...]
    preload: tuple[str, ...]
    variables: dict[str, str]

    def to_json(self) -> str:
        fields = {
            "cpus": format_cpulist(self.cpus),
            "threads": self.threads,
            "memory": self.memory,
            "nodes": list(self.nodes),
            "preload": list(self.preload),
            "variables": self.variables,
        }
        return json.dumps(fields, separators=(",", ":"))


def inherited_plan(environ: Mapping[str, str]) -> Plan | None:
    """Return the plan this process was started with; None if it was not launched, or what is there is no plan."""
    try:
        fields = json.loads(environ.get(PLAN_VARIABLE, ""))
        return Plan(
            cpus=parse_cpulist(fields["cpus"]),
            threads=int(fields["threads"]),
            memory=str(fields["memory"]),
            nodes=tuple(int(node) for node in fields["nodes"]),
            preload=tuple(str(path) for path in fields["preload"]),
            variables={str(name): str(value) for name, value in fields["variables"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def without_plan(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` as the user had it: without the plan of an outer launch and what that plan set.

    A nested launch must not take the outer launch's OMP_NUM_THREADS for the user's wish.
    """
    plan = inherited_plan(environ)
    own = {name: value for name, value in environ.items() if name != PLAN_VARIABLE}
    if plan is None:
        return own
    own = {name: value for name, value in own.items() if plan.variables.get(name) != value}
    if "LD_PRELOAD" in own:
        own["LD_PRELOAD"] = ":".join(entry for entry in own["LD_PRELOAD"].split(":") if entry not in plan.preload)
        if not own["LD_PRELOAD"]:
            del own["LD_PRELOAD"]
    return own
