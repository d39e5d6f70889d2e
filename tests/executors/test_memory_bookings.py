"""Processes that start together share what memory there is; what one has booked, another does not count on."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from machines import PLAIN

from ipex_assist.env.cpulist import parse_cpulist
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.executors.blocks import BLOCK
from ipex_assist.executors.kv_memory import LEAST_BLOCKS, KvMemory, share_of_memory
from ipex_assist.executors.memory_bookings import bookings
from ipex_assist.launch import LaunchPlan

pytestmark = pytest.mark.one_stack

GIB = 1 << 30
FREE = 16  # GiB
CHILD = """
import sys
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.executors import kv_memory
kv_memory.read_memory = lambda: MemoryInfo(24 << 30, 16 << 30)
limit, share, taken = map(float, sys.argv[1:])
memory = kv_memory.KvMemory(int(limit) or None, share)
memory.join(1 << 20, 1 << 30)
sys.stdin.readline()  # all ask at once
print(memory.blocks(), flush=True)
held = b"a" * int(taken)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bookings are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda: MemoryInfo(24 * GIB, FREE * GIB))
    gc.collect()
    return tmp_path / "ipex-assist" / "memory"


@contextmanager
def processes(count: int, *, limit: int = 0, share: float = 1.0, taken: int = 0) -> Iterator[list[Process]]:
    """Processes that have asked for memory at once."""
    with ExitStack() as stack:
        arguments = [sys.executable, "-c", CHILD, *map(str, (limit, share, taken))]
        made = [
            stack.enter_context(subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        for each in made:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        yield [Process(each) for each in made]


class Process:
    """One that has booked. blocks: of 1 MiB."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        assert popen.stdout is not None
        self.popen, self.blocks = popen, int(popen.stdout.readline())
        assert popen.stdout.readline() == "ready\n"


def blocks(limit: int | None = None, share: float = 1.0) -> tuple[KvMemory, int]:
    memory = KvMemory(limit, share)
    memory.join(1 << 20, 1 << 30)
    return memory, memory.blocks()


def test_two_that_start_together_do_not_both_have_all(folder: Path) -> None:
    """Each counted on 15 of 16 GiB, and the second to need them was killed."""
    with processes(2) as two:
        large, small = sorted((each.blocks for each in two), reverse=True)
        assert large == (FREE - 1) << 10
        assert 0 < small < 1 << 10
        assert len(list(folder.iterdir())) == 2
    assert blocks()[1] == (FREE - 1) << 10, "they have ended"


def test_a_process_that_is_killed_leaves_no_booking(folder: Path) -> None:
    with processes(1) as (one,):
        one.popen.send_signal(signal.SIGKILL)
        one.popen.wait()
    assert len(list(folder.iterdir())) == 1
    assert blocks()[1] == (FREE - 1) << 10


def test_what_was_taken_is_not_counted_twice() -> None:
    """It is in the machine's free memory already."""
    with processes(1, limit=GIB >> 2, taken=GIB >> 3), bookings() as found:
        assert GIB >> 4 < found.of_others() < 3 * GIB >> 4
    with processes(1, limit=GIB >> 2, taken=GIB >> 2), bookings() as found:
        assert found.of_others() < GIB >> 4


def test_neighbours_of_one_launcher_have_their_parts() -> None:
    """A launcher has given each a half: the first to ask does not take from the other's."""
    with processes(2, share=0.5) as two:
        assert two[0].blocks == two[1].blocks > 6 << 10


def test_other_nodes_memory_is_nobody_elses() -> None:
    """Two engines, each bound to its node, took each other's bookings for their own node's."""
    with processes(1, limit=FREE * GIB), bookings(1.0, (1,)) as found:
        (path,) = (Path(os.environ["XDG_CACHE_HOME"]) / "ipex-assist" / "memory").glob("*.*")
        fields = json.loads(path.read_text())
        for nodes, counts in (([0, 1], True), ([0], False), ([1], True), ([], True)):
            path.write_text(json.dumps({**fields, "nodes": nodes}))
            assert (found.of_others() > 0) == counts


@pytest.mark.parametrize(
    ("cpus", "nodes", "instances", "share"),
    [
        ("0-7", (0,), 1, 1.0),
        ("0-3", (0,), 1, 0.5),
        ("0-7", (0, 1), 1, 1.0),  # of a model that its own node does not hold
        ("0-15", (0, 1), 1, 1.0),
        ("0-7", (0, 1), 2, 0.5),
        ("8-15", (1,), 2, 1.0),
        ("0-3", (0,), 4, 0.5),
        ("0-3,16-19", (0,), 1, 0.5),  # with --smt
        ("0-7", (), 1, 0.5),
    ],
)
def test_the_share_of_a_launched_process(cpus: str, nodes: tuple[int, ...], instances: int, share: float) -> None:
    """Catches siblings taken for cores, which halved the memory of a process that had the machine for itself."""
    listed = parse_cpulist(cpus)
    plan = LaunchPlan(listed, len(listed), "bind", nodes, (), {}, instances)
    where = replace(PLAIN, allowed_nodes=nodes) if nodes else replace(PLAIN, nodes=(), allowed_nodes=())
    assert share_of_memory(plan, where) == share


def test_a_limit_that_was_named_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """The user knows better; a warning says that there may not be enough."""
    with processes(1):
        assert blocks(4 * GIB)[1] == 4 << 10
    assert "--kv-memory is 4,096.0 MiB, and other processes of yours count on 15," in caplog.text


def test_what_is_booked_only_is_no_reason_to_refuse(caplog: pytest.LogCaptureFixture) -> None:
    """Would catch a second small command that ends with "too little memory", while the first uses none of its own."""
    with processes(1, limit=FREE * GIB):
        assert blocks()[1] == (FREE - 1) << 10
    assert re.search(r"have booked 16,\d+\.\d MiB of the 16,384\.0 MiB that are available", caplog.text)


def test_a_text_of_known_length_books_what_it_needs() -> None:
    memory = KvMemory(most_tokens=50 * BLOCK)
    memory.join(1 << 20, 1 << 20)
    assert memory.blocks() == 51
    short = KvMemory(most_tokens=50)
    short.join(1 << 20, 1 << 20)
    assert short.blocks() == LEAST_BLOCKS


def test_it_goes_with_the_model(folder: Path) -> None:
    first, second = blocks(GIB), blocks(GIB)
    (path,) = folder.iterdir()
    assert path.name.endswith(f".{os.getpid()}")
    del first
    assert path.exists()
    del second
    assert list(folder.iterdir()) == []


def test_without_a_folder_everybody_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    caplog.set_level(logging.INFO, logger="ipex_assist")
    assert blocks()[1] == (FREE - 1) << 10
    assert "is not booked" in caplog.text


def test_a_disk_without_locks_keeps_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was left at each start, and never deleted."""
    from ipex_assist.executors import memory_bookings

    def refuse(file: object, how: int) -> None:
        raise OSError("no locks available")

    folder.mkdir(parents=True)
    monkeypatch.setattr(memory_bookings.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="no locks"):
        memory_bookings._own_file(folder)
    assert list(folder.iterdir()) == []
