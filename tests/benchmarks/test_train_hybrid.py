"""train_hybrid.py in seconds: it learns, saves what both read, and says where texts differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import train_hybrid
from conftest import HAS_NATIVE

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not tiny_models.known("qwen3.5"), reason="this transformers has no Qwen3.5"),
]

FILES = [train_hybrid.ROOT / "docs" / name for name in ("glossary.md", "chat.md", "batch.md")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and a sibling that were trained for some steps on three pages."""
    path = tmp_path_factory.mktemp("hybrid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_hybrid, "texts", lambda: FILES)
        patch.setattr(train_hybrid, "BATCH", 8)
        arguments = ["train", "--folder", str(path), "--steps", "40", "--width", "192", "--layers", "4"]
        assert train_hybrid.run(train_hybrid.parse(arguments)) == 0
    return path


def test_it_learns(folder: Path) -> None:
    """The loss falls; labels that are not the next tokens, or a rate of zero, would leave it."""
    found = json.loads((folder / "training.json").read_text())
    assert found["tokens"] > 2000
    for name in train_hybrid.SHARES:
        assert found[name]["last_loss"] < found[name]["first_loss"] - 0.2
    assert found["target"]["parameters"] > found["sibling"]["parameters"] > 100_000


def test_the_held_out_text_is_not_trained_on() -> None:
    """Perplexity of a text that was learnt says nothing."""
    assert train_hybrid.HELD_OUT.is_file()
    assert train_hybrid.HELD_OUT not in train_hybrid.texts()
    assert len(train_hybrid.texts()) > 100


@pytest.mark.skipif(not HAS_NATIVE, reason="acceptance of int4 copies is the native core's")
def test_it_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers and we score and write the same; drafts change no text."""
    monkeypatch.setattr(train_hybrid, "PROMPTS", 2)
    monkeypatch.setattr(train_hybrid, "NEW_TOKENS", 16)
    monkeypatch.setattr(train_hybrid, "PRECISIONS", ("fp32", "int8"))
    held_out = train_hybrid.held_out
    monkeypatch.setattr(train_hybrid, "held_out", lambda path: held_out(path)[:600])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    assert train_hybrid.measured(folder) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["perplexity"]["fp32"] == pytest.approx(found["transformers"], rel=1e-4)
    assert found["perplexity"]["int8"] == pytest.approx(found["transformers"], rel=0.05)
    assert found["greedy_equal"] == 2
    assert found["transformers"] < found["uniform"]
    assert set(found["equal_plain"].values()) == {2}
    assert all(value is None or 0 <= value <= 1 for value in found["acceptance"].values())


def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are said before a minute is spent."""
    with pytest.raises(SystemExit):
        train_hybrid.parse(["train", "--folder", str(tmp_path), "--width", "100"])
    assert "a multiple of 64 from 128 on" in capsys.readouterr().err
    with pytest.raises(train_hybrid.UsageError, match="there is no target; run `train --folder"):
        train_hybrid.measured(tmp_path)
