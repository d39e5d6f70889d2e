"""Several instances on invented machines: disjoint, covering, allowed, whole cores, within nodes; and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import GIB, PLAIN, XEON, Cgroup, MachineSpec, machine

from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Core, Machine
from ipex_assist.launch.instances import InstanceRequest, latency_request, place_instances, throughput_request
from ipex_assist.launch.memory import parse_memory
from ipex_assist.launch.placement import Placement, PlacementRequest, place

pytestmark = pytest.mark.one_stack


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Uneven ones: any numbering, SMT, sub-NUMA nodes, HBM nodes, E-cores, offline CPUs, cpusets, quotas, no NUMA."""
    nodes = draw(st.sampled_from([1, 2, 3]))
    cores = draw(st.integers(nodes, 7))
    threads = draw(st.integers(1, 2))
    sockets = draw(st.integers(1, 3))
    offline = draw(st.sets(st.integers(1, max(1, sockets * cores * threads - 1)), max_size=3))
    spec = MachineSpec(
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        numbering=draw(st.sampled_from(["split", "adjacent", "alternate"])),
        nodes_per_socket=nodes,
        hbm_nodes=draw(st.sampled_from([0, 0, 2])),
        numa=draw(st.booleans()),
        offline=frozenset(offline),
        e_cores=draw(st.integers(1, cores - 1)) if sockets == 1 and cores > 1 and draw(st.booleans()) else 0,
    )
    found = machine(spec)
    groups = draw(st.sampled_from([found.by_node(found.cores), found.by_socket(found.cores), []]))
    allowed = draw(st.sets(st.sampled_from(found.cpus), min_size=1) | st.just(set(found.cpus)))
    return replace(
        found,
        allowed=tuple(sorted(allowed)),
        cpu_quota=draw(st.none() | st.none() | st.floats(0.1, 20)),
        l3=tuple(tuple(sorted(cpu for core in group for cpu in core.cpus)) for group in groups),
    )


UNITS = st.sampled_from(["per-node", "per-socket", "per-l3"])
REQUESTS = st.builds(
    InstanceRequest,
    instances=st.none() | st.integers(1, 9) | UNITS,
    cores_per_instance=st.none() | st.integers(1, 6),
    smt=st.booleans(),
    e_cores=st.booleans(),
    memory=st.none() | st.sampled_from(["bind", "interleave", "local"]),
)


def cores_used(placement: Placement, where: Machine) -> list[Core]:
    return [core for core in where.cores if set(core.cpus) & set(placement.cpus)]


@settings(max_examples=300, deadline=None)
@given(machines(), REQUESTS)
def test_instances_never_meet(where: Machine, request: InstanceRequest) -> None:
    """Catches a core given twice or cut in two, a CPU outside the cpuset, an unwanted sibling, forbidden memory."""
    try:
        placements = place_instances(request, where)
    except UsageError as error:
        assert any(character.isdigit() for character in str(error)), error  # noqa: PT017 - refusals have numbers
        return
    assert [placement.index for placement in placements] == list(range(len(placements)))
    assert {placement.count for placement in placements} == {len(placements)}
    owners: dict[Core, int] = {}
    for placement in placements:
        assert placement.threads == len(placement.cpus) >= 1
        assert set(placement.cpus) <= set(where.allowed)
        for core in cores_used(placement, where):
            assert owners.setdefault(core, placement.index) == placement.index, "two instances share a core"
            if not request.smt:
                assert len(set(core.cpus) & set(placement.cpus)) == 1
        assert set(placement.nodes) <= set(where.allowed_nodes)


@settings(max_examples=300, deadline=None)
@given(machines(), REQUESTS)
def test_instances_cover_what_was_asked(where: Machine, request: InstanceRequest) -> None:
    """Catches a wrong number or size, cores left idle without a word, and a quota that nobody mentions."""
    try:
        placements = place_instances(request, where)
    except UsageError:
        return
    pool = [core for core in where.allowed_cores() if request.e_cores or not core.efficiency]
    pool = pool or list(where.allowed_cores())
    sizes = [len(cores_used(placement, where)) for placement in placements]
    said = " ".join(line for placement in placements for line in (*placement.warnings, *placement.notes))
    if isinstance(request.instances, int):
        assert len(placements) == request.instances
    elif request.instances == "per-node":
        assert len(placements) == len(where.by_node(pool))
    elif request.instances == "per-socket":
        assert len(placements) == len(where.by_socket(pool))
    if request.cores_per_instance is not None:
        assert set(sizes) == {request.cores_per_instance}
    several = request.instances not in (None, 1) or request.cores_per_instance is not None
    if several and sum(sizes) < len(pool):
        without_l3 = request.instances == "per-l3" and len(where.by_l3(pool)) < len(pool)
        assert "stay idle" in said or "quota" in said or without_l3
    total = sum(placement.threads for placement in placements)
    if where.cpu_quota is not None and several and total > max(where.cpu_quota, len(placements)):
        assert request.cores_per_instance is not None
        assert "will be stopped" in said


