"""Chooses CPUs, threads and memory nodes for one process: a pure function of the request and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Core, Machine, Node

MemoryPolicy = Literal["bind", "interleave", "none"]


@dataclass(frozen=True)
class Request:
    """What the user asked for; None leaves the choice to us. At most one of `cpus`, `socket`, `numa_node`.

    `cpus` is a list such as `0-27,56-83`, `socket` an index from 0, `model_bytes` the memory the process will fill.
    """

    threads: int | None = None
    cpus: str | None = None
    socket: int | None = None
    numa_node: int | None = None
    model_bytes: int | None = None


@dataclass(frozen=True)
class Placement:
    """Where a process runs. `cpus` are ascending, as many as `threads`, one per physical core unless more were asked.

    `memory` is `bind` (only `nodes`), `interleave` (page by page over `nodes`) or `none` (left to the kernel, on
    machines without NUMA). `warnings` say what is not as it could be, `notes` what of the user's was kept.
    """

    cpus: tuple[int, ...]
    threads: int
    memory: MemoryPolicy = "none"
    nodes: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for people."""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        place = f"{threads} on CPU{'s' * (len(self.cpus) != 1)} {format_cpulist(self.cpus)}"
        nodes = f"node{'s' * (len(self.nodes) != 1)} {format_cpulist(self.nodes)}"
        policy = {"bind": f"bound to {nodes}", "interleave": f"interleaved over {nodes}", "none": "left to the kernel"}
        return f"{place}, memory {policy[self.memory]}"


def place(request: Request, machine: Machine) -> Placement:
    """Place one process.

    Unless told otherwise it gets the allowed physical cores of one socket (the one with most of them, P-cores only),
    one thread per core, and that socket's memory; no more threads than the control group's CPU quota lets run.

    Raises:
        UsageError: the request cannot be met on this machine.
    """
    warnings: list[str] = []
    notes: list[str] = []
    pool = _pool(request, machine)
    cpus = _choose_cpus(request, machine, pool, warnings)
    memory, nodes = _choose_memory(request, machine, cpus, warnings, notes)
    return Placement(cpus, len(cpus), memory, nodes, tuple(warnings), tuple(notes))


def _pool(request: Request, machine: Machine) -> tuple[Core, ...]:
    """Everything the request lets us use, whole cores as far as they are allowed."""
    named = [
        f"{flag} {value}"
        for flag, value in (("--cpus", request.cpus), ("--socket", request.socket), ("--numa-node", request.numa_node))
        if value is not None
    ]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other; give one of them.")
    if request.cpus is not None:
        return machine.cores_within(_check_cpus(request.cpus, machine))
    if request.numa_node is not None:
        return _cores_of_node(request.numa_node, machine)
    if request.socket is not None:
        return _cores_of_socket(request.socket, machine)
    if not machine.allowed:
        raise UsageError("This process may not use any CPU that is online.")
    return machine.allowed_cores()


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


