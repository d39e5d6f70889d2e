"""Placement on invented machines: who gets which CPUs and memory, and which requests are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import GIB, PLAIN, XEON, Cgroup, MachineSpec, machine

from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine
from ipex_assist.launch.instances import InstanceRequest, place_instances
from ipex_assist.launch.placement import Placement, PlacementRequest, place

pytestmark = pytest.mark.one_stack


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    nodes = draw(st.sampled_from([1, 2]))
    spec = MachineSpec(
        sockets=draw(st.integers(1, 3)),
        cores_per_socket=draw(st.integers(nodes, 5)),
        threads_per_core=draw(st.integers(1, 2)),
        numbering=draw(st.sampled_from(["split", "adjacent", "alternate"])),
        nodes_per_socket=nodes,
        hbm_nodes=draw(st.sampled_from([0, 1])),
        numa=draw(st.booleans()),
    )
    found = machine(spec)
    allowed = draw(st.sets(st.sampled_from(found.cpus), min_size=1))
    return replace(
        found,
        allowed=tuple(sorted(allowed)),
        cpu_quota=draw(st.none() | st.floats(0.1, 20)),
        allowed_nodes=tuple(sorted(draw(st.sets(st.sampled_from(found.allowed_nodes), min_size=1))))
        if found.nodes
        else (),
    )


def cores_of(placement: Placement, where: Machine) -> list[int]:
    return [index for index, core in enumerate(where.cores) for cpu in core.cpus if cpu in placement.cpus]


@settings(max_examples=40, deadline=None)
@given(machines(), st.none() | st.integers(1, 300).map(lambda n: n * GIB))
def test_default_placement(where: Machine, model_bytes: int | None) -> None:
    """Catches leaving the cpuset, two threads on one core, crossing a socket, exceeding the quota, forbidden memory."""
    placement = place(PlacementRequest(model_bytes=model_bytes), where)
    assert placement.threads == len(placement.cpus) >= 1
    assert set(placement.cpus) <= set(where.allowed)
    assert len(set(cores_of(placement, where))) == placement.threads
    assert len({where.cores[index].socket for index in cores_of(placement, where)}) == 1
    if where.cpu_quota is not None:
        assert placement.threads <= max(1, where.cpu_quota)
    assert set(placement.nodes) <= set(where.allowed_nodes)
    assert (placement.memory == "none") == (not placement.nodes)


@settings(max_examples=40, deadline=None)
@given(machines(), st.data())
def test_any_request_is_met_or_refused(where: Machine, data: st.DataObject) -> None:
    """Catches a crash, and an answer outside of what was named."""
    request = PlacementRequest(
        threads=data.draw(st.none() | st.integers(-2, 40)),
        socket=data.draw(st.none() | st.integers(0, 3)),
        numa_node=data.draw(st.none() | st.integers(0, 7)),
    )
    assume(request.socket is None or request.numa_node is None)
    try:
        placement = place(request, where)
    except UsageError as error:
        assert str(error)  # noqa: PT017 - the message is the point
        return
    assert set(placement.cpus) <= set(where.allowed)
    assert placement.threads == len(placement.cpus) == len(set(placement.cpus))
    assert request.threads in (None, placement.threads)
    cores = cores_of(placement, where)
    if request.socket is not None:
        assert {where.cores[index].socket for index in cores} == {request.socket}
    if request.numa_node is not None:
        assert set(placement.cpus) <= set(where.node(request.numa_node).cpus)  # type: ignore[union-attr]
    if len(set(cores)) < len(cores):  # two threads on a core only where all cores are taken
        assert request.threads is not None
        assert any("share" in line for line in placement.warnings)


@settings(max_examples=40, deadline=None)
@given(machines(), st.data())
def test_named_cpus_are_respected(where: Machine, data: st.DataObject) -> None:
    """Catches using a CPU that was not named."""
    cpus = data.draw(st.sets(st.sampled_from(where.allowed), min_size=1))
    placement = place(PlacementRequest(cpus=",".join(map(str, cpus))), where)
    assert set(placement.cpus) <= cpus
    assert len(set(cores_of(placement, where))) == placement.threads


def test_named_siblings_stay_idle_unless_asked_for() -> None:
    """Catches two threads per core because a node's CPU list was pasted, and dropping half of it silently."""
    placement = place(PlacementRequest(cpus="0-3,16-19"), PLAIN)
    assert placement.cpus == (0, 1, 2, 3)
    assert any("4 physical cores and 4 more" in line and "--threads 8" in line for line in placement.warnings)
    assert place(PlacementRequest(cpus="0-3,16-19", threads=8), PLAIN).cpus == (0, 1, 2, 3, 16, 17, 18, 19)


