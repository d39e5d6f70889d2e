"""What disks are asked for while parts of files are read one after the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipex_assist.checkpoints.safetensors_file import StoredTensor
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.native import files_ahead
from ipex_assist.executors.native.files_ahead import FilesAhead

pytestmark = pytest.mark.one_stack
MB = 1 << 20


def part(path: Path, offset: int, nbytes: int) -> StoredTensor:
    return StoredTensor(path, "U8", (nbytes,), offset, nbytes)


def test_each_byte_is_asked_for_once_and_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads only the first megabyte or so of a large request, and a request at the last moment helps nobody."""
    monkeypatch.setattr(files_ahead, "AHEAD", 5 * MB)
    one, two = tmp_path / "1", tmp_path / "2"
    for path in (one, two):
        path.touch()
        os.truncate(path, 40 * MB)
    parts = [part(one, 3, 2 * MB + 7), part(one, 9 * MB, 12 * MB), part(two, 0, 100), part(two, 100, 20 * MB)]
    asked: list[tuple[Path, int, int]] = []

    def advise(file: int, offset: int, nbytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append((Path(os.readlink(f"/proc/self/fd/{file}")), offset, nbytes))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    with FilesAhead(parts) as files:
        for number, each in enumerate(parts):
            file = files.begin(each)
            assert Path(os.readlink(f"/proc/self/fd/{file}")) == each.path
            done = sum(nbytes for _, _, nbytes in asked)
            wanted = sum(one.nbytes for one in parts[: number + 1]) + 5 * MB
            assert min(wanted, sum(one.nbytes for one in parts)) <= done < wanted + MB
    assert max(nbytes for _, _, nbytes in asked) == MB
    for each in parts:
        inside = [(at, size) for path, at, size in asked if path == each.path and 0 <= at - each.offset < each.nbytes]
        at = each.offset
        for begin, size in inside:
            assert begin == at
            at += size
        assert at == each.offset + each.nbytes
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    """It ended early, or went away: a sentence, not half of a weight."""
    path = tmp_path / "m"
    path.write_bytes(bytes(99))
    with FilesAhead([part(path, 0, 100)]) as files, pytest.raises(IpexAssistError, match=r"ended at byte 99 .* 100"):
        files.begin(part(path, 0, 100))
    gone = part(tmp_path / "gone", 0, 1)
    with FilesAhead([gone]) as files, pytest.raises(IpexAssistError, match="cannot be read: No such file"):
        files.begin(gone)
