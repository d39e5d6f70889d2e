"""Packed copies by themselves: kept where there is room, within a bound, and by several processes at once."""

from __future__ import annotations

import fcntl
import logging
import os
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import HAS_NATIVE
from packed_files import files, load, logits, warnings
from tiny_tokenizers import tiny_tokenizer

import ipex_assist
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env import phases
from ipex_assist.env.errors import UsageError
from ipex_assist.env.hints import machine_name
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.executors import folder_lock
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native import loading as native_loading
from ipex_assist.executors.native import packed_cache, packed_folder
from ipex_assist.executors.native.packed_cache import MODE_VARIABLE, load_packed, save_packed
from ipex_assist.executors.native.packed_folder import SIZE_VARIABLE, copies, make_room, size_limit
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.usefixtures("folder")]
native = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")


def put(folder: Path, **sizes: int) -> None:
    """Copies of these names and sizes, each used a second after the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    for used, (name, size) in enumerate(sizes.items(), start=1):
        (folder / f"{name}.packed").write_bytes(bytes(size))
        os.utime(folder / f"{name}.packed", (used, used))


def names(folder: Path) -> list[str]:
    return [copy.path.stem for copy in copies(folder)]


# ---- the bound


def test_what_was_used_longest_ago_goes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SIZE_VARIABLE, "10K")
    put(folder, c=4096, a=2048, b=3072)
    make_room(folder / "new.packed", 1024, asked=False)
    assert names(folder) == ["c", "a", "b"]
    assert not warnings(caplog)
    make_room(folder / "new.packed", 2048, asked=False)
    assert names(folder) == ["a", "b"]
    (warning,) = warnings(caplog)
    assert "c.packed, used longest ago: copies may take 0.0 GiB" in warning
    packed_folder.note_use(folder / "a.packed")
    make_room(folder / "b.packed", 9000, asked=False)  # a copy that is written again does not count itself
    assert names(folder) == ["b"]


@pytest.mark.parametrize(("needed", "free", "asked", "reason"), [
    (20 << 10, 1 << 40, True, r"copies may take 0\.0 GiB \(IPEX_ASSIST_CACHE_SIZE changes that\)"),
    (9 << 10, 200 << 20, True, r"0\.3 GiB are needed and 0\.2 GiB are free"),
    (9 << 10, 200 << 20, False, r"0\.3 GiB are needed and 0\.2 GiB are free"),
])  # fmt: skip
def test_where_there_is_no_room_nothing_goes(
    needed: int, free: int, asked: bool, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that others have filled is not emptied of what makes starts quick, in vain."""
    monkeypatch.setenv(SIZE_VARIABLE, "10K")
    put(folder, a=4096, b=4096)
    usage = packed_folder.shutil.disk_usage(folder)
    monkeypatch.setattr(packed_folder.shutil, "disk_usage", lambda path: usage._replace(free=free))
    with pytest.raises(OSError, match=reason):
        make_room(folder / "new.packed", needed, asked=asked)
    assert names(folder) == ["a", "b"]


def test_unasked_it_takes_half_of_what_is_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder)
    usage = packed_folder.shutil.disk_usage(folder)
    monkeypatch.setattr(packed_folder.shutil, "disk_usage", lambda path: usage._replace(free=3 << 30))
    make_room(folder / "new.packed", 2 << 30, asked=True)
    make_room(folder / "new.packed", 3 << 29, asked=False)
    with pytest.raises(OSError, match=r"4\.0 GiB are needed and 3\.0 GiB are free"):
        make_room(folder / "new.packed", 2 << 30, asked=False)


def test_a_size_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIZE_VARIABLE, "much")
    with pytest.raises(UsageError, match=r"IPEX_ASSIST_CACHE_SIZE=much must be a number of bytes such as 8G"):
        size_limit()
    monkeypatch.setenv(SIZE_VARIABLE, "1.5G")
    assert size_limit() == 3 << 29


# ---- by themselves


