"""The soak: a short one passes, and what it is there to find it finds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import adapter_files
import checkpoint_files
import engine_soak
import pytest

pytest.importorskip("llguidance")

from conftest import HAS_NATIVE

from ipex_assist.engine.prefix_cache import PrefixCache
from ipex_assist.env.errors import IpexAssistError

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")]
SHORT = ["--minutes", "0.03", "--interval", "0.5", "--check", "0.5", "--most-growth", "1000"]


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_soak, "leave_cores_to_native", lambda: None)
    monkeypatch.setattr(engine_soak, "CANCELLED", 0.4)
    monkeypatch.setattr(engine_soak, "LIMITS", (1, 40))
    ticks = itertools.count()
    monkeypatch.setattr(engine_soak, "monotonic", lambda: next(ticks) / 100)  # so many passes a second, on any machine


def test_a_short_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Texts that end, are cancelled and compared, with nothing to complain of."""
    assert engine_soak.soak(engine_soak.parse(SHORT)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (totals,) = found["table"]
    counts = ("finished", "cancelled", "new tokens", "accepted of mtp", "accepted of model")
    for count in (*counts, *(f"compared with {what}" for what in ("an adapter", "a grammar", "noise"))):
        assert totals[count] > 0, count
    assert found["complaints"] == []
    assert found["samples"][0]["lost"] == 0


def test_models_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A target whose tokenizer grammars are made for, its adapter, and its copy; a name that nothing drafts by."""
    model = checkpoint_files.tiny_model("llama", max_position_embeddings=2048)
    target = checkpoint_files.save(model, tmp_path / "target")
    adapter = adapter_files.save_adapter(tmp_path / "adapter", model)
    words = [*SHORT, "--target", str(target), "--lora", str(adapter), "--precision", "fp32"]
    assert engine_soak.soak(engine_soak.parse(words)) == 0
    (totals,) = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert totals["compared with an adapter"] > 0
    assert totals["compared with a grammar"] > 0
    with pytest.raises(IpexAssistError, match="--assistant lookup: nothing drafts"):
        engine_soak.soak(engine_soak.parse([*words, "--assistant", "lookup"]))


def test_a_lost_block_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Taken once, for nobody."""
    keep = PrefixCache.keep
    lost: list[int] = []

    def losing(self: PrefixCache, *arguments: Any) -> None:
        if not lost and self._pool.free:
            lost.append(self._pool.take())
        keep(self, *arguments)

    monkeypatch.setattr(PrefixCache, "keep", losing)
    assert engine_soak.soak(engine_soak.parse([*SHORT, "--minutes", "0.01"])) == 1
    assert lost
    assert "1 blocks of keys and values are lost" in capsys.readouterr().err


def test_a_wrong_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a draft that the target does not choose had been kept."""
    read = engine_soak.Soak._read

    def wrong(self: engine_soak.Soak, client: engine_soak.Client) -> None:
        if client.text:
            client.text[0] = (client.text[0] + 1) % 256
        read(self, client)

    monkeypatch.setattr(engine_soak.Soak, "_read", wrong)
    with pytest.raises(IpexAssistError, match=r"differs from the text alone, with --seed 0 after \d+ requests"):
        engine_soak.soak(engine_soak.parse(SHORT))


def test_what_is_wrong_with_samples() -> None:
    """Memory that grows while it should be warm, and no other growth."""
    flat = [engine_soak.Sample(60.0 * n, 100.0 + (n < 3) * n + n % 2, 5, 0, 1.0, 1, 1, 0) for n in range(1, 13)]
    growing = [dataclasses.replace(each, rss_mib=100 + each.active_s / 30) for each in flat]

    def of(samples: Any) -> list[str]:
        return engine_soak.complaints(samples, 120, 8)

    assert of(flat) == of(growing[:3]) == of([]) == []
    (complaint,) = of(growing)
    assert "grew by 14.0 MiB after the warm-up, from 108.0 MiB" in complaint
