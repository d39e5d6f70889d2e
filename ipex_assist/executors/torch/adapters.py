"""LoRA adapters on the torch executor: a layer's linears with what an adapter adds to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ipex_assist.executors.adapters import AdapterMatrices
from ipex_assist.executors.torch.experts import ExpertLayer
from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import weight_shape

EXACT_ROWS = 16  # of a decode step, each of which is multiplied by itself, so that its sums are its own
_STACKED = {
    "qkv": ("q_proj", "k_proj", "v_proj", "g_proj"),
    "o": ("o_proj",),
    "up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
Term = tuple[int, torch.Tensor, torch.Tensor]  # first column, A, scale · B


def adapted_layers(
    spec: DecoderSpec, names: Iterable[str], layers: list[Layer], matrices: Iterable[AdapterMatrices], scale: float
) -> list[Layer]:
    """The layers with an adapter, times `scale`. names: of all the model's own weights."""
    present = set(names)
    by_name = {each.name: each for each in matrices}
    made = []
    for index, layer in enumerate(layers):
        terms: dict[str, list[Term]] = {}
        for stack, leaves in _STACKED.items():
            first = 0
            for name in (f"layers.{index}.{leaf}.weight" for leaf in leaves):
                if (each := by_name.get(name)) is not None:
                    terms.setdefault(stack, []).append((first, each.a, each.b * (each.scale * scale)))
                first += weight_shape(spec, name)[0] if name in present else 0
        made.append(_adapted(layer, terms))
    return made


def _adapted(layer: Layer, terms: dict[str, list[Term]]) -> Layer:
    changed = {"qkv": layer.qkv, "o_proj": layer.o_proj, "mlp": layer.mlp}
    if "qkv" in terms:
        changed["qkv"] = _with_terms(layer.qkv, terms["qkv"])
    if "o" in terms:
        changed["o_proj"] = _with_terms(layer.o_proj, terms["o"])
    if layer.mlp is not None and not isinstance(layer.mlp, ExpertLayer):
        up, down = layer.mlp
        changed["mlp"] = _with_terms(up, terms.get("up", [])), _with_terms(down, terms.get("down", []))
    return replace(layer, **changed)  # type: ignore[arg-type]


def _with_terms(linear: Linear, terms: list[Term]) -> Linear:
    """A linear that adds B · (A · x) to some of its columns."""

    def run(x: torch.Tensor) -> torch.Tensor:
        out = linear(x).float()
        for first, a, b in terms:
            out[..., first : first + len(b)] += _low_rank(x.float(), a, b)
        return out.to(x.dtype)

    return run if terms else linear


def _low_rank(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > EXACT_ROWS:
        return ((rows @ a.T) @ b.T).reshape(*x.shape[:-1], -1)
    return torch.stack([b @ (a @ row) for row in rows]).reshape(*x.shape[:-1], -1)
