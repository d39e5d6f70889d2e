"""Turns a placement into the argv and environment of a process: pure functions, never a shell string."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.variables import Variables
from ipex_assist.launch.abilities import Abilities
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.plan import PLAN_VARIABLE, LaunchPlan


@dataclass(frozen=True)
class LaunchCommand:
    """A process ready to be started.

    argv: with its pinning prefix. environ: complete. affinity: CPUs to set before exec, where no tool does it. set: the
    variables that differ from the user's environment. kept: the user's own. notes say what was kept, warnings what is
    lost; hints are those warnings that are the same at every start here, since a tool is missing. memory_set: the
    placement's memory policy is put in force; else memory is the kernel's first touch.
    """

    argv: tuple[str, ...]
    environ: dict[str, str]
    set: dict[str, str]
    kept: dict[str, str]
    placement: Placement
    program: tuple[str, ...]
    affinity: tuple[int, ...] | None = None
    memory_set: bool = True
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def memory(self) -> str:
        """The policy in force, as tables show it."""
        return self.placement.memory if self.memory_set else "first touch"

    def describe(self) -> str:
        """The placement as it comes about, as one line for people."""
        if self.memory_set:
            return self.placement.describe()
        return f"{self.placement.describe_cpus()}, memory by first touch"

    def as_dict(self) -> dict[str, Any]:
        """The command as plain data for `--json`."""
        return {
            "instance": self.placement.index,
            "of": self.placement.count,
            "argv": list(self.argv),
            "set": self.set,
            "kept": self.kept,
            "cpus": format_cpulist(self.placement.cpus),
            "threads": self.placement.threads,
            "spare_cpu": self.placement.spare,
            "memory": self.placement.memory,
            "memory_nodes": list(self.placement.nodes),
            "sched_setaffinity": format_cpulist(self.affinity) if self.affinity else None,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def build_command(
    placement: Placement,
    variables: Variables,
    program: Sequence[str],
    environ: Mapping[str, str],
    abilities: Abilities,
    extra: Mapping[str, str] | None = None,
) -> LaunchCommand:
    """The command that runs `program` (its argv) at `placement`; extra: more variables to set.

    numactl sets CPUs and memory policy. Where it is missing, or the kernel forbids memory policies, taskset or
    sched_setaffinity still set the CPUs, and a warning says what is lost and how to get it.
    """
    prefix, affinity, loss = _pinning(placement, abilities)
    sets_memory = bool(abilities.numactl and abilities.mempolicy)
    plan = LaunchPlan(
        placement.cpus,
        placement.threads,
        placement.memory,
        placement.nodes,
        variables.preload,
        {name: value for name, value in variables.set.items() if name != "LD_PRELOAD"},
        placement.count,
        spare=placement.spare,
    )
    chosen = {**variables.set, **(extra or {}), PLAN_VARIABLE: plan.to_json()}
    return LaunchCommand(
        argv=(*prefix, *program),
        environ={**environ, **chosen},
        set=chosen,
        kept=variables.kept,
        placement=placement,
        program=tuple(program),
        affinity=affinity,
        memory_set=sets_memory or placement.memory in ("local", "none"),
        notes=(*placement.notes, *variables.describe_kept()),
        warnings=(*placement.warnings, *loss),
        hints=loss,
    )


def _pinning(
    placement: Placement, abilities: Abilities
) -> tuple[tuple[str, ...], tuple[int, ...] | None, tuple[str, ...]]:
    """The argv prefix, the CPUs to set by sched_setaffinity (None: a tool does it), and warnings of what is lost."""
    cpus, nodes = format_cpulist(placement.mask), format_cpulist(placement.nodes)
    policy: tuple[str, ...] = {
        "bind": ("-m", nodes),
        "preferred": ("-p", nodes),
        "interleave": ("-i", nodes),
        "local": ("-l",),
        "none": (),
    }[placement.memory]
    policies = bool(abilities.numactl and abilities.mempolicy)
    if not abilities.affinity:
        memory = "" if policies or not policy else ", and memory where it is first touched"
        loss = (f"the kernel refuses to set CPUs here: threads go where it puts them, not to CPUs {cpus}{memory}",)
        return (("numactl", *policy) if policies and policy else ()), None, loss
    if policies:
        return ("numactl", "-C", cpus, *policy), None, ()
    tool = "taskset" if abilities.taskset else "sched_setaffinity"
    if not abilities.numactl:
        reason, remedy = "numactl is not installed", "apt-get install numactl"
    else:
        reason, remedy = "the kernel refuses memory policies here", "in a container, --cap-add SYS_NICE"
    lost = {
        "bind": f"memory is not bound to node {nodes} but goes where the kernel puts it (to get it: {remedy})",
        "preferred": f"memory does not come from node {nodes} first but goes where the kernel puts it "
        f"(to get it: {remedy})",
        "interleave": f"memory is not interleaved over nodes {nodes} but goes where the kernel puts it "
        f"(to get it: {remedy})",
        "local": "a memory policy set outside stays in force, if there is one",
        "none": "nothing is lost by that, since there is no NUMA here",
    }[placement.memory]
    loss = (f"{reason}: CPUs {cpus} are set with {tool}; {lost}",)
    if abilities.taskset:
        return ("taskset", "-c", cpus), None, loss
    return (), placement.mask, loss


def format_command(command: LaunchCommand) -> str:
    """A dry run as text: comments, then one shell command with its variables that can be pasted and run."""
    lines = [f"# {command.describe()}"]
    lines += [f"# {line}" for line in (*command.notes, *command.warnings)]
    if command.affinity:
        lines.append(f"# before exec: sched_setaffinity {format_cpulist(command.affinity)}")
    lines += [f"{name}={shlex.quote(value)} \\" for name, value in command.set.items()]
    return "\n".join([*lines, shlex.join(command.argv)])
