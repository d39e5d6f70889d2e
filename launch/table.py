"""Formats the dry run of several instances as a table: placement, command and variables of each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.launch.command import LaunchCommand
from ipex_assist.launch.plan import PLAN_VARIABLE


def format_instances(commands: Sequence[LaunchCommand]) -> str:
    """Comments, a line for each instance, then the variables: those that all have in common, and those of each."""
    from tabulate import tabulate  # imported here: it takes a while, and only a dry run has a table

    comments = dict.fromkeys(line for command in commands for line in (*command.notes, *command.warnings))
    columns = ("instance", "threads", "cpus", "memory", "nodes", "command")
    lines = [f"# {line}" for line in comments]
    lines.append(tabulate(list(map(_row, commands)), headers=columns, tablefmt="plain", disable_numparse=True))
    shown = [{name: value for name, value in c.set.items() if name != PLAN_VARIABLE} for c in commands]
    common = {name: value for name, value in shown[0].items() if all(other.get(name) == value for other in shown)}
    lines += ["", "variables of all", *(f"  {name}={shlex.quote(value)}" for name, value in common.items())]
    differ = [{name: value for name, value in each.items() if name not in common} for each in shown]
    if any(differ):
        lines.append("variables of each")
        for command, variables in zip(commands, differ, strict=True):
            own = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
            lines.append(f"  {command.placement.index}  {own}")
    lines.append(f"# and {PLAN_VARIABLE}, which --json or --instance I shows")
    return "\n".join(lines)


def _row(command: LaunchCommand) -> tuple[str, ...]:
    placement = command.placement
    return (
        str(placement.index),
        str(placement.threads),
        format_cpulist(placement.cpus),
        command.memory,
        (command.memory_set and format_cpulist(placement.nodes)) or "-",
        shlex.join(command.argv),
    )
