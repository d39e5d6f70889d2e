"""Ling 3's limits of experts, which transformers leaves out and the maker's own code computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import draft_heads
import pytest
import tiny_models
import torch
from conftest import EXECUTORS
from native_models import tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows

pytestmark = pytest.mark.skipif(not tiny_models.known("bailing-hybrid"), reason="no such family here")

LIMITS = {"expert_swiglu_limit_list": [0, 0, 0.03, None], "share_expert_swiglu_limit_list": [0, 0.02, 0.05]}
PROMPT = tokens(14, 3)


def save(folder: Path, **changes: Any) -> Any:
    """Save a tiny model with these limits, and a layer that predicts further tokens; transformers' model of all."""
    model = draft_heads.save_mtp(folder, "bailing-hybrid", LIMITS | changes, **draft_heads.LAST["bailing-hybrid"])
    for layer, limit, shared in zip(model.model.layers[1:], (None, 0.03, None), (0.02, 0.05, None), strict=False):
        if limit is not None:
            _limit_experts(layer.mlp.experts, limit)
        if shared is not None:
            _limit(layer.mlp.shared_experts, shared)
    return model


def _limit_experts(experts: Any, limit: float) -> None:
    def forward(x: torch.Tensor, numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows = []
        for row, chosen, shares in zip(x, numbers, weights, strict=True):
            parts = [(experts.gate_up_proj[each] @ row).chunk(2) for each in chosen]
            made = [experts.down_proj[each] @ _product(*part, limit) for each, part in zip(chosen, parts, strict=True)]
            rows.append((torch.stack(made) * shares[:, None]).sum(0))
        return torch.stack(rows)

    experts.forward = forward


def _limit(mlp: Any, limit: float) -> None:
    mlp.forward = lambda x: mlp.down_proj(_product(mlp.gate_proj(x), mlp.up_proj(x), limit))


def _product(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_limits_of_experts_and_of_the_shared_one(executor: str, tmp_path: Path) -> None:
    """Each layer's own; none where the list has 0 or null, or ends; nor in the layer that predicts further tokens."""
    model = save(tmp_path)
    target, head = draft_heads.load(tmp_path, executor=executor)
    assert [(each.experts and each.experts.limit) for each in target.spec.layers] == [None, None, 0.03, None]
    assert head.spec.layers[0].experts is not None
    assert (head.spec.layers[0].experts.limit, head.spec.layers[0].experts.shared_limit) == (None, None)
    logits = target.forward([Rows(target.new_sequence(len(PROMPT)), PROMPT, len(PROMPT))])
    model.model.layers = model.model.layers[:4]
    model.config.num_hidden_layers = 4
    model.config.layer_types = model.config.layer_types[:4]
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("given", [7, [0, -1.0]])
def test_wrong_limits_are_refused(given: Any, tmp_path: Path) -> None:
    """In a sentence that names the field."""
    draft_heads.save_mtp(tmp_path, "bailing-hybrid", {}, **draft_heads.LAST["bailing-hybrid"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"expert_swiglu_limit_list": given}))
    with pytest.raises(IpexAssistError, match="limit"):
        draft_heads.load(tmp_path)