@settings(max_examples=300, deadline=None)
@given(machines(), REQUESTS)
def test_instances_stay_where_memory_is_near(where: Machine, request: InstanceRequest) -> None:
    """Catches an instance across sockets or nodes that nothing in the request explains."""
    try:
        placements = place_instances(request, where)
    except UsageError:
        return
    if request.instances in (None, 1) and request.cores_per_instance is None:
        return  # one process takes a socket
    pool = [core for core in where.allowed_cores() if request.e_cores or not core.efficiency]
    pool = pool or list(where.allowed_cores())
    nodes = [node for socket in where.by_socket(pool) for node in where.by_node(socket)]
    largest = {"node": max(map(len, nodes)), "socket": max(map(len, where.by_socket(pool)))}
    for placement in placements:
        used = cores_used(placement, where)
        size = request.cores_per_instance or 0
        if size > largest["socket"] or request.instances in ("per-node", "per-l3"):
            continue
        assert len(where.by_socket(used)) == 1, "an instance crosses sockets"
        if size > largest["node"] or request.instances == "per-socket":
            continue
        crossed = len(where.by_node(used))
        if crossed > 1:  # fewer instances than nodes in this socket: each has nodes of its own
            assert size == 0
            mine = {node for node in range(len(nodes)) if set(used) & set(whole(nodes[node], where))}
            for other in placements:
                if other is not placement:
                    theirs = cores_used(other, where)
                    assert not any(set(theirs) & set(whole(nodes[node], where)) for node in mine)


def whole(cores: tuple[Core, ...], where: Machine) -> list[Core]:
    """The uncut cores that these are parts of."""
    cpus = {cpu for core in cores for cpu in core.cpus}
    return [core for core in where.cores if cpus & set(core.cpus)]


def cpus(request: InstanceRequest, where: Machine) -> list[tuple[int, ...]]:
    return [placement.cpus for placement in place_instances(request, where)]


def test_one_instance_is_one_process() -> None:
    """Catches a default of ipex-launch that differs from ipex-assist's."""
    assert place_instances(InstanceRequest(), XEON) == (place(PlacementRequest(), XEON),)
    assert place_instances(InstanceRequest(instances=1, socket=1), XEON) == (place(PlacementRequest(socket=1), XEON),)


def test_borders_are_cut_from_the_widest_to_the_narrowest() -> None:
    """Catches two instances squeezed into nodes of one socket, and four that cross nodes."""
    assert cpus(InstanceRequest(instances=2), XEON) == [tuple(range(8)), tuple(range(8, 16))]
    assert cpus(InstanceRequest(instances=3), XEON) == [(0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8, 16))]
    assert cpus(InstanceRequest(instances=4), XEON) == [tuple(range(n, n + 4)) for n in (0, 4, 8, 12)]
    assert cpus(InstanceRequest(instances=5), XEON)[:3] == [(0, 1), (2, 3), (4, 5, 6, 7)]


def test_an_odd_number_of_cores_is_used_whole() -> None:
    where = machine(MachineSpec(cores_per_socket=7))
    assert cpus(InstanceRequest(instances=2), where) == [(0, 1, 2), (3, 4, 5, 6)]


def test_uneven_nodes_get_instances_by_their_size() -> None:
    """Catches an equal number of instances on a node with 8 allowed cores and one with 2."""
    where = replace(PLAIN, allowed=(*range(8), 8, 9))
    assert cpus(InstanceRequest(instances=5), where) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert cpus(InstanceRequest(instances="per-node"), where) == [tuple(range(8)), (8, 9)]


def test_a_cpuset_without_cpu_0_and_half_cores() -> None:
    """Catches counting from 0, and two instances on the two halves of a core."""
    where = replace(PLAIN, allowed=(1, 2, 17, 18, 19))  # whole cores 1 and 2, and the sibling of core 3
    assert cpus(InstanceRequest(instances=3), where) == [(1,), (2,), (19,)]
    assert cpus(InstanceRequest(instances=3, smt=True), where) == [(1, 17), (2, 18), (19,)]
    with pytest.raises(UsageError, match=r"4 is more than the 3 physical cores .*CPUs 1-2,17-19"):
        place_instances(InstanceRequest(instances=4), where)


def test_smt_uses_every_sibling() -> None:
    """Catches siblings handed to the neighbour instance."""
    assert cpus(InstanceRequest(instances="per-node", smt=True), PLAIN)[0] == (*range(8), *range(16, 24))
    adjacent = machine(MachineSpec(cores_per_socket=4, threads_per_core=2, numbering="adjacent"))
    assert cpus(InstanceRequest(instances=2, smt=True), adjacent) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert place(PlacementRequest(smt=True), adjacent).threads == 8


