"""streams.py: what it reports of a few passes."""

from __future__ import annotations

import json

import pytest
import streams
from conftest import HAS_NATIVE

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="the waiting is the native core's")]


def test_waits_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches passes that do not take their time, and rounds that are not counted."""
    args = streams.parse(["--requests", "1,3", "--pass-ms", "4", "--rounds", "9", "--repeats", "1"])
    assert streams.run(args) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert [(row["kind"], row["requests"]) for row in found] == [
        ("greedy", 1),
        ("drawn", 1),
        ("greedy", 3),
        ("drawn", 3),
    ]
    for row in found:
        assert 4 <= row["passes"] <= 9
        assert row["median"] > 0
        assert row["beside_ms"] > 0