@native
def test_a_start_says_what_it_does(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, of seconds for the embedded model, of minutes for a large one; a second start has less to do."""
    begun: list[phases.LoadPhase] = []
    monkeypatch.setattr(phases, "_watcher", [SimpleNamespace(begin=begun.append, end=lambda phase: None)])
    tiny_tokenizer().save_pretrained(source)
    name = source.name
    ipex_assist.load(str(source), "self", precision="bf16")
    first = {phase.name: phase.share for phase in begun}
    packed = [f"packing weights of {name} ({precision})" for precision in ("bf16", "int4")]
    assert {*packed, f"loading {name}", "calibrating"} <= set(first)
    assert first["writing packed weights, for later starts"] == 1.0
    assert [first[each] for each in packed] == [1.0, 1.0], "a tensor counts when it is packed"
    begun.clear()
    ipex_assist.load(str(source), "self", precision="bf16")
    read = [f"reading packed weights of {name} ({precision})" for precision in ("bf16", "int4")]
    assert list(dict.fromkeys(phase.name for phase in begun)) == [f"loading {name}", *read]


@native
def test_that_copies_are_kept_is_said_once_a_day(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target and its assistant, and each further model, said the same again."""
    tiny_tokenizer().save_pretrained(source)
    monkeypatch.delenv("IPEX_ASSIST_HINTS")
    for precision in ("int4", "int8"):
        ipex_assist.load(str(source), None, precision=precision)
    assert len(files(folder)) == 2
    assert len([line for line in warnings(caplog) if "a packed copy" in line]) == 1


@native
def test_a_copy_is_kept_unasked_and_that_is_said(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_tokenizer().save_pretrained(source)
    waited: list[int] = []
    monkeypatch.setattr(packed_cache.os, "fsync", waited.append)
    first = ipex_assist.load(str(source), None, precision="int4")
    assert waited == [], "the text waits for no disk"
    (path,) = files(folder)
    (warning,) = warnings(caplog)
    assert f"a packed copy of {source.name} is kept in {folder}" in warning
    assert "--no-cache-packed keeps none" in warning
    assert [(copy.source, copy.precision) for copy in copies(folder)] == [(str(source), "int4")]
    os.utime(path, (1, 1))
    caplog.set_level(logging.INFO, logger="ipex_assist")
    caplog.clear()
    second = ipex_assist.load(str(source), None, precision="int4")
    assert torch.equal(logits(first.target), logits(second.target))
    assert not warnings(caplog)
    assert any(f"int4 from {path}" in record.getMessage() for record in caplog.records)
    assert path.stat().st_mtime > 1, "it was used now, and others go before it"
    path.unlink()
    ipex_assist.load(str(source), None, precision="int4", cache_packed=False)
    monkeypatch.setenv(MODE_VARIABLE, "no")
    ipex_assist.load(str(source), None, precision="int4")
    assert files(folder) == []
    ipex_assist.load(str(source), None, precision="int4", cache_packed=True)
    assert files(folder) == [path]
    assert len(waited) == 1


@native
def test_a_draft_that_shares_a_table_is_kept_where_memory_allows(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is whole: until it is written, the draft has a table of its own."""
    checkpoint = open_checkpoint(str(source))
    target = load_model(LoadRequest(checkpoint, "bf16", "native"))
    for available, kept in ((1 << 29, 0), (1 << 40, 1)):
        monkeypatch.setattr(native_loading, "read_memory", lambda available=available: MemoryInfo(1 << 40, available))
        load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=None, table_of=target))
        assert len(files(folder)) == kept


@native
def test_a_wrong_size_is_said_before_anything_is_packed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIZE_VARIABLE, "0")
    monkeypatch.setattr(PackedModel, "pack", lambda *_: pytest.fail("it was packed"))
    with pytest.raises(UsageError, match="IPEX_ASSIST_CACHE_SIZE=0"):
        load_model(LoadRequest(open_checkpoint(str(source)), "int4", "native", cache_packed=None))


@native
def test_a_folder_that_may_only_be_read(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's: the copy is taken, and nothing is said about its time."""
    expected = logits(load(source))

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(packed_folder.os, "utime", refused)
    monkeypatch.setattr(PackedModel, "pack", lambda *_: pytest.fail("it was packed"))
    assert torch.equal(logits(load(source)), expected)


# ---- several processes


@native
def test_four_processes_write_the_same_copy(source: Path, folder: Path) -> None:
    """Instances of one batch: they write it once or twice, never half, and leave nothing else behind."""
    model = load(source).packed
    (path,) = files(folder)
    whole = path.read_bytes()
    path.unlink()
    children = [_forked(model, path, source) for _ in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert path.read_bytes() == whole
    assert files(folder) == [path]


def _forked(model: PackedModel, path: Path, source: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if save_packed(model, path, str(source)) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


@native
def test_what_another_is_writing_is_not_written_twice(source: Path, folder: Path) -> None:
    """The disk needs room for one copy, however many instances start."""
    model = load(source).packed
    (path,) = files(folder)
    path.unlink()
    other = folder / f".{path.name}.{machine_name()}.1"
    other.write_bytes(b"half")
    with other.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert save_packed(model, path)
        assert files(folder) == [other]
    assert save_packed(model, path)  # it was killed
    assert path in files(folder)
    assert load_packed(PackedModel(model.spec, "int4", model.pool), path)


@native
def test_a_copy_that_somebody_holds_the_folder_for(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in the wrong moment costs seconds, and not the start."""
    model = load(source).packed
    (path,) = files(folder)
    path.unlink()
    monkeypatch.setattr(folder_lock, "_LOCK_SECONDS", 0.05)
    number = os.open(folder, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    assert save_packed(model, path)
    os.close(number)
    assert files(folder) == [path]
