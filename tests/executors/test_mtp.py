"""Layers of a checkpoint that predict further tokens draft what transformers' MTP drafts, with its confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import draft_heads
import pytest
import torch
from native_models import tokens
from transformers import AutoModelForCausalLM

from ipex_assist.executors.interface import DraftInput, DraftsInOneCall

candidate_generator = pytest.importorskip("transformers.generation.candidate_generator")
if not hasattr(candidate_generator, "MTPCandidateGenerator"):
    pytest.skip("this transformers drafts with no such layers", allow_module_level=True)

_FULL = {"mtp_layer_types": ["full_attention"]}
_KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"]
_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
# What a config says of the added layer, and lists with its entry.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek-v3": ({}, {}),
    "deepseek-v3-direct": ({}, {}),
    "glm4-moe": ({}, {}),
    "glm4-moe-lite": ({"mtp_mlp_layer_types": ["sparse"]}, {}),
    "qwen3-next": (_FULL, {"layer_types": _KINDS}),
    "qwen3.5": (_FULL, {"layer_types": _KINDS}),
    "qwen3.5-moe": (_FULL, {"layer_types": _KINDS}),
    "exaone-moe": (
        {"mtp_layer_types": ["sliding_attention"], "mtp_mlp_layer_types": ["dense"]},
        {"layer_types": _WINDOWS, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"]},
    ),
}
PROMPT = tokens(21, 3)


@pytest.mark.parametrize("variant", CASES)
def test_drafts_as_transformers_does(variant: str, tmp_path: Path) -> None:
    """Every first token that transformers drafts, and its confidence; a wrong order of [embedding, hidden], a norm
    left out, or hidden states of the wrong position would change them.
    """
    told, changes = CASES[variant]
    draft_heads.save_mtp(tmp_path, variant, told, **changes)
    rounds = _transformers_rounds(tmp_path, told)
    target, head = draft_heads.load(tmp_path)
    assert len(rounds) > 8
    for read, token, logits in rounds:
        hidden = draft_heads.hidden_of(target, head, read[:-1])
        assert isinstance(head, DraftsInOneCall)
        [(drafted, confidences)] = head.draft_many([DraftInput(head.new_sequence(64), read[1:], 1, 0.0, hidden)])
        assert drafted == [token]
        assert confidences[0] == pytest.approx(float(logits.softmax(0)[token]), rel=1e-4)


Rounds = list[tuple[list[int], int, torch.Tensor]]


def _transformers_rounds(folder: Path, told: dict[str, Any]) -> Rounds:
    """Of each round of transformers: all tokens known, the drafted one, and its logits (vocab,)."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    for name, value in {"num_mtp_layers": 1, **told}.items():
        setattr(model.config, name, value)
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{model.config.num_hidden_layers}\..*", r"^mtp\..*"]
    return _rounds_of_prefixes(model) if model._is_stateful else _generated_rounds(model)


def _generated_rounds(model: Any) -> Rounds:
    """Those of generate(use_mtp=True)."""
    rounds: Rounds = []
    kind = candidate_generator.MTPCandidateGenerator
    original = kind.get_candidates

    def recorded(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found, logits = original(self, input_ids, *args, **kwargs)
        if logits is not None:
            rounds.append((input_ids[0].tolist(), int(found[0, -1]), logits[0, 0]))
        return found, logits

    with mock.patch.object(kind, "get_candidates", recorded):
        options = {"use_mtp": True, "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        prompt = torch.tensor([PROMPT])
        model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return rounds


@torch.no_grad()
def _rounds_of_prefixes(model: Any) -> Rounds:
    """The same model of layers, where generate() refuses recurrent targets: over each prefix by itself."""
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    layers = MtpModel.from_pretrained(model).eval()
    states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1]
    rounds: Rounds = []
    for count in range(10, len(PROMPT)):
        cache, positions = MtpCache(config=model.config.get_mtp_config()), torch.arange(1, count + 1)[None]
        found, logits, _ = layers(torch.tensor([PROMPT[1 : count + 1]]), states[:, :count], None, positions, cache)
        rounds.append((PROMPT[: count + 1], int(found[0, -1]), logits[0, 0]))
    return rounds
