"""mixture.py on a tiny mixture: what it counts must be what passes read."""

from __future__ import annotations

import json
from typing import Any

import mixture
import pytest
from conftest import HAS_NATIVE

from ipex_assist.bench.pairs import published_config

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="it counts in the native core")]
SMALL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 16, "vocab_size": 160, "num_attention_heads": 8}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "published_config", lambda source: published_config(source) | SMALL)
    monkeypatch.setattr(mixture, "leave_cores_to_native", lambda: None)
    monkeypatch.setattr(mixture, "read_bandwidth", lambda pool, repeats: 10.0)


def test_experts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """One row reads as many as it has, more rows no more than there are; a counter of another pass would not."""
    argv = ["--layers", "2", "--rows", "1,4", "--requests", "3", "--repeats", "2", "--context", "5"]
    assert mixture.run(mixture.parse(argv)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    one, four, three = found["results"]
    assert (found["layers"], one["case"], three["case"]) == (2, "1 rows", "3 requests")
    assert one["experts"]["samples"] == [16, 16]  # 8 in each of two layers
    assert one["uniform_experts"] == 16
    assert all(16 < read <= 32 for read in four["experts"]["samples"] + three["experts"]["samples"])
    expert = 3 * 64 * 32 * mixture.LINEAR_BYTES["int4"]
    assert four["bytes"] - one["bytes"] == pytest.approx((four["experts"]["median"] - 16) * expert)
    assert three["tokens_per_s"] > 0


def test_a_model_without_experts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes are weights, keys and values, and the states of each sequence's recurrent layers."""
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 2, "head_dim": 32}
    few = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_key_value_heads": 1}
    monkeypatch.setattr(mixture, "published_config", lambda source: published_config(source) | small | few)
    flags = ["--model", "Qwen/Qwen3.5-9B", "--layers", "4", "--rows", "1,5", "--requests", "3", "--repeats", "1"]
    assert mixture.run(mixture.parse(flags)) == 0
    one, five, three = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert one["experts"]["samples"] == [0]
    assert five["bytes"] == one["bytes"]
    keys_and_values = 2 * 32 * 2 * 64  # one attention layer of bf16, 64 tokens
    assert three["bytes"] - one["bytes"] == 2 * (3 * 4 * 4 * 128 * 128 + keys_and_values)
