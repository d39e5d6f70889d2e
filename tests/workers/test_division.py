"""One engine over all nodes or several: asked about machines of up to 256 cores and 8 nodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import tiny_models
from conftest import HAS_NATIVE
from machines import GIB, MachineSpec, machine

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.machine import Machine
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch import InstanceRequest, LaunchCommand, place_instances
from ipex_assist.native import library
from ipex_assist.speculative.costs.by_rows import seconds_of_many
from ipex_assist.workers import local_machine
from ipex_assist.workers.capacity import InstanceNeed, ModelPasses, core_speed
from ipex_assist.workers.division import (
    LEAST_ROWS,
    MOST_BALANCE,
    MOST_ROWS,
    PYTHON_SECONDS,
    Division,
    DivisionChoice,
    PassWork,
    choose_division,
    estimated_speed,
    rows_at_a_time,
    ways,
    work_of,
)
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import PhaseReport, Ready

pytestmark = pytest.mark.one_stack

# Shapes of benchmarks/sockets.py, in int4, on cores with AMX.
DENSE = PassWork(4.4e9, barriers=162, memory=20 * GIB)
MIXTURE = PassWork(0.9e9, 16e9, 8, 128, barriers=482, memory=30 * GIB)
SPEED = estimated_speed("int4")
SOCKETS = machine(MachineSpec(sockets=2, cores_per_socket=56, threads_per_core=2))
CLUSTERS = machine(MachineSpec(sockets=2, cores_per_socket=126, threads_per_core=2, nodes_per_socket=3))
FOUR = machine(MachineSpec(sockets=4, cores_per_socket=64, nodes_per_socket=2))
ORDER: list[Division] = [1, "per-socket", "per-node"]


def chosen(work: PassWork, requests: int, where: Machine, **more: object) -> DivisionChoice:
    return choose_division(work, requests, where, where.cores, SPEED, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [SOCKETS, CLUSTERS, FOUR])
@pytest.mark.parametrize("work", [DENSE, MIXTURE])
def test_few_requests_have_all_nodes(work: PassWork, where: Machine) -> None:
    """Catches a replica for each node, and so a sixth of the memory's speed for one request."""
    for requests in (1, 4, 16):
        assert chosen(work, requests, where).division == 1


def test_many_requests_have_replicas() -> None:
    """From some hundred requests on engines are full, and threads of few cores wait less for each other."""
    assert chosen(DENSE, 10_000, SOCKETS).division == "per-socket"
    assert chosen(DENSE, 10_000, CLUSTERS).division == "per-node"
    small = replace(DENSE, shared=0.3e9)
    assert chosen(small, 64, CLUSTERS).division == 1
    assert chosen(small, 1024, CLUSTERS).division == "per-node"
    found = [chosen(DENSE, requests, CLUSTERS).division for requests in (1, 64, 256, 1024, 10_000)]
    order = [ORDER.index(each) for each in found]
    assert order == sorted(order)


def test_a_model_that_no_node_holds_is_in_all_of_them() -> None:
    """Catches replicas that the kernel would kill, however many requests there are."""
    sizes: list[tuple[int, Division]] = [(40, "per-node"), (100, "per-socket"), (160, 1), (10_000, 1)]
    for memory, division in sizes:
        assert chosen(replace(DENSE, memory=memory * GIB), 10_000, CLUSTERS).division == division


def test_the_model_agrees_with_the_paper() -> None:
    """Tokens a second of one row by benchmarks/sockets.py: 54 and 104 on one and two sockets of 56 cores."""
    one, two = (1 / DENSE.seconds(1, 56, sockets, SPEED) for sockets in (1, 2))
    assert 0.8 < one / 54 < 1.2
    assert 0.8 < two / 104 < 1.2
    mixture = 1 / MIXTURE.seconds(1, 56, 2, SPEED)
    assert 0.75 < mixture / 173 < 1.25


@pytest.mark.parametrize(
    ("precision", "products", "balance"),
    [
        *(("int4", None, 49), ("int8", None, 112), ("bf16", None, 192), ("mxfp4", None, 49)),
        *(("int8", 320e9, 56), ("bf16", 80e9, 28), ("int8", 160e9, 28)),  # VNNI, AVX-512 and AVX2 at 2.5 GHz
    ],
)
def test_estimates_by_instruction_set(precision: str, products: float | None, balance: float) -> None:
    """And they say that nobody has measured them."""
    found = estimated_speed(precision, products)
    assert found.balance == pytest.approx(balance)
    assert found.source.startswith("estimated")