def test_snc_interleaves_over_the_socket() -> None:
    placement = place(PlacementRequest(model_bytes=20 * GIB), XEON)
    assert (placement.cpus, placement.memory, placement.nodes) == (tuple(range(8)), "interleave", (0, 1))


@pytest.mark.parametrize("numa_node", [None, 1])
def test_a_program_that_places_its_memory_is_bound_and_not_interleaved(numa_node: int | None) -> None:
    """Catches 2 MiB pages by turns over two nodes, below weights that the core writes on the node which reads them."""
    request = PlacementRequest(numa_node=numa_node, model_bytes=60 * GIB, first_touch=True)
    placement = place(request, XEON)
    assert (placement.memory, placement.nodes) == ("bind", (0, 1))
    assert place(replace(request, model_bytes=100 * GIB), XEON).nodes == (0, 1, 2, 3)


ALL = PlacementRequest(first_touch=True, all_sockets=True)


def test_one_user_has_all_sockets() -> None:
    """Catches half of the machine idle while one text is made: 54 tokens/s instead of 104 on 2 x 56 cores, on paper."""
    for where in (PLAIN, XEON):
        placement = place(ALL, where)
        assert placement.cpus == tuple(range(16))
        assert (placement.memory, placement.nodes) == ("bind", tuple(node.id for node in where.nodes))
        assert not placement.warnings
    big = machine(MachineSpec(sockets=4, cores_per_socket=64, threads_per_core=2, nodes_per_socket=2, hbm_nodes=2))
    assert (place(ALL, big).threads, place(ALL, big).nodes) == (256, tuple(range(8)))


def test_all_sockets_are_a_default_only() -> None:
    """Who names a place, or fewer threads, gets that; and a numactl around the command is kept."""
    assert place(replace(ALL, socket=1), PLAIN).cpus == tuple(range(8, 16))
    assert place(replace(ALL, numa_node=0), PLAIN).nodes == (0,)
    assert place(replace(ALL, threads=6), PLAIN).nodes == (0,)
    assert place(ALL, replace(PLAIN, cpu_quota=5.5)).cpus == (0, 1, 2, 3, 4)
    bound = place(ALL, replace(PLAIN, allowed_nodes=(1,)))
    assert (bound.cpus, bound.nodes, bound.warnings) == (tuple(range(8, 16)), (1,), ())
    assert place(ALL, replace(PLAIN, interleaved=(0, 1))).memory == "interleave"


def test_threads_without_memory_nearby_are_told() -> None:
    """All threads wait for those that read another node's memory; only where all do was there a warning."""
    empty = replace(PLAIN, nodes=(PLAIN.nodes[0], replace(PLAIN.nodes[1], memory_bytes=0)))
    for where in (empty, replace(PLAIN, allowed_nodes=(0,))):
        [line] = place(PlacementRequest(socket="all"), where).warnings
        assert line.startswith("8 of the 16 threads (CPUs 8-15) are on node 1, of which no memory may be used")
        assert not place(ALL, where).warnings
    [line] = place(PlacementRequest(socket=1), empty).warnings
    assert "every access is remote" in line


def test_whole_cores_are_preferred_to_halves_of_them() -> None:
    """Catches the socket whose siblings belong to another job, because it comes first, or has one core more."""
    halves, whole = tuple(range(8)), tuple(range(8, 16)) + tuple(range(24, 32))
    for allowed in (halves + whole, halves + tuple(cpu for cpu in whole if cpu % 8)):
        cpus = place(PlacementRequest(), replace(PLAIN, allowed=tuple(sorted(allowed)))).cpus
        assert min(cpus) >= 8
    few = replace(PLAIN, allowed=(*halves, 8, 9, 24, 25))
    assert place(PlacementRequest(), few).cpus == halves


def test_one_node_per_socket_binds() -> None:
    placement = place(PlacementRequest(model_bytes=20 * GIB), PLAIN)
    assert (placement.cpus, placement.memory, placement.nodes) == (tuple(range(8)), "bind", (0,))


def test_a_model_too_big_for_the_socket_is_interleaved_over_all() -> None:
    """Catches binding to a node that will run out, which ends in the OOM killer."""
    placement = place(PlacementRequest(model_bytes=60 * GIB), PLAIN)
    assert (placement.memory, placement.nodes) == ("interleave", (0, 1))
    assert any("60.0 GiB" in line and "48.0 GiB" in line for line in placement.warnings)


