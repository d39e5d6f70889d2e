"""DeepSeek-V4's own drafts: tiny random checkpoints in the published layout, and plain PyTorch that computes them.

Written from the graphs of llama.cpp (src/models/deepseek4.cpp), and for one text at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import tiny_models
import torch
from draft_heads import numbers, write
from torch.nn.functional import linear, softmax, softplus

Tensors = Mapping[str, torch.Tensor]

BLOCK, NOISE, RANK, TARGET_LAYERS = 5, 7, 12, [1, 3, 4]  # of DSpark heads


def save_mtp(folder: Path, variant: str = "deepseek-v4", number: int = 1, **changes: Any) -> Any:
    """Save a random model of `variant` with so many layers that predict further tokens; transformers' model of all.

    changes: of what the config says at last.
    """
    model, config, stored = _save_deeper(folder, variant, number)
    hidden, streams = config["hidden_size"], config["hc_mult"]
    for layer in range(number):
        shapes = {
            **dict.fromkeys(("e_proj.weight", "h_proj.weight"), (hidden, hidden)),
            **dict.fromkeys(("enorm.weight", "hnorm.weight"), (hidden,)),
            **_ends(hidden, streams),
        }
        stored |= {f"mtp.{layer}.{name}": numbers(f"mtp.{layer}.{name}", shape) for name, shape in shapes.items()}
    write(folder, config | {"num_nextn_predict_layers": number} | changes, stored)
    return model


def save_mtp_often_right(folder: Path, **changes: Any) -> None:
    """Save a random model with a layer that predicts as it does, often: both add little to the last token."""
    save_mtp(folder, **changes)
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(("wo_b.weight", "w2.weight")):
            tensor.mul_(0.02)
        elif name.endswith("e_proj.weight"):
            tensor.copy_(torch.eye(len(tensor)))
        elif name.endswith("h_proj.weight") or "hc_head_" in name or "hc_head.hc_" in name:
            tensor.zero_()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def save_dspark(folder: Path, variant: str = "deepseek-v4", stages: int = 3, rank: int = RANK, **changes: Any) -> Any:
    """Save a random model of `variant` with a DSpark head of so many stages; transformers' model of all.

    changes: of what the config says at last.
    """
    model, config, stored = _save_deeper(folder, variant, stages)
    hidden, streams, last = config["hidden_size"], config["hc_mult"], f"mtp.{stages - 1}."
    shapes: dict[str, tuple[int, ...]] = {
        **{"mtp.0.main_proj.weight": (hidden, len(TARGET_LAYERS) * hidden), "mtp.0.main_norm.weight": (hidden,)},
        **{f"{last}{name}": shape for name, shape in _ends(hidden, streams).items()},
        **{f"{last}markov_head.markov_w{i}.weight": (config["vocab_size"], rank) for i in (1, 2)},
        f"{last}confidence_head.proj.weight": (1, hidden + rank),
    }
    stored |= {name: numbers(name, shape) for name, shape in shapes.items()}
    told = {"dspark_block_size": BLOCK, "dspark_noise_token_id": NOISE, "dspark_target_layer_ids": TARGET_LAYERS}
    write(folder, config | told | {"dspark_markov_rank": rank} | changes, stored)
    return model


def save_dspark_often_right(folder: Path, **changes: Any) -> None:
    """Save a random model of whose text each token follows from the one before, and a Markov head that knows it."""
    hidden = tiny_models.VARIANTS["deepseek-v4"]["hidden_size"]
    save_dspark(folder, rank=hidden, **changes)
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    rows = tensors["model.embed_tokens.weight"]
    rows = rows * torch.rsqrt(rows.square().mean(1, keepdim=True) + 1e-5) * tensors["model.norm.weight"]
    for name, tensor in tensors.items():
        if name.endswith(("wo_b.weight", "w2.weight")):
            tensor.mul_(0.02)
        elif "hc_head_" in name or "hc_head.hc_" in name:
            tensor.zero_()
        elif name.endswith("markov_w1.weight"):
            tensor.copy_(rows)
        elif name.endswith("markov_w2.weight"):
            tensor.copy_(tensors["head.weight"] * 20)
        elif name.endswith("confidence_head.proj.weight"):
            tensor.zero_()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def _ends(hidden: int, streams: int) -> dict[str, tuple[int, ...]]:
    """What is behind the last layer, by its names."""
    head = {"hc_head_fn": (streams, streams * hidden), "hc_head_base": (streams,), "hc_head_scale": (1,)}
    return {"norm.weight": (hidden,), **head}


def _save_deeper(folder: Path, variant: str, number: int) -> tuple[Any, dict[str, Any], dict[str, torch.Tensor]]:
    """Save a model with `number` more layers, and name these as a published checkpoint does its drafts'.

    Returns transformers' model of all, the config of one without them, and all tensors.
    """
    fields = tiny_models.VARIANTS[variant]
    count, kinds = fields["num_hidden_layers"], ("layer_types", "mlp_layer_types")
    deeper = {
        "num_hidden_layers": count + number,
        "layer_types": [*fields["layer_types"], *["sliding_attention"] * number],
        "mlp_layer_types": [*fields["mlp_layer_types"], *["moe"] * number],
    }
    model = tiny_models.save(folder, variant, **deeper)
    stored = {}
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        place, _, rest = name.removeprefix("model.layers.").partition(".")
        if name.startswith("model.layers.") and int(place) >= count:
            rest = "attn.kv_norm.weight" if rest == "attn.norm.weight" else rest
            name = f"mtp.{int(place) - count}.{rest}"
        stored[name] = tensor
    config = json.loads((folder / "config.json").read_text())
    return model, {**config, **{name: config[name][:count] for name in kinds}, "num_hidden_layers": count}, stored


class Reference:
    """What a checkpoint of these functions computes. Rows have their streams as (rows, streams, hidden)."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.eps: float = self.config["rms_norm_eps"]

    def mtp(self, tokens: list[int], hidden: torch.Tensor, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Of tokens, and hidden states (rows, streams · hidden): logits of all rows, and the layer's own states."""
        w = self._part(f"mtp.{layer}.")
        streams = hidden.unflatten(1, (self.config["hc_mult"], -1))
        e = linear(self.normed(self.embedding(tokens), w["enorm.weight"]), w["e_proj.weight"])
        x = linear(self.normed(streams, w["hnorm.weight"]), w["h_proj.weight"]) + e[:, None]
        positions = torch.arange(len(tokens))
        distance = positions[:, None] - positions
        x = self.layer(w, x, positions, (distance >= 0) & (distance < self.config["sliding_window"]))
        return self.logits(w, x), x.flatten(1)

    def dspark(self, hidden: torch.Tensor, anchor: int) -> list[tuple[int, float]]:
        """The tokens of a block after hidden states (rows, taps · hidden), and the confidence in each."""
        stages = len({name.split(".")[1] for name in self.tensors if name.startswith("mtp.")})
        parts = [self._part(f"mtp.{stage}.") for stage in range(stages)]
        context = self.normed(linear(hidden, parts[0]["main_proj.weight"]), parts[0]["main_norm.weight"])
        block, noise = self.config["dspark_block_size"], self.config["dspark_noise_token_id"]
        x = self.embedding([anchor] + [noise] * (block - 1))[:, None].repeat(1, self.config["hc_mult"], 1)
        start, window = len(hidden), self.config["sliding_window"]
        for w in parts:
            before = self.keys(w, context, torch.arange(start))[-window:]
            seen = torch.ones(block, len(before) + block, dtype=torch.bool)
            x = self.layer(w, x, torch.arange(start, start + block), seen, before)
        w, found, last = parts[-1], [], anchor
        rows, logits = self.collapsed(w, x), self.logits(w, x)
        for row, base in zip(rows, logits, strict=True):
            of_token = w["markov_head.markov_w1.weight"][last]
            last = int((base + w["markov_head.markov_w2.weight"] @ of_token).argmax())
            sure = w["confidence_head.proj.weight"][0] @ torch.cat((row, of_token))
            found.append((last, float(sure.sigmoid())))
        return found

    def embedding(self, tokens: list[int]) -> torch.Tensor:
        """Rows of its table."""
        return self.tensors["model.embed_tokens.weight"][torch.tensor(tokens)]

    def logits(self, w: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Of rows behind the last layer, whose weights are `w`."""
        tied = self.config.get("tie_word_embeddings")
        head = self.tensors["model.embed_tokens.weight" if tied else "head.weight"]
        return linear(self.normed(self.collapsed(w, x), w["norm.weight"]), head)

    def collapsed(self, w: Tensors, x: torch.Tensor) -> torch.Tensor:
        """What the final norm reads."""
        mix = linear(self.normed(x.flatten(1)), w["hc_head_fn"]) * w["hc_head_scale"] + w["hc_head_base"]
        return ((mix.sigmoid() + self.config["hc_eps"])[..., None] * x).sum(1)

    def layer(
        self,
        w: Tensors,
        x: torch.Tensor,
        positions: torch.Tensor,
        seen: torch.Tensor,
        before: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows behind a layer without entries. seen: (rows, keys). before: rows whose keys come before these rows'."""
        for kind, norm in (("attn", "attn_norm"), ("ffn", "ffn_norm")):
            read, write_by, mixture = self._numbers(w, x, kind)
            row = self.normed((read[..., None] * x).sum(1), w[f"{norm}.weight"])
            made = self._attention(w, row, positions, seen, before) if kind == "attn" else self._experts(w, row)
            x = write_by[..., None] * made[:, None] + mixture.transpose(1, 2) @ x
        return x

    def keys(self, w: Tensors, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys, which are values, of rows (rows, hidden)."""
        return self._rotated(
            self.normed(linear(rows, w["attn.wkv.weight"]), w["attn.kv_norm.weight"])[:, None], positions
        )[:, 0]

    def normed(self, x: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
        """The norm of rows."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight

    def _part(self, place: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(place): each for name, each in self.tensors.items() if name.startswith(place)}

    def _numbers(self, w: Tensors, x: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count, eps = self.config["hc_mult"], self.config["hc_eps"]
        parts = linear(self.normed(x.flatten(1)), w[f"hc_{kind}_fn"]).split((count, count, count**2), 1)
        bases = w[f"hc_{kind}_base"].split((count, count, count**2))
        read, wrote, mixed = (
            part * scale + base for part, scale, base in zip(parts, w[f"hc_{kind}_scale"], bases, strict=True)
        )
        mixture = softmax(mixed.unflatten(1, (count, count)), 2) + eps
        for step in range(self.config["hc_sinkhorn_iters"]):
            mixture = mixture if step == 0 else mixture / (mixture.sum(2, keepdim=True) + eps)
            mixture = mixture / (mixture.sum(1, keepdim=True) + eps)
        return read.sigmoid() + eps, 2 * wrote.sigmoid(), mixture

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor, back: bool = False) -> torch.Tensor:
        """x: (rows, heads, head_dim), of which neighbours among the last values are rotated."""
        dim, base = self.config["qk_rope_head_dim"], self.config["rope_parameters"]["main"]["rope_theta"]
        angles = positions[:, None].double() * base ** (-torch.arange(0, dim, 2).double() / dim)
        turn = torch.polar(torch.ones_like(angles), -angles if back else angles)[:, None]
        still, moved = x.split((x.shape[-1] - dim, dim), -1)
        pairs = torch.view_as_complex(moved.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.cat((still, torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)), -1)

    def _attention(
        self,
        w: Tensors,
        rows: torch.Tensor,
        positions: torch.Tensor,
        seen: torch.Tensor,
        before: torch.Tensor | None,
    ) -> torch.Tensor:
        heads, dim = self.config["num_attention_heads"], self.config["head_dim"]
        row = self.normed(linear(rows, w["attn.wq_a.weight"]), w["attn.q_norm.weight"])
        query = self._rotated(self.normed(linear(row, w["attn.wq_b.weight"]).unflatten(1, (heads, dim))), positions)
        keys = self.keys(w, rows, positions)
        keys = keys if before is None else torch.cat((before, keys))
        scores = (query @ keys.T * dim**-0.5).masked_fill(~seen[:, None], -torch.inf)
        sinks = w["attn.attn_sink"][None, :, None].expand(len(rows), -1, -1)
        shares = softmax(torch.cat((scores, sinks), 2), 2)[..., :-1]
        attended = self._rotated(shares @ keys, positions, back=True)
        groups = self.config["o_groups"]
        each = w["attn.wo_a.weight"].chunk(groups)
        parts = attended.flatten(1).chunk(groups, 1)
        made = torch.cat([linear(part, one) for part, one in zip(parts, each, strict=True)], 1)
        return linear(made, w["attn.wo_b.weight"])

    def _experts(self, w: Tensors, rows: torch.Tensor) -> torch.Tensor:
        logits = linear(rows, w["ffn.gate.weight"])
        scores = {"sqrtsoftplus": softplus(logits).sqrt(), "sigmoid": logits.sigmoid()}[self.config["scoring_func"]]
        chosen = (scores + w["ffn.gate.bias"]).topk(self.config["num_experts_per_tok"], 1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(1, keepdim=True) * self.config["routed_scaling_factor"]
        made = [self._mlp(w, "ffn.shared_experts", rows)]
        for expert in range(self.config["n_routed_experts"]):
            share = (shares * (chosen == expert)).sum(1, keepdim=True)
            made.append(share * self._mlp(w, f"ffn.experts.{expert}", rows))
        return torch.stack(made).sum(0)

    def _mlp(self, w: Tensors, place: str, rows: torch.Tensor) -> torch.Tensor:
        limit = self.config["swiglu_limit"]
        gate = linear(rows, w[f"{place}.w1.weight"]).clamp(max=limit)
        up = linear(rows, w[f"{place}.w3.weight"]).clamp(-limit, limit)
        return linear(torch.nn.functional.silu(gate) * up, w[f"{place}.w2.weight"])
