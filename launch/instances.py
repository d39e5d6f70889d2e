"""Divides a machine among several processes: a pure function of the request and the machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Core, Machine
from ipex_assist.launch.cores import PlacementRequest, fast_cores, usable_cores
from ipex_assist.launch.placement import Placement, place, place_memory, with_spare

Unit = Literal["per-node", "per-socket", "per-l3"]
Group = tuple[Core, ...]

# As in IPEX's launcher: --latency-mode gives each instance 4 cores, --throughput-mode a NUMA node.
LATENCY_CORES = 4


@dataclass(frozen=True)
class InstanceRequest(PlacementRequest):
    """A placement request for several processes.

    `instances` is a number, or the unit that gets one instance each; None: one process, or with `cores_per_instance` as
    many as fit. `threads` is for a single process only, `model_bytes` the memory that each instance fills. `latency`:
    that many cores come from --latency.
    """

    instances: int | Unit | None = None
    cores_per_instance: int | None = None
    latency: bool = False


def latency_request(request: InstanceRequest) -> InstanceRequest:
    """Change a request to as many instances of 4 cores as fit, so that work seldom waits for other work."""
    return replace(request, instances=None, cores_per_instance=LATENCY_CORES, latency=True)


def throughput_request(request: InstanceRequest) -> InstanceRequest:
    """Change a request to one instance for each NUMA node, with all of its cores."""
    return replace(request, instances="per-node", cores_per_instance=None)


def place_instances(request: InstanceRequest, machine: Machine) -> tuple[Placement, ...]:
    """Place all instances, in the order of their numbers.

    No two share a physical core, and all stay within the allowed CPUs. A single instance is placed as by `place`. With
    a number, instances are distributed over the sockets, and none crosses a socket; where a socket gets fewer instances
    than it has NUMA nodes, each gets whole nodes, otherwise each stays within one. Sizes differ where cores do not
    divide evenly. With `cores_per_instance` all are equal and within a node, unless no node is large enough, and the
    remaining cores stay idle.

    Raises:
        UsageError: the request cannot be met on this machine; the message has the numbers.
    """
    _check(request)
    if request.instances in (None, 1) and request.cores_per_instance is None:
        return (place(request, machine),)
    usable = usable_cores(request, machine)
    pool = fast_cores(request, usable)
    if isinstance(request.instances, str):
        chunks = _one_per_unit(request, machine, pool)
    elif request.cores_per_instance is not None:
        chunks = _of_size(request, machine, pool)
    else:
        chunks = _of_number(request.instances or 1, machine, pool)
    warnings: list[str] = []
    notes: list[str] = []
    if len(pool) < len(usable):
        notes.append(f"{len(usable) - len(pool)} efficiency cores stay idle; --e-cores uses them, too")
    if idle := len(pool) - sum(map(len, chunks)):
        _tell_idle(idle, request, machine, pool, warnings if idle >= min(map(len, chunks)) else notes)
    across = sum(len({core.socket for core in chunk}) > 1 for chunk in chunks)
    if across and request.cores_per_instance is not None:
        warnings.append(
            f"{across} of {len(chunks)} instances span sockets, since none has {max(map(len, chunks))} cores: "
            f"--cores-per-instance {max(map(len, machine.by_socket(pool)))} keeps each within one"
        )
    cpus = _within_quota(request, machine, [_cpus(chunk, request.smt) for chunk in chunks], warnings)
    return _placements(request, machine, cpus, warnings, notes)


def _check(request: InstanceRequest) -> None:
    number, size = request.instances, request.cores_per_instance
    if isinstance(number, int) and number < 1:
        raise UsageError(f"--instances {number}: at least 1 is needed.")
    if size is not None and size < 1:
        raise UsageError(f"--cores-per-instance {size}: at least 1 is needed.")
    if request.threads is not None and (size is not None or number not in (None, 1)):
        raise UsageError(
            f"--threads {request.threads} is for one process; with several, --cores-per-instance "
            f"{request.threads} gives each so many cores."
        )


def _one_per_unit(request: InstanceRequest, machine: Machine, pool: Group) -> list[Group]:
    """Core groups for one instance on each node, socket or L3 cache, cut to `cores_per_instance` if given."""
    unit = str(request.instances)
    if unit == "per-node":
        groups = machine.by_node(pool)
    elif unit == "per-socket":
        groups = machine.by_socket(pool)
    else:
        groups = machine.by_l3(pool)
        if not groups:
            raise UsageError("--instances per-l3: this machine shows no L3 cache; use --instances per-node.")
    size = request.cores_per_instance
    if size is None:
        return groups
    if small := [group for group in groups if len(group) < size]:
        raise UsageError(
            f"--instances {unit} --cores-per-instance {size}: {len(small)} of the {len(groups)} have fewer physical "
            f"cores, the smallest {min(map(len, small))}; ask for at most that, or leave --cores-per-instance out."
        )
    return [group[:size] for group in groups]


def _of_size(request: InstanceRequest, machine: Machine, pool: Group) -> list[Group]:
    """Groups of `cores_per_instance`, each within a node, or within a socket where no node is large enough."""
    size = request.cores_per_instance or 1
    if size > len(pool):
        few = f"the {len(pool)} physical cores that may be used here ({_listed(pool)})"
        if request.latency:
            raise UsageError(
                f"--latency gives each instance {size} cores, more than {few}; use --cores-per-instance {len(pool)} or "
                "less."
            )
        raise UsageError(f"--cores-per-instance {size} is more than {few}; ask for at most {len(pool)}.")
    sockets = machine.by_socket(pool)
    nodes = [node for socket in sockets for node in machine.by_node(socket)]
    levels = [("node", nodes), ("socket", sockets), ("machine", [pool])]
    level, groups = next((name, groups) for name, groups in levels if size <= max(map(len, groups)))
    room = [len(group) // size for group in groups]
    if request.instances is None:
        wanted = sum(room)
        if machine.cpu_quota is not None:
            wanted = max(1, min(wanted, int(machine.cpu_quota) // size))
    else:
        wanted = int(request.instances)
    if wanted > sum(room):
        sizes = ", ".join(str(len(group)) for group in groups)
        raise UsageError(
            f"--instances {wanted} --cores-per-instance {size}: {sum(room)} of that size fit into the {len(pool)} "
            f"physical cores here ({sizes} by {level}, and an instance stays within one); ask for {sum(room)}, "
            "or for fewer cores each."
        )
    shares = zip(groups, _apportion(wanted, groups, room), strict=True)
    ordered = [(_large_caches_first(group, machine), count) for group, count in shares]
    return [group[index * size : (index + 1) * size] for group, count in ordered for index in range(count)]


def _of_number(number: int, machine: Machine, pool: Group) -> list[Group]:
    """`number` groups of cores, cut at the widest boundaries that give as many: sockets, then nodes, then cores."""
    if number > len(pool):
        raise UsageError(
            f"--instances {number} is more than the {len(pool)} physical cores that may be used here "
            f"({_listed(pool)}); an instance needs at least one of its own: ask for at most {len(pool)}."
        )
    chunks: list[Group] = []
    sockets = machine.by_socket(pool)
    for socket, count in zip(sockets, _apportion(number, sockets, [len(socket) for socket in sockets]), strict=True):
        nodes = machine.by_node(socket)
        if count <= len(nodes):
            runs = [nodes[start:end] for start, end in _even_runs(len(nodes), count)]
            chunks += [tuple(core for node in run for core in node) for run in runs]
            continue
        for node, share in zip(nodes, _apportion(count, nodes, [len(node) for node in nodes]), strict=True):
            ordered = _large_caches_first(node, machine)
            chunks += [ordered[start:end] for start, end in _even_runs(len(node), share)]
    return chunks


def _apportion(number: int, groups: Sequence[Group], room: Sequence[int]) -> list[int]:
    """How many instances each group gets, so that the smallest instance is as large as possible (D'Hondt)."""
    counts = [0] * len(groups)
    for _ in range(number):
        open_ = [index for index in range(len(groups)) if counts[index] < room[index]]
        counts[max(open_, key=lambda index: (len(groups[index]) / (counts[index] + 1), -counts[index], -index))] += 1
    return counts


def _even_runs(length: int, count: int) -> list[tuple[int, int]]:
    """Cut range(length) into `count` intervals whose lengths differ by at most one."""
    borders = [index * length // count for index in range(count + 1)] if count else []
    return list(itertools.pairwise(borders))


def _large_caches_first(cores: Group, machine: Machine) -> Group:
    """Order cores so that those that share an L3 (or a socket) are adjacent, larger sets first.

    Cutting the sequence into instances then falls between sets where possible.
    """
    sets = machine.by_l3(cores) if machine.l3 else machine.by_socket(cores)
    inside = {core for group in sets for core in group}
    ordered = [core for group in sorted(sets, key=len, reverse=True) for core in group]
    return (*ordered, *(core for core in cores if core not in inside))


def _tell_idle(idle: int, request: InstanceRequest, machine: Machine, pool: Group, lines: list[str]) -> None:
    line = f"{idle} of {len(pool)} physical cores stay idle"
    if request.cores_per_instance is None and isinstance(request.instances, int):
        sockets = len(machine.by_socket(pool))
        line += f", since an instance stays within its socket; --instances {sockets} uses all {sockets}"
    lines.append(line)


def _cpus(chunk: Group, smt: bool) -> list[int]:
    """The first CPU of each core, with `smt` followed by the siblings: cutting CPUs off the end costs least."""
    first = [core.cpus[0] for core in chunk]
    return [*first, *(cpu for core in chunk for cpu in core.cpus[1:])] if smt else first


def _within_quota(
    request: InstanceRequest, machine: Machine, chunks: list[list[int]], warnings: list[str]
) -> list[list[int]]:
    """Remove CPUs beyond the CPU quota from the largest instances; each keeps at least one."""
    total = sum(map(len, chunks))
    if machine.cpu_quota is None or total <= machine.cpu_quota:
        return chunks
    quota = f"{machine.cpu_quota:g} CPUs"
    if request.cores_per_instance is not None:
        warnings.append(
            f"{len(chunks)} instances with {total} threads get the time of {quota} (quota), so they will be stopped"
        )
        return chunks
    cut = [list(chunk) for chunk in chunks]
    for _ in range(total - max(int(machine.cpu_quota), len(chunks))):
        max(reversed(cut), key=len).pop()
    left = sum(map(len, cut))
    warnings.append(
        f"the CPU quota of {quota} is below {total}: {left} thread{'s' * (left != 1)} in {len(cut)} instances; "
        "raise the container's CPU limit to use them all"
    )
    return cut


def _placements(
    request: InstanceRequest, machine: Machine, chunks: list[list[int]], warnings: list[str], notes: list[str]
) -> tuple[Placement, ...]:
    home = {cpu: node.id for node in reversed(machine.nodes) for cpu in node.cpus}
    homes = [home.get(chunk[0]) for chunk in chunks]
    placements = []
    for index, chunk in enumerate(chunks):
        own_warnings, own_notes, cpus = list(warnings), list(notes), tuple(sorted(chunk))
        size = request.model_bytes
        # Instances on the same node fill its memory together.
        size = None if size is None else size * homes.count(homes[index])
        memory, nodes = place_memory(request, machine, cpus, own_warnings, own_notes, model_bytes=size)
        said = tuple(own_warnings), tuple(own_notes)
        cpus, spare = with_spare(request, machine, cpus, whole_core=request.cores_per_instance is None)
        placements.append(Placement(cpus, len(cpus), memory, nodes, *said, index=index, count=len(chunks), spare=spare))
    return tuple(placements)


def _listed(cores: Group) -> str:
    return f"CPUs {format_cpulist(cpu for core in cores for cpu in core.cpus)}"