def test_a_model_too_big_for_the_node_takes_the_socket() -> None:
    """Catches leaving the socket although its other node has room."""
    placement = place(PlacementRequest(numa_node=1, model_bytes=60 * GIB), XEON)
    assert placement.cpus == (4, 5, 6, 7)
    assert (placement.memory, placement.nodes, placement.warnings) == ("interleave", (0, 1), ())


def test_few_threads_stay_in_one_node() -> None:
    """Catches four threads spread over two nodes with their memory interleaved."""
    placement = place(PlacementRequest(threads=4), XEON)
    assert (placement.cpus, placement.memory, placement.nodes) == ((0, 1, 2, 3), "bind", (0,))


def test_the_socket_with_most_allowed_cores_wins() -> None:
    """Catches always taking socket 0, where the cpuset has only siblings of one core there."""
    where = replace(PLAIN, allowed=(0, 1, 16, 17, 8, 9, 10))
    placement = place(PlacementRequest(), where)
    assert (placement.cpus, placement.nodes) == ((8, 9, 10), (1,))


def test_the_idle_part_of_an_allocation_is_said() -> None:
    """A mask over two sockets left half of it idle without a word; on a whole machine that is the default."""
    where = replace(PLAIN, allowed=tuple(range(4, 12)))
    [line] = place(PlacementRequest(), where).warnings
    assert line.startswith("4 of the 8 cores that this process was given are on another socket and stay idle")
    assert not place(PlacementRequest(socket="all"), where).warnings
    assert not place(PlacementRequest(), PLAIN).warnings
    assert not place(PlacementRequest(), replace(PLAIN, allowed=tuple(range(4, 8)))).warnings


def test_hbm_is_not_used_unless_asked() -> None:
    """Catches interleaving a model over 16 GiB of HBM because the node exists."""
    where = machine(MachineSpec(sockets=2, cores_per_socket=4, hbm_nodes=2))
    assert place(PlacementRequest(model_bytes=90 * GIB), where).nodes == (0, 1)
    with pytest.raises(UsageError, match="no CPUs; nodes with CPUs: 0-1"):
        place(PlacementRequest(numa_node=2), where)


def test_memory_nodes_outside_the_cpuset_are_not_named() -> None:
    """Catches `numactl -m 0` under a cpuset that has only node 1's memory: numactl refuses to start."""
    placement = place(PlacementRequest(socket=0), replace(PLAIN, allowed_nodes=(1,)))
    assert (placement.memory, placement.nodes) == ("bind", (1,))
    assert any("remote" in line for line in placement.warnings)


def test_the_users_interleaving_stays_unless_a_flag_says_otherwise() -> None:
    """Catches binding to one node what the user started with `numactl -i all`."""
    where = replace(PLAIN, interleaved=(0, 1))
    placement = place(PlacementRequest(model_bytes=GIB), where)
    assert (placement.cpus, placement.memory, placement.nodes) == (tuple(range(8)), "interleave", (0, 1))
    assert "0-1" in placement.notes[0]
    placement = place(PlacementRequest(numa_node=1), where)
    assert (placement.memory, placement.nodes, placement.notes) == ("bind", (1,), ())


def test_the_socket_with_allowed_memory_is_taken() -> None:
    """Catches computing on socket 0 inside `numactl -m 1`, with every access remote."""
    placement = place(PlacementRequest(), replace(PLAIN, allowed_nodes=(1,)))
    assert (placement.cpus, placement.nodes, placement.warnings) == (tuple(range(8, 16)), (1,), ())


def test_p_cores_first_and_e_cores_on_request() -> None:
    where = machine(MachineSpec(cores_per_socket=6, threads_per_core=2, e_cores=4))
    assert place(PlacementRequest(), where).cpus == (0, 2)
    assert place(PlacementRequest(threads=4), where).cpus == (0, 2, 4, 5)


def test_quota_below_the_cores_gives_fewer_threads_and_says_so() -> None:
    """Catches 8 threads on 2.5 CPUs of time, which the scheduler stops for most of every period."""
    where = machine(MachineSpec(cores_per_socket=8, cgroup=Cgroup(quota=2.5)))
    placement = place(PlacementRequest(), where)
    assert placement.cpus == (0, 1)
    assert any("2.5" in line and "8 cores" in line for line in placement.warnings)
    assert any("2.5" in line for line in place(PlacementRequest(threads=4), where).warnings)


def test_more_threads_than_a_socket_has_cores_span_sockets_and_say_so() -> None:
    placement = place(PlacementRequest(threads=12), PLAIN)
    assert placement.cpus == tuple(range(12))
    assert (placement.memory, placement.nodes) == ("interleave", (0, 1))
    assert any("span" in line for line in placement.warnings)


