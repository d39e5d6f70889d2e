"""Chooses a process's memory policy and nodes: as near to its CPUs as the model fits, or as the user says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine, Node

# numactl's -m, -p, -i and -l; "none" leaves memory to the kernel.
MemoryPolicy = Literal["bind", "preferred", "interleave", "local", "none"]
MemoryFlag = Literal["bind", "preferred", "interleave", "local"]
MEMORY_ONLY = "hbm"


def parse_memory(text: str) -> tuple[MemoryFlag, str | None]:
    """Split the value of `--memory`, which is POLICY or POLICY:NODES.

    Raises:
        UsageError: the policy is unknown, or takes no nodes.
    """
    policy, colon, nodes = text.partition(":")
    for known in get_args(MemoryFlag):
        if policy == known:
            if known == "local" and colon:
                raise UsageError(f"--memory {text}: local takes no nodes; it is the node of whoever writes first.")
            if colon and not nodes:
                raise UsageError(f"--memory {text}: no nodes after the colon; write {policy}:0-1 or {policy}:hbm.")
            return known, nodes or None
    raise UsageError(
        f"--memory {text}: the policies are {', '.join(get_args(MemoryFlag))}; all but local take nodes, "
        "as in bind:0-1, or bind:hbm for the nearest nodes that are memory only."
    )


def choose_memory(
    cpus: Iterable[int],
    machine: Machine,
    warnings: list[str],
    notes: list[str],
    *,
    model_bytes: int | None = None,
    keep_interleaving: bool = True,
    first_touch: bool = False,
) -> tuple[MemoryPolicy, tuple[int, ...]]:
    """The policy and the nearest nodes that the model fits: those of `cpus`, of their sockets, or all allowed ones.

    May append to `warnings` and `notes`. keep_interleaving: keep the policy of a `numactl -i` around this process.
    first_touch: the program lets those threads write a page first that will read it. Then it is bound to several nodes,
    of which each page comes from the writer's; to interleave them would put every other page on the wrong one.
    """
    cpus = tuple(cpus)
    ordinary = _ordinary(machine)
    if not ordinary:
        return "none", ()
    if machine.interleaved and keep_interleaving:
        kept = format_cpulist(machine.interleaved)
        notes.append(f"memory stays interleaved over nodes {kept}, as the numactl outside has set it")
        return "interleave", machine.interleaved
    sockets = {core.socket for core in machine.cores_within(cpus)}
    socket_cpus = [cpu for core in machine.cores if core.socket in sockets for cpu in core.cpus]
    near, local = _nodes_among(ordinary, cpus), _nodes_among(ordinary, socket_cpus)
    _warn_if_remote(cpus, machine, ordinary, warnings)
    for nodes in (near, local):
        if nodes and _fits(model_bytes, nodes):
            return _policy(nodes, first_touch)
    if model_bytes is not None and near:
        free = sum(_free(node) for node in local or near)
        warnings.append(
            f"the model needs {model_bytes / 2**30:.1f} GiB and the nearest nodes have {free / 2**30:.1f} GiB "
            f"free: memory comes from nodes {format_cpulist(node.id for node in ordinary)}, part of it remote"
            if len(ordinary) > len(local)
            else f"the model needs {model_bytes / 2**30:.1f} GiB and only {free / 2**30:.1f} GiB are free"
        )
    return _policy(ordinary, first_touch)


def apply_memory_flag(
    policy: MemoryFlag,
    named: str | None,
    cpus: Iterable[int],
    machine: Machine,
    warnings: list[str],
    *,
    model_bytes: int | None = None,
) -> tuple[MemoryPolicy, tuple[int, ...]]:
    """The policy that the user chose, and its nodes.

    named: a list of nodes, or `hbm`. Without it `bind` and `preferred` take the nodes of `cpus`, `interleave` all
    allowed nodes that have CPUs.

    Raises:
        UsageError: there are no such nodes, or more than the policy takes.
    """
    cpus = tuple(cpus)
    ordinary = _ordinary(machine)
    if not ordinary:
        if named is not None:
            raise UsageError(f"--memory {policy}:{named}: this kernel shows no NUMA nodes; leave --memory out.")
        warnings.append(f"--memory {policy}: no effect, this kernel shows no NUMA nodes")
        return "none", ()
    near = _nodes_among(ordinary, cpus)
    if policy == "local":
        _warn_if_remote(cpus, machine, ordinary, warnings)
        chosen = near or ordinary
    elif named is not None:
        chosen = _named_nodes(policy, named, cpus, machine)
    elif policy == "interleave":
        chosen = ordinary
    else:
        _warn_if_remote(cpus, machine, ordinary, warnings)
        chosen = near or ordinary
    ids = tuple(node.id for node in chosen)
    if policy == "preferred" and len(ids) > 1:
        raise UsageError(
            f"--memory preferred takes one node, and CPUs {format_cpulist(cpus)} lie in nodes {format_cpulist(ids)}: "
            f"name one (--memory preferred:{ids[0]}), or use --memory interleave:{format_cpulist(ids)}."
        )
    if policy in ("bind", "interleave") and not _fits(model_bytes, chosen):
        free = sum(_free(node) for node in chosen)
        warnings.append(
            f"the model needs {(model_bytes or 0) / 2**30:.1f} GiB and nodes {format_cpulist(ids)}, to which --memory "
            f"{policy} restricts it, have {free / 2**30:.1f} GiB free"
        )
    return policy, () if policy == "local" else ids


def _named_nodes(policy: str, named: str, cpus: tuple[int, ...], machine: Machine) -> list[Node]:
    usable = [node for node in machine.nodes if node.id in machine.allowed_nodes and node.has_memory]
    if named == MEMORY_ONLY:
        return _nearest_memory_only(policy, cpus, machine, usable)
    try:
        ids = parse_cpulist(named)
    except ValueError as error:
        raise UsageError(f"--memory {policy}:{named}: {error}. Write a list of nodes such as 0-1, or hbm.") from None
    if missing := set(ids) - {node.id for node in usable}:
        raise UsageError(
            f"--memory {policy}:{named}: no memory of node {format_cpulist(missing)} may be used here; "
            f"nodes that have some: {format_cpulist(node.id for node in usable)}."
        )
    return [node for node in usable if node.id in ids]


def _nearest_memory_only(policy: str, cpus: tuple[int, ...], machine: Machine, usable: list[Node]) -> list[Node]:
    """The memory-only nodes nearest to each node of `cpus`; all of them where distances are unknown."""
    candidates = [node for node in usable if not node.cpus]
    if not candidates:
        raise UsageError(
            f"--memory {policy}:hbm: no memory-only node may be used here; "
            f"nodes with CPUs: {format_cpulist(node.id for node in usable)}."
        )
    position = {node.id: index for index, node in enumerate(machine.nodes)}
    chosen: set[int] = set()
    for home in _nodes_among([node for node in machine.nodes if node.cpus], cpus):
        distance = {node.id: home.distances[position[node.id]] if home.distances else 0 for node in candidates}
        chosen.update(node_id for node_id in distance if distance[node_id] == min(distance.values()))
    return [node for node in candidates if node.id in chosen] or candidates


def _ordinary(machine: Machine) -> list[Node]:
    """The allowed nodes with CPUs. HBM and CXL nodes, which have none, are small or slow: the user must choose them."""
    usable = [node for node in machine.nodes if node.id in machine.allowed_nodes and node.has_memory]
    return [node for node in usable if node.cpus] or usable


def _warn_if_remote(cpus: tuple[int, ...], machine: Machine, ordinary: list[Node], warnings: list[str]) -> None:
    """Warn where the nodes of some or all CPUs have no memory, or none that may be used."""
    homes = _nodes_among(list(machine.nodes), cpus)
    without = [node for node in homes if node not in ordinary]
    if not without:
        return
    usable = format_cpulist(node.id for node in ordinary)
    if len(without) == len(homes):
        warnings.append(
            f"no memory of the nodes of CPUs {format_cpulist(cpus)} may be used, only nodes {usable}: every access is "
            "remote"
        )
        return
    far = set(cpus) & {cpu for node in without for cpu in node.cpus}
    warnings.append(
        f"{len(far)} of the {len(cpus)} threads (CPUs {format_cpulist(far)}) are on node"
        f"{'s' * (len(without) > 1)} {format_cpulist(node.id for node in without)}, of which no memory may be used: "
        f"they read that of nodes {usable}, and all others wait for them"
    )


def _nodes_among(nodes: list[Node], cpus: Iterable[int]) -> list[Node]:
    wanted = set(cpus)
    return [node for node in nodes if not wanted.isdisjoint(node.cpus)]


def _policy(nodes: list[Node], first_touch: bool) -> tuple[MemoryPolicy, tuple[int, ...]]:
    return "bind" if len(nodes) == 1 or first_touch else "interleave", tuple(node.id for node in nodes)


def _fits(size: int | None, nodes: list[Node]) -> bool:
    return size is None or size <= sum(_free(node) for node in nodes)


def _free(node: Node) -> int:
    """The free bytes of a node; all of its memory where a recorded machine does not say what is free."""
    return node.free_bytes if node.free_bytes is not None else node.memory_bytes or 0
