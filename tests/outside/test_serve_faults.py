"""A server of real engines under load and faults, by serve_faults.py: little of each, and what it finds."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("llguidance")

import serve_faults
import serve_soak
from conftest import HAS_NATIVE
from serve_clients import Answer, mixed, refused

pytestmark = pytest.mark.one_stack

LITTLE = {"requests": 12, "kills": 1, "disconnects": 20, "bodies": 200, "instances": 1, "concurrency": 8}


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
def test_little_of_each(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts at once as alone, drafted; an engine killed; clients that go away; bodies that are no good."""
    words = [word for name, value in LITTLE.items() for word in (f"--{name}", str(value))]
    words += ["-m", pair[0], "--tasks", "texts,kills,disconnects,malformed", "--json", str(tmp_path / "found")]
    flags = ["--words", "2", "9", "--tokens", "4", "20", "--", "--assistant-model", pair[1], "--no-launch", "--offline"]
    flags += ["--kv-memory", "256M"]  # other tests' servers book memory at the same time
    code = serve_faults.main(serve_faults.parse([*words, *flags]))
    assert code == 0, capsys.readouterr().out
    tasks = json.loads((tmp_path / "found").read_text())["tasks"]
    assert tasks["texts"]["equal"] == 12
    assert tasks["texts"]["drafted"] > 0
    assert tasks["kills"]["whole"] > 0
    assert tasks["disconnects"]["disconnects"] == 20
    assert tasks["malformed"]["bodies"] == 200


def run_of(monkeypatch: pytest.MonkeyPatch, *answers: Answer, **changes: Any) -> serve_faults.Run:
    """A run whose requests are answered so, and whose figures stand still."""
    told = iter(answers)

    async def ask(client: Any, asked: Any) -> Answer:
        return next(told)

    async def figures(client: Any) -> dict[str, float]:
        return {"vllm:spec_decode_num_draft_tokens_total": 1.0, "vllm:spec_decode_num_accepted_tokens_total": 1.0}

    monkeypatch.setattr(serve_faults, "ask", ask)
    monkeypatch.setattr(serve_faults, "figures", figures)
    args = serve_faults.parse([])
    vars(args).update(changes)
    return serve_faults.Run(None, None, args, random.Random(0))  # type: ignore[arg-type]


def test_another_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that nothing was drafted."""
    a, b = Answer("text", (("a", "stop"),)), Answer("text", (("a", "length"),))
    run = run_of(monkeypatch, a, a, a, b, requests=2)
    asyncio.run(serve_faults.texts(run))
    assert run.figures["equal"] == 1
    assert len(run.complaints) == 2
    assert "nothing was drafted" in run.complaints[-1]


def test_a_client_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and 429 with Retry-After are ends; 429 without it, and silence, are none."""
    text, busy = Answer("text", (("a", "stop"),)), Answer("error", status=429, retry_after="1")
    bad = (Answer("error", status=429), Answer("endless"), Answer("broken"))
    run = run_of(monkeypatch, text, busy, *bad, *[text] * 5, clients=5)
    asyncio.run(serve_faults.queue(run))
    assert len(run.complaints) == 3


@pytest.mark.parametrize(
    "content", [b"Internal Server Error", b'{"detail": "no"}', b'{"error": {"message": "Traceback (most", "type": ""}}']
)
def test_errors_that_are_not_clean_are_found(content: bytes) -> None:
    assert refused(400, content).kind == "broken"


def test_memory_that_grows_is_found() -> None:
    """By medians of thirds: single peaks, and the beginning, do not count."""
    args = argparse.Namespace(seed=0, words=(2, 3), tokens=(1, 2), minutes=1)
    soak = serve_soak.Soak(None, None, args)  # type: ignore[arg-type]
    soak._counts["compared"] = 1
    soak._mib = {"front": [1.0, *[100.0] * 9, 300.0, *[104.0] * 9], "engine 0": [100.0 + n for n in range(20)]}
    soak._report()
    assert soak.complaints == ["memory of engine 0 grew from 104.5 to 116.5 MiB"]


def test_what_is_asked() -> None:
    """Half of it greedy, half of it drafted whether that pays or not, with choices and stop texts; alike for a seed."""
    args = argparse.Namespace(seed=3, words=(2, 50), tokens=(4, 8))
    asked = mixed(200, args, 3)
    assert asked == mixed(200, args, 3)
    assert sum(each.body["temperature"] == 0 for each in asked) == 100
    assert sum("num_assistant_tokens" in each.body for each in asked) == 100
    lengths = {len(str(each.body["prompt"]).split()) for each in asked if "prompt" in each.body}
    assert (min(lengths), max(lengths) > 30) == (2, True)
    assert {each.body.get("n", 1) for each in asked} == {1, 2, 3}
