"""The description of a machine as plain frozen data; placement works on this, not on files.

CPUs are always the kernel's CPU ids. A core is a set of sibling CPUs, a socket is a set of cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

# Of an engine, from which on a whole core is spared where cores have no siblings: a 32nd of a prompt's arithmetic, and
# hardly anything of steps, which wait for memory. Python beside the passes of eight streams takes as much of each.
MANY_CORES = 32


@dataclass(frozen=True)
class Core:
    """A physical core: its online CPUs, ascending; the index of its socket; and whether it is an E-core."""

    cpus: tuple[int, ...]
    socket: int
    efficiency: bool = False


@dataclass(frozen=True)
class Node:
    """A NUMA node. `cpus` are online ones; a node of HBM or CXL memory has none. Sizes in bytes, None where unknown.

    `free_bytes` is what a new process can get without swapping: free pages, page cache and reclaimable slab.
    `distances` are the kernel's (10 is local), to each node of the machine in order; empty where unknown.
    """

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None
    free_bytes: int | None = None
    distances: tuple[int, ...] = ()

    @property
    def has_memory(self) -> bool:
        return self.memory_bytes is None or self.memory_bytes > 0


@dataclass(frozen=True)
class Machine:
    """The whole machine (`cores`, `nodes`), and this process's share of it (`allowed`, `allowed_nodes`, `cpu_quota`).

    `nodes` is empty on a kernel without NUMA. `cpu_quota` is in CPUs, None without a limit. `interleaved` are the nodes
    over which a `numactl -i` around this process spreads its memory, empty without one. `virtual`: it is a virtual
    machine. `l3` are the sets of CPUs that share an L3 cache; CPUs without an L3 are in none.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    allowed: tuple[int, ...]
    allowed_nodes: tuple[int, ...]
    cpu_quota: float | None = None
    interleaved: tuple[int, ...] = ()
    virtual: bool = False
    l3: tuple[tuple[int, ...], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        """All online CPUs."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def sockets(self) -> tuple[int, ...]:
        """Socket indices 0, 1, … in the order of their first CPUs, as lscpu numbers them."""
        return tuple(sorted({core.socket for core in self.cores}))

    @property
    def smt(self) -> bool:
        """Whether some core runs more than one thread."""
        return any(len(core.cpus) > 1 for core in self.cores)

    def node(self, node_id: int) -> Node | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def cores_within(self, cpus: Iterable[int]) -> tuple[Core, ...]:
        """The cores that have a CPU in `cpus`, each reduced to those CPUs."""
        wanted = set(cpus)
        cut = (replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in wanted)) for core in self.cores)
        return tuple(core for core in cut if core.cpus)

    def allowed_cores(self) -> tuple[Core, ...]:
        return self.cores_within(self.allowed)

    def cpus_in_order(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """`cpus` in the order in which threads should take them: of every core one CPU, P-cores first, then siblings.

        Within each of these those of one NUMA node come after those of another. CPUs of no core are left out.
        """
        cores = self.cores_within(cpus)
        fast_first = sorted(cores, key=lambda core: core.efficiency)
        grouped = [
            core
            for _, kind in itertools.groupby(fast_first, key=lambda core: core.efficiency)
            for node in self.by_node(kind)
            for core in node
        ]
        ranks = range(max((len(core.cpus) for core in cores), default=0))
        return tuple(core.cpus[rank] for rank in ranks for core in grouped if rank < len(core.cpus))

    def default_cores(self) -> tuple[Core, ...]:
        """The cores to compute on by default: the allowed P-cores of one socket.

        Of several sockets it is one whose memory is allowed; of these the one with most such cores, then the lowest
        index. A core of which only some siblings are allowed counts as two thirds: another process has the others.
        Virtual machines often show every CPU as a socket; there a NUMA node takes the socket's place.
        """
        cores = self.allowed_cores()
        fast = [core for core in cores if not core.efficiency] or list(cores)
        groups = self.by_socket(fast)
        near, whole = set(self.cores_with_memory(fast)), set(self.cores)

        def rank(group: tuple[Core, ...]) -> tuple[bool, int, int]:
            return not near.isdisjoint(group), sum(3 if core in whole else 2 for core in group), len(group)

        return max(groups, key=rank, default=())

    def cores_with_memory(self, cores: Iterable[Core]) -> tuple[Core, ...]:
        """Those of `cores` on a node whose memory may be used; all where none is, and on a kernel without NUMA."""
        cores = tuple(cores)
        nodes = (node for node in self.nodes if node.id in self.allowed_nodes and node.has_memory)
        near = {cpu for node in nodes for cpu in node.cpus}
        return tuple(core for core in cores if core.cpus[0] in near) or cores

    def by_socket(self, cores: Iterable[Core]) -> list[tuple[Core, ...]]:
        """`cores` split by socket; by NUMA node on virtual machines that show every CPU as a socket."""
        if self.virtual and len(self.sockets) == len(self.cores):
            return self.by_node(cores)
        return _split(cores, lambda core: core.socket)

    def by_node(self, cores: Iterable[Core]) -> list[tuple[Core, ...]]:
        """`cores` split by NUMA node; those in no node are the last group."""
        home = {cpu: index for index, node in reversed(list(enumerate(self.nodes))) for cpu in node.cpus}
        return _split(cores, lambda core: home.get(core.cpus[0], len(self.nodes)))

    def by_l3(self, cores: Iterable[Core]) -> list[tuple[Core, ...]]:
        """`cores` split by shared L3 cache; those without an L3 are left out."""
        home = {cpu: index for index, cpus in enumerate(self.l3) for cpu in cpus}
        return _split((core for core in cores if core.cpus[0] in home), lambda core: home[core.cpus[0]])

    def spare_cpu(self, cpus: Sequence[int], *, whole_core: bool = True) -> int | None:
        """The CPU of an engine on `cpus` that its threads which do not compute have for themselves; None where none is.

        Any of them on a core that computes keeps all others waiting. It is an allowed SMT sibling of the first of
        `cpus`; without one the first CPU itself, if `whole_core` may be taken and there are MANY_CORES.
        """
        siblings = next((core.cpus for core in self.allowed_cores() if cpus[0] in core.cpus), ())
        idle = [cpu for cpu in siblings if cpu not in cpus]
        if idle:
            return idle[0]
        return cpus[0] if whole_core and len(cpus) >= MANY_CORES else None

    def threads_within_quota(self, threads: int) -> int:
        """`threads`, or fewer where the CPU quota lets fewer run at full speed; at least 1."""
        return threads if self.cpu_quota is None else max(1, min(threads, int(self.cpu_quota)))


def _split(cores: Iterable[Core], key: Callable[[Core], int]) -> list[tuple[Core, ...]]:
    """Group `cores` by key: groups in ascending order of keys, each in the given order."""
    groups: dict[int, list[Core]] = {}
    for core in cores:
        groups.setdefault(key(core), []).append(core)
    return [tuple(groups[index]) for index in sorted(groups)]
