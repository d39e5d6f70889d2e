"""DSpark heads with Gemma 4's layers, against a page of their published description (DeepSpec, modeling/dspark)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import draft_heads
import pytest
import torch
from conftest import EXECUTORS
from draft_heads import numbers
from numpy.typing import NDArray
from torch.nn.functional import gelu, linear, softmax

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, RANK, BLOCK, MASK, CAP = 48, 4, 2, 32, 160, 11, 5, 7, 3.0
CONFIG = {
    **{"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "vocab_size": VOCAB, "hidden_size": HIDDEN},
    **{"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 4},
    **{"num_global_key_value_heads": KV_HEADS, "head_dim": 16, "global_head_dim": HEAD_DIM, "attention_k_eq_v": True},
    **{"rms_norm_eps": 1e-5, "layer_types": ["full_attention"] * 2, "num_kv_shared_layers": 3, "sliding_window": 9},
    **{"hidden_size_per_layer_input": 0, "final_logit_softcapping": CAP, "tie_word_embeddings": False},
    **{"hidden_activation": "gelu_pytorch_tanh", "per_layer_config": {"5": {"head_dim": 32}}, "block_size": BLOCK},
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    **{"target_layer_ids": [0, 2], "mask_token_id": MASK, "markov_rank": RANK, "markov_head_type": "vanilla"},
    **{"enable_confidence_head": True, "confidence_head_with_markov": True, "num_anchors": 8},
}
_LAYER = {
    **{"self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN)},
    **{
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
    },
    **{"mlp.gate_proj": (64, HIDDEN), "mlp.up_proj": (64, HIDDEN), "mlp.down_proj": (HIDDEN, 64)},
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (HIDDEN,)),
    **dict.fromkeys(("pre_feedforward_layernorm", "post_feedforward_layernorm"), (HIDDEN,)),
}
_OUTSIDE = {
    **{"embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "norm": (HIDDEN,), "hidden_norm": (HIDDEN,)},
    **{"fc": (HIDDEN, 2 * HIDDEN), "markov_head.markov_w1": (VOCAB, RANK), "markov_head.markov_w2": (VOCAB, RANK)},
    "confidence_head.proj": (1, HIDDEN + RANK),
}


def tensors() -> dict[str, torch.Tensor]:
    shapes = _OUTSIDE | {f"layers.{i}.{name}": shape for i in range(2) for name, shape in _LAYER.items()}
    made = {f"{name}.weight": numbers(name, shape) for name, shape in shapes.items()}
    scalars = {f"layers.{i}.layer_scalar": torch.tensor([0.7 + 0.2 * i]) for i in range(2)}
    return made | scalars | {"confidence_head.proj.bias": torch.tensor([-0.3])}


def rms(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    normed = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return normed if weight is None else normed * weight


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x: (rows, heads, head_dim). A quarter of the pairs of columns is rotated, by frequencies over all of them."""
    pairs = torch.arange(HEAD_DIM // 2)
    angles = positions[:, None] * torch.where(pairs < HEAD_DIM // 8, 1e6 ** (-2.0 * pairs / HEAD_DIM), 0.0)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def reference(w: dict[str, torch.Tensor], hidden: torch.Tensor, anchor: int) -> list[tuple[int, float]]:
    """The tokens of a block after hidden states (positions, 2 · hidden), and the confidence in each."""
    context, count = rms(linear(hidden, w["fc.weight"]), w["hidden_norm.weight"]), len(hidden)
    x = w["embed_tokens.weight"][torch.tensor([anchor] + [MASK] * (BLOCK - 1))] * HIDDEN**0.5
    positions = torch.arange(count + BLOCK).double()
    for i in range(2):
        at = {name: w[f"layers.{i}.{name}.weight"] for name in _LAYER}
        h = rms(x, at["input_layernorm"])
        query = rms(linear(h, at["self_attn.q_proj"]).view(BLOCK, HEADS, HEAD_DIM), at["self_attn.q_norm"])
        keys = linear(torch.cat((context, h)), at["self_attn.k_proj"]).view(-1, KV_HEADS, HEAD_DIM)
        values, keys = rms(keys), rotated(rms(keys, at["self_attn.k_norm"]), positions)
        query = rotated(query, positions[count:])
        keys, values = (each.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for each in (keys, values))
        weights = softmax(query.transpose(0, 1).double() @ keys.double().transpose(1, 2), -1)
        attended = (weights @ values.double()).float().transpose(0, 1).reshape(BLOCK, -1)
        x = x + rms(linear(attended, at["self_attn.o_proj"]), at["post_attention_layernorm"])
        h = rms(x, at["pre_feedforward_layernorm"])
        inner = gelu(linear(h, at["mlp.gate_proj"]), approximate="tanh") * linear(h, at["mlp.up_proj"])
        x = x + rms(linear(inner, at["mlp.down_proj"]), at["post_feedforward_layernorm"])
        x = x * w[f"layers.{i}.layer_scalar"]
    x = rms(x, w["norm.weight"])
    logits = torch.tanh(linear(x, w["lm_head.weight"]) / CAP) * CAP
    found, last = [], anchor
    for row, base in zip(x, logits, strict=True):
        before = w["markov_head.markov_w1.weight"][last]
        last = int((base + w["markov_head.markov_w2.weight"] @ before).argmax())
        sure = w["confidence_head.proj.weight"][0] @ torch.cat((row, before)) + w["confidence_head.proj.bias"]
        found.append((last, float(sure.sigmoid())))
    return found


def hidden_states(rows: int) -> NDArray[Any]:
    made: NDArray[Any] = numbers("hidden", (rows, 2 * HIDDEN)).numpy()
    return made


def saved(folder: Path, **changes: Any) -> tuple[Path, Path]:
    draft_heads.save_target(folder / "target", hidden_size=HIDDEN)
    draft_heads.write(folder / "head", CONFIG | changes, tensors())
    return folder / "target", folder / "head"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_drafts_are_those_of_the_description(executor: str, tmp_path: Path) -> None:
    """Values that are keys before their norm, norms on both sides, a cap below the Markov head, scaled embeddings."""
    target, head = saved(tmp_path)
    _, loaded = draft_heads.load(target, head, executor)
    assert isinstance(loaded, DraftsInOneCall)
    hidden = hidden_states(40)
    for read, anchor in ((3, 12), (40, 99)):
        request = DraftInput(loaded.new_sequence(64), [anchor], BLOCK, 0.0, hidden[:read])
        [(drafted, confidences)] = loaded.draft_many([request])
        expected = reference(tensors(), torch.from_numpy(hidden[:read]), anchor)
        assert drafted == [token for token, _ in expected]
        assert confidences == pytest.approx([sure for _, sure in expected], rel=1e-4)


def test_other_layers_are_refused(tmp_path: Path) -> None:
    """Those with a window would be drafted without it."""
    target, head = saved(tmp_path, layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(UsageError, match="layer_types"):
        draft_heads.load(target, head)
