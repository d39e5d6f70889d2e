"""One engine over all nodes or several: asked about machines of up to 256 cores and 8 nodes."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import tiny_models
from machines import GIB, MachineSpec, machine

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.launch import InstanceRequest, place_instances
from ipex_assist.workers import local_machine
from ipex_assist.workers.division import PassWork, choose_division, work_of

pytestmark = pytest.mark.one_stack

# Shapes of benchmarks/sockets.py, in int4, on cores with AMX.
DENSE = PassWork(4.4e9, barriers=162, memory=20 * GIB, balance=49)
MIXTURE = PassWork(0.9e9, 16e9, 8, 128, barriers=482, memory=30 * GIB, balance=49)
SOCKETS = machine(MachineSpec(sockets=2, cores_per_socket=56, threads_per_core=2))
CLUSTERS = machine(MachineSpec(sockets=2, cores_per_socket=126, threads_per_core=2, nodes_per_socket=3))
FOUR = machine(MachineSpec(sockets=4, cores_per_socket=64, nodes_per_socket=2))


@pytest.mark.parametrize("where", [SOCKETS, CLUSTERS, FOUR])
@pytest.mark.parametrize("work", [DENSE, MIXTURE])
def test_few_requests_have_all_nodes(work: PassWork, where: object) -> None:
    """Catches a replica for each node, and so a sixth of the memory's speed for one request."""
    for requests in (1, 4, 16):
        assert choose_division(work, requests, where, where.cores) == 1  # type: ignore[attr-defined]


def test_many_requests_have_replicas() -> None:
    """From some hundred requests on a pass is bound by arithmetic, and Python prepares the rows of each."""
    assert choose_division(DENSE, 10_000, SOCKETS, SOCKETS.cores) == "per-socket"
    assert choose_division(DENSE, 10_000, CLUSTERS, CLUSTERS.cores) == "per-node"
    small = replace(DENSE, shared=0.3e9)
    assert choose_division(small, 64, CLUSTERS, CLUSTERS.cores) == "per-node"
    chosen = [choose_division(DENSE, requests, CLUSTERS, CLUSTERS.cores) for requests in (1, 64, 256, 1024, 10_000)]
    order = [1, "per-socket", "per-node"]
    assert [order.index(each) for each in chosen] == sorted(order.index(each) for each in chosen)


def test_a_model_that_no_node_holds_is_in_all_of_them() -> None:
    """Catches replicas that the kernel would kill, however many requests there are."""
    for memory, division in ((40 * GIB, "per-node"), (100 * GIB, "per-socket"), (160 * GIB, 1), (10_000 * GIB, 1)):
        assert choose_division(replace(DENSE, memory=memory), 10_000, CLUSTERS, CLUSTERS.cores) == division


def test_the_model_agrees_with_the_paper() -> None:
    """Tokens a second of one row by benchmarks/sockets.py: 54 and 104 on one and two sockets of 56 cores."""
    one, two = (1 / DENSE.seconds(1, 56, sockets) for sockets in (1, 2))
    assert 0.8 < one / 54 < 1.2
    assert 0.8 < two / 104 < 1.2
    mixture = 1 / MIXTURE.seconds(1, 56, 2)
    assert 0.75 < mixture / 173 < 1.25


def test_work_of_a_model(tmp_path: object) -> None:
    """Experts that a row does not pass through are not read for it."""
    tiny_models.save(tmp_path, "granitemoe")  # type: ignore[arg-type]
    spec = open_checkpoint(str(tmp_path)).config_spec()
    work = work_of(spec, 1000, 5000, amx=True)
    assert work.shared + work.experts == pytest.approx(1000)
    assert work.read(1) < 1000
    assert work.read(500) == pytest.approx(1000, rel=1e-3)
    assert (work.memory, work.balance, work.count) == (5000, 49, spec.experts.count)  # type: ignore[union-attr]
    assert work.barriers >= 5 * len(spec.layers)


@pytest.mark.parametrize(
    ("requests", "places"),
    [(1, [(112, (0, 1))]), (16, [(112, (0, 1))]), (10_000, [(56, (0,)), (56, (1,))])],
)
def test_instances_by_requests(requests: int, places: list[tuple[int, tuple[int, ...]]]) -> None:
    """What is started: all cores in one process, bound to both nodes for its first touch, or a process on each."""
    request = InstanceRequest(model_bytes=20 * GIB, instances="per-node", first_touch=True)
    divided = local_machine._divided(request, DENSE, requests, SOCKETS)
    found = place_instances(divided, SOCKETS)
    assert [(each.threads, each.nodes) for each in found] == places
    assert {each.memory for each in found} == {"bind"}
    # A place that the user named is divided, and nothing else.
    named = local_machine._divided(replace(request, socket=1), DENSE, requests, SOCKETS)
    assert [each.nodes for each in place_instances(named, SOCKETS)] == [(1,)]


def test_what_the_user_says_is_done() -> None:
    """--instances, --cores-per-instance and --threads leave nothing to choose."""
    from ipex_assist.workers.arguments import leaves_division

    usual = {"instances": None, "cores_per_instance": None, "threads": None}
    assert leaves_division(argparse.Namespace(**usual))
    for name, value in (("instances", "per-node"), ("cores_per_instance", 4), ("threads", 8)):
        assert not leaves_division(argparse.Namespace(**{**usual, name: value}))
