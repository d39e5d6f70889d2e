"""Reads the control group limits of this process: CPUs, memory nodes, CPU time and memory (cgroup v1 and v2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ipex_assist.env.tree import Tree

# cgroup v1 writes "no limit" as the largest page-aligned number.
UNLIMITED = 1 << 60
_Mount = tuple[str, str, str, str]  # type, options, mount point and root of a hierarchy


@dataclass(frozen=True)
class CgroupLimits:
    """Limits in force; None means that the control groups set none.

    `cpu_quota` is in CPUs (1.5 is one and a half), the memory figures in bytes. `memory_available` is the tightest
    headroom on the way to the root: limit minus usage, where page cache that can be dropped does not count as used.
    """

    cpus: tuple[int, ...] | None = None
    memory_nodes: tuple[int, ...] | None = None
    cpu_quota: float | None = None
    memory_limit: int | None = None
    memory_available: int | None = None


def read_cgroup_limits(tree: Tree) -> CgroupLimits:
    """Read the limits of the process that `tree`'s proc/self describes."""
    mounted = list(_cgroup_mounts(tree))
    cpuset = list(_folders(tree, "cpuset", mounted))
    quotas = [quota for folder in _folders(tree, "cpu", mounted) if (quota := _quota(tree, folder)) is not None]
    memory = [found for folder in _folders(tree, "memory", mounted) if (found := _memory(tree, folder)) is not None]
    return CgroupLimits(
        cpus=_nearest(tree, cpuset, ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")),
        memory_nodes=_nearest(tree, cpuset, ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems")),
        cpu_quota=min(quotas, default=None),
        memory_limit=min((limit for limit, _ in memory), default=None),
        memory_available=min((available for _, available in memory), default=None),
    )


def _nearest(tree: Tree, folders: list[str], names: tuple[str, ...]) -> tuple[int, ...] | None:
    """The set of the innermost group that states one. An effective set already respects its parents' sets."""
    for folder in folders:
        for name in names:
            ids = tree.ids(f"{folder}/{name}")
            if ids:
                return ids
    return None


def _quota(tree: Tree, folder: str) -> float | None:
    text = tree.text(f"{folder}/cpu.max")
    if text:
        quota, _, period = text.partition(" ")
        if quota == "max" or not quota.isdecimal():
            return None
        return int(quota) / int(period or 100_000)
    quota_us, period_us = tree.number(f"{folder}/cpu.cfs_quota_us"), tree.number(f"{folder}/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _memory(tree: Tree, folder: str) -> tuple[int, int] | None:
    """One group's limit and the bytes left of it; None without a limit."""
    limit = tree.number(f"{folder}/memory.max")
    if limit is None:
        limit = tree.number(f"{folder}/memory.limit_in_bytes")
    if limit is None or limit >= UNLIMITED:
        return None
    used = tree.number(f"{folder}/memory.current")
    if used is None:
        used = tree.number(f"{folder}/memory.usage_in_bytes") or 0
    stat = dict(line.split() for line in (tree.text(f"{folder}/memory.stat") or "").splitlines() if " " in line)
    droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return limit, max(0, limit - max(0, used - droppable))


def _folders(tree: Tree, controller: str, mounted: list[_Mount]) -> Iterator[str]:
    """The folders of this process's groups for one controller, innermost first, v1's before v2's."""
    for groups_of, mounts in ((controller, _mounts(tree, controller, mounted)), ("", _mounts(tree, "", mounted))):
        path = _group_path(tree, groups_of)
        if path is None:
            continue
        for mount, mount_root in mounts:
            if not tree.exists(mount):
                continue
            inside = _below(path, mount_root)
            while inside:
                if tree.exists(f"{mount}/{inside}"):
                    yield f"{mount}/{inside}"
                inside = inside.rpartition("/")[0]
            yield mount
            break


def _group_path(tree: Tree, controller: str) -> str | None:
    """The group of this process in the hierarchy of `controller`; the empty name is v2's only hierarchy."""
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return path
    return None


def _below(path: str, mount_root: str) -> str:
    """`path` relative to a mount whose root is `mount_root`, without slashes at the ends.

    In a container the mount's root is often the container's own group (`/docker/…`), or the path starts with `/..`
    because it was read in another cgroup namespace. Then the mount itself is the group.
    """
    parts = path.strip("/").split("/")
    if ".." in parts:
        return ""
    top = mount_root.strip("/")
    if not top:
        return "/".join(parts)
    inside = "/".join(parts)
    return inside[len(top) :].strip("/") if inside == top or inside.startswith(top + "/") else ""


def _mounts(tree: Tree, controller: str, mounted: list[_Mount]) -> list[tuple[str, str]]:
    """(mount point without the leading slash, root of the mount in its hierarchy), the default locations last."""
    found = []
    for kind, options, point, top in mounted:
        if (kind == "cgroup2") if not controller else (kind == "cgroup" and controller in options.split(",")):
            found.append((point.strip("/"), top))
    if controller:
        usual = [f"sys/fs/cgroup/{controller}"] + (["sys/fs/cgroup/cpu,cpuacct"] if controller == "cpu" else [])
    else:
        usual = ["sys/fs/cgroup"] if tree.exists("sys/fs/cgroup/cgroup.controllers") else ["sys/fs/cgroup/unified"]
    return found + [(point, "/") for point in usual]


def _cgroup_mounts(tree: Tree) -> Iterator[_Mount]:
    """(type, options, mount point, root) of every mounted cgroup hierarchy."""
    mountinfo = tree.text("proc/self/mountinfo")
    if mountinfo is not None:
        for line in mountinfo.splitlines():
            left, dash, right = line.partition(" - ")
            if dash and right.startswith("cgroup"):
                fields, kind = left.split(), right.split()
                yield kind[0], kind[-1], _unescape(fields[4]), _unescape(fields[3])
        return
    for line in (tree.text("proc/self/mounts") or tree.text("proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2].startswith("cgroup"):
            yield fields[2], fields[3], _unescape(fields[1]), "/"


def _unescape(path: str) -> str:
    """Undo the octal escapes that mountinfo writes for blanks in paths."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
