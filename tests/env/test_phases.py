"""Phases of a start: what a terminal and a file get to see of them."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from ipex_assist.env import phase_display, phases
from ipex_assist.env.phase_display import PhaseDisplay, phases_shown, show_phases
from ipex_assist.env.phases import LoadPhase, phase, watched

pytestmark = pytest.mark.one_stack

NOW = 1000.0


@pytest.fixture(autouse=True)
def nobody_watches() -> Iterator[None]:
    """Whatever a test turns on is off after it."""
    yield
    phases._watcher.clear()
    phase_display._displays.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still."""
    for module in (phases, phase_display):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW))


def lasting(name: str, seconds: float, share: float | None = None, **more: bool) -> LoadPhase:
    """A phase that began so long ago."""
    return LoadPhase(name, share=share, started=NOW - seconds, **more)


def shown(running: Sequence[LoadPhase], *, terminal: bool) -> str:
    """What a new display writes."""
    stream = io.StringIO()
    PhaseDisplay(stream, terminal=terminal).show(running)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("running", "line"),
    [
        ([lasting("packing weights", 1, 0.431)], "packing weights: 43 %"),
        ([lasting("calibrating", 3.2)], "calibrating: 3 s"),
        ([lasting("packing weights", 0.2, 0.5)], ""),  # it would only flicker
        ([lasting("loading", 2), lasting("packing", 1, 0.5)], "packing: 50 %"),
        ([lasting("loading", 2), lasting("packing", 0.1, 0.5)], "loading: 2 s"),
        ([lasting("loading", 2), lasting("downloading", 1, drawn_elsewhere=True)], ""),  # the hub draws bars
    ],
)
def test_a_terminal_has_one_line(running: list[LoadPhase], line: str, clock: None) -> None:
    """The embedded model's first start was silent for 20 s."""
    assert shown(running, terminal=True) == (f"\r\033[Kipex-assist: {line}" if line else "")


def test_the_line_is_rewritten_and_goes(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that stays, or wraps, leaves the terminal full of halves."""
    stream = io.StringIO()
    display = PhaseDisplay(stream, terminal=True)
    monkeypatch.setattr(display, "_columns", lambda: 25)
    one = lasting("packing", 1, 0.1)
    display.show([one])
    display.show([one])
    one.share = 0.999
    display.show([one])
    display.show([])
    display.show([])
    assert stream.getvalue() == "\r\033[Kipex-assist: packing: 10\r\033[Kipex-assist: packing: 10\r\033[K"


def test_a_file_gets_a_line_for_each_long_phase(clock: None) -> None:
    """A log with carriage returns, or with a line a second, is read by nobody."""
    stream = io.StringIO()
    display = PhaseDisplay(stream, terminal=False)
    outer, short, packing = lasting("loading", 9), lasting("reading", 1.9), lasting("packing", 2.1, 0.5)
    outer.inner_s = 8.0  # of phases inside it
    for running in ([outer, short], [outer, packing], [outer, packing], [outer], []):
        display.show(running)
    assert stream.getvalue() == "ipex-assist: packing\n"


def test_a_phase_that_becomes_another_has_its_own_line(clock: None) -> None:
    """A server's line stands for what its engines do, one after the other."""
    stream = io.StringIO()
    display, one = PhaseDisplay(stream, terminal=False), lasting("loading", 3)
    display.show([one])
    one.becomes("packing", 0.2)
    display.show([one])
    one.started -= 3
    one.becomes("packing", 0.9)
    display.show([one])
    assert stream.getvalue().splitlines() == ["ipex-assist: loading", "ipex-assist: packing"]


def test_what_watches_sees_phases_inside_each_other_and_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread that lives only as long as they do; it would keep a process of OpenMP from its cores."""
    monkeypatch.setattr(phases, "TICK_SECONDS", 0.005)
    seen: list[list[str]] = []
    with watched(lambda running: seen.append([each.name for each in running])):
        with phase("outer") as outer, phase("inner"):
            while ["outer", "inner"] not in seen:
                time.sleep(0.002)
        assert outer.inner_s > 0
        assert seen[-1] == []
    assert not [thread for thread in threading.enumerate() if thread.name == "phases"]
    before = len(seen)
    with phase("unseen"):
        assert not [thread for thread in threading.enumerate() if thread.name == "phases"]
    assert len(seen) == before


def test_an_error_ends_phases_that_a_generator_left_open() -> None:
    """The message stood behind the line, which then came again."""
    seen: list[int] = []

    def tensors() -> Iterator[int]:
        with phase("packing"):
            yield 1

    left_open = tensors()

    def load() -> None:
        with phase("loading"):
            next(left_open)
            raise ValueError("broken")

    with watched(lambda running: seen.append(len(running))):
        with pytest.raises(ValueError, match="broken"):
            load()
        assert seen[-1] == 0
        left_open.close()


def test_messages_have_lines_of_their_own(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were appended to the line, and the next picture erased them."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(stream)
    log = logging.getLogger()
    log.addHandler(handler)
    try:
        show_phases()
        [display] = phase_display._displays
        display._terminal = True
        running = [lasting("packing", 1, 0.5)]
        display.show(running)
        log.warning("no room")
        display.show(running)  # not at once: more messages may come
        assert stream.getvalue() == "\r\033[Kipex-assist: packing: 50 %\r\033[Kno room\n"
    finally:
        log.removeHandler(handler)


def test_load_shows_them_on_request(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(phase_display, "PRINTED_AFTER", 0.0)
    monkeypatch.setattr(phases, "TICK_SECONDS", 0.002)
    with phases_shown(False), phase("packing"):
        time.sleep(0.05)
    assert capfd.readouterr().err == ""
    shown = ""
    with phases_shown(True), phase("packing"):
        while not shown:
            time.sleep(0.002)
            shown = capfd.readouterr().err
    assert shown == "ipex-assist: packing\n"


def test_a_conversation_has_the_terminal_for_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """Passes may be measured again before any question, where the chat's own sign turns."""
    show_phases()
    phase_display.hide_later_phases()
    with phase("calibrating"):
        assert not [thread for thread in threading.enumerate() if thread.name == "phases"]
    assert capfd.readouterr().err == ""


def test_a_closed_standard_error_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """2>&-"""
    monkeypatch.setattr(sys, "stderr", None)
    show_phases()
    with phase("packing"):
        pass