def test_no_numa_leaves_memory_alone() -> None:
    placement = place(PlacementRequest(model_bytes=GIB), machine(MachineSpec(numa=False)))
    assert (placement.memory, placement.nodes) == ("none", ())


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (PlacementRequest(threads=0), ["--threads 0"]),
        (PlacementRequest(threads=-3), ["--threads -3"]),
        (PlacementRequest(threads=1000), ["--threads 1000", "32 CPUs", "16 physical cores"]),
        (PlacementRequest(cpus="0-40"), ["--cpus 0-40", "32-40", "0-31"]),
        (PlacementRequest(cpus="8"), ["--cpus 8", "may not use", "0-7,16-23", "16 CPUs"]),
        (PlacementRequest(cpus="x"), ["--cpus x", "0-27,56-83"]),
        (PlacementRequest(cpus=""), ["--cpus names no CPU"]),
        (PlacementRequest(cpus="0-99999999999"), ["99999999999"]),
        (PlacementRequest(numa_node=7), ["--numa-node 7", "0, 1"]),
        (PlacementRequest(numa_node=1), ["--numa-node 1", "none of its CPUs"]),
        (PlacementRequest(socket=2), ["--socket 2", "0-1"]),
        (PlacementRequest(socket=-1), ["--socket -1"]),
        (PlacementRequest(socket=1), ["--socket 1", "none of its CPUs"]),
        (PlacementRequest(socket=0, cpus="1"), ["--cpus 1 and --socket 0 exclude each other"]),
    ],
)
def test_refusals_name_the_flag_and_the_numbers(request_: PlacementRequest, parts: list[str]) -> None:
    """Catches a traceback, and a message that leaves the user to guess."""
    whole = request_.threads is not None or request_.socket == 2
    where = PLAIN if whole else replace(PLAIN, allowed=(*range(8), *range(16, 24)))
    with pytest.raises(UsageError) as caught:
        place(request_, where)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


ENGINE = PlacementRequest(first_touch=True, all_sockets=True, spares_cpu=True)


def test_an_engine_has_a_sibling_for_threads_that_do_not_compute() -> None:
    """Catches Python on a core that computes, for which all others wait; and a core given away for it."""
    for where, sibling in ((PLAIN, 16), (machine(MachineSpec(cores_per_socket=2, threads_per_core=2)), 2)):
        placement = place(ENGINE, where)
        assert placement.cpus == place(replace(ENGINE, spares_cpu=False), where).cpus
        assert (placement.spare, placement.mask) == (sibling, (*placement.cpus, sibling))
        assert placement.describe_cpus().endswith(f"and CPU {sibling} for others")
    assert place(replace(ENGINE, spares_cpu=False), PLAIN).spare is None
    assert place(ENGINE, replace(PLAIN, allowed=tuple(range(16)))).spare is None
    assert place(replace(ENGINE, cpus="0-3"), PLAIN).spare is None
    assert place(replace(ENGINE, cpus="0-3,16-19"), PLAIN).spare == 16
    assert place(replace(ENGINE, threads=4), PLAIN).spare == 16


@pytest.mark.parametrize("cores", [2, 16, 31, 32, 64, 128])
def test_many_cores_without_siblings_spare_one(cores: int) -> None:
    """Catches a core lost where each counts, or none spared where one is a 32nd."""
    where = machine(MachineSpec(cores_per_socket=cores))
    placement, many = place(ENGINE, where), cores >= 32
    assert (placement.spare, placement.threads) == ((0, cores - 1) if many else (None, cores))
    assert placement.mask == tuple(range(cores))
    assert len(placement.cpus) == placement.threads
    assert place(replace(ENGINE, threads=cores), where).threads == cores
    assert place(replace(ENGINE, cpus=f"0-{cores - 1}"), where).threads == cores


def test_every_engine_spares_its_own() -> None:
    """Catches one CPU for the helpers of all engines, one of another engine, and fewer cores than were asked for."""
    for threads_per_core in (1, 2):
        where = machine(MachineSpec(sockets=2, cores_per_socket=64, threads_per_core=threads_per_core))
        engine = InstanceRequest(first_touch=True, spares_cpu=True)
        first, second = place_instances(replace(engine, instances="per-socket"), where)
        spare = (0, 64) if threads_per_core == 1 else (128, 192)
        assert (first.spare, second.spare) == spare
        assert not set(first.mask) & set(second.mask)
        assert first.threads == (63 if threads_per_core == 1 else 64)
        sized = place_instances(replace(engine, cores_per_instance=32), where)
        assert {(each.threads, each.spare is None) for each in sized} == {(32, threads_per_core == 1)}
