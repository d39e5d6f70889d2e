"""Residual streams that gate themselves (Qwen4): near transformers, and prompts and steps have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, relative, tokens
from transformers import CONFIG_MAPPING

from ipex_assist.native.library import unavailable

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif("qwen4_exp" not in CONFIG_MAPPING, reason="of today's transformers"),
]
PROMPT = tokens(40, 3)
_LAYERS = {"num_hidden_layers": 3, "hc_lowrank": 24, "layer_types": ["linear_attention"] * 3}
_FIRST = tiny_models.VARIANTS.get("qwen3.5-moe", {}) | _LAYERS | {"model_type": "qwen4_exp_text"}
KINDS: dict[str, dict[str, Any]] = {
    "four": _FIRST,
    "three": _FIRST | {"hc_count": 3, "hc_lowrank": 40, "output_gate_type": "sigmoid", "rms_norm_eps": 1e-3},
    "all-experts": _FIRST | {"num_experts": 3, "norm_topk_prob": False, "hc_lowrank": 64},
}


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, torch.Tensor]:
    """A model's folder, and transformers' logits of the prompt."""
    monkeypatch.setitem(tiny_models.VARIANTS, request.param, KINDS[request.param])
    model = tiny_models.save(tmp_path, request.param)
    with torch.no_grad():  # its cache wants a layer with attention
        return tmp_path, model(torch.tensor([PROMPT]), use_cache=False).logits[0]


@pytest.mark.parametrize(
    "executor",
    ["torch", pytest.param("native", marks=pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""))],
)
def test_logits_are_those_of_transformers(saved: tuple[Path, torch.Tensor], executor: str) -> None:
    """Each stream has its own part of the norm, and what is added to it is weighed by the normed streams."""
    folder, expected = saved
    model = tiny_models.model(folder, executor)
    assert relative(model.extend(model.new_sequence(60), PROMPT, len(PROMPT)), expected) < 1e-5


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_are_prompts_in_every_precision(saved: tuple[Path, torch.Tensor], precision: str) -> None:
    folder, expected = saved
    model = tiny_models.model(folder, "native", precision)
    together = model.extend(model.new_sequence(60), PROMPT, len(PROMPT))
    sequence = model.new_sequence(60)
    assert torch.equal(torch.cat([model.extend(sequence, [token]) for token in PROMPT]), together)
    if precision in ("fp32", "bf16"):
        assert relative(together, expected) < (1e-5 if precision == "fp32" else 0.15)
