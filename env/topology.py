"""Reads the machine from sysfs and procfs: cores, NUMA nodes, and which of them this process may use."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from ipex_assist.env.cgroup import CgroupLimits, read_cgroup_limits
from ipex_assist.env.cores import CPU, read_cores, read_cpuinfo, read_l3
from ipex_assist.env.cpulist import format_cpulist, parse_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine, Node
from ipex_assist.env.tree import Tree

NODE = "sys/devices/system/node"


def read_topology(root: str | Path = "/") -> Machine:
    """Read the machine below `root`, which holds `sys` and `proc`; `/` is the live machine.

    What the process may use comes from proc/self/status and its control groups, on the live machine also from
    sched_getaffinity (which taskset, numactl and batch systems set).

    Raises:
        UsageError: `root` describes no machine.
    """
    tree = Tree(root)
    warnings: list[str] = []
    online = _online_cpus(tree)
    if not online:
        raise UsageError(
            f"{tree.root} describes no machine: neither {CPU} nor proc/cpuinfo names a CPU there. "
            "Give --root a folder that holds copies of /sys and /proc."
        )
    limits = read_cgroup_limits(tree)
    cores = read_cores(tree, online, warnings)
    nodes = _read_nodes(tree, online, warnings)
    allowed = _allowed_cpus(tree, online, limits, warnings)
    policy, policy_nodes = _memory_policy(tree)
    allowed_nodes = _allowed_nodes(tree, nodes, limits, policy_nodes if policy == "bind" else None)
    interleaved = tuple(node for node in policy_nodes if node in allowed_nodes) if policy == "interleave" else ()
    return Machine(
        cores,
        nodes,
        allowed,
        allowed_nodes,
        cpu_quota=limits.cpu_quota,
        interleaved=interleaved,
        virtual="hypervisor" in _first_flags(tree),
        l3=read_l3(tree, online),
        warnings=tuple(warnings),
    )


def _online_cpus(tree: Tree) -> tuple[int, ...]:
    online = tree.ids(f"{CPU}/online")
    if online:
        return online
    # Kernels before 2.6.26 have no such file. A CPU without an `online` file, as cpu0 often is, is online.
    present = [cpu for cpu in tree.numbered(CPU, "cpu") if tree.number(f"{CPU}/cpu{cpu}/online") != 0]
    if present:
        return tuple(present)
    return tuple(read_cpuinfo(tree))


def _read_nodes(tree: Tree, online: tuple[int, ...], warnings: list[str]) -> tuple[Node, ...]:
    present = tree.numbered(NODE, "node")
    listed = tree.ids(f"{NODE}/online")
    nodes = []
    for node_id in present:
        if listed and node_id not in listed:
            continue
        cpus = set(tree.ids(f"{NODE}/node{node_id}/cpulist", f"{NODE}/node{node_id}/cpumap") or ())
        total, free = _node_memory(tree.text(f"{NODE}/node{node_id}/meminfo") or "")
        distances = _distances(tree.text(f"{NODE}/node{node_id}/distance") or "")
        nodes.append(Node(node_id, tuple(cpu for cpu in online if cpu in cpus), total, free, distances))
    if any(len(node.distances) != len(nodes) for node in nodes):  # distances to nodes that are not visible here
        nodes = [replace(node, distances=()) for node in nodes]
    times_listed = Counter(cpu for node in nodes for cpu in node.cpus)
    if nodes and (homeless := set(online) - set(times_listed)):
        warnings.append(f"CPUs {format_cpulist(homeless)} lie in no NUMA node; the kernel places their memory")
    if twice := [cpu for cpu, times in times_listed.items() if times > 1]:
        warnings.append(f"CPUs {format_cpulist(twice)} are listed in more than one NUMA node")
    return tuple(nodes)


def _distances(text: str) -> tuple[int, ...]:
    words = text.split()
    return tuple(int(word) for word in words) if all(word.isdecimal() for word in words) else ()


def _node_memory(meminfo: str) -> tuple[int | None, int | None]:
    """Total bytes, and free or reclaimable bytes, by a node's meminfo, whose lines are `Node 0 MemTotal: 123 kB`."""
    kib: dict[str, int] = {}
    for line in meminfo.splitlines():
        words = line.split()
        if len(words) >= 4 and words[3].isdecimal():
            kib[words[2].rstrip(":")] = int(words[3])
    total, free = kib.get("MemTotal"), kib.get("MemFree")
    if free is not None:
        cache = kib.get("Active(file)", 0) + kib.get("Inactive(file)", 0)
        free += cache + kib.get("SReclaimable", 0)
    return None if total is None else total * 1024, None if free is None else free * 1024


def _allowed_cpus(tree: Tree, online: tuple[int, ...], limits: CgroupLimits, warnings: list[str]) -> tuple[int, ...]:
    # The scheduler's mask comes first, because cgroup files inside a container may be another group's.
    affinity = tuple(os.sched_getaffinity(0)) if tree.live else None
    allowed = set(online)
    for name, source in (
        ("the affinity mask", affinity),
        ("proc/self/status", _status_list(tree, "Cpus_allowed_list")),
        ("the cpuset", limits.cpus),
    ):
        if source is None:
            continue
        if allowed.isdisjoint(source):
            warnings.append(f"{name} allows CPUs {format_cpulist(source)}, none of {format_cpulist(allowed)}: ignored")
        else:
            allowed &= set(source)
    return tuple(sorted(allowed))


def _allowed_nodes(
    tree: Tree, nodes: tuple[Node, ...], limits: CgroupLimits, bound: tuple[int, ...] | None
) -> tuple[int, ...]:
    allowed = {node.id for node in nodes}
    for source in (limits.memory_nodes, _status_list(tree, "Mems_allowed_list"), bound):
        if source is not None and not allowed.isdisjoint(source):
            allowed &= set(source)
    return tuple(sorted(allowed))


def _memory_policy(tree: Tree) -> tuple[str, tuple[int, ...]]:
    """The memory policy this process inherited, e.g. ("bind", (1,)) inside `numactl -m 1`; ("default", ()) without one.

    It is read from the first mapping: `560eab789000 bind:1 file=…`; in `bind=static:1`, `static` is a flag.
    """
    try:
        # Read one line only: the kernel builds this file line by line.
        with open(tree.root / "proc/self/numa_maps") as maps:
            words = maps.readline().split()
        policy, _, nodes = words[1].partition(":")
        return policy.partition("=")[0], parse_cpulist(nodes)
    except (OSError, ValueError, IndexError):
        return "default", ()


def _first_flags(tree: Tree) -> set[str]:
    """The flags of the first CPU in proc/cpuinfo; empty on processors without that line."""
    return next((set(fields["flags"].split()) for fields in read_cpuinfo(tree).values() if "flags" in fields), set())


def _status_list(tree: Tree, key: str) -> tuple[int, ...] | None:
    for line in (tree.text("proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            try:
                return parse_cpulist(value) or None
            except ValueError:
                return None
    return None
