"""Which CPUs the core's threads get, and in which order: cores before siblings, the CPUs of a memory node together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import machines
import pytest
import recorded_machines
from conftest import HAS_NATIVE
from machines import MachineSpec

from ipex_assist.env.machine import Machine
from ipex_assist.env.topology import read_topology
from ipex_assist.executors.native import loading as native_loading
from ipex_assist.launch.placement import PlacementRequest, place
from ipex_assist.native import library
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack
needs_core = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")

# Even CPUs on one socket, odd ones on the other.
DELL = MachineSpec(sockets=2, cores_per_socket=8, threads_per_core=2, numbering="alternate")
ADJACENT = MachineSpec(sockets=2, cores_per_socket=4, threads_per_core=2, numbering="adjacent")


def node_folder(machine: Machine, folder: Path) -> str:
    """Links of nodes to their CPUs, as the kernel shows them, which a record of its files may lack."""
    for node in machine.nodes:
        for cpu in node.cpus:
            (folder / f"node{node.id}" / f"cpu{cpu}").mkdir(parents=True)
    return str(folder)


def check_nodes_together(machine: Machine, folder: Path) -> int:
    """Threads of a node follow one another, each on a CPU of that node; how many nodes they are on."""
    cpus = place(PlacementRequest(socket="all"), machine).cpus
    grouped, nodes = library.group_by_node(cpus, node_folder(machine, folder))
    assert sorted(grouped) == sorted(cpus)
    assert list(nodes) == sorted(nodes), "a node's threads are apart"
    homes = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    runs = [len({homes.get(cpu) for cpu in run}) for run in of_each_node(grouped, nodes)]
    assert runs == [1] * len(runs), "one node of the core's is several of the machine"
    assert len(runs) == max(1, len({homes[cpu] for cpu in cpus if cpu in homes}))
    return len(runs)


def of_each_node(cpus: tuple[int, ...], nodes: tuple[int, ...]) -> Iterator[list[int]]:
    for _, pairs in itertools.groupby(zip(cpus, nodes, strict=True), key=lambda pair: pair[1]):
        yield [cpu for cpu, _ in pairs]


@needs_core
def test_sockets_that_number_cpus_by_turns(tmp_path: Path) -> None:
    """Catches threads that alternate between sockets, each a node of its own: as many copies of all rows as threads."""
    assert check_nodes_together(machines.machine(DELL), tmp_path / "dell") == 2
    assert check_nodes_together(machines.XEON, tmp_path / "clusters") == 4


@needs_core
@recorded_machines.wanted
def test_nodes_of_recorded_machines(tmp_path: Path) -> None:
    """The same on machines as they were: two sockets, eight nodes with sparse numbers, none."""
    found = {
        name: check_nodes_together(read_topology(root), tmp_path / f"nodes-of-{name}")
        for name, root in recorded_machines.recorded_machines(tmp_path).items()
    }
    assert found["xeon-4108-2s8c2t"] == found["xeon-e5-2680-2s8c1t"] == 2
    assert found["opteron-48c-sparse-nodes"] == 8
    assert found["xeon-5130-no-numa-dir"] == 1


@pytest.mark.parametrize(
    ("spec", "threads", "expected"),
    [
        pytest.param(ADJACENT, 8, (0, 2, 4, 6, 8, 10, 12, 14), id="adjacent siblings"),
        pytest.param(ADJACENT, 10, (0, 2, 4, 6, 8, 10, 12, 14, 1, 3), id="more threads than cores"),
        pytest.param(DELL, 8, (0, 2, 4, 6, 8, 10, 12, 14), id="one socket of two"),
        pytest.param(DELL, 10, (0, 2, 4, 6, 8, 10, 12, 14, 1, 3), id="sockets by turns"),
        pytest.param(MachineSpec(cores_per_socket=4, threads_per_core=2, e_cores=2), 5, (0, 2, 4, 5, 1), id="E-cores"),
    ],
)
def test_threads_without_a_plan(
    spec: MachineSpec, threads: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches half the cores, each with two threads, where siblings are numbered side by side."""
    machine = machines.machine(spec)
    made = []
    monkeypatch.setattr(native_loading, "read_topology", lambda: machine)
    monkeypatch.setattr(native_loading, "MASK_AT_START", frozenset(machine.cpus))
    monkeypatch.setattr(native_loading, "_openmp_threads", lambda: threads)
    monkeypatch.setattr(native_loading, "shared_pool", lambda count, cpus: made.append((count, cpus)))
    monkeypatch.delenv("IPEX_ASSIST_PLAN", raising=False)
    native_loading.planned_pool.__wrapped__()
    assert made == [(threads, expected)]


def test_only_cpus_that_may_be_used() -> None:
    """The order holds within the mask of the process: what it lacks of a core is no CPU to have."""
    machine = machines.machine(ADJACENT)
    assert machine.cpus_in_order({1, 2, 3, 9}) == (1, 2, 9, 3)
    assert machine.cpus_in_order(()) == ()
