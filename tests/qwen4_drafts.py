"""Qwen4's layer that predicts further tokens: tiny random checkpoints in the published layout, and what they compute.

Around transformers' own layer, in plain PyTorch, as vLLM does it (Qwen4ExpMultiTokenPredictor).
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import tiny_models
import torch
from draft_heads import numbers, write
from torch.nn.functional import linear, silu

Tensors = dict[str, torch.Tensor]


def save_mtp(folder: Path, variant: str = "qwen4-exp", place: str = "mtp.", fused: bool = True, **changes: Any) -> Any:
    """Save a random model of `variant` with such a layer; transformers' model of all layers, whose last it is.

    place: what its tensors' names begin with. fused: its experts' matrices are in two tensors, as published. changes:
    of what the config says of the text at last.
    """
    fields = copy.deepcopy(tiny_models.VARIANTS[variant])
    text = fields.get("text_config", fields)
    count, hidden, streams = text["num_hidden_layers"], text["hidden_size"], text.get("hc_count", 4)
    longest = {name: changes[name] for name in ("max_position_embeddings",) if name in changes}
    text |= {"num_hidden_layers": count + 1, "layer_types": [*text["layer_types"], "indexed_attention"], **longest}
    model = tiny_models.save(folder, variant, **fields)
    stored: Tensors = {}
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        before, found, rest = name.partition(f"layers.{count}.")
        last = found and "visual" not in before
        stored[f"{place}layers.0.{rest}" if last else name] = tensor
    if fused:
        fuse_experts(stored, f"{place}layers.0.mlp.experts.", text["num_experts"])
    wide, rank, mixer = streams * hidden, text["hc_lowrank"], "hyper_connection_mixer."
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("fc_embedding", "fc_hidden"), (hidden, hidden)),
        **{"pre_fc_norm_embedding": (hidden,), "pre_fc_norm_hidden": (wide,), f"{mixer}hc_norm": (wide,)},
        **{f"{mixer}input_mix_weight_down": (rank, wide), f"{mixer}input_mix_weight_up": (wide, rank)},
    }
    for name, shape in shapes.items():
        stored[f"{place}{name}.weight"] = numbers(name, shape) - float(len(shape) == 1)
    config = json.loads((folder / "config.json").read_text())
    told = config.get("text_config", config)
    own = {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1}
    told |= {"num_hidden_layers": count, "layer_types": told["layer_types"][:count], "mtp_num_hidden_layers": 1}
    told |= {"mtp": {**own, "mtp_use_hidden_state_from_layer": None}, **changes}
    write(folder, config, stored)
    return model


def fuse_experts(stored: Tensors, place: str, count: int) -> None:
    """Let tensors of so many experts be one of gate and up, and one of down."""
    gate, up, down = (
        torch.stack([stored.pop(f"{place}{expert}.{name}_proj.weight") for expert in range(count)])
        for name in ("gate", "up", "down")
    )
    stored |= {f"{place}gate_up_proj": torch.cat((gate, up), 1), f"{place}down_proj": down}


def save_mtp_often_right(folder: Path, **changes: Any) -> None:
    """Save a random model with a layer that predicts as it does, often: both add little to the last token."""
    save_mtp(folder, **changes)
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight", "value_proj.weight")):
            tensor.mul_(0.02)
        elif name.endswith("fc_embedding.weight"):
            tensor.copy_(torch.eye(len(tensor)))
        elif name.endswith(("fc_hidden.weight", "pre_fc_norm_embedding.weight")) or ("hyper_connection_mixer." in name):
            tensor.zero_()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


class Reference:
    """What the layer of such a checkpoint computes. model: transformers', of all layers."""

    def __init__(self, folder: Path, model: Any, place: str = "mtp.") -> None:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.w = {name.removeprefix(place).removesuffix(".weight"): each for name, each in tensors.items()}
        self.text = getattr(model.model, "language_model", model.model)
        self.lm_head, self.count = model.lm_head, self.text.config.hc_count

    @torch.no_grad()
    def mtp(self, tokens: list[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of tokens, and hidden states (rows, streams · hidden): logits of all rows, and the layer's own states."""
        e = self.normed(self.text.embed_tokens(torch.tensor(tokens)), self.w["pre_fc_norm_embedding"])
        h = self.normed(hidden, self.w["pre_fc_norm_hidden"]).unflatten(1, (self.count, -1))
        x = (linear(h, self.w["fc_hidden"]) + linear(e, self.w["fc_embedding"])[:, None]).flatten(1)[None]
        positions = torch.arange(len(tokens)).view(1, 1, -1).expand(3, 1, -1)
        mask = torch.full((len(tokens), len(tokens)), torch.finfo().min).triu(1)[None, None]
        rotary = self.text.rotary_emb(x, positions)
        x = self.text.layers[-1](x, position_embeddings=rotary, attention_mask=mask)[0]
        return self.lm_head(self.mixed(x)), x

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """What the head reads of streams (rows, streams · hidden): the mean of what gates let through."""
        mixer = "hyper_connection_mixer."
        weights = self.w[f"{mixer}hc_norm"].unflatten(0, (self.count, -1))
        y = self.normed(x.unflatten(1, (self.count, -1)), weights).flatten(1)
        gates = silu(linear(y, self.w[f"{mixer}input_mix_weight_down"]) / self.count)
        gates = linear(gates, self.w[f"{mixer}input_mix_weight_up"]).sigmoid()
        return (gates * y).unflatten(1, (self.count, -1)).mean(1)

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The norm of rows."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.text.config.rms_norm_eps) * (1 + weight)

    @torch.no_grad()
    def streams(self, tokens: list[int]) -> torch.Tensor:
        """Those behind the target's last layer, by transformers: (tokens, streams · hidden)."""
        kept: list[torch.Tensor] = []
        hook = self.text.layers[-1].register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        self.text(input_ids=torch.tensor([tokens]), use_cache=False)
        hook.remove()
        return kept[0][0]
