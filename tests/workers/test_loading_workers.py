"""What workers report while they load, and what becomes of it."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from ipex_assist.env import phases
from ipex_assist.env.phases import LoadPhase
from ipex_assist.workers.loading_workers import LoadingWorkers
from ipex_assist.workers.wire import PhaseReport
from ipex_assist.workers.worker import PhaseReporter

pytestmark = pytest.mark.one_stack


def test_one_of_them_speaks_for_all() -> None:
    """The number first: a narrow terminal cuts the end off."""
    workers = LoadingWorkers()
    assert workers.text(0) == ""
    assert workers.text(2) == "2 instances loading"
    workers.note(PhaseReport("calibrating", None, 3.4, instance=1))
    workers.note(PhaseReport("packing weights", 0.1, 1.0, instance=0))
    workers.note(PhaseReport("packing weights", 0.43, 1.2, instance=0))
    assert workers.text(2) == "2 instances loading, 43 %: packing weights"
    workers.over(0)
    assert workers.text(1) == "1 instance loading, 3 s: calibrating"


def test_a_worker_reports_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report each tick would fill the pipe of a coordinator that is busy."""
    monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    replies = io.BytesIO()
    reporter = PhaseReporter(replies)  # type: ignore[arg-type]
    outer = LoadPhase("loading", started=1000 - 2.1)
    packing = LoadPhase("packing", share=0.431, started=1000 - 0.7)
    short = LoadPhase("reading", started=1000)
    for running in ([short], [outer, packing], [outer, packing], [outer, short], []):
        reporter.show(running)
    sent = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert sent == [
        {"type": "phase", "name": "packing", "share": 0.431, "seconds": 0.7},
        {"type": "phase", "name": "loading", "share": None, "seconds": 2.1},
    ]
