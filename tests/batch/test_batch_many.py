"""Many prompts in flight in each instance: in what order they end, and what becomes of them when their instance does.

The instances are processes that die for real; how long their prompts take is invented.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from batch_runs import (
    FAKE,
    SIXTEEN,
    TWO,
    by_id,
    children,
    gone,
    lines_in,
    records,
    run,
    start,
    wait_for,
    write_prompts,
)

pytestmark = pytest.mark.one_stack

ONE = ["--no-launch", "--instances", 1]


def test_answers_come_in_any_order(tmp_path: Path) -> None:
    """Each is its own prompt's, whoever overtook it; an instance has sixteen in flight, and never more."""
    texts = [f"word {i}" for i in range(300)]
    prompts = write_prompts(tmp_path / "p.jsonl", texts)
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO, *SIXTEEN, SLEEP="0.1", JITTER="1")
    assert code == 0, err
    found = by_id(tmp_path / "o")
    assert [found[f"p{i}"]["text"] for i in range(300)] == texts
    assert all(record["tries"] == 1 for record in found.values())
    lines = [record["line"] for record in records(tmp_path / "o")]
    assert sum(now > then for then, now in zip(lines[1:], lines, strict=False)) > 50
    assert max(record["company"] for record in found.values()) == 16
    assert {record["instance"] for record in found.values()} == {0, 1}


def test_the_last_prompts_are_spread_evenly(tmp_path: Path) -> None:
    """Of ten prompts, sixteen fit into one instance; the other is to have its half all the same."""
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(10)])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO, *SIXTEEN, SLEEP="2")
    assert code == 0, err
    instances = [record["instance"] for record in by_id(tmp_path / "o").values()]
    assert sorted(instances) == [0] * 5 + [1] * 5


@pytest.mark.parametrize("instances", [1, 2])
def test_poison_is_found_out_among_fifteen_others(instances: int, tmp_path: Path) -> None:
    """It kills its instance whenever it runs: it alone fails, and nobody who was there pays for it."""
    texts = [f"word {i}" for i in range(60)]
    texts[5] = "die"
    prompts = write_prompts(tmp_path / "p.jsonl", texts)
    code, err = run(
        FAKE, prompts, "-o", tmp_path / "o", "--no-launch", "--instances", instances, *SIXTEEN, SLEEP="0.05"
    )
    assert code == 1, err
    found = by_id(tmp_path / "o")
    assert len(found) == 60
    assert [own_id for own_id, record in found.items() if "error" in record] == ["p5"]
    tries = found["p5"]["error"].split("; ")
    assert len(tries) == found["p5"]["tries"] == 3
    assert "prompts in flight" in tries[0]
    assert all("was killed by SIGKILL" in text for text in tries)
    assert not any("in flight" in text for text in tries[1:])
    suspects = [record for own_id, record in found.items() if record["tries"] == 2]
    assert 1 <= len(suspects) <= 15
    assert {record["company"] for record in suspects} == {1}
    assert max(record["tries"] for own_id, record in found.items() if own_id != "p5") == 2


def test_three_poisons_in_one_company(tmp_path: Path) -> None:
    """All three fail, in the end, and none of those that were with them."""
    texts = [f"word {i}" for i in range(40)]
    for place in (2, 7, 11):
        texts[place] = "die"
    prompts = write_prompts(tmp_path / "p.jsonl", texts)
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *ONE, *SIXTEEN, SLEEP="0.02")
    assert code == 1, err
    found = by_id(tmp_path / "o")
    assert len(found) == 40
    assert {own_id for own_id, record in found.items() if "error" in record} == {"p2", "p7", "p11"}


def test_a_timeout_cancels_one_prompt_and_nothing_else(tmp_path: Path) -> None:
    """The instance lives on, and with it the prompts that are in flight beside it."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["endless", *[f"word {i}" for i in range(40)]])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *ONE, *SIXTEEN, "--timeout", 1, SLEEP="0.3")
    assert code == 1, err
    found = by_id(tmp_path / "o")
    assert len(found) == 41
    assert found["p0"]["error"].count("instance 0 gave no result within 1 s (--timeout)") == 2
    assert {record["tries"] for own_id, record in found.items() if own_id != "p0"} == {1}
    assert len({record["pid"] for own_id, record in found.items() if own_id != "p0"}) == 1


def test_an_instance_that_cannot_be_cancelled_is_ended(tmp_path: Path) -> None:
    """What hangs is found out alone, as what kills is, and the others get their results."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["hang", *[f"word {i}" for i in range(20)]])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *ONE, *SIXTEEN, "--timeout", 0.6, SLEEP="0.1")
    assert code == 1, err
    found = by_id(tmp_path / "o")
    assert [own_id for own_id, record in found.items() if "error" in record] == ["p0"]
    assert len(found) == 21
    assert "gave no result within 0.6 s (--timeout)" in found["p0"]["error"]
    assert "instance 0: gave no result within 0.6 s (--timeout) (at id" in err


def test_what_broke_in_company_is_tried_again_alone(tmp_path: Path) -> None:
    """Memory that was short for sixteen may do for one."""
    mark = tmp_path / "mark"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"again-first {mark}", *[f"word {i}" for i in range(20)]])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *ONE, *SIXTEEN, SLEEP="0.1")
    assert code == 0, err
    record = by_id(tmp_path / "o")["p0"]
    assert (record["tries"], record["company"]) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_signals_with_many_in_flight(number: int, tmp_path: Path) -> None:
    """What ends within the grace is kept, all of it; the rest is left for --resume, which does each once."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(200)])
    process = start(FAKE, prompts, "-o", out, *TWO, *SIXTEEN, SLEEP="0.4")
    wait_for(lambda: lines_in(out) >= 32)
    pids = children(process.pid)
    before = lines_in(out)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    done = len(by_id(out))
    assert before + 16 <= done < 200
    assert f"{200 - done} prompts left for --resume" in err
    wait_for(lambda: gone(pids), 1)
    assert run(FAKE, prompts, "-o", out, *TWO, *SIXTEEN, "--resume", SLEEP="0.01")[0] == 0
    assert len(by_id(out)) == 200


def test_kill_9_of_an_instance_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Sixteen are in flight when it dies: these have a second try, alone, and no other prompt has."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(100)])
    process = start(FAKE, prompts, "-o", out, *TWO, *SIXTEEN, SLEEP="0.3")
    wait_for(lambda: lines_in(out) >= 33)
    time.sleep(0.05)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = by_id(out)
    assert len(found) == 100
    again = [record for record in found.values() if record["tries"] == 2]
    assert 8 <= len(again) <= 16
    assert {record["company"] for record in again} == {1}
    assert all(record["tries"] == 1 for record in found.values() if record not in again)
