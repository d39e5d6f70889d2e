"""Reads the NUMA nodes: how much memory each has, and of which this process may take some."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ipex_assist.env.cgroup import CgroupLimits, read_cgroup_limits
from ipex_assist.env.cpulist import parse_cpulist
from ipex_assist.env.machine import Node
from ipex_assist.env.tree import Tree

NODE = "sys/devices/system/node"
_LINE = 256  # bytes that hold the first words of a line


def read_nodes(tree: Tree, online: tuple[int, ...]) -> tuple[Node, ...]:
    """The nodes that are online, each with those of its CPUs that are in `online`."""
    listed = tree.ids(f"{NODE}/online")
    nodes = []
    for node_id in tree.numbered(NODE, "node"):
        if listed and node_id not in listed:
            continue
        cpus = set(tree.ids(f"{NODE}/node{node_id}/cpulist", f"{NODE}/node{node_id}/cpumap") or ())
        total, free = _node_memory(tree.text(f"{NODE}/node{node_id}/meminfo") or "")
        distances = _distances(tree.text(f"{NODE}/node{node_id}/distance") or "")
        nodes.append(Node(node_id, tuple(cpu for cpu in online if cpu in cpus), total, free, distances))
    if any(len(node.distances) != len(nodes) for node in nodes):  # distances to nodes that are not visible here
        nodes = [replace(node, distances=()) for node in nodes]
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


def usable_nodes(root: str | Path = "/") -> tuple[int, ...]:
    """The nodes whose memory this process may take, by its policy and its cpuset; empty on a kernel without NUMA."""
    tree = Tree(root)
    return usable_among(tree, read_nodes(tree, ()), read_cgroup_limits(tree))


def usable_among(tree: Tree, nodes: Iterable[Node], limits: CgroupLimits) -> tuple[int, ...]:
    """The ids of those of `nodes` whose memory the process of `tree` may take."""
    policy, bound = memory_policy(tree)
    allowed = {node.id for node in nodes}
    for source in (limits.memory_nodes, status_list(tree, "Mems_allowed_list"), bound if policy == "bind" else ()):
        if source and not allowed.isdisjoint(source):
            allowed &= set(source)
    return tuple(sorted(allowed))


def memory_policy(tree: Tree) -> tuple[str, tuple[int, ...]]:
    """The memory policy this process inherited, e.g. ("bind", (1,)) inside `numactl -m 1`; ("default", ()) without one.

    It is read from the first mapping: `560eab789000 bind:1 file=…`; in `bind=static:1`, `static` is a flag.
    """
    try:
        # The kernel counts the pages of each mapping that it writes a line of: ask for no more than the first.
        with open(tree.root / "proc/self/numa_maps", "rb", buffering=0) as maps:
            words = maps.read(_LINE).partition(b"\n")[0].decode().split()
        policy, _, nodes = words[1].partition(":")
        return policy.partition("=")[0], parse_cpulist(nodes)
    except (OSError, ValueError, IndexError):
        return "default", ()


def status_list(tree: Tree, key: str) -> tuple[int, ...] | None:
    """A list of proc/self/status; None where it has none."""
    for line in (tree.text("proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            try:
                return parse_cpulist(value) or None
            except ValueError:
                return None
    return None
