"""prompts.py on a tiny model: what it counts must be what a prompt computes."""

from __future__ import annotations

import json

import forward
import prompts
import pytest
from conftest import HAS_NATIVE

from ipex_assist.models.spec import DecoderSpec

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="it times the native core"),
]


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = forward.CONFIGS["qwen2.5-1.5b"]
    monkeypatch.setitem(forward.CONFIGS, "tiny", (name, config | SIZES))
    monkeypatch.setattr(prompts, "peak", lambda pool, precision: {"int4": 2e9, "bf16": 1e9}[precision])


def test_a_floor_is_products_at_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    """A table, a head or norms counted with the weights, or a token that sees all others, would be another floor."""
    prompts.main(["--models", "tiny", "--precisions", "int4", "--tokens", "20,50", "--repeats", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    qkv, output, mlp = 32 * (32 + 2 * 16), 32 * 32, 3 * 32 * 48  # 2 KV heads of 8
    for result, tokens in zip(found["results"], (20, 50), strict=True):
        seen = sum(position + 1 for position in range(tokens))
        products = tokens * 3 * (qkv + output + mlp) / 2e9 + 3 * 4 * 8 * 2 * seen / 1e9
        assert result["floor_s"] == pytest.approx(products)
        assert len(result["seconds"]["samples"]) == 1


def test_weights_of_a_layer_alone_count() -> None:
    packed = forward.load("tiny", "int4")
    assert isinstance(packed.spec, DecoderSpec)
    assert prompts.linear_weights("tiny", packed.spec) == 3 * (32 * 64 + 32 * 32 + 3 * 32 * 48)
