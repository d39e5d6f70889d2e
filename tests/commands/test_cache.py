"""`ipex-assist cache`: what is listed, what is deleted, and what is said where that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ipex_assist.cli import main
from ipex_assist.executors.native.packed_folder import DEFAULT_SIZE, HEADER_BYTES

pytestmark = pytest.mark.one_stack

OLD, NEW = "org-old-int4-0123456789abcdef.packed", "org-new-bf16-fedcba9876543210.packed"


@pytest.fixture
def filled(folder: Path) -> Path:
    """A folder of two copies, what somebody is writing, and a file that is nobody's."""
    folder.mkdir(parents=True)
    for used, (name, precision) in enumerate({OLD: "int4", NEW: "bf16"}.items(), start=1):
        header = {"magic": "ipex-assist packed weights", "source": name[:7], "precision": precision}
        (folder / name).write_bytes(json.dumps(header).encode().ljust(HEADER_BYTES, b"\0") + bytes(used << 20))
        os.utime(folder / name, (used, used))
    (folder / f".{NEW}.host.7").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    return folder


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["cache", *argv, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_list(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "list")
    assert (report["folder"], report["limit"]) == (str(filled), DEFAULT_SIZE)
    assert report["bytes"] == (3 << 20) + 2 * HEADER_BYTES
    assert report["copies"] == [
        {
            "name": NEW,
            "model": "org-new",
            "precision": "bf16",
            "bytes": (2 << 20) + HEADER_BYTES,
            "used": "1970-01-01T00:00:02Z",
        },
        {
            "name": OLD,
            "model": "org-old",
            "precision": "int4",
            "bytes": (1 << 20) + HEADER_BYTES,
            "used": "1970-01-01T00:00:01Z",
        },
    ]
    assert main(["cache"]) == 0
    first, _second, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["0.00", "GiB", "1970-01-01", "00:00:02", "bf16", "org-new", NEW]
    assert last == f"2 packed copies, 0.00 GiB of at most 64.00 GiB (IPEX_ASSIST_CACHE_SIZE), in {filled}"


def test_a_copy_of_somebody_elses(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first page is no JSON, or lacks what newer ones have."""
    (filled / OLD).write_bytes(b"\xff" * 5000)
    (filled / NEW).write_bytes(b"[]".ljust(5000, b"\0"))
    assert [(copy["model"], copy["precision"]) for copy in told(capsys, "list")["copies"]] == [(None, None)] * 2  # type: ignore[attr-defined]
    assert main(["cache", "list"]) == 0
    assert "?" in capsys.readouterr().out


def test_no_folder_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "list")["copies"] == []
    assert told(capsys, "clear")["deleted"] == []
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"deleted 0 packed copies, 0.00 GiB, in {folder}\n"


def test_clear(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "clear", OLD, OLD)
    assert [copy["name"] for copy in report["deleted"]] == [OLD]  # type: ignore[attr-defined]
    assert report["bytes"] == (1 << 20) + HEADER_BYTES
    assert sorted(path.name for path in filled.iterdir()) == sorted([f".{NEW}.host.7", NEW, "notes.txt"])
    told(capsys, "clear")
    assert sorted(path.name for path in filled.iterdir()) == [f".{NEW}.host.7", "notes.txt"]


@pytest.mark.parametrize(("argv", "code", "said"), [
    (["list", OLD], 2, f"list takes no names, and {OLD} is one"),
    (["clear", "../x"], 2, "../x: there is no such copy in"),
    (["clear", OLD, "x"], 2, "x: there is no such copy in"),
    (["empty"], 2, "invalid choice"),
])  # fmt: skip
def test_what_cannot_be_asked(
    argv: list[str], code: int, said: str, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *argv]) == code
    assert said in capsys.readouterr().err
    assert (filled / OLD).exists(), "nothing is deleted by a command that is wrong"


def test_a_copy_that_cannot_be_deleted(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == OLD:
            raise PermissionError(13, "Permission denied")
        before(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert main(["cache", "clear"]) == 1
    said = capsys.readouterr().err
    assert f"{filled / OLD} cannot be deleted: Permission denied. 1 of 2 copies are gone" in said


def test_a_wrong_limit(filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEX_ASSIST_CACHE_SIZE", "lots")
    assert main(["cache", "list"]) == 2
    assert "IPEX_ASSIST_CACHE_SIZE=lots must be a number of bytes" in capsys.readouterr().err
