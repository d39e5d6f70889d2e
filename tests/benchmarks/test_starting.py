"""starting.py with a small program in the place of ipex-assist: what it starts, and what it does not count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import checkpoint_files
import pytest
import starting

from ipex_assist.env.errors import IpexAssistError

pytestmark = [pytest.mark.alone, pytest.mark.one_stack]
# Notes what it was called with; packs slowly, or finds what it packed; writes a token, and ends later.
PROGRAM = """
import os, pathlib, sys, time
packed = pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "m.packed"
with open(sys.argv[1], "a") as log:
    log.write(f"{packed.exists()} {' '.join(sys.argv[2:])}\\n")
if not packed.exists():
    time.sleep(0.3)
    packed.write_text("")
print("token", flush=True)
time.sleep(0.2)
"""


def test_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy left from the turn before would make every start a second one; a token at the end would count the end."""
    log = tmp_path / "log"
    monkeypatch.setattr(starting, "IPEX_ASSIST", [sys.executable, "-S", "-c", PROGRAM, str(log)])
    argv = ["some/model", "--repeats", "2", "--cache", str(tmp_path), "--", "--precision", "int4"]
    assert starting.run(starting.parse(argv)) == 0
    called = log.read_text().splitlines()
    assert [line.split()[0] for line in called] == ["False", "True"] * 3  # one of them the warm-up
    assert all("-m some/model" in line and line.endswith("--precision int4") for line in called)
    assert list(tmp_path.rglob("*.packed")) == []
    python, first, second = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert len(first["first_token_s"]["samples"]) == len(python["whole_s"]["samples"]) == 2
    for each in (first, second):
        assert each["whole_s"]["median"] > each["first_token_s"]["median"] + 0.1
    assert first["first_token_s"]["min"] > 0.3


def test_no_copy_and_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would be counted as quick starts."""
    args = starting.parse(["some/model", "--repeats", "1", "--cache", str(tmp_path)])
    monkeypatch.setattr(starting, "IPEX_ASSIST", [sys.executable, "-S", "-c", "pass"])
    with pytest.raises(IpexAssistError, match="no packed copy is kept"):
        starting.run(args)
    monkeypatch.setattr(starting, "IPEX_ASSIST", [sys.executable, "-S", "-c", "raise SystemExit('nothing there')"])
    with pytest.raises(IpexAssistError, match="ended with 1: nothing there"):
        starting.run(args)


def test_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside each start the file is read from where the start reads it; a copy that is kept would be another start."""
    file = tmp_path / "m.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), file)
    log, forgotten = tmp_path / "log", []
    monkeypatch.setattr(starting, "forget", forgotten.append)
    monkeypatch.setattr(starting, "IPEX_ASSIST", [sys.executable, "-S", "-c", "print('token')", str(log)])
    argv = [str(file), "--stored", "--repeats", "2", "--cache", str(tmp_path)]
    assert starting.run(starting.parse(argv)) == 0
    assert forgotten == [file] * 12  # before reading twice, loading and the start, in three turns
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    each = ("reading", "reading whole", "loading", "first start")
    names = [f"{what} from {where}" for where in ("memory", "disk") for what in each]
    assert [each["start"] for each in found["results"]] == [starting.PYTHON, *names]
    _, reading, whole, loading, first = found["table"][:5]
    assert reading["first token s"] == whole["first token s"] == loading["first token s"] == ""
    assert float(first["first token s"]) > 0
    assert reading["÷ reading"].startswith("1.00 ")
    assert float(loading["÷ reading"].split()[0]) > 1
    monkeypatch.setattr(starting, "IPEX_ASSIST", [sys.executable, "-S", "-c", PROGRAM, str(log)])
    with pytest.raises(IpexAssistError, match=r"m\.packed was written"):
        starting.run(starting.parse(argv))