def test_presets_are_ipexruns() -> None:
    assert cpus(latency_request(InstanceRequest()), PLAIN) == [tuple(range(n, n + 4)) for n in (0, 4, 8, 12)]
    assert cpus(throughput_request(InstanceRequest()), PLAIN) == [tuple(range(8)), tuple(range(8, 16))]


def test_instances_that_span_sockets_are_told() -> None:
    """--latency gives 4 cores each, and on sockets of two or three it crossed them without a word."""
    small = machine(MachineSpec(sockets=2, cores_per_socket=3))
    (one,) = place_instances(latency_request(InstanceRequest()), small)
    assert len(one.cpus) == 4
    assert any("1 of 1 instances span sockets" in line and "-per-instance 3" in line for line in one.warnings)
    for placement in place_instances(latency_request(InstanceRequest()), PLAIN):
        assert not placement.warnings


def test_cuts_fall_between_caches() -> None:
    """Catches an instance over two L3 caches where one has room: node of 3 + 5 cores, instances of 4."""
    where = replace(machine(MachineSpec(cores_per_socket=8)), l3=((0, 1, 2), (3, 4, 5, 6, 7)))
    assert cpus(InstanceRequest(instances=1, cores_per_instance=4), where) == [(3, 4, 5, 6)]
    assert cpus(InstanceRequest(instances="per-l3"), where) == [(0, 1, 2), (3, 4, 5, 6, 7)]


def test_few_instances_of_a_size_go_to_different_nodes() -> None:
    """Catches two instances of 2 cores on one node while the other socket's memory is idle."""
    assert cpus(InstanceRequest(instances=2, cores_per_instance=2), PLAIN) == [(0, 1), (8, 9)]


def test_an_instance_larger_than_a_node_takes_the_socket() -> None:
    placements = place_instances(InstanceRequest(cores_per_instance=6), XEON)
    assert [(p.cpus, p.memory, p.nodes) for p in placements] == [
        ((0, 1, 2, 3, 4, 5), "interleave", (0, 1)),
        ((8, 9, 10, 11, 12, 13), "interleave", (2, 3)),
    ]
    assert placements[0].notes == ("4 of 16 physical cores stay idle",)


def test_a_quota_gives_fewer_threads_and_says_so() -> None:
    where = machine(MachineSpec(sockets=2, cores_per_socket=4, cgroup=Cgroup(quota=5.5)))
    placements = place_instances(InstanceRequest(instances="per-node"), where)
    assert sorted(placement.threads for placement in placements) == [2, 3]
    assert "5.5 CPUs is below 8: 5 threads in 2 instances" in placements[0].warnings[0]
    assert len(place_instances(InstanceRequest(cores_per_instance=2), where)) == 2
    (warning,) = place_instances(InstanceRequest(instances=4, cores_per_instance=2), where)[0].warnings
    assert "8 threads get the time of 5.5 CPUs" in warning


def test_a_quota_costs_siblings_before_cores() -> None:
    """Catches two threads on two cores each, while four cores could run one thread each."""
    where = machine(MachineSpec(cores_per_socket=4, threads_per_core=2, cgroup=Cgroup(quota=4)))
    assert cpus(InstanceRequest(instances=2, smt=True), where) == [(0, 1), (2, 3)]
    assert place(PlacementRequest(smt=True), where).cpus == (0, 1, 2, 3)


def test_one_quota_for_more_instances_than_cpus() -> None:
    """Catches an endless search for a core to take away."""
    where = machine(MachineSpec(cores_per_socket=4, cgroup=Cgroup(quota=0.5)))
    assert [p.threads for p in place_instances(InstanceRequest(instances=3), where)] == [1, 1, 1]


def test_models_that_share_a_node_must_fit_together() -> None:
    """Catches two instances of 30 GiB bound to a node with 48 GiB free, which the OOM killer ends."""
    request = InstanceRequest(instances=4, model_bytes=30 * GIB)
    assert {p.memory for p in place_instances(request, PLAIN)} == {"interleave"}
    assert {p.memory for p in place_instances(replace(request, instances=2), PLAIN)} == {"bind"}


def test_socket_all_uses_both_sockets_with_local_memory() -> None:
    """Catches binding to one node, or interleaving, what both sockets' threads write for themselves."""
    placement = place(PlacementRequest(socket="all"), XEON)
    assert (placement.cpus, placement.memory, placement.nodes) == (tuple(range(16)), "local", ())
    assert "16 threads on CPUs 0-15, memory local to the thread that first writes it" in placement.describe()
    assert place(PlacementRequest(socket="all", memory="interleave"), PLAIN).nodes == (0, 1)
    assert place(PlacementRequest(socket="all"), replace(PLAIN, interleaved=(0, 1))).memory == "local"
    half = place(PlacementRequest(socket="all"), replace(PLAIN, allowed=(1, 9, 10)))
    assert half.cpus == (1, 9, 10)


