"""read_share.py: the memory's speed of the moment cancels, and a tiny layer is read and multiplied in turns."""

from __future__ import annotations

import json
import random
import sys

import pytest
import read_share
from conftest import HAS_NATIVE


def test_shares_do_not_depend_on_the_memory_of_the_moment() -> None:
    """Of a linear that takes 1.25 times as long as reading, while memory is up to four times slower by turns."""
    chance = random.Random(0)
    slower = [1.0]
    while len(slower) < 40:
        slower.append(min(4.0, max(1.0, slower[-1] * chance.uniform(0.9, 1.12))))
    found = {"read 0": [1.0 * by for by in slower], "read 4096": [1.1 * by for by in slower]}
    found["1"] = [1.25 * (now + after) / 2 for now, after in zip(slower, [*slower[1:], slower[-1]], strict=True)]
    assert read_share.shares(found, "1") == pytest.approx([0.8] * 39)
    found["5"] = [1.5 * by for by in slower]
    first, second = read_share.rows_of("Q4_K", 10**9, 10, found, [1, 5])
    assert (first["share"], first["middle half"]) == ("0.800", "0.800 to 0.800")
    assert 1.15 < float(second["÷ 1 row"]) < 1.25


@pytest.mark.one_stack
@pytest.mark.skipif(not HAS_NATIVE, reason="it measures the native core")
def test_a_tiny_layer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--shape", "256x256", "--megabytes", "1", "--turns", "4", "--precisions", "int4,Q6_K", "--rows", "1,2"]
    monkeypatch.setattr(sys, "argv", ["read_share.py", *argv])
    read_share.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["precision"], row["rows"]) for row in found["table"]] == [
        (precision, rows) for precision in ("int4", "Q6_K") for rows in ("1", "2")
    ]
    for each, unit in zip(found["results"], (36 * 64, 53 * 64), strict=True):
        assert each["bytes"] % unit == 0  # whole panels: of int4 half bytes and two numbers of 2 bytes for 64 inputs
        assert each["bytes"] >= 900_000
        assert {len(samples) for samples in each["ms"].values()} == {4}
