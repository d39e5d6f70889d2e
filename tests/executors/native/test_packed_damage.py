"""Packed files that are damaged, and folders without room: the weights are packed again, and it is said."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from packed_files import files, load, logits, warnings, was_packed

from ipex_assist.env.cache import cache_folder
from ipex_assist.executors.native import packed_cache, packed_folder
from ipex_assist.executors.native.packed_cache import HEADER_BYTES, LAYOUT_VERSION, load_packed
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.usefixtures("folder"),
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def header_alone(path: Path) -> None:
    os.truncate(path, HEADER_BYTES)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 4096)


def flip(offset: int, bit: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 1 << bit
        path.write_bytes(content)

    damage.__name__ = f"bit {bit} of byte {offset}"
    return damage


def header(**changes: object) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        fields = json.loads(content[:HEADER_BYTES].rstrip(b"\0")) | changes
        path.write_bytes(json.dumps(fields).encode().ljust(HEADER_BYTES, b"\0") + content[HEADER_BYTES:])

    damage.__name__ = f"header with {changes}"
    return damage


def first_page(text: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(text.ljust(HEADER_BYTES, b"\0") + path.read_bytes()[HEADER_BYTES:])

    damage.__name__ = f"first page {text[:16]!r}"
    return damage


DAMAGES = [
    truncated,
    empty,
    header_alone,
    longer,
    flip(HEADER_BYTES, 0),
    flip(HEADER_BYTES + 70_001, 3),
    flip(-4096, 7),
    flip(-1, 7),
    flip(3, 1),
    header(magic="somebody's"),
    header(layout=LAYOUT_VERSION - 1),
    header(layout=None),
    header(bytes=1),
    header(checksum="0" * 16),
    header(checksum=None),
    header(checksum="no number"),
    first_page(b""),
    first_page(b"GGUF\3\0\0\0"),
    first_page(b"[1, 2]"),
    first_page(b"\xff\xfe{}"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_packed_again(
    damage: Callable[[Path], None], source: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rot, a copy cut short, another program's file, an older layout: said, deleted, and the result is right."""
    expected = logits(load(source))
    (path,) = files(folder)
    whole = path.read_bytes()
    damage(path)
    assert path.read_bytes() != whole
    caplog.set_level(logging.INFO, logger="ipex_assist")
    caplog.clear()
    assert torch.equal(logits(load(source)), expected)
    assert was_packed(caplog)
    (warning,) = warnings(caplog)
    assert str(path) in warning
    assert "is not used: " in warning
    assert warning.endswith("The checkpoint is packed again")
    assert files(folder) == [path]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("bit", range(8))
def test_every_bit_of_the_image_counts(bit: int, source: Path, folder: Path) -> None:
    """A checksum that skips bytes, or a file that is only looked at in part: 40 places, each with this bit flipped."""
    model = load(source).packed
    (path,) = files(folder)
    whole = path.read_bytes()
    for step in range(40):
        flip(HEADER_BYTES + (len(whole) - HEADER_BYTES - 1) * step // 39, bit)(path)
        assert not load_packed(PackedModel(model.spec, "int4", model.pool), path, copy=False)
        path.write_bytes(whole)
    assert load_packed(PackedModel(model.spec, "int4", model.pool), path, copy=False)


def test_no_room_is_a_warning(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free is looked at first, so that a full disk is not filled to its last byte by a copy nobody needs."""
    usage = packed_folder.shutil.disk_usage(source)
    monkeypatch.setattr(packed_folder.shutil, "disk_usage", lambda path: usage._replace(free=200 << 20))
    expected = logits(load(source))
    (warning,) = warnings(caplog)
    assert str(folder) in warning
    assert "no packed copy is kept" in warning
    assert "0.2 GiB are free" in warning
    assert files(folder) == []
    monkeypatch.undo()
    assert torch.equal(logits(tiny_models.model(source, "native", "int4")), expected)


@pytest.fixture
def size_limit() -> Iterator[None]:
    """Files may have 100 kB: writing further is an OSError, as on a disk that fills up meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_writing_that_fails_leaves_nothing(
    source: Path, folder: Path, size_limit: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The check before came too early: what was written goes, and the model works."""
    load(source)
    assert any("no packed copy is kept" in warning for warning in warnings(caplog))
    assert files(folder) == []


def test_a_full_file_system(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one of 64 kB, with a disk_usage that promises more."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no permission to mount a file system: {mounted.stderr.decode().strip()}")
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(small))
        usage = packed_folder.shutil.disk_usage(source)
        monkeypatch.setattr(packed_folder.shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
        expected = logits(load(source))
        (warning,) = warnings(caplog)
        assert "No space left on device" in warning
        assert files(cache_folder("packed")) == []
        monkeypatch.undo()
        assert torch.equal(logits(tiny_models.model(source, "native", "int4")), expected)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_ctrl_c_while_writing_leaves_nothing(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half a file under the right name nor one under another that nobody would ever delete."""
    seen: list[list[Path]] = []

    def interrupted(file: int) -> None:
        seen.append(files(folder))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(packed_cache.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(source)
    assert len(seen[0]) == 1, "the signal came while there was something to leave behind"
    assert not seen[0][0].name.endswith(".packed")
    assert files(folder) == []
