"""Hints that are said once a day and machine."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_assist.env import hints
from ipex_assist.env.hints import due, first_today, log_hint

pytestmark = pytest.mark.one_stack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which nothing was said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(hints.VARIABLE, raising=False)
    return tmp_path / "ipex-assist" / "hints"


def test_a_hint_is_said_once_a_day_on_a_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said at every start, until nobody read it."""
    assert [first_today("a"), first_today("a"), first_today("b")] == [True, False, True]
    monkeypatch.setattr(hints.platform, "node", lambda: "another")
    assert [first_today("a"), first_today("a")] == [True, False]
    monkeypatch.setattr(hints.time, "strftime", lambda form: "2031-01-01")
    assert [first_today("a"), first_today("a")] == [True, False]


def test_the_variable_says_it_always(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hints.VARIABLE, "always")
    assert [first_today("a"), first_today("a")] == [True, True]
    assert not folder.exists()


def test_stamps_of_earlier_days_are_deleted(folder: Path) -> None:
    """A folder that only grows."""
    folder.mkdir(parents=True)
    old, new = folder / "other-2020-01-01-00", folder / "other-2031-01-01-00"
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    assert first_today("a")
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("obstacle", ["a file", "no home", "read-only"])
def test_without_a_cache_it_is_said_and_nothing_fails(
    obstacle: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without a home, and a cache that is a file or on a read-only disk, must not end a start."""
    if obstacle == "a file":
        folder.parent.mkdir()
        folder.touch()
    elif obstacle == "no home":
        monkeypatch.setattr(hints, "cache_folder", lambda kind: (_ for _ in ()).throw(RuntimeError("no home")))
    else:  # root may write anywhere: /proc refuses it, too
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    assert [first_today("a"), first_today("a")] == [True, True]


def test_of_many_processes_one_says_it(folder: Path) -> None:
    """The instances of a batch start at the same moment."""
    code = "import sys; sys.stdin.readline(); from ipex_assist.env.hints import first_today; print(first_today('a'))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(6)]  # type: ignore[call-overload]
    said = [process.communicate("go\n")[0].strip() for process in running]
    assert sorted(said) == ["False"] * 5 + ["True"]


def test_instances_have_one_hint_and_all_their_warnings(folder: Path) -> None:
    """Each instance has other CPUs in its line; what is no hint is said by each of them."""
    lines = [(f"numactl is not installed: CPUs {number}", f"memory is short on {number}") for number in range(2)]
    assert [due(pair, pair[:1]) for pair in lines] == [list(lines[0]), [lines[1][1]]]
    assert [due(pair, pair[:1], verbose=True) for pair in lines] == [list(pair) for pair in lines]


def test_verbose_logs_it_each_time(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("ipex_assist")
    caplog.set_level(logging.INFO, logger="ipex_assist")
    for _ in range(2):
        log_hint(log, "a", "%s is kept", "it")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "it is kept"),
        (logging.INFO, "it is kept"),
    ]
