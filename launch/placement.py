"""Chooses CPUs, threads and memory nodes for one process: a pure function of the request and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Core, Machine
from ipex_assist.launch.cores import PlacementRequest, fast_cores, usable_cores
from ipex_assist.launch.memory import MemoryPolicy, apply_memory_flag, choose_memory

__all__ = ["MemoryPolicy", "Placement", "PlacementRequest", "place", "place_memory"]


@dataclass(frozen=True)
class Placement:
    """Where a process runs. `cpus` are ascending, as many as `threads`, one on each core unless more were asked for.

    `memory` is `bind` (only `nodes`), `preferred` (the one in `nodes` first), `interleave` (page by page over `nodes`),
    `local` (on the node of the thread that first writes a page) or `none` (left to the kernel, on machines without
    NUMA). `warnings` say what could be better, `notes` which settings of the user were kept. It is instance `index` of
    `count`. `spare` is a CPU for the threads that do not compute, none of `cpus`.
    """

    cpus: tuple[int, ...]
    threads: int
    memory: MemoryPolicy = "none"
    nodes: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    index: int = 0
    count: int = 1
    spare: int | None = None

    @property
    def mask(self) -> tuple[int, ...]:
        """All CPUs that its threads may use, ascending."""
        return self.cpus if self.spare is None else tuple(sorted({*self.cpus, self.spare}))

    def describe(self) -> str:
        """The placement as one line for people."""
        return f"{self.describe_cpus()}, memory {self.describe_memory()}"

    def describe_cpus(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        others = "" if self.spare is None else f" and CPU {self.spare} for others"
        return f"{threads} on CPU{'s' * (len(self.cpus) != 1)} {format_cpulist(self.cpus)}{others}"

    def describe_memory(self) -> str:
        nodes = f"node{'s' * (len(self.nodes) != 1)} {format_cpulist(self.nodes)}"
        return {
            "bind": f"bound to {nodes}",
            "preferred": f"from {nodes} while there is some",
            "interleave": f"interleaved over {nodes}",
            "local": "local to the thread that first writes it",
            "none": "left to the kernel",
        }[self.memory]


def place(request: PlacementRequest, machine: Machine) -> Placement:
    """Place one process.

    By default it gets the allowed physical cores of one socket (the one with most of them, P-cores only), one thread on
    each, and that socket's memory; no more threads than the control group's CPU quota allows. With `socket="all"` it
    gets the cores of every socket, and memory goes to the node of the thread that first writes it. With `all_sockets`
    those are the default, of sockets whose memory it may use.

    Raises:
        UsageError: the request cannot be met on this machine.
    """
    warnings: list[str] = []
    notes: list[str] = []
    pool = usable_cores(request, machine)
    cpus = _choose_cpus(request, machine, pool, warnings)
    _tell_idle_sockets(request, machine, pool, cpus, warnings)
    memory, nodes = place_memory(request, machine, cpus, warnings, notes, model_bytes=request.model_bytes)
    cpus, spare = with_spare(request, machine, cpus)
    return Placement(cpus, len(cpus), memory, nodes, tuple(warnings), tuple(notes), spare=spare)


def with_spare(
    request: PlacementRequest, machine: Machine, cpus: tuple[int, ...], *, whole_core: bool = True
) -> tuple[tuple[int, ...], int | None]:
    """The CPUs that an engine which got `cpus` computes on, and the one that its other threads have for themselves.

    whole_core: its number of cores was left to us, unless the request says it.
    """
    if not request.spares_cpu or not cpus:
        return cpus, None
    free = whole_core and request.threads is None and request.cpus is None
    named = None if request.cpus is None else {cpu for core in usable_cores(request, machine) for cpu in core.cpus}
    spare = machine.spare_cpu(cpus, whole_core=free)
    if named is not None and spare not in named:
        return cpus, None
    return tuple(cpu for cpu in cpus if cpu != spare), spare


def _tell_idle_sockets(
    request: PlacementRequest, machine: Machine, pool: tuple[Core, ...], cpus: tuple[int, ...], warnings: list[str]
) -> None:
    """Warn where a scheduler or a mask gave this process cores of several sockets, and those of one are used.

    On a whole machine that is the default, which the docs describe; who was given a part counts on all of it.
    """
    if len(machine.allowed) == sum(len(core.cpus) for core in machine.cores):
        return
    if any(
        value is not None for value in (request.socket, request.threads, request.cpus, request.numa_node, request.nodes)
    ):
        return
    fast = [core for core in pool if not core.efficiency] or list(pool)
    used = {core.socket for core in fast if set(core.cpus) & set(cpus)}
    idle = [core for core in fast if core.socket not in used]
    if idle and used:
        warnings.append(
            f"{len(idle)} of the {len(fast)} cores that this process was given are on another socket and stay idle: "
            "--socket all uses them, or an instance on each socket (--instances)"
        )


def place_memory(
    request: PlacementRequest,
    machine: Machine,
    cpus: tuple[int, ...],
    warnings: list[str],
    notes: list[str],
    *,
    model_bytes: int | None,
) -> tuple[MemoryPolicy, tuple[int, ...]]:
    """The memory policy and nodes of a process on `cpus` that fills `model_bytes`. May add warnings and notes."""
    flag = request.memory or ("local" if request.socket == "all" else None)
    if flag is not None and (machine.nodes or request.memory):
        return apply_memory_flag(flag, request.memory_nodes, cpus, machine, warnings, model_bytes=model_bytes)
    keep = request.numa_node is None and request.socket is None and request.nodes is None
    return choose_memory(
        cpus,
        machine,
        warnings,
        notes,
        model_bytes=model_bytes,
        keep_interleaving=keep,
        first_touch=request.first_touch,
    )


def _choose_cpus(
    request: PlacementRequest, machine: Machine, pool: tuple[Core, ...], warnings: list[str]
) -> tuple[int, ...]:
    preferred = _preferred_cores(request, machine, pool)
    if request.threads is None:
        threads = _threads_within_quota(request, machine, preferred, warnings)
    else:
        threads = _check_threads(request.threads, machine, pool, warnings)
    if request.smt and len(preferred) < threads <= sum(len(core.cpus) for core in preferred):
        siblings = [cpu for core in preferred for cpu in core.cpus[1:]]
        return tuple(sorted([*_first_cpus(preferred), *siblings[: threads - len(preferred)]]))
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


def _threads_within_quota(
    request: PlacementRequest, machine: Machine, preferred: tuple[Core, ...], warnings: list[str]
) -> int:
    wanted = sum(len(core.cpus) for core in preferred) if request.smt else len(preferred)
    threads = machine.threads_within_quota(wanted)
    if threads < wanted:
        warnings.append(
            f"the CPU quota of {machine.cpu_quota:g} CPUs is below the {len(preferred)} cores: {threads} "
            f"thread{'s' * (threads != 1)}; raise the container's CPU limit to use them all"
        )
    if not request.smt and request.cpus is not None and (siblings := sum(len(core.cpus) - 1 for core in preferred)):
        warnings.append(
            f"--cpus {request.cpus} names {len(preferred)} physical cores and {siblings} more of their SMT siblings, "
            f"which stay idle; --threads {len(preferred) + siblings} uses them too"
        )
    return threads


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


def _preferred_cores(request: PlacementRequest, machine: Machine, pool: tuple[Core, ...]) -> tuple[Core, ...]:
    if request.names_a_place:
        return fast_cores(request, pool)
    if request.all_sockets:
        return fast_cores(request, machine.cores_with_memory(pool))
    chosen = machine.default_cores()
    if not request.e_cores:
        return chosen
    sockets = {core.socket for core in chosen}
    return tuple(core for core in pool if core.socket in sockets)


def _together(cores: Sequence[Core], count: int, machine: Machine) -> Sequence[Core]:
    """`count` of `cores`: within one node if one has enough of them, else within one socket, else the first ones."""
    groups = [[core for core in cores if core.cpus[0] in node.cpus] for node in machine.nodes]
    groups += [[core for core in cores if core.socket == socket] for socket in machine.sockets]
    return next((group for group in groups if len(group) >= count), cores)[:count]


def _first_cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(sorted(core.cpus[0] for core in cores))
