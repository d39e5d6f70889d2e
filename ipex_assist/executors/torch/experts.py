"""Experts in PyTorch's operators: which of them a row passes through, and what they make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.models.mlp_spec import Experts

FEW = 16  # rows up to which an expert gets all of a pass: a linear of as many rows as the others gives the same bits

Mlp = tuple[Linear, Linear]  # gate and up, and down


@dataclass
class ExpertLayer:
    """One layer's. The router, its correction bias (experts,) and the shared expert's gate are fp32."""

    router: Linear
    experts: list[Mlp]
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    correction_bias: torch.Tensor | None = None
    scales: torch.Tensor | None = None  # (experts,), of their weights
    table: torch.Tensor | None = None  # (vocabulary, per_token), of Experts.by_token
    # Weight and bias of the norms that these have of their own (Experts.own_norms), by our names.
    norms: Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]] = field(default_factory=dict)


def expert_table(experts: Experts, stored: torch.Tensor | None) -> torch.Tensor | None:
    """Which experts each token names, (vocabulary, per_token). Raises IpexAssistError where one is none of them."""
    if stored is None:
        return None
    table = stored.long().view(-1, experts.per_token)
    if table.min() < 0 or table.max() >= experts.count:
        raise IpexAssistError(f"tokens name experts that are none of the {experts.count}")
    return table


def route(
    experts: Experts,
    logits: torch.Tensor,
    correction_bias: torch.Tensor | None = None,
    named: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row and their weights, (rows, per_token) both, for its logits (rows, count) in fp32.

    correction_bias: (count,), of the choice alone. named: the experts where they are a token's. Of equals the
    expert of the lower number is chosen. A row with a logit that is no number has NaN for weights.
    """
    if experts.scores == "sparsemixer":
        return _sparsemixer(experts, logits)
    scores = _SCORES[experts.scores](logits)
    # Scores rise with their logits, of which fewer are equal.
    choice = logits if correction_bias is None and experts.groups == 1 else scores
    if correction_bias is not None:
        choice = choice + correction_bias
    if experts.groups > 1:
        choice = _of_best_groups(experts, choice)
    chosen = torch.sort(choice, dim=-1, descending=True, stable=True)[1][:, : experts.per_token]
    chosen = chosen if named is None else named
    if experts.normalised and experts.scores == "softmax" and correction_bias is None:
        weights = torch.softmax(logits.gather(-1, chosen), -1)
    else:
        weights = scores.gather(-1, chosen)
        if experts.normalised:
            total = weights.sum(-1, keepdim=True) + experts.added_to_sum
            weights = weights / total.clamp(min=experts.least_sum)
    return chosen, weights * experts.scaling + torch.where(logits.isfinite().all(-1, keepdim=True), 0.0, torch.nan)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """In fp64: PyTorch's fp32 has other bits for the last elements of a tensor, which its vectors do not fill."""
    return torch.sigmoid(x.double()).float()


def _sqrt_softplus(x: torch.Tensor) -> torch.Tensor:
    """Likewise."""
    return functional.softplus(x.double()).sqrt().float()


_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": _sigmoid,
    "sqrt_softplus": _sqrt_softplus,
}


def _of_best_groups(experts: Experts, choice: torch.Tensor) -> torch.Tensor:
    """What experts are chosen by, (rows, count), with those outside of a row's best groups at -inf."""
    grouped = choice.reshape(len(choice), experts.groups, -1)
    value = grouped.topk(experts.best_of_group, -1)[0].sum(-1)
    best = torch.sort(value, dim=-1, descending=True, stable=True)[1][:, : experts.groups_per_token]
    left_out = torch.ones_like(value, dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)


def _sparsemixer(experts: Experts, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two largest logits, each weighted by a softmax over those near it (equation 8 of arXiv:2409.12136)."""
    chosen = torch.sort(logits, dim=-1, descending=True, stable=True)[1][:, :2]
    first = logits.gather(-1, chosen[:, :1])
    second = logits.gather(-1, chosen[:, 1:])
    without_first = logits.scatter(-1, chosen[:, :1], -torch.inf)
    weights = []
    for most, others in ((first, logits), (second, without_first)):
        far = (most - logits) / torch.maximum(logits.abs(), most) > 2 * experts.jitter
        weights.append(torch.softmax(others.masked_fill(far, -torch.inf), -1))
    return chosen, torch.cat([each.gather(-1, chosen[:, i : i + 1]) for i, each in enumerate(weights)], -1)


def run_experts(
    experts: Experts,
    layer: ExpertLayer,
    x: torch.Tensor,
    mlp: Callable[[torch.Tensor, Linear, Linear], torch.Tensor],
    shared_mlp: Callable[[torch.Tensor, Linear, Linear], torch.Tensor] | None = None,
    norm: Callable[[torch.Tensor, str], torch.Tensor] | None = None,
    defer: Callable[[torch.Tensor], None] | None = None,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """What a layer's experts make of rows x (rows, hidden). What a row gets is summed in the order of the experts.

    mlp: rows through one of them; shared_mlp: through the shared one, if there is one. norm: rows through the layer's
    norm of this name, where experts have some of their own: then x is the residual stream. defer: takes what routed
    experts give, which is then no part of the sum. tokens: the rows', where these name their experts.
    """
    if norm is not None:
        assert layer.shared is not None, "norms of their own without an MLP beside them"
        assert shared_mlp is not None
        routed = _run_routed(experts, layer, norm(x, "router_norm"), norm(x, "experts_norm"), mlp).to(x.dtype)
        shared = shared_mlp(norm(x, "mlp_norm"), *layer.shared)
        return norm(shared, "shared_out_norm") + norm(routed, "experts_out_norm")
    y = _run_routed(experts, layer, x, x, mlp, tokens)
    if defer is not None:
        defer(y.to(x.dtype))
        y = torch.zeros_like(y)
    if layer.shared is not None and shared_mlp is not None:
        made = shared_mlp(x, *layer.shared).float()
        y += made if layer.shared_gate is None else made * _sigmoid(layer.shared_gate(x.float()))
    return y.to(x.dtype)


def _run_routed(
    experts: Experts,
    layer: ExpertLayer,
    routed: torch.Tensor,
    x: torch.Tensor,
    mlp: Callable[[torch.Tensor, Linear, Linear], torch.Tensor],
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the experts that rows `routed` are routed to make of rows x, in fp32."""
    named = None if layer.table is None or tokens is None else layer.table[tokens]
    chosen, weights = route(experts, layer.router(routed.float()), layer.correction_bias, named)
    if layer.scales is not None:
        weights = weights * layer.scales[chosen]
    y = torch.zeros_like(x, dtype=torch.float32)
    for number in chosen.unique().tolist():
        here = chosen == number
        rows = here.any(1)
        if number >= experts.count:
            y[rows] += x[rows].float() * weights[here][:, None]
            continue
        if experts.scales_inputs:
            scaled = (x.float() * (weights * here).sum(1, keepdim=True)).to(x.dtype)
            read = scaled if len(x) <= FEW else scaled[rows]
            made = mlp(read, *layer.experts[number])
            y[rows] += (made[rows] if len(x) <= FEW else made).float()
            continue
        made = mlp(x, *layer.experts[number])[rows] if len(x) <= FEW else mlp(x[rows], *layer.experts[number])
        y[rows] += made.float() * weights[here][:, None]
    return y
