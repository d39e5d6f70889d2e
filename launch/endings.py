"""What to say of a process that was killed: whether the kernel did it for want of memory, and of which nodes."""

from __future__ import annotations

import signal

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.machine import Machine
from ipex_assist.env.memory import gib
from ipex_assist.env.topology import read_topology
from ipex_assist.env.tree import Tree
from ipex_assist.launch.placement import Placement


def oom_kills(tree: Tree | None = None) -> int | None:
    """How many processes the kernel has killed since it started, for want of memory; None where it does not tell."""
    for line in ((tree or Tree()).text("proc/vmstat") or "").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdecimal():
            return int(count)
    return None


def describe_kill(number: int, placement: Placement, kills_before: int | None, kills: int | None = None) -> str:
    """What ended a process by signal `number`, e.g. "was killed by SIGTERM".

    kills_before: `oom_kills()` when it started; kills: now, None: they are read here. A SIGKILL while the kernel killed
    nobody is somebody's.
    """
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number != signal.SIGKILL:
        return f"was killed by {name}"
    now = oom_kills() if kills is None else kills
    if kills_before is None or now is None:
        return f"was killed by {name} (out of memory?)"
    if now <= kills_before:
        return f"was killed by {name} (the kernel did not do it for want of memory)"
    return f"was killed by {name}: the kernel had no memory left for it{_bound(placement, read_topology())}"


def _bound(placement: Placement, machine: Machine) -> str:
    """Where its memory had to come from, with what other nodes have, as the end of a sentence; a remedy follows."""
    remedy = ". Use a smaller --kv-memory, --precision or model"
    if placement.memory != "bind" or not placement.nodes:
        return remedy
    own = [node for node in machine.nodes if node.id in placement.nodes]
    others = [node for node in machine.nodes if node.id not in placement.nodes and node.has_memory]
    where = (
        f" on node{'s' * (len(own) != 1)} {format_cpulist(placement.nodes)}, to which it is bound "
        f"({gib(sum(node.memory_bytes or 0 for node in own))} in all)"
    )
    if not others:
        return where + remedy
    free = sum(node.free_bytes or 0 for node in others)
    return f"{where}, while {gib(free)} are free on others{remedy}, or --socket all"
