"""Reads how much memory the machine has, and how much of it this process can still get."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.env.cgroup import CgroupLimits, read_cgroup_limits
from ipex_assist.env.nodes import read_nodes, usable_among
from ipex_assist.env.tree import Tree

HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"  # `always [madvise] never`


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes of memory. `available`: without swapping. Both respect the control group's limit and the allowed nodes."""

    total: int
    available: int


def read_memory(root: str | Path = "/", *, nodes: Collection[int] | None = None) -> MemoryInfo:
    """Read the memory of this machine by psutil, or of a recorded one by proc/meminfo; 0 where unknown.

    It is the least of what the machine, the control groups, and the nodes have of which this process may take memory:
    where it is bound to one, the kernel kills it when that is full, whatever is free elsewhere. nodes: no others; for
    a process that will be bound to them.
    """
    tree = Tree(root)
    if tree.live:
        import psutil

        state = psutil.virtual_memory()
        machine = int(state.total), int(state.available)
    else:
        machine = _meminfo(tree)
    limits = read_cgroup_limits(tree)
    figures = (machine, (limits.memory_limit, limits.memory_available), _of_nodes(tree, limits, nodes))
    known = [(total, available) for total, available in figures if total and available is not None]
    return MemoryInfo(
        min((total for total, _ in known), default=0), min((available for _, available in known), default=0)
    )


def _of_nodes(tree: Tree, limits: CgroupLimits, wanted: Collection[int] | None) -> tuple[int | None, int | None]:
    """Total and free bytes of the nodes that may be used; None where these are all, of which the machine tells more."""
    nodes = read_nodes(tree, ())
    usable = set(usable_among(tree, nodes, limits))
    if wanted and not usable.isdisjoint(wanted):
        usable &= set(wanted)
    chosen = [node for node in nodes if node.id in usable]
    others = [node for node in nodes if node.id not in usable and node.has_memory]
    if not others or any(node.memory_bytes is None or node.free_bytes is None for node in chosen):
        return None, None
    return sum(node.memory_bytes or 0 for node in chosen), sum(node.free_bytes or 0 for node in chosen)


def huge_pages(tree: Tree) -> str | None:
    """Who gets transparent huge pages: "always", "madvise" or "never"; None where the kernel has none."""
    chosen = re.search(r"\[(\w+)\]", tree.text(HUGE_PAGES) or "")
    return chosen[1] if chosen else None


def gib(size: int, digits: int = 1) -> str:
    """A number of bytes in GiB (2^30 bytes), as text."""
    return f"{size / (1 << 30):.{digits}f} GiB"


def resident_bytes(*, own: bool = False, process: int | None = None) -> int:
    """Resident memory of a process in bytes, None: of this one; 0 where the kernel does not say.

    own: without pages of files.
    """
    try:
        statm = Path(f"/proc/{process or 'self'}/statm")
        _, resident, shared, *_ = map(int, statm.read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared * own) * os.sysconf("SC_PAGE_SIZE")


def _meminfo(tree: Tree) -> tuple[int, int]:
    kib: dict[str, int] = {}
    for line in (tree.text("proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        number = value.split()[0] if value.split() else ""
        if number.isdecimal():
            kib[key] = int(number)
    return kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", kib.get("MemFree", 0)) * 1024


def release_free_memory() -> None:
    """Give freed memory that the allocator holds back to the system: after loading, up to the largest tensor's size."""
    process = ctypes.CDLL(None)
    # The functions of tcmalloc and glibc; an allocator that is not loaded is not found.
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        if hasattr(process, name):
            getattr(process, name)(*arguments)
