"""How many requests a worker takes at a time, and whether its memory holds them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from batch_runs import write_prompts
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.batch import command
from ipex_assist.commands.shared.load import memory_need
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch import LaunchPlan, Placement
from ipex_assist.workers import capacity, local_machine, measured_passes, worker
from ipex_assist.workers.capacity import (
    InstanceNeed,
    check_memory_of_all,
    check_memory_of_placements,
    concurrency_of,
    fitting,
    neighbours_of,
)
from ipex_assist.workers.settings import WorkerSettings

GIB = 1 << 30
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")


def test_what_fits_together() -> None:
    assert [fitting((5, 3, 2), room) for room in (0, 4, 5, 8, 10, 99)] == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("need", "instances", "available", "message"),
    [
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 20 * GIB, None),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 19 * GIB, "2 instances need 10.0 GiB each, 20.0 GiB in all"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 19 * GIB, "Use --concurrency 3 or --instances 1"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 1, 9 * GIB, "4 prompts at a time, and 9.0 GiB are available. Use --conc"),
        (InstanceNeed(6 * GIB, (GIB,)), 3, 15 * GIB, "Use --instances 2"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 1, 5 * GIB, "a smaller --precision or model or --concurrency"),
        (InstanceNeed(6 * GIB, (GIB,)), 1, 5 * GIB, None),  # the instance says it, and what is needed for what
        (InstanceNeed(6 * GIB, (GIB,) * 16, kv_limit=2 * GIB), 2, 16 * GIB, None),
        (InstanceNeed(None, (GIB,) * 4), 2, GIB, None),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, None, None),
    ],
)
def test_memory_of_all(need: InstanceNeed, instances: int, available: int | None, message: str | None) -> None:
    """The weights and the keys and values of all prompts in flight, in all instances, with what would fit."""
    if message is None:
        check_memory_of_all(need, instances, available)
        return
    with pytest.raises(IpexAssistError) as caught:
        check_memory_of_all(need, instances, available)
    assert message in str(caught.value)


def test_too_many_for_the_memory_are_refused_before_anything_starts(
    endless_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --concurrency alone: one at a time, the same model fits."""
    memory = MemoryInfo(2 * GIB, 800 << 20)
    monkeypatch.setattr(capacity, "read_memory", lambda **_: memory)
    started: list[object] = []
    monkeypatch.setattr(local_machine, "LocalPool", lambda *arguments: started.append(arguments) or 1 / 0)
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(4000)])
    arguments = [
        str(prompts),
        "-o",
        str(tmp_path / "o"),
        "-m",
        endless_folder,
        "--offline",
        "--no-launch",
        "--no-assisted",
    ]
    arguments += ["--executor", "torch", "--precision", "fp32"]
    with pytest.raises(IpexAssistError, match=r"prompts at a time, and 0\.8 GiB are available\. Use --concurrency \d"):
        command.main([*arguments, "--concurrency", "4000"])
    assert not started
    with pytest.raises(ZeroDivisionError):
        command.main([*arguments, "--concurrency", "4", "--resume"])
    (_, settings), *_ = started
    assert settings.lengths == (256,) * 4


def test_memory_of_each_node_is_for_those_that_are_bound_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on a small node do not fit because a large one has room; and one a node is nobody's neighbour."""
    free = {(0,): 9 * GIB, (1,): 40 * GIB, (): 49 * GIB}
    monkeypatch.setattr(capacity, "read_memory", lambda nodes=(): MemoryInfo(64 * GIB, free[tuple(nodes)]))
    need = InstanceNeed(6 * GIB, (GIB,))

    def bound(*nodes: int) -> list[Placement]:
        return [Placement((node,), 1, "bind", (node,)) for node in nodes]

    assert [neighbours_of(bound(*nodes)) for nodes in ((0, 1), (0, 0, 1), (1,))] == [1, 2, 1]
    check_memory_of_placements(need, bound(0, 1, 1, 1, 1, 1))
    with pytest.raises(IpexAssistError, match=r"2 instances need 7\.0 GiB each.* 9\.0 GiB are available on node 0\."):
        check_memory_of_placements(need, bound(0, 0, 1))
    with pytest.raises(IpexAssistError, match=r"49\.0 GiB are available\."):
        check_memory_of_placements(need, [*bound(0, 1, 1), *[Placement((0,), 1, "local")] * 5])


@needs_native
def test_keys_and_values_are_kv_memory_where_that_is_given(endless_folder: str) -> None:
    """An instance with a pool of blocks does not refuse to begin for texts that would wait for each other in it."""
    load = LoadOptions(target=endless_folder, assistant="none", precision="fp32", executor="native", offline=True)
    limited = replace(load, kv_memory=1 << 20)
    texts = (256,) * 4000
    whole = memory_need(load, 20, lengths=texts)
    assert whole.kv == 4000 * memory_need(load, 20, lengths=(1,)).kv > 1 << 20
    assert memory_need(limited, 20, lengths=texts).kv == 1 << 20
    assert memory_need(replace(load, kv_precision="int8"), 20, lengths=texts).kv < whole.kv / 3
    assert InstanceNeed.of(load, 20, texts).total == whole.total
    assert InstanceNeed.of(limited, 20, texts).total == memory_need(limited, 20, lengths=texts).total
    on_torch = replace(load, executor="torch")
    fewer_bits = memory_need(replace(on_torch, kv_precision="int8"), 20, lengths=texts)
    # Of fp32 and heads of 16: a byte of four for each element, and four for each head.
    assert fewer_bits.kv == memory_need(on_torch, 20, lengths=texts).kv * (16 + 4) // (16 * 4)
    on_torch = replace(limited, executor="torch")
    assert memory_need(on_torch, 20, lengths=texts).kv > 1 << 20, "which has no pool"
    assert InstanceNeed.of(on_torch, 20, texts).total == memory_need(on_torch, 20, lengths=texts).total