HBM = machine(MachineSpec(sockets=2, cores_per_socket=2, hbm_nodes=2))
NEAR_HBM = replace(
    HBM,
    nodes=tuple(
        replace(node, distances=row)
        for node, row in zip(
            HBM.nodes, [(10, 21, 31, 13), (21, 10, 13, 31), (31, 13, 10, 41), (13, 31, 41, 10)], strict=True
        )
    ),
)


@pytest.mark.parametrize(
    ("flag", "where", "nodes"),
    [
        ("bind", HBM, [(0,), (1,)]),
        ("preferred", HBM, [(0,), (1,)]),
        ("interleave", HBM, [(0, 1), (0, 1)]),
        ("local", HBM, [(), ()]),
        ("bind:1", HBM, [(1,), (1,)]),
        ("interleave:0-3", HBM, [(0, 1, 2, 3)] * 2),
        ("bind:hbm", NEAR_HBM, [(3,), (2,)]),
        ("preferred:hbm", NEAR_HBM, [(3,), (2,)]),
        ("interleave:hbm", HBM, [(2, 3), (2, 3)]),  # distances unknown: all of them
    ],
)
def test_memory_goes_where_the_flag_says(flag: str, where: Machine, nodes: list[tuple[int, ...]]) -> None:
    policy, named = parse_memory(flag)
    request = InstanceRequest(instances="per-node", memory=policy, memory_nodes=named)
    placements = place_instances(request, where)
    assert [placement.nodes for placement in placements] == nodes
    assert {placement.memory for placement in placements} == {policy}


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (InstanceRequest(instances=0), ["--instances 0"]),
        (InstanceRequest(instances=17), ["--instances 17", "16 physical cores", "at most 16"]),
        (InstanceRequest(cores_per_instance=0), ["--cores-per-instance 0"]),
        (InstanceRequest(cores_per_instance=17), ["--cores-per-instance 17", "16 physical cores"]),
        (latency_request(InstanceRequest(cpus="0-1")), ["--latency gives each instance 4 cores", "-per-instance 2 or"]),
        (InstanceRequest(instances=5, cores_per_instance=4), ["4 of that size fit", "4, 4, 4, 4 by node", "ask for 4"]),
        (InstanceRequest(instances="per-node", cores_per_instance=5), ["4 of the 4", "the smallest 4"]),
        (InstanceRequest(instances="per-l3"), ["shows no L3", "per-node"]),
        (InstanceRequest(instances=2, threads=4), ["--threads 4", "--cores-per-instance 4"]),
        (InstanceRequest(instances=2, nodes="0-1", cpus="1"), ["--cpus 1 and --nodes 0-1 exclude each other"]),
        (InstanceRequest(nodes="7"), ["--nodes 7", "does not exist", "0, 1, 2, 3"]),
        (InstanceRequest(nodes=""), ["names no node"]),
        (InstanceRequest(nodes="x"), ["--nodes x", "0-1,3"]),
        (InstanceRequest(memory="bind", memory_nodes="9"), ["bind:9", "node 9", "0-3"]),
        (InstanceRequest(memory="bind", memory_nodes="hbm"), ["no memory-only node"]),
        (InstanceRequest(memory="preferred"), ["takes one node", "0-1", "preferred:0"]),
    ],
)
def test_refusals_have_numbers_and_a_way_out(request_: InstanceRequest, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        place_instances(request_, XEON)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("text", ["", "hbm", "bind:", "local:0", "first-touch"])
def test_memory_policies_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=f"--memory {text}"):
        parse_memory(text)


def test_nodes_restrict_the_instances() -> None:
    assert cpus(InstanceRequest(instances=2, nodes="1-2"), XEON) == [(4, 5, 6, 7), (8, 9, 10, 11)]
    assert place(PlacementRequest(nodes="1-2"), XEON).cpus == tuple(range(4, 12))
    assert cpus(InstanceRequest(instances=2, cpus="2-5"), PLAIN) == [(2, 3), (4, 5)]


def test_a_vm_with_a_socket_per_cpu_is_cut_by_node() -> None:
    """Catches eight instances of one core because QEMU was started with sockets=8."""
    where = replace(machine(MachineSpec(sockets=8, cores_per_socket=1, sockets_per_node=4)), virtual=True)
    assert cpus(InstanceRequest(instances="per-socket"), where) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cpus(InstanceRequest(instances=2), where) == [(0, 1, 2, 3), (4, 5, 6, 7)]