@pytest.mark.skipif(not HAS_NATIVE, reason="the core multiplies")
@pytest.mark.parametrize("precision", ["int4", "int8", "bf16"])
def test_a_core_without_amx_is_asked(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a fraction of AMX's rows, which nobody had measured: any core multiplies more than a row in that time."""
    core_speed.cache_clear()
    with_amx = library.instruction_set() == "amx"
    found = core_speed(precision)
    assert ("AMX" in found.source) == with_amx
    assert 1 < found.balance < 1000
    monkeypatch.setattr(library, "instruction_set", lambda: "amx")
    core_speed.cache_clear()
    assert core_speed(precision) == estimated_speed(precision)
    core_speed.cache_clear()


@pytest.mark.parametrize("work", [DENSE, MIXTURE])
@pytest.mark.parametrize(("cores", "sockets"), [(56, 1), (56, 2), (42, 1), (126, 2)])
def test_speed_by_measured_passes(work: PassWork, cores: int, sockets: int) -> None:
    """What a core does follows from the passes of any number of them: the same that they were made of."""
    passes = [work.seconds(rows, cores, sockets, SPEED) for rows in range(1, 65)]
    found = work.measured_speed(passes, cores, sockets)
    assert found.bytes_per_second == pytest.approx(SPEED.bytes_per_second, rel=1e-3)
    assert found.balance == pytest.approx(SPEED.balance, rel=1e-3)
    assert f"measured on {cores * sockets} cores" in found.source
    for flat in ([0.1], [0.1, 0.1], [0.1] * 64):
        assert work.measured_speed(flat, cores, sockets).balance == MOST_BALANCE
    assert 0 < work.measured_speed([0.1, 0.3], cores, sockets).balance < MOST_BALANCE, "disturbed"


def test_measured_passes_overrule_the_paper() -> None:
    """A machine whose sockets are joined badly: measured, all cores together are hardly faster than one socket's."""
    one = [DENSE.seconds(rows, 56, 1, SPEED) for rows in range(1, 65)]
    both = [0.95 * each for each in one]
    assert chosen(DENSE, 64, SOCKETS).division == 1
    found = chosen(DENSE, 64, SOCKETS, measured={1: both, "per-socket": one})
    assert found.division == "per-socket"
    assert set(found.sources.values()) == {"measured"}
    assert "one a socket: of 64 requests at a time it makes" in found.describe(64)
    # Of one way alone the other is modelled with what its cores do; one request has all nodes.
    found = chosen(DENSE, 1, SOCKETS, measured={"per-socket": one})
    assert found.division == 1
    assert "by passes measured on 56 cores" in found.describe(1)


def test_ways_that_are_the_same_are_one() -> None:
    assert list(ways(SOCKETS, SOCKETS.cores)) == [1, "per-socket"]
    assert list(ways(CLUSTERS, CLUSTERS.cores)) == ORDER
    alone = machine(MachineSpec(sockets=1, cores_per_socket=2))
    assert list(ways(alone, alone.cores)) == [1]


@pytest.mark.parametrize(("precision", "rows"), [("int4", 49), ("int8", 112), ("bf16", 192)])
def test_requests_at_a_time_by_costs(precision: str, rows: int) -> None:
    """16 whatever the machine: with AMX a pass of 192 bf16 rows takes twice as long as one."""
    speed, work = estimated_speed(precision), replace(DENSE, barriers=0)
    passes = [work.seconds(each, 56, 2, speed) for each in range(1, 65)]
    assert abs(rows_at_a_time(partial(seconds_of_many, passes)) - rows) <= 2
    assert rows_at_a_time(partial(seconds_of_many, [1.0])) == LEAST_ROWS, "nothing is known of more rows"
    assert rows_at_a_time(partial(seconds_of_many, [1.0, 1.5])) == LEAST_ROWS
    assert rows_at_a_time(partial(seconds_of_many, [1.0] * 64)) == MOST_ROWS


@pytest.mark.parametrize(("balance", "rows"), [(12, 109), (25, 229)])
def test_a_mixture_shares_passes_with_more(balance: float, rows: int) -> None:
    """Catches 16 at a time because the second row of a mixture already takes nearly twice as long as the first."""
    speed = replace(SPEED, balance=balance)
    seconds = partial(MIXTURE.seconds, cores=56, sockets=2, speed=speed)
    assert rows_at_a_time(seconds) == rows
    # Of twice as many that come at once, those of one half and then of the other wait as long as all together.
    assert seconds(2 * rows) == pytest.approx(1.5 * seconds(rows), rel=0.01)
    # Passes that are measured, of up to 64 rows, still read more experts with each row: what is beyond seems dearer.
    measured = [seconds(each) for each in range(1, 65)]
    assert 0.4 * rows < rows_at_a_time(partial(seconds_of_many, measured)) <= rows
    rate = chosen(MIXTURE, 64, SOCKETS).rates[1]
    assert rate == pytest.approx(64 / (MIXTURE.seconds(64, 56, 2, SPEED) + 64 * PYTHON_SECONDS), rel=1e-6)


def test_work_of_a_model(tmp_path: object) -> None:
    """Experts that a row does not pass through are not read for it."""
    tiny_models.save(tmp_path, "granitemoe")  # type: ignore[arg-type]
    spec = open_checkpoint(str(tmp_path)).config_spec()
    work = work_of(spec, 1000, 5000)
    assert work.shared + work.experts == pytest.approx(1000)
    assert work.read(1) < 1000
    assert work.read(500) == pytest.approx(1000, rel=1e-3)
    assert (work.memory, work.count) == (5000, spec.experts.count)  # type: ignore[union-attr]
    assert work.barriers >= 5 * len(spec.layers)


@pytest.mark.parametrize(
    ("requests", "places"),
    [(1, [(112, (0, 1))]), (16, [(112, (0, 1))]), (10_000, [(56, (0,)), (56, (1,))])],
)
def test_instances_by_requests(
    requests: int, places: list[tuple[int, tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is started: all cores in one process, bound to both nodes for its first touch, or a process on each."""
    monkeypatch.setattr(local_machine, "kept_passes", lambda *_: None)
    passes = ModelPasses(LoadOptions(), DENSE, SPEED)
    request = InstanceRequest(model_bytes=20 * GIB, instances="per-node", first_touch=True)

    def placed(request: InstanceRequest) -> list[object]:
        choice = local_machine._chosen(request, passes, requests, SOCKETS)
        return list(place_instances(local_machine.of_division(request, choice.division), SOCKETS))

    found = placed(request)
    assert [(each.threads, each.nodes) for each in found] == places  # type: ignore[attr-defined]
    assert {each.memory for each in found} == {"bind"}  # type: ignore[attr-defined]
    # A place that the user named is divided, and nothing else.
    assert [each.nodes for each in placed(replace(request, socket=1))] == [(1,)]  # type: ignore[attr-defined]


def test_passes_are_those_of_the_cores_that_an_engine_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(local_machine, "kept_passes", lambda _, cpus: asked.append(cpus))
    passes = ModelPasses(LoadOptions(), DENSE, SPEED)
    request = InstanceRequest(instances="per-node", first_touch=True)
    local_machine._chosen(request, passes, 1, CLUSTERS)
    assert asked == [tuple(range(252)), tuple(range(126)), tuple(range(42))]


def test_each_way_is_measured_and_then_chosen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both teams, with the model at hand: a start of one engine of each, and what it leaves decides from then on."""
    kept: dict[tuple[int, ...], Sequence[float]] = {}
    slow = [0.5] * 64  # all nodes together: a link that nobody expected

    class Pool:
        def __init__(self, commands: Sequence[LaunchCommand], settings: object) -> None:
            (self.command,) = commands

        def start(self, instance: int) -> None:
            cpus = self.command.placement.cpus
            kept[cpus] = slow if len(cpus) > 56 else [DENSE.seconds(rows, 56, 1, SPEED) for rows in range(1, 65)]

        def wait(self, seconds: float) -> list[object]:
            return [PhaseReport("loading", None, 1.0), Mock(spec=Ready)]

        def close(self) -> None:
            kept[()] = [*kept.get((), ()), 1.0]

    passes = ModelPasses(LoadOptions(), DENSE, SPEED)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local_machine, "LocalPool", Pool)
    monkeypatch.setattr(local_machine, "read_topology", lambda: SOCKETS)
    monkeypatch.setattr("ipex_assist.launch.process.read_topology", lambda: SOCKETS)
    monkeypatch.setattr(local_machine, "kept_passes", lambda _, cpus: kept.get(cpus))
    monkeypatch.setattr(local_machine, "instance_need", lambda _: InstanceNeed(None, passes=passes))
    monkeypatch.setattr(local_machine, "instance_request", lambda *_: InstanceRequest(first_touch=True))
    args = argparse.Namespace(instances=None, cores_per_instance=None, threads=None, no_launch=False)
    need, said = InstanceNeed(None, passes=passes), []
    assert len(local_machine.local_commands(args, need, 8)) == 1
    local_machine.measure_ways(args, WorkerSettings(LoadOptions(), 20), said.append)
    assert len(kept.pop(())) == len(said) == 2
    found = local_machine.local_commands(args, need, 8)
    assert [command.placement.nodes for command in found] == [(0,), (1,)]
    assert any("one a socket: of 8 requests at a time it makes" in note for note in found[0].notes)
    assert any("(measured)" in note for note in found[0].notes)


def test_what_the_user_says_is_done() -> None:
    """--instances, --cores-per-instance and --threads leave nothing to choose."""
    from ipex_assist.workers.arguments import leaves_division

    usual = {"instances": None, "cores_per_instance": None, "threads": None}
    assert leaves_division(argparse.Namespace(**usual))
    for name, value in (("instances", "per-node"), ("cores_per_instance", 4), ("threads", 8)):
        assert not leaves_division(argparse.Namespace(**{**usual, name: value}))
