"""What a batch estimates before it starts, and what it shows meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from batch_runs import write_prompts

from ipex_assist.batch import progress
from ipex_assist.batch.command import longest_requests
from ipex_assist.batch.prompts import Defaults, Entry, PromptFile


def test_lengths_of_texts(tmp_path: Path) -> None:
    """The longest first, with what may be generated, in blocks of keys and values."""
    prompts = write_prompts(
        tmp_path / "p.jsonl",
        ["short", {"prompt": "x" * 3000}, {"prompt": "a", "max_new_tokens": 5000}, *["word"] * 30],
    )
    entries = PromptFile(str(prompts), Defaults()).entries
    texts = longest_requests(entries)
    assert len(texts) == 33
    assert texts[:3] == (5120, 1280, 256)
    assert longest_requests(entries, 1) == (5120,)
    assert longest_requests([Entry(1, 1, 0, 9, "")]) == (256,)


def test_speeds_of_the_last_minute_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began slowly shows what it does now, and what it did in all."""
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = progress.Progress(100, 0)
    shown.begin()
    now += 20
    shown.count(600)
    assert shown.summary() == "1 prompt done in 20.0 s (0.05 prompts/s, 30.0 tokens/s), 0 failed"
    now += 180
    for _ in range(4):
        shown.count(900)
    shown.count(None)
    now += 10
    rates = "0.03 prompts/s, 20.0 tokens/s, 60.0 over the last 60 s"
    assert shown.summary() == f"5 prompts done in 210.0 s ({rates}), 1 failed"
