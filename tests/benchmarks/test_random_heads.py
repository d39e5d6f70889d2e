"""random_heads.py on a tiny target: every kind of head loads, drafts and changes no token; a cost above the limit ends
with 1."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoint_files
import pytest
import random_heads
from conftest import HAS_NATIVE
from draft_heads import save_target
from still_clock import stop_clock

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="bf16 heads of this benchmark are the native core's"),
]


def test_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios are of neighbours in time: a plain run before and after each.

    What planning takes, far more than a pass of this target, is not charged: nothing would be drafted.
    """
    stop_clock(monkeypatch)
    save_target(tmp_path, vocab_size=512)
    checkpoint_files.tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(random_heads, "PROMPTS", {"chat": "abc", "code": "def"})
    given = [
        "--target",
        str(tmp_path),
        "--texts",
        "chat",
        "code",
        "--tokens",
        "128",
        "--turns",
        "2",
        "--kv-memory",
        "64M",
    ]
    assert random_heads.main([*given, "--most", "1e9"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["ratios"]) == {f"{kind}, {state}" for kind in random_heads.KINDS for state in random_heads.STATES}
    for texts in found["samples"].values():
        assert {name: len(samples) for name, samples in texts.items()} == {"chat": 2, "code": 2}
    samples = [sample for texts in found["samples"].values() for each in texts.values() for sample in each]
    assert any(sample["drafted"] for sample in samples)
    assert random_heads.main([*given, "--kinds", "mtp", "--states", "cold", "--most", "0"]) == 1
    assert "more than 0" in capsys.readouterr().err


def test_ratios() -> None:
    seconds = random_heads.Seconds
    sample = random_heads.Sample(seconds(1.0, 2.0), seconds(3.0, 3.0), seconds(2.0, 2.0), 1, 0, 0.1)
    assert sample.ratio == pytest.approx(2.0)
    assert sample.processor_ratio == pytest.approx(1.5)
