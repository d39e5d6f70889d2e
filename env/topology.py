"""Reads the machine from sysfs and procfs: cores, NUMA nodes, and which of them this process may use."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from ipex_assist.env.cgroup import CgroupLimits, read_cgroup_limits
from ipex_assist.env.cores import CPU, read_cores, read_cpuinfo, read_l3
from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine, Node
from ipex_assist.env.nodes import memory_policy, read_nodes, status_list, usable_among
from ipex_assist.env.tree import Tree


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
    nodes = read_nodes(tree, online)
    _check_nodes(nodes, online, warnings)
    allowed = _allowed_cpus(tree, online, limits, warnings)
    policy, policy_nodes = memory_policy(tree)
    memory_nodes = usable_among(tree, nodes, limits)
    interleaved = tuple(node for node in policy_nodes if node in memory_nodes) if policy == "interleave" else ()
    return Machine(
        cores,
        nodes,
        allowed,
        memory_nodes,
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


def _check_nodes(nodes: tuple[Node, ...], online: tuple[int, ...], warnings: list[str]) -> None:
    times_listed = Counter(cpu for node in nodes for cpu in node.cpus)
    if nodes and (homeless := set(online) - set(times_listed)):
        warnings.append(f"CPUs {format_cpulist(homeless)} lie in no NUMA node; the kernel places their memory")
    if twice := [cpu for cpu, times in times_listed.items() if times > 1]:
        warnings.append(f"CPUs {format_cpulist(twice)} are listed in more than one NUMA node")


def _allowed_cpus(tree: Tree, online: tuple[int, ...], limits: CgroupLimits, warnings: list[str]) -> tuple[int, ...]:
    # The scheduler's mask comes first, because cgroup files inside a container may be another group's.
    affinity = tuple(os.sched_getaffinity(0)) if tree.live else None
    allowed = set(online)
    for name, source in (
        ("the affinity mask", affinity),
        ("proc/self/status", status_list(tree, "Cpus_allowed_list")),
        ("the cpuset", limits.cpus),
    ):
        if source is None:
            continue
        if allowed.isdisjoint(source):
            warnings.append(f"{name} allows CPUs {format_cpulist(source)}, none of {format_cpulist(allowed)}: ignored")
        else:
            allowed &= set(source)
    return tuple(sorted(allowed))


def _first_flags(tree: Tree) -> set[str]:
    """The flags of the first CPU in proc/cpuinfo; empty on processors without that line."""
    return next((set(fields["flags"].split()) for fields in read_cpuinfo(tree).values() if "flags" in fields), set())
