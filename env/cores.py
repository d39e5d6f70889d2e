"""Finds which CPUs make up a core and a socket, and which cores are E-cores.

Core ids and package ids are never counted: they repeat (for each die or package), have gaps, and are -1 on some
machines. Cores and sockets are found by the sets of siblings that each CPU's files name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace

from ipex_assist.env.machine import Core
from ipex_assist.env.tree import Tree

CPU = "sys/devices/system/cpu"


def read_cores(tree: Tree, online: tuple[int, ...], warnings: list[str]) -> tuple[Core, ...]:
    """Return the cores of the CPUs in `online`, in the order of their first CPUs; may append to `warnings`."""

    def siblings(cpu: int) -> Collection[int]:
        topology = f"{CPU}/cpu{cpu}/topology"
        names = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
        return tree.ids(*(f"{topology}/{name}" for name in names)) or ()

    def neighbours(cpu: int) -> Collection[int]:
        topology = f"{CPU}/cpu{cpu}/topology"
        names = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
        return tree.ids(*(f"{topology}/{name}" for name in names)) or same_package(cpu)

    def same_package(cpu: int) -> Collection[int]:
        # Sandboxes may show ids without sets; where there is no id either, all CPUs are one socket.
        return [other for other in online if package_ids()[other] == package_ids()[cpu]]

    @functools.cache
    def package_ids() -> dict[int, int | None]:
        return {cpu: tree.number(f"{CPU}/cpu{cpu}/topology/physical_package_id") for cpu in online}

    if not any(tree.exists(f"{CPU}/cpu{cpu}/topology") for cpu in online[:1] + online[-1:]):
        return _cores_by_cpuinfo(tree, online, warnings)
    groups = _group(online, siblings)
    packages = _merge_split_packages(tree, _group(online, neighbours))
    if len(packages) >= len(groups) and set(package_ids().values()) == {-1}:
        # Where the kernel knows no packages it writes id -1, and every CPU as a package of its own.
        packages = [online]
    socket_of = {cpu: index for index, package in enumerate(packages) for cpu in package}
    cores = [Core(cpus, socket_of[cpus[0]]) for cpus in groups]
    slow = _efficiency_cpus(tree, cores) if len(packages) == 1 else frozenset()
    return tuple(replace(core, efficiency=core.cpus[0] in slow) for core in cores)


def _cores_by_cpuinfo(tree: Tree, online: tuple[int, ...], warnings: list[str]) -> tuple[Core, ...]:
    """Cores without topology files (some kernels and sandboxes): sockets by `physical id`, siblings by `core id`.

    A package with as many siblings as cores has no SMT, whatever its core ids are.
    """
    processors = read_cpuinfo(tree)
    if not all("physical id" in processors.get(cpu, {}) for cpu in online):
        warnings.append(
            f"no {CPU}/cpu*/topology, and no physical id in proc/cpuinfo: every CPU is taken for a core of its own, "
            "all of them for one socket"
        )
        return tuple(Core((cpu,), socket=0) for cpu in online)

    def core_of(cpu: int) -> tuple[str, str]:
        fields = processors[cpu]
        threaded = "core id" in fields and fields.get("siblings") != fields.get("cpu cores")
        return fields["physical id"], fields["core id"] if threaded else f"cpu {cpu}"

    sockets = list(dict.fromkeys(processors[cpu]["physical id"] for cpu in online))
    cores: dict[tuple[str, str], list[int]] = {}
    for cpu in online:
        cores.setdefault(core_of(cpu), []).append(cpu)
    return tuple(Core(tuple(cpus), sockets.index(package)) for (package, _), cpus in cores.items())


def cpuinfo_fields(paragraph: str) -> dict[str, str]:
    """The fields of one CPU in proc/cpuinfo."""
    lines = (line.partition(":") for line in paragraph.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def read_cpuinfo(tree: Tree) -> dict[int, dict[str, str]]:
    """The fields of proc/cpuinfo by CPU number. (Only x86 has many of them.)"""
    processors: dict[int, dict[str, str]] = {}
    for paragraph in (tree.text("proc/cpuinfo") or "").split("\n\n"):
        fields = cpuinfo_fields(paragraph)
        if fields.get("processor", "").isdecimal():
            processors[int(fields["processor"])] = fields
    return processors


def _group(cpus: tuple[int, ...], named_by: Callable[[int], Collection[int]]) -> list[tuple[int, ...]]:
    """Split `cpus` into groups, in the order of their first CPUs: a CPU joins the group of the lowest CPU it names.

    The files of a group's CPUs should agree; where they do not, this rule still gives a partition. Offline CPUs that
    are still named are ignored.
    """
    online = set(cpus)
    leader: dict[int, int] = {}
    for cpu in cpus:
        if cpu in leader:
            continue
        named = (set(named_by(cpu)) & online) | {cpu}
        first = leader.get(min(named), cpu)
        for other in named:
            leader.setdefault(other, first)
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(leader[cpu], []).append(cpu)
    return [tuple(groups[first]) for first in sorted(groups)]


def _merge_split_packages(tree: Tree, packages: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Join the halves of a package that old kernels list separately because they are different NUMA nodes.

    Kernels 3.x split core_siblings by node on cluster-on-die Xeons. Two halves are one package if they have the same
    package id and no core id in common; where package ids merely repeat (a set for each board), so do the core ids.
    """

    def identity(package: tuple[int, ...]) -> tuple[int | None, frozenset[int | None]]:
        core_ids = frozenset(tree.number(f"{CPU}/cpu{cpu}/topology/core_id") for cpu in package)
        return tree.number(f"{CPU}/cpu{package[0]}/topology/physical_package_id"), core_ids

    if len(packages) < 2 or tree.exists(f"{CPU}/cpu{packages[0][0]}/topology/package_cpus"):
        return packages
    merged: list[tuple[tuple[int, ...], int | None, frozenset[int | None]]] = []
    for package in packages:
        package_id, core_ids = identity(package)
        for index, (cpus, known_id, known_cores) in enumerate(merged):
            if package_id is not None and package_id >= 0 and package_id == known_id and not core_ids & known_cores:
                merged[index] = (tuple(sorted(cpus + package)), known_id, known_cores | core_ids)
                break
        else:
            merged.append((package, package_id, core_ids))
    return [cpus for cpus, _, _ in merged]


