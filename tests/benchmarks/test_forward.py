"""forward.py on tiny models: what it counts of sparse attention, and that a layer's streams can be left out."""

from __future__ import annotations

import json
import sys
from typing import Any

import forward
import pytest
import tiny_models
from conftest import HAS_NATIVE
from native_models import pool

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="passes are the native core's")]
TOP_K, DIM = 64, 32
SMALL = {
    **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
    **{"index_topk": TOP_K, "index_n_heads": 4, "index_head_dim": DIM},
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: (kind, config | SMALL) for name, (kind, config) in forward.CONFIGS.items() if "layer" in name}
    monkeypatch.setattr(forward, "CONFIGS", configs)
    monkeypatch.setattr(forward.RandomWeights, "VALUES", 1 << 16)
    monkeypatch.setattr(forward, "planned_pool", lambda: pool(2))


def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["forward.py", "--precisions", "int4", "--rows", "1", "--repeats", "1", *flags])
    forward.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len({tuple(row) for row in found["table"]}) == 1, "rows of different columns"
    results: list[dict[str, Any]] = found["results"]
    return results


def test_what_sparse_attention_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its floor would be that of full attention, and the indexer's part of it hidden in attention's."""
    flags = (
        "--models",
        "deepseek-v3-layer,deepseek-v3.2-layer",
        "--contexts",
        "32,512",
        "--kv-precisions",
        "bf16,int8",
    )
    found = {
        (each["model"], each["context"], each["kv_precision"]): each for each in measured(monkeypatch, capsys, *flags)
    }
    spec, latent = forward.load("deepseek-v3.2-layer", "int4").spec, 32 + 16 + 32  # of keys and values
    for kv, size, scale in (("bf16", 2, 0), ("int8", 1, 4)):
        each, index = latent * size + 2 * scale, DIM * size + scale
        assert forward.cache_bytes(spec, 32, kv) == 32 * each
        assert forward.cache_bytes(spec, 512, kv) == TOP_K * each + 512 * index
        few, many, full = (
            found[f"deepseek-{key}-layer", context, kv] for key, context in (("v3.2", 32), ("v3.2", 512), ("v3", 512))
        )
        assert "scores_ms" not in few
        assert "scores_ms" not in full
        assert many["index_MB"] == 512 * index / 1e6
        assert 0 < many["scores"] + many["choice"] <= many["attention"]


@pytest.mark.skipif(not tiny_models.known("hy-v4"), reason="this transformers has no Hunyuan 4, nor its variant")
def test_one_stream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same layer without what weighs streams."""
    flags = ("--models", "hy-v4-layer,hy-v4-one-stream-layer", "--contexts", "32", "--rows", "100")
    several, one = measured(monkeypatch, capsys, *flags)
    assert one["GB"] < several["GB"]
