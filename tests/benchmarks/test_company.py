"""company.py and barriers.py on a tiny model: what they start and count, and what they complain of."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import barriers
import company
import forward
import psutil
import pytest
from conftest import HAS_NATIVE
from native_models import pool

from ipex_assist.env.errors import IpexAssistError

pytestmark = [
    pytest.mark.alone,
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="the barriers are the native core's"),
]
CPU = min(os.sched_getaffinity(0))
SMALL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = forward.CONFIGS["qwen2.5-0.5b"]
    heads = {"num_attention_heads": 4}
    monkeypatch.setattr(forward, "CONFIGS", {"small": (name, config | SMALL | heads)})
    monkeypatch.setattr(forward.RandomWeights, "VALUES", 1 << 16)
    for module in (company, barriers):
        monkeypatch.setattr(module, "planned_pool", lambda: pool(2))
    monkeypatch.setattr(forward, "planned_pool", lambda: pool(2))
    monkeypatch.setattr(company, "MASK_AT_START", frozenset([CPU]))


def run_company(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], str]:
    code = company.main(["--models", "small", "--rows", "2", "--seconds", "0.05", "--turns", "2", *flags])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def test_company_is_there_and_goes() -> None:
    """Loops that had not begun, were elsewhere or stayed would make every ratio a wrong one."""
    with company.company([CPU, CPU]) as loops:
        processes = [psutil.Process(loop.pid) for loop in loops]
        assert [process.cpu_affinity() for process in processes] == [[CPU], [CPU]]
        assert all(process.is_running() for process in processes)
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL, -signal.SIGKILL]
    with pytest.raises(IpexAssistError, match="did not start"), company.company([1 << 20]):
        pass


def test_turns(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone and in company the same number of times, and a figure that is too low is an error."""
    code, found, err = run_company(capsys, "--least", "0")
    assert (code, err) == (0, "")
    (row,) = found["table"]
    assert (row["model"], row["rows"]) == ("small", "2")
    (result,) = found["results"]
    assert len(result["alone"]) == len(result["company"]) == 2
    assert all(each["passes_per_s"] > 0 for each in result["alone"] + result["company"])
    code, _, err = run_company(capsys, "--least", "99")
    assert code == 1
    assert "of the speed alone, 99.0 is wanted" in err


def test_ratios_are_of_a_turn() -> None:
    """A machine that becomes slower between two turns does not change them."""
    alone, together = ([company.Sample(speed, 1.0, 0) for speed in speeds] for speeds in ([10, 40, 20], [5, 16, 9]))
    row = company.row_of({"model": "any"}, alone, together)
    assert (row["÷ alone"], row["spread"]) == ("0.45", "0.40 to 0.50")


# ---- barriers.py


@pytest.mark.parametrize(("rows", "threads", "most"), [(1, 2, 5), (1, 4, 5), (3, 4, 5), (16, 2, 7)])
def test_barriers_of_a_layer(rows: int, threads: int, most: int) -> None:
    """One more is 2 µs a layer on 56 threads. Where rows are many, they are shared, and not made by every thread."""
    of_layer, of_pass = barriers.counted("small", "int8", rows, pool(threads))
    assert of_layer == most
    assert of_layer * SMALL["num_hidden_layers"] < of_pass < of_layer * (SMALL["num_hidden_layers"] + 2)


def test_barriers_on_paper() -> None:
    """By hand: 8 and 7 count in turn, the last tells 55 others."""
    machine = barriers.Machine(threads=56, bandwidth=250, line_ns=70, spread_ns=15)
    assert machine.barrier_us() == pytest.approx((8 + 7 + 1) * 0.07 + 55 * 0.015)
    whole, waiting = machine.pass_ms(250_000_000, 100)
    assert waiting == pytest.approx(0.1 * machine.barrier_us())
    assert whole == pytest.approx(1 + waiting)


def test_barriers_of_sockets_on_paper() -> None:
    """By hand: 7 groups of 8 on each of two sockets, which count after each other; one of them tells the other.

    With one line for all, half of 14 groups come from the other socket, and 56 threads fetch it from there.
    """
    machine = barriers.Machine(112, 250, line_ns=70, spread_ns=15, sockets=2, socket_ns=150)
    assert machine.barrier_us() == pytest.approx((8 + 7 + 1) * 0.07 + 2 * 0.15 + 0.15 + 55 * 0.015)
    assert machine.one_level_us() == pytest.approx((8 + 7 + 1) * 0.07 + 7 * 0.15 + 55 * 0.015 + 56 * 0.15)
    alone = barriers.Machine(5, 250, line_ns=70, spread_ns=15)
    assert alone.barrier_us() == pytest.approx(alone.one_level_us()) == pytest.approx(6 * 0.07 + 4 * 0.015)


def test_barriers_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the table for each number of rows, of the threads here and those on paper."""
    barriers.main(
        ["--models", "small", "--rows", "1,2", "--repeats", "2", "--count", "20", "--threads", "4", "--sockets", "2"]
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["rows"], row["2 threads: a layer"]) for row in found["table"]] == [("1", "5"), ("2", "5")]
    assert len(found["results"][0]["barrier_us"]) == 2
    assert found["paper"]["threads"] == 4
    assert float(found["table"][0]["(one level)"]) > float(found["table"][0]["µs each, modelled"])
