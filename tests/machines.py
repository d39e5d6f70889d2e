"""Writes the sysfs and procfs files of an invented machine, so that tests can have any machine they like.

A `MachineSpec` describes the machine; `write_machine` writes the files a kernel would show; `cores` and `nodes` say
what a correct reader must find, computed from the description and not from the files.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ipex_assist.env.machine import Machine
from ipex_assist.env.topology import read_topology

GIB = 2**30
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

# Where SMT siblings and sockets fall in the numbering of CPUs. "split" (Xeon bare metal): first threads of all cores,
# then second threads. "adjacent" (VMs, hybrid clients): siblings side by side. "alternate": sockets take turns.
Numbering = Literal["split", "adjacent", "alternate"]


@dataclass(frozen=True)
class CoreSpec:
    cpus: tuple[int, ...]
    socket: int
    node: int  # index, not id
    efficiency: bool = False


@dataclass(frozen=True)
class Cgroup:
    """A control group of the process. `path` may be nested; limits given for outer groups go into `outer`."""

    version: Literal[1, 2] = 2
    path: str = "/job/step"
    cpus: str | None = None
    mems: str | None = None
    quota: float | None = None
    memory_limit: int | None = None
    memory_used: int = 0
    outer: dict[str, float] = field(default_factory=dict)  # path → quota in CPUs


@dataclass(frozen=True)
class MachineSpec:
    sockets: int = 1
    cores_per_socket: int = 2
    threads_per_core: int = 1
    numbering: Numbering = "split"
    nodes_per_socket: int = 1
    sockets_per_node: int = 1  # more than 1: node interleaving in the BIOS, and virtual machines
    hbm_nodes: int = 0
    node_ids: tuple[int, ...] | None = None  # sparse ids, for nodes with CPUs and then HBM nodes
    numa: bool = True
    offline: frozenset[int] = frozenset()
    package_ids: tuple[int, ...] | None = None
    e_cores: int = 0  # at the end of every socket, without SMT
    hybrid_hint: Literal["cpu_atom", "capacity", "shape", "clock", "none"] = "cpu_atom"
    style: Literal["lists", "masks"] = "lists"  # masks: the file set of old kernels
    siblings_cut_at_nodes: bool = False  # what kernel 3.x did on cluster-on-die Xeons
    node_bytes: int = 64 * GIB
    node_free: int = 48 * GIB
    status_cpus: str | None = None
    status_mems: str | None = None
    cgroup: Cgroup | None = None
    cpuinfo: str = "processor\t: 0\nmodel name\t: Test Xeon\nflags\t\t: fpu avx2 fma\n"

    def cores(self, *, with_offline: bool = False) -> list[CoreSpec]:
        """Return all cores in the order of their first online CPUs, each with its online CPUs."""
        total = self.sockets * self.cores_per_socket
        cores, next_cpu = [], 0
        for index in range(total):
            if self.numbering == "alternate":
                socket, within = index % self.sockets, index // self.sockets
            else:
                socket, within = divmod(index, self.cores_per_socket)
            slow = within >= self.cores_per_socket - self.e_cores
            threads = 1 if slow else self.threads_per_core
            if self.numbering == "adjacent" or self.e_cores:
                cpus = tuple(range(next_cpu, next_cpu + threads))
                next_cpu += threads
            else:
                cpus = tuple(index + thread * total for thread in range(threads))
            first_node = socket // self.sockets_per_node * self.nodes_per_socket
            node = first_node + within * self.nodes_per_socket // self.cores_per_socket
            cores.append(CoreSpec(cpus, socket, node, slow))
        if with_offline:
            return cores
        online = [
            CoreSpec(tuple(c for c in core.cpus if c not in self.offline), core.socket, core.node, core.efficiency)
            for core in cores
        ]
        return sorted((core for core in online if core.cpus), key=lambda core: core.cpus)

    def online(self) -> list[int]:
        return sorted(cpu for core in self.cores() for cpu in core.cpus)

    def nodes(self) -> dict[int, list[int]]:
        """Return the online CPUs of each node by its id."""
        count = -(-self.sockets // self.sockets_per_node) * self.nodes_per_socket
        ids = self.node_ids or tuple(range(count + self.hbm_nodes))
        nodes: dict[int, list[int]] = {node_id: [] for node_id in ids}
        for core in self.cores():
            nodes[ids[core.node]].extend(core.cpus)
        return {node_id: sorted(cpus) for node_id, cpus in nodes.items()}


def write_machine(spec: MachineSpec, root: Path) -> Path:
    """Write the files of `spec` below `root` and return `root`."""
    _write_cpus(spec, root)
    if spec.numa:
        _write_nodes(spec, root)
    write(root, "proc/cpuinfo", spec.cpuinfo)
    status = "Name:\ttest\n"
    if spec.status_cpus is not None:
        status += f"Cpus_allowed_list:\t{spec.status_cpus}\n"
    if spec.status_mems is not None:
        status += f"Mems_allowed_list:\t{spec.status_mems}\n"
    write(root, "proc/self/status", status)
    if spec.cgroup:
        _write_cgroup(spec.cgroup, root)
    return root


def write(root: Path, path: str, text: str | int) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def to_list(cpus: list[int] | tuple[int, ...]) -> str:
    return ",".join(str(cpu) for cpu in cpus)


def to_mask(cpus: list[int] | tuple[int, ...]) -> str:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))


def _write_cpus(spec: MachineSpec, root: Path) -> None:
    lists = spec.style == "lists"
    everything = spec.cores(with_offline=True)
    write(root, f"{CPU}/possible", "0-127")  # more than there are, as on real servers
    if lists:
        write(root, f"{CPU}/online", to_list(spec.online()))
    core_numbers: dict[int, int] = {}
    for core in everything:
        # Core ids restart in every package and have gaps, so that they are of no use as CPU numbers or keys.
        core_id = core_numbers[core.socket] = core_numbers.get(core.socket, -3) + 3
        alive = [cpu for cpu in core.cpus if cpu not in spec.offline]
        package = [
            cpu
            for other in spec.cores()
            if other.socket == core.socket and (not spec.siblings_cut_at_nodes or other.node == core.node)
            for cpu in other.cpus
        ]
        for cpu in core.cpus:
            folder = f"{CPU}/cpu{cpu}"
            if cpu != 0:
                write(root, f"{folder}/online", int(cpu not in spec.offline))
            if cpu in spec.offline:
                continue
            topology = f"{folder}/topology"
            package_ids = spec.package_ids or tuple(range(spec.sockets))
            write(root, f"{topology}/physical_package_id", package_ids[core.socket])
            write(root, f"{topology}/core_id", core_id)
            if lists:
                write(root, f"{topology}/core_cpus_list", to_list(alive))
                if spec.siblings_cut_at_nodes:
                    write(root, f"{topology}/core_siblings_list", to_list(package))
                else:
                    write(root, f"{topology}/package_cpus", to_mask(package))
                    write(root, f"{topology}/package_cpus_list", to_list(package))
            else:
                write(root, f"{topology}/thread_siblings", to_mask(alive))
                write(root, f"{topology}/core_siblings", to_mask(package))
            if spec.e_cores:
                _write_hybrid_cpu(spec, root, folder, core, everything)
    if spec.e_cores and spec.hybrid_hint == "cpu_atom":
        write(root, "sys/devices/cpu_atom/cpus", to_list([c for k in everything if k.efficiency for c in k.cpus]))
        write(root, "sys/devices/cpu_core/cpus", to_list([c for k in everything if not k.efficiency for c in k.cpus]))


def _write_hybrid_cpu(spec: MachineSpec, root: Path, folder: str, core: CoreSpec, cores: list[CoreSpec]) -> None:
    if spec.hybrid_hint == "capacity":
        write(root, f"{folder}/cpu_capacity", 620 if core.efficiency else 1024)
    if spec.hybrid_hint in ("shape", "clock"):
        cluster = [cpu for other in cores if other.efficiency for cpu in other.cpus]
        write(root, f"{folder}/cache/index2/level", 2)
        write(root, f"{folder}/cache/index2/shared_cpu_list", to_list(cluster if core.efficiency else core.cpus))
    if spec.hybrid_hint == "clock":
        write(root, f"{folder}/cpufreq/cpuinfo_max_freq", 3_800_000 if core.efficiency else 5_000_000)


def _write_nodes(spec: MachineSpec, root: Path) -> None:
    nodes = spec.nodes()
    write(root, f"{NODE}/online", to_list(sorted(nodes)))
    offline = {core.node: [c for c in core.cpus if c in spec.offline] for core in spec.cores(with_offline=True)}
    for position, (node_id, cpus) in enumerate(nodes.items()):
        folder = f"{NODE}/node{node_id}"
        if spec.style == "lists":
            write(root, f"{folder}/cpulist", to_list(cpus))
        else:
            # Old kernels left offline CPUs in the mask.
            write(root, f"{folder}/cpumap", to_mask(sorted(cpus + offline.get(position, []))))
        cache = spec.node_free // 4 // 1024
        lines = {
            "MemTotal": spec.node_bytes // 1024,
            "MemFree": spec.node_free // 1024 - 2 * cache,
            "Active(file)": cache,
            "Inactive(file)": cache,
        }
        write(root, f"{folder}/meminfo", "\n".join(f"Node {node_id} {key}:  {kib} kB" for key, kib in lines.items()))


def _write_cgroup(group: Cgroup, root: Path) -> None:
    if group.version == 2:
        write(root, "proc/self/cgroup", f"0::{group.path}")
        write(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory")
        folders = dict.fromkeys(("cpuset", "cpu", "memory"), "sys/fs/cgroup")
    else:
        names = ("cpuset", "cpu,cpuacct", "memory")
        write(root, "proc/self/cgroup", "\n".join(f"{n}:{name}:{group.path}" for n, name in enumerate(names, 2)))
        folders = {name.partition(",")[0]: f"sys/fs/cgroup/{name}" for name in names}
    v2 = group.version == 2
    if group.cpus is not None:
        write(root, f"{folders['cpuset']}{group.path}/cpuset.cpus{'.effective' if v2 else ''}", group.cpus)
    if group.mems is not None:
        write(root, f"{folders['cpuset']}{group.path}/cpuset.mems{'.effective' if v2 else ''}", group.mems)
    for path, quota in {**group.outer, **({group.path: group.quota} if group.quota else {})}.items():
        if v2:
            write(root, f"{folders['cpu']}{path}/cpu.max", f"{int(quota * 100_000)} 100000")
        else:
            write(root, f"{folders['cpu']}{path}/cpu.cfs_quota_us", int(quota * 100_000))
            write(root, f"{folders['cpu']}{path}/cpu.cfs_period_us", 100_000)
    if group.memory_limit is not None:
        folder = f"{folders['memory']}{group.path}"
        write(root, f"{folder}/{'memory.max' if v2 else 'memory.limit_in_bytes'}", group.memory_limit)
        write(root, f"{folder}/{'memory.current' if v2 else 'memory.usage_in_bytes'}", group.memory_used)
        cached = group.memory_used // 2
        write(root, f"{folder}/memory.stat", f"anon 1\n{'inactive_file' if v2 else 'total_inactive_file'} {cached}")


# Hundreds of invented machines of a hundred files each: in memory, where there is such a folder.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def machine(spec: MachineSpec) -> Machine:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        return read_topology(write_machine(spec, Path(folder)))


# A dual-socket Xeon with SNC-2 and SMT, split numbering: cores 0-7 and 8-15, siblings +16; nodes of 4 cores, 64 GiB.
XEON = machine(MachineSpec(sockets=2, cores_per_socket=8, threads_per_core=2, nodes_per_socket=2))


PLAIN = machine(MachineSpec(sockets=2, cores_per_socket=8, threads_per_core=2))
