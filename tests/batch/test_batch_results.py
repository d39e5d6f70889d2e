"""The file of results: whole lines, one writer, repair after a crash, and a full disk."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_assist.batch.results import OutputError, ResultFile
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack


def opened(path: Path, *, resume: bool = True) -> ResultFile:
    return ResultFile(str(path), resume=resume, prompts=str(path.parent / "prompts.jsonl"))


def result(own_id: int | str, text: str = "a", **more: object) -> dict[str, object]:
    return {"id": own_id, "text": text, "target": "m", "precision": "fp32", "digest": "d", **more}


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    """Ids of both kinds, failures, and line ends inside texts, which must not become lines."""
    path = tmp_path / "out.jsonl"
    file = opened(path, resume=False)
    for record in (result(1, "two\nlines\u2028 \ud800"), result("1"), {"id": "x", "error": "no", "digest": "d"}):
        file.append(record)
    file.close()
    assert path.read_bytes().count(b"\n") == 3
    again = opened(path)
    assert {own_id: done.failed for own_id, done in again.done.items()} == {1: False, "1": False, "x": True}
    assert again.done[1].model == ("m", "fp32")
    assert again.notes == []
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_last_line_is_removed(cut: int, tmp_path: Path) -> None:
    """A node that crashed in the middle of a write: the next record must not be glued to the fragment."""
    path = tmp_path / "out.jsonl"
    whole, torn = json.dumps(result(1)) + "\n", json.dumps(result(2))
    path.write_text(whole + torn[:-cut])
    file = opened(path)
    assert list(file.done) == [1]
    assert f"removed its {len(torn) - cut} bytes" in file.notes[0]
    file.append(result(2))
    file.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    """Its result is whole: it must be neither lost nor doubled."""
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(result(1)))
    file = opened(path)
    file.append(result(2))
    file.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2]


def test_lines_that_are_no_results_stay(tmp_path: Path) -> None:
    """Zeros that a crash left, and somebody's notes: they are counted, and nothing of them is removed."""
    path = tmp_path / "out.jsonl"
    data = b"\0\0\0\n# mine\n" + json.dumps(result(1)).encode() + b'\n{"id": 2}\n'
    path.write_bytes(data)
    file = opened(path)
    file.close()
    assert list(file.done) == [1]
    assert "3 lines of 4, the first 1," in file.notes[0]
    assert path.read_bytes() == data


def test_results_are_not_overwritten(tmp_path: Path) -> None:
    """The same command typed twice without --resume must not cost a night's work."""
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(result(1)) + "\n")
    with pytest.raises(UsageError, match="--resume"):
        opened(path, resume=False)
    assert len(path.read_text().splitlines()) == 1
    (tmp_path / "prompts.jsonl").symlink_to(path)
    with pytest.raises(UsageError, match="file of prompts itself"):
        opened(path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two jobs into one file would do the same prompts twice; the lock goes with its process."""
    path = tmp_path / "out.jsonl"
    file = opened(path)
    with pytest.raises(UsageError, match="another run is writing"):
        opened(path)
    file.close()
    opened(path).close()


@pytest.mark.parametrize("name", ["missing/out.jsonl", "folder"])
def test_places_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    """The error is said before any model is loaded."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path / name)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """write(2) takes what fits and then refuses: the part of a line that went in must come out again."""
    path = tmp_path / "out.jsonl"
    file = opened(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        for number in range(3):
            file.append(result(number, "x" * 3000))
        with pytest.raises(OutputError, match=r"The 3 results in it are whole; make room and .* --resume"):
            file.append(result(3, "x" * 3000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.append(result(3))
    file.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


def test_a_device_that_is_full() -> None:
    """No file to repair there: the message is all."""
    file = ResultFile("/dev/full", resume=False, prompts="none")
    with pytest.raises(OutputError, match="No space left on device"):
        file.append(result(1))
    file.close()


def test_failed_ones_can_be_dropped(tmp_path: Path) -> None:
    """They go in one step, by a copy: mode, link, other lines and the lock stay."""
    path, link = tmp_path / "real.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (result(1), {"id": 2, "error": "no"}, result(3))))
    path.chmod(0o640)
    link.symlink_to(path)
    file = opened(link)
    assert file.drop(lambda own_id, done: done.failed) == 1
    assert list(file.done) == [1, 3]
    with pytest.raises(UsageError, match="another run"):
        opened(link)
    file.append(result(2))
    file.close()
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 3, 2]
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "real.jsonl"]


def test_no_room_for_the_copy(tmp_path: Path) -> None:
    """Dropping failures on a full disk must leave the results as they are."""
    path = tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (result(1, "x" * 9000), {"id": 2, "error": "no"})))
    before = path.read_bytes()
    file = opened(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        with pytest.raises(OutputError):
            file.drop(lambda own_id, done: done.failed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.close()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_kill_in_the_middle_of_writing(tmp_path: Path) -> None:
    """The kernel stops a write at a page border when kill -9 comes: the next run removes that line, and no other."""
    path = tmp_path / "out.jsonl"
    code = (
        "import sys; from ipex_assist.batch.results import ResultFile\n"
        "file = ResultFile(sys.argv[1], resume=True, prompts='none')\n"
        "number = len(file.done)\n"
        "while True:\n"
        "    file.append({'id': number, 'text': 'x' * 5000}); print(number, flush=True); number += 1\n"
    )
    said = -1
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(40):
            said = int(process.stdout.readline())
        process.kill()
        said = max([said, *map(int, process.stdout.read().split())])
        process.wait()
    opened(path).close()
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert ids == list(range(len(ids)))
    assert ids[-1] >= said