def _cores_of_node(node_id: int, machine: Machine) -> tuple[Core, ...]:
    node = machine.node(node_id)
    if node is None:
        known = ", ".join(str(known.id) for known in machine.nodes) or "none (a kernel without NUMA)"
        raise UsageError(f"--numa-node {node_id} does not exist; the nodes of this machine: {known}.")
    if not node.cpus:
        with_cpus = format_cpulist(other.id for other in machine.nodes if other.cpus)
        raise UsageError(f"--numa-node {node_id} holds memory but no CPUs; nodes with CPUs: {with_cpus}.")
    cores = machine.cores_within(set(node.cpus) & set(machine.allowed))
    if not cores:
        raise UsageError(
            f"--numa-node {node_id}: this process may use none of its CPUs {format_cpulist(node.cpus)}, "
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


def _choose_cpus(request: Request, machine: Machine, pool: tuple[Core, ...], warnings: list[str]) -> tuple[int, ...]:
    preferred = _preferred_cores(request, machine, pool)
    if request.threads is None:
        threads = machine.threads_within_quota(len(preferred))
        if threads < len(preferred):
            warnings.append(
                f"the CPU quota of {machine.cpu_quota:g} CPUs is below the {len(preferred)} cores: {threads} "
                f"thread{'s' * (threads != 1)}; raise the container's CPU limit to use them all"
            )
        if request.cpus is not None and (siblings := sum(len(core.cpus) - 1 for core in pool)):
            warnings.append(
                f"--cpus {request.cpus} names {len(pool)} physical cores and {siblings} more of their SMT siblings, "
                f"which stay idle; --threads {len(pool) + siblings} uses them too"
            )
    else:
        threads = _check_threads(request.threads, machine, pool, warnings)
    if threads <= len(preferred):
        return _first_cpus(_together(preferred, threads, machine))
    if threads <= len(pool):
        rest = sorted(set(pool) - set(preferred), key=lambda core: (core.efficiency, core.socket, core.cpus))
        chosen = [*preferred, *rest[: threads - len(preferred)]]
        if len({core.socket for core in chosen}) > len({core.socket for core in preferred}):
            warnings.append(f"{threads} threads do not fit the {len(preferred)} cores of one socket and span several")
        return _first_cpus(chosen)
    extra = [cpu for core in pool for cpu in core.cpus[1:]][: threads - len(pool)]
    warnings.append(
        f"{threads} threads share {len(pool)} physical cores; {len(pool)} threads, one per core, are usually faster"
    )
    return tuple(sorted([*_first_cpus(pool), *extra]))


def _check_threads(threads: int, machine: Machine, pool: tuple[Core, ...], warnings: list[str]) -> int:
    available = sum(len(core.cpus) for core in pool)
    if threads < 1:
        raise UsageError(f"--threads {threads}: at least 1 is needed; leave it out for one per physical core.")
    if threads > available:
        listed = format_cpulist(cpu for core in pool for cpu in core.cpus)
        raise UsageError(
            f"--threads {threads} is more than the {available} CPUs that may be used here ({listed}, "
            f"{len(pool)} physical cores); ask for {len(pool)} or leave it out."
        )
    if machine.cpu_quota is not None and threads > machine.cpu_quota:
        warnings.append(
            f"{threads} threads get the time of {machine.cpu_quota:g} CPUs (quota), so they will be stopped"
        )
    return threads


def _preferred_cores(request: Request, machine: Machine, pool: tuple[Core, ...]) -> tuple[Core, ...]:
    if request.cpus is not None:
        return pool
    if request.socket is None and request.numa_node is None:
        return machine.default_cores()
    return tuple(core for core in pool if not core.efficiency) or pool


def _together(cores: Sequence[Core], count: int, machine: Machine) -> Sequence[Core]:
    """`count` of `cores`: within one node if one has enough of them, else within one socket, else the first."""
    groups = [[core for core in cores if core.cpus[0] in node.cpus] for node in machine.nodes]
    groups += [[core for core in cores if core.socket == socket] for socket in machine.sockets]
    return next((group for group in groups if len(group) >= count), cores)[:count]


def _first_cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(sorted(core.cpus[0] for core in cores))


def _choose_memory(
    request: Request, machine: Machine, cpus: tuple[int, ...], warnings: list[str], notes: list[str]
) -> tuple[MemoryPolicy, tuple[int, ...]]:
    """Memory as near as the model fits: the nodes of the CPUs, those of their sockets, then all."""
    usable = [node for node in machine.nodes if node.id in machine.allowed_nodes and node.has_memory]
    # HBM and CXL nodes have no CPUs. They are small or slow, so that using them is a decision of its own.
    ordinary = [node for node in usable if node.cpus] or usable
    if not ordinary:
        return "none", ()
    if machine.interleaved and request.numa_node is None and request.socket is None:
        kept = format_cpulist(machine.interleaved)
        notes.append(f"memory stays interleaved over nodes {kept}, as the numactl outside has set it")
        return "interleave", machine.interleaved
    sockets = {core.socket for core in machine.cores_within(cpus)}
    socket_cpus = [cpu for core in machine.cores if core.socket in sockets for cpu in core.cpus]
    near, local = _nodes_among(ordinary, cpus), _nodes_among(ordinary, socket_cpus)
    if not near:
        warnings.append(
            f"no memory of the nodes of CPUs {format_cpulist(cpus)} may be used, only nodes "
            f"{format_cpulist(node.id for node in ordinary)}: every access is remote"
        )
    for nodes in (near, local):
        if nodes and _fits(request.model_bytes, nodes):
            return _policy(nodes)
    if request.model_bytes is not None and near:
        free = sum(_free(node) for node in local or near)
        warnings.append(
            f"the model needs {request.model_bytes / 2**30:.1f} GiB and the nearest nodes have {free / 2**30:.1f} GiB "
            f"free: memory comes from nodes {format_cpulist(node.id for node in ordinary)}, part of it remote"
            if len(ordinary) > len(local)
            else f"the model needs {request.model_bytes / 2**30:.1f} GiB and only {free / 2**30:.1f} GiB are free"
        )
    return _policy(ordinary)


def _nodes_among(nodes: list[Node], cpus: Iterable[int]) -> list[Node]:
    wanted = set(cpus)
    return [node for node in nodes if not wanted.isdisjoint(node.cpus)]


def _policy(nodes: list[Node]) -> tuple[MemoryPolicy, tuple[int, ...]]:
    return "bind" if len(nodes) == 1 else "interleave", tuple(node.id for node in nodes)


def _fits(size: int | None, nodes: list[Node]) -> bool:
    return size is None or size <= sum(_free(node) for node in nodes)


def _free(node: Node) -> int:
    """Bytes; where a recorded machine does not tell what is free, all of its memory."""
    return node.free_bytes if node.free_bytes is not None else node.memory_bytes or 0