@needs_native
def test_the_pool_says_how_many_texts_fit(endless_folder: str, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of the longest texts: 2, 1, 1, … into a pool of five."""
    load = LoadOptions(target=endless_folder, assistant="none", precision="fp32", executor="native", offline=True)
    model = ipex_assist.load(
        endless_folder, None, precision="fp32", executor="native", kv_memory=5 * memory_need(load, 1).kv
    )
    settings = WorkerSettings(load, 20, lengths=(257, 256, 256, 3, 3, 3))
    with caplog.at_level(logging.INFO, "ipex_assist"):
        assert concurrency_of(model, settings) == 4
    assert "prompts in flight: 4 (5 of 5 blocks of 256 tokens" in caplog.text


@needs_native
def test_requests_at_a_time_follow_from_measured_passes(
    endless_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured by the engine once and kept for its cores, where the next start finds them; more than 16 where passes of
    more rows cost little."""
    load = LoadOptions(target=endless_folder, assistant="none", precision="fp32", executor="native", offline=True)
    model = ipex_assist.load(endless_folder, None, precision="fp32", executor="native", kv_memory=80 << 20)
    settings = WorkerSettings(load, 20, lengths=(1,) * 256)
    plan = LaunchPlan((0, 1), 2, "none", (), (), {})
    monkeypatch.setattr(measured_passes, "inherited_plan", lambda _: plan)
    assert measured_passes.kept_passes(load, (0, 1)) is None
    concurrency_of(model, settings)
    kept = measured_passes.kept_passes(load, (1, 0))
    assert kept == tuple(model.pass_seconds or ())
    assert measured_passes.kept_passes(load, (0,)) is None, "another engine's cores"
    assert measured_passes.kept_passes(replace(load, precision="bf16"), (0, 1)) is None
    for slope, rows in ((1.0, 16), (0.02, 49), (0.0, 256)):
        passes = [1 + slope * more for more in range(64)]
        monkeypatch.setattr(measured_passes, "kept_passes", lambda *_, passes=passes: passes)
        with caplog.at_level(logging.INFO, "ipex_assist"):
            assert concurrency_of(model, settings) == rows
    assert "a pass of 49 rows takes 2.0 × one of 1" in caplog.text
    assert concurrency_of(model, replace(settings, concurrency=3)) == 3


def test_an_instance_leaves_memory_to_its_neighbours(endless_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a launcher, whose plan would say so; memory that was given by number stays that."""
    asked: list[LoadOptions] = []

    def load_models(load: LoadOptions, *_: object, **__: object) -> tuple[Mock, list[str]]:
        asked.append(load)
        return Mock(), []

    monkeypatch.setattr("ipex_assist.commands.shared.load.load_models", load_models)
    load = LoadOptions(target=endless_folder, offline=True)
    for settings in (
        WorkerSettings(load, 20, neighbours=4),
        WorkerSettings(load, 20),
        WorkerSettings(replace(load, kv_memory=1 << 30), 20, neighbours=4),
    ):
        worker._load(settings)
    assert [each.kv_share for each in asked] == [0.25, None, None]


@pytest.mark.parametrize(
    ("asked", "available", "neighbours", "wanted"),
    [
        (None, 8 * GIB, 1, 16),
        (None, 0, 1, 16),  # nobody knows how much there is
        (40, 8 * GIB, 1, 40),
        (None, 10, 1, 5),
        (None, 10, 2, 2),
        (None, 1, 1, 1),
    ],
)
def test_the_default_is_what_memory_holds(
    asked: int | None,
    available: int,
    neighbours: int,
    wanted: int,
    endless_model: TextModel,
    endless_folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the instance, by what its weights left. `available` below 100 counts half texts."""
    load = LoadOptions(target=endless_folder, assistant="none", precision="fp32", executor="torch", offline=True)
    settings = WorkerSettings(load, 20, concurrency=asked, lengths=(64,) * 16, neighbours=neighbours)
    text = InstanceNeed.of(load, 20, (64,)).kv_each[0]
    room = available * text // 2 if available < 100 else available
    monkeypatch.setattr(capacity, "read_memory", lambda: MemoryInfo(room, room))
    assert concurrency_of(endless_model, settings) == wanted


def test_through_transformers_it_is_one(
    endless_model: TextModel, caplog: pytest.LogCaptureFixture, endless_folder: str
) -> None:
    """Whatever was asked for; said where somebody listens."""
    from ipex_assist.generation.transformers_model import TransformersModel

    assert TransformersModel.one_at_a_time
    endless_model.one_at_a_time = True
    with caplog.at_level(logging.INFO, "ipex_assist"):
        assert (
            concurrency_of(endless_model, WorkerSettings(LoadOptions(target=endless_folder), 20, concurrency=16)) == 1
        )
    assert "one prompt at a time" in caplog.text