def _efficiency_cpus(tree: Tree, cores: list[Core]) -> frozenset[int]:
    """The CPUs of E-cores on a hybrid processor; empty elsewhere."""
    online = {cpu for core in cores for cpu in core.cpus}
    declared: set[int] = set()
    for unit in ("cpu_atom", "cpu_lowpower"):
        declared.update(tree.ids(f"sys/devices/{unit}/cpus") or ())
    if not declared & online:
        declared = _low_capacity_cpus(tree, online) or _clustered_cpus(tree, cores)
    slow = declared & online
    return frozenset() if slow == online else frozenset(slow)


def _low_capacity_cpus(tree: Tree, online: set[int]) -> set[int]:
    """CPUs whose capacity the kernel rates below 80 % of the fastest; favoured cores of one type differ by less."""
    if not tree.exists(f"{CPU}/cpu{min(online)}/cpu_capacity"):
        return set()
    capacity = {cpu: tree.number(f"{CPU}/cpu{cpu}/cpu_capacity") or 1024 for cpu in online}
    return {cpu for cpu in online if capacity[cpu] < 0.8 * max(capacity.values())}


def _clustered_cpus(tree: Tree, cores: list[Core]) -> set[int]:
    """E-cores where the kernel does not name them: cores without SMT whose L2 cache several cores share.

    They count as E-cores only if there are also cores with an L2 of their own that have SMT or clock 15 % higher.
    """
    private: list[Core] = []
    clustered: list[Core] = []
    for core in cores:
        shared = _shares_cache_with(tree, core.cpus[0], 2)
        if not shared:
            return set()
        (private if set(shared) <= set(core.cpus) else clustered).append(core)
    single = [core for core in clustered if len(core.cpus) == 1]
    if not private or not single:
        return set()

    def clock(core: Core) -> int:
        return tree.number(f"{CPU}/cpu{core.cpus[0]}/cpufreq/cpuinfo_max_freq") or 0

    if any(len(core.cpus) > 1 for core in private) or max(map(clock, private)) > 1.15 * max(map(clock, single)) > 0:
        return {core.cpus[0] for core in single}
    return set()


def read_l3(tree: Tree, online: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The sets of CPUs in `online` that share an L3 cache, in the order of their first CPUs."""
    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for cpu in online:
        if cpu not in seen and (shared := set(_shares_cache_with(tree, cpu, 3)) & set(online) - seen):
            groups.append(tuple(sorted(shared | {cpu})))
            seen.update(groups[-1])
    return tuple(groups)


def _shares_cache_with(tree: Tree, cpu: int, level: int) -> tuple[int, ...]:
    # On x86 the indices are L1 data, L1 instructions, L2 and L3 in this order; the level is checked nevertheless.
    for index in (level, *(other for other in (1, 2, 3) if other != level)):
        cache = f"{CPU}/cpu{cpu}/cache/index{index}"
        if tree.number(f"{cache}/level") == level:
            return tree.ids(f"{cache}/shared_cpu_list", f"{cache}/shared_cpu_map") or ()
    return ()
