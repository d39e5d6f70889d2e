"""Sizes of quantized checkpoints: groups, and memory before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import quantized_files
import tiny_models
from conftest import HAS_NATIVE

from ipex_assist.checkpoints import hub
from ipex_assist.checkpoints.packed_size import estimate_bytes, packed_bytes
from ipex_assist.checkpoints.quantized import group_size

pytestmark = pytest.mark.one_stack


def test_memory_estimates(tmp_path: Path) -> None:
    """It is what `PackedModel` takes, within the padding of tiny matrices; at bf16 as much as the float model."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    quantized_files.save(tmp_path / "q", "llama-tied", group=128, **sizes)
    tiny_models.save(tmp_path / "f", "llama-tied", **sizes)
    stored, floats = (estimate_bytes(str(tmp_path / "q"), precision) for precision in (None, "bf16"))
    assert floats == pytest.approx(estimate_bytes(str(tmp_path / "f"), "bf16"), rel=0.01)
    assert stored == estimate_bytes(str(tmp_path / "q"), "int4")
    assert stored < 0.45 * floats
    if HAS_NATIVE:
        text = tiny_models.text(tmp_path / "q", "native", "int4")
        assert stored == pytest.approx(text.model.packed.nbytes, rel=0.1)
    assert estimate_bytes(str(tmp_path / "f"), None) == estimate_bytes(str(tmp_path / "f"), "bf16")


def test_mxfp4_is_of_experts_alone() -> None:
    """Attention, the router and the head of such a model keep two bytes a weight, by which a launcher plans memory."""
    shapes = {
        "model.embed_tokens.weight": (100, 64),
        "model.layers.0.self_attn.q_proj.weight": (64, 64),
        "model.layers.0.mlp.experts.3.up_proj.weight": (640, 64),
        "model.layers.0.mlp.experts.3.up_proj.bias": (640,),
        "lm_head.weight": (100, 64),
    }
    beside = 2 * (2 * 100 * 64 + 64 * 64 + 640)
    assert packed_bytes(shapes, "mxfp4") == beside + 640 * 64 * (4 + 8 / 32) / 8
    assert packed_bytes({"blk.0.ffn_up_exps.weight": (640, 64)}, "mxfp4") == 640 * 64 * (4 + 8 / 32) / 8


@pytest.mark.parametrize(
    ("width", "groups", "declared", "size"),
    [(4096, 32, 128, 128), (4096, 1, -1, 4096), (192, 2, 128, 128), (192, 6, 128, 32), (192, 5, 128, None)],
)
def test_group_sizes(width: int, groups: int, declared: int, size: int | None) -> None:
    """The declared size holds where it fits; a module of its own (auto-round's extra_config) is found by its shape."""
    assert group_size(width, groups, declared) == size


def test_sizes_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub counts an int32 of eight weights as one parameter: a 7B model must not be taken for 1B, nor for 14 GB."""
    counts = {"I32": 800_000_000, "F16": 300_000_000}
    info = SimpleNamespace(safetensors=SimpleNamespace(total=sum(counts.values()), parameters=counts))
    monkeypatch.setattr(hub, "_model_info", lambda source, revision: info)
    monkeypatch.setattr(hub, "offline_by_environment", lambda: False)
    monkeypatch.setattr(hub, "cached_snapshot", lambda source, revision: None)
    assert estimate_bytes("someone/7b-gptq", None) == 3_800_000_000
    assert estimate_bytes("someone/7b-gptq", "bf16") == 2 * 6_700_000_000
    info.safetensors.parameters = {"F16": info.safetensors.total}
    assert estimate_bytes("someone/1b", None) == 2 * 1_100_000_000
