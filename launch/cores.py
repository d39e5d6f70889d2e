"""Placement requests, and the cores of this machine that one leaves (--cpus, --nodes, --socket and so on)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Core, Machine
from ipex_assist.launch.memory import MemoryFlag


@dataclass(frozen=True)
class PlacementRequest:
    """The user's wishes for a placement; None leaves the choice to us.

    At most one of `cpus`, `nodes` (lists such as `0-27,56-83`), `numa_node` and `socket` (an index from 0, or `all`)
    may be given. `model_bytes` is the memory that the process will fill. `smt` puts a thread on every sibling of a
    core, `e_cores` also uses efficiency cores. `memory` replaces our choice of a memory policy; `memory_nodes` are its
    nodes, a list or `hbm`. `first_touch`: the program's threads write a page first that they will read, as those of the
    native core do. `all_sockets`: by default it gets the cores of every socket. `spares_cpu`: its threads for
    computing bind themselves, so that its others may have a CPU more than these (Machine.spare_cpu).
    """

    threads: int | None = None
    cpus: str | None = None
    socket: int | Literal["all"] | None = None
    numa_node: int | None = None
    model_bytes: int | None = None
    nodes: str | None = None
    smt: bool = False
    e_cores: bool = False
    memory: MemoryFlag | None = None
    memory_nodes: str | None = None
    first_touch: bool = False
    all_sockets: bool = False
    spares_cpu: bool = False

    @property
    def names_a_place(self) -> bool:
        """Whether CPUs, nodes or sockets are named, so that only these may be used."""
        return any(value is not None for value in (self.cpus, self.socket, self.numa_node, self.nodes))


def usable_cores(request: PlacementRequest, machine: Machine) -> tuple[Core, ...]:
    """All cores that the request lets us use, each reduced to its allowed CPUs.

    Raises:
        UsageError: the named CPUs, nodes or sockets do not exist, or none of them may be used.
    """
    named = [
        f"{flag} {value}"
        for flag, value in (
            ("--cpus", request.cpus),
            ("--socket", request.socket),
            ("--numa-node", request.numa_node),
            ("--nodes", request.nodes),
        )
        if value is not None
    ]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other; give one of them.")
    if request.cpus is not None:
        return machine.cores_within(_check_cpus(request.cpus, machine))
    if request.numa_node is not None:
        return _cores_of_node(request.numa_node, machine, f"--numa-node {request.numa_node}")
    if request.nodes is not None:
        return _cores_of_nodes(request.nodes, machine)
    if not machine.allowed:
        raise UsageError("This process may not use any CPU that is online.")
    if request.socket is not None and request.socket != "all":
        return _cores_of_socket(request.socket, machine)
    return machine.allowed_cores()


def fast_cores(request: PlacementRequest, cores: tuple[Core, ...]) -> tuple[Core, ...]:
    """`cores` without E-cores, unless E-cores were asked for, CPUs were named, or there are only E-cores."""
    if request.e_cores or request.cpus is not None:
        return cores
    return tuple(core for core in cores if not core.efficiency) or cores


def _check_cpus(text: str, machine: Machine) -> tuple[int, ...]:
    try:
        cpus = parse_cpulist(text)
    except ValueError as error:
        raise UsageError(f"--cpus {text}: {error}. Write a list such as 0-27,56-83.") from None
    if not cpus:
        raise UsageError("--cpus names no CPU. Write a list such as 0-27,56-83.")
    if missing := set(cpus) - set(machine.cpus):
        raise UsageError(
            f"--cpus {text}: no CPU {format_cpulist(missing)} is online here; "
            f"this machine has {format_cpulist(machine.cpus)}."
        )
    if denied := set(cpus) - set(machine.allowed):
        raise UsageError(
            f"--cpus {text}: this process may not use CPU {format_cpulist(denied)}. "
            f"Its affinity mask or cpuset allows {format_cpulist(machine.allowed)} ({len(machine.allowed)} CPUs)."
        )
    return cpus


def _cores_of_nodes(text: str, machine: Machine) -> tuple[Core, ...]:
    try:
        ids = parse_cpulist(text)
    except ValueError as error:
        raise UsageError(f"--nodes {text}: {error}. Write a list such as 0-1,3.") from None
    if not ids:
        raise UsageError("--nodes names no node. Write a list such as 0-1,3.")
    cores = [core for node_id in ids for core in _cores_of_node(node_id, machine, f"--nodes {text}: node {node_id}")]
    return tuple(sorted(dict.fromkeys(cores), key=lambda core: core.cpus))


def _cores_of_node(node_id: int, machine: Machine, asked: str) -> tuple[Core, ...]:
    node = machine.node(node_id)
    if node is None:
        known = ", ".join(str(known.id) for known in machine.nodes) or "none (a kernel without NUMA)"
        raise UsageError(f"{asked} does not exist; the nodes of this machine: {known}.")
    if not node.cpus:
        with_cpus = format_cpulist(other.id for other in machine.nodes if other.cpus)
        raise UsageError(f"{asked} holds memory but no CPUs; nodes with CPUs: {with_cpus}.")
    cores = machine.cores_within(set(node.cpus) & set(machine.allowed))
    if not cores:
        raise UsageError(
            f"{asked}: this process may use none of its CPUs {format_cpulist(node.cpus)}, "
            f"only {format_cpulist(machine.allowed)}."
        )
    return cores


def _cores_of_socket(socket: int, machine: Machine) -> tuple[Core, ...]:
    if socket not in machine.sockets:
        raise UsageError(
            f"--socket {socket} does not exist; the sockets of this machine: {format_cpulist(machine.sockets)}."
        )
    cores = tuple(core for core in machine.allowed_cores() if core.socket == socket)
    if not cores:
        raise UsageError(
            f"--socket {socket}: this process may use none of its CPUs, only {format_cpulist(machine.allowed)}."
        )
    return cores
