"""Which layouts of instances multi_socket.py measures on a machine, and what that machine cannot show."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, get_args

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine
from ipex_assist.launch.cores import fast_cores
from ipex_assist.launch.instances import LATENCY_CORES, InstanceRequest, Unit, place_instances
from ipex_assist.launch.placement import Placement

BASE = "1x1"  # what the others are compared with: one instance on one core
ALL = "socket-all"
UNITS = get_args(Unit)


@dataclass(frozen=True)
class Layout:
    """A number of instances and where they run."""

    name: str
    placements: tuple[Placement, ...]

    @property
    def places(self) -> tuple[Any, ...]:
        """CPUs and memory of every instance: layouts with equal ones are the same under two names."""
        return tuple((each.cpus, each.memory, each.nodes) for each in self.placements)

    @property
    def threads(self) -> int:
        """The number of threads of all instances."""
        return sum(each.threads for each in self.placements)


def parse(name: str) -> InstanceRequest:
    """The request that a layout's name stands for. Raises UsageError for one that is none."""
    if name == ALL:
        return InstanceRequest(socket="all")
    if name in UNITS:
        return InstanceRequest(instances=name)
    if numbers := re.fullmatch(r"(\d+)x(\d+)", name):
        return InstanceRequest(instances=int(numbers[1]), cores_per_instance=int(numbers[2]))
    raise UsageError(f"--layouts {name}: neither NxT (N instances of T cores) nor {', '.join((*UNITS, ALL))}.")


def placed(name: str, machine: Machine, model_bytes: int | None) -> Layout:
    """The layout on this machine, each instance filling `model_bytes`. Raises UsageError where there is no room."""
    request = parse(name)
    if request.socket == "all" and len(_sockets(machine)) < 2:
        raise UsageError("one process over all sockets needs several of them, and there is one here")
    return Layout(name, place_instances(replace(request, model_bytes=model_bytes), machine))


def defaults(machine: Machine) -> list[str]:
    """Names of the layouts that tell a machine's story; on small ones some are the same.

    One core and two; IPEX's latency size alone and all over the machine; a socket; one for each node and socket; all.
    """
    sockets = _sockets(machine)
    cores, largest = sum(map(len, sockets)), max(map(len, sockets))
    names = [BASE]
    if cores > 1:
        names.append("2x1")
    if largest > LATENCY_CORES:
        fitting = sum(len(node) // LATENCY_CORES for node in machine.by_node(sum(sockets, ())))
        names += [f"1x{LATENCY_CORES}"] + ([f"{fitting}x{LATENCY_CORES}"] if fitting > 1 else [])
    if largest > 1:
        names.append(f"1x{largest}")
    names += ["per-node", "per-socket"]
    return [*names, ALL] if len(sockets) > 1 else names


def read_bytes(layout: Layout) -> int:
    """Return the bytes for each instance to read when the memory's speed is measured: far more than the caches hold."""
    return max((1 << 30) // len(layout.placements), (128 << 20) * max(each.threads for each in layout.placements))


def describe(machine: Machine) -> dict[str, Any]:
    """Return what of the machine may be used, for the JSON."""
    sockets = _sockets(machine)
    cores = sum(sockets, ())
    return {
        "sockets": len(sockets),
        "nodes": len(machine.by_node(cores)),
        "cores": len(cores),
        "cpus": format_cpulist(cpu for core in cores for cpu in core.cpus),
        "cpu_quota": machine.cpu_quota,
    }


def not_shown(machine: Machine, *, assisted: bool) -> list[str]:
    """Return what cannot be seen here, so that nobody reads it out of these figures."""
    sockets = _sockets(machine)
    cores = sum(sockets, ())
    nodes = len(machine.by_node(cores))
    lines = []
    if len(sockets) == 1:
        lines.append(
            "one socket: whether a second one doubles the sum (per-socket), what one process over both gains or loses "
            f"({ALL}), and what memory of the other socket costs"
        )
    if nodes == len(sockets):
        lines.append("one NUMA node a socket: sub-NUMA clustering, where per-node and per-socket differ")
    if max(map(len, sockets)) <= LATENCY_CORES:
        lines.append(
            f"{max(map(len, sockets))} cores a socket: where one instance stops gaining from more cores, and so how "
            "many instances a socket should have"
        )
    if not assisted:
        lines.append("no --assistant: assisted decoding")
    if machine.cpu_quota is not None and machine.cpu_quota < len(cores):
        lines.append(f"a CPU quota of {machine.cpu_quota:g}: what the {len(cores)} cores reach without it")
    return lines


def _sockets(machine: Machine) -> list[tuple[Any, ...]]:
    cores = fast_cores(InstanceRequest(), machine.allowed_cores())
    return machine.by_socket(cores)
