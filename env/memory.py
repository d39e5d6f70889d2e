"""Reads how much memory the machine has, and how much of it this process can still get."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.env.cgroup import read_cgroup_limits
from ipex_assist.env.tree import Tree


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes of memory. `available`: without swapping. Both figures respect the control group's limit."""

    total: int
    available: int


def read_memory(root: str | Path = "/") -> MemoryInfo:
    """Read the memory of this machine by psutil, or of a recorded one by proc/meminfo; 0 where unknown."""
    tree = Tree(root)
    if tree.live:
        import psutil

        state = psutil.virtual_memory()
        total, available = int(state.total), int(state.available)
    else:
        total, available = _meminfo(tree)
    limits = read_cgroup_limits(tree)
    if limits.memory_limit is not None:
        total = min(total or limits.memory_limit, limits.memory_limit)
    if limits.memory_available is not None:
        available = min(available or limits.memory_available, limits.memory_available)
    return MemoryInfo(total, available)


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
