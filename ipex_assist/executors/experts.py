"""Experts in PyTorch's operators: which of them a row passes through, and what they make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ipex_assist.executors.kernels import Linear
from ipex_assist.models.spec import Experts

FEW = 16  # rows up to which an expert gets all of a pass: a linear of as many rows as the others gives the same bits

Mlp = tuple[Linear, Linear]  # gate and up, and down


@dataclass
class ExpertLayer:
    """One layer's. The router and the shared expert's gate are fp32."""

    router: Linear
    experts: list[Mlp]
    shared: Mlp | None = None
    shared_gate: Linear | None = None


def route(experts: Experts, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row and their weights, (rows, per_token) both, for its logits (rows, count) in fp32.

    Of equal logits the expert of the lower number is chosen. A row with a logit that is no number has NaN for weights.
    """
    largest, chosen = torch.sort(logits, dim=-1, descending=True, stable=True)
    chosen = chosen[:, : experts.per_token]
    if experts.normalised:
        return chosen, torch.softmax(largest[:, : experts.per_token], -1)
    return chosen, torch.softmax(logits, -1).gather(-1, chosen)


def run_experts(
    experts: Experts, layer: ExpertLayer, x: torch.Tensor, mlp: Callable[[torch.Tensor, Linear, Linear], torch.Tensor]
) -> torch.Tensor:
    """What a layer's experts make of rows x (rows, hidden). What a row gets is summed in the order of the experts.

    mlp: rows through one of them.
    """
    wide = x.float()
    chosen, weights = route(experts, layer.router(wide))
    y = torch.zeros_like(wide)
    for number in chosen.unique().tolist():
        here = chosen == number
        rows = here.any(1)
        made = mlp(x, *layer.experts[number])[rows] if len(x) <= FEW else mlp(x[rows], *layer.experts[number])
        y[rows] += made.float() * weights[here][:, None]
    if layer.shared is not None:
        made = mlp(x, *layer.shared).float()
        y += made if layer.shared_gate is None else made * torch.sigmoid(layer.shared_gate(wide))
    return y.to(x.dtype)
