"""Recurrent mixers in PyTorch, one token at a time: the readable reference of what the native core computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from ipex_assist.executors.interface import check_rollback
from ipex_assist.executors.recurrent_states import PENDING_ROWS
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.recurrent_spec import LOW_NORMS, RecurrentSpec
from ipex_assist.models.spec import DecoderSpec

_UNIT_EPSILON = 1e-6


@dataclass
class LayerState:
    """Of one layer and sequence: the state after `settled` tokens, and the inputs of the last rows.

    state: (heads, key_dim, value_dim), None for zeros. inputs: what the input linear gave, (columns,) each, of the rows
    from position `first` on.
    """

    settled: int = 0
    confirmed: int = 0  # the tokens before it will stay
    state: torch.Tensor | None = None
    first: int = 0
    inputs: list[torch.Tensor] = field(default_factory=list)

    def truncate(self, length: int) -> None:
        """Forget the rows from position `length` on."""
        del self.inputs[max(0, length - self.first) :]
        self.confirmed = length

    def copy(self) -> LayerState:
        """One that changes by itself; tensors are never changed in place."""
        return LayerState(self.settled, self.confirmed, self.state, self.first, list(self.inputs))


class RecurrentStates:
    """The states of a sequence's recurrent layers."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.layers = {i: LayerState() for i, layer in enumerate(spec.layers) if layer.recurrent is not None}

    @property
    def settled(self) -> int:
        """The fewest tokens that the sequence can be truncated to, but for 0."""
        return max((each.settled for each in self.layers.values()), default=0)

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on. Raises IpexAssistError where they are part of a state already."""
        check_rollback(length, self.settled)
        for index, each in self.layers.items():
            if length == 0:
                self.layers[index] = LayerState()
            else:
                each.truncate(length)

    def copy_from(self, other: RecurrentStates) -> None:
        """Hold what `other` holds."""
        self.layers = {index: each.copy() for index, each in other.layers.items()}


def run_recurrent(
    spec: RecurrentSpec,
    weights: Mapping[str, torch.Tensor],
    eps: float,
    rows: torch.Tensor,
    states: LayerState,
    start: int,
    count: int,
) -> torch.Tensor:
    """Rows (rows, columns) of the input linears, from position `start` on → (rows, value_size) for the output linear.

    The first `count` rows are the sequence's; those after them are padding, and leave nothing behind.
    """
    window = spec.conv_kernel - 1
    known = rows.float()
    inputs = [*states.inputs, *known]
    at = {states.first + i: row for i, row in enumerate(inputs)}
    state, outputs = states.state, []
    settle = max(states.settled, min(states.confirmed, start), start + count - PENDING_ROWS)
    settled_state = state
    for position in range(states.settled, start + len(rows)):
        if position == settle:
            settled_state = state
        taps = [at.get(position - window + t) for t in range(spec.conv_kernel)]
        out, state = _step(spec, weights, taps, state)
        if position >= start:
            outputs.append(_gated(spec, weights, out, at[position], eps))
    if settle == start + len(rows):
        settled_state = state
    states.state, states.settled = settled_state, settle
    first = max(0, settle - window)
    states.inputs = [at[position] for position in range(first, start + count)]
    states.first = first
    return torch.stack(outputs).to(rows.dtype)


def mixer_rows(
    spec: RecurrentSpec,
    layer: Layer,
    x: torch.Tensor,
    eps: float,
    convolve: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, columns), all parts that the scan reads (RecurrentSpec.all_parts).

    convolve: of Mamba-1, rows of values (rows, value_size) → the same, convolved.
    """
    rows = layer.qkv(x)
    if layer.low is not None:
        parts = list(layer.low(convolve(rows[:, : spec.value_size])).split(list(spec.low_parts.values()), 1))
        if spec.selection_norm is not None:
            norms = (layer.recurrence.get(f"{LOW_NORMS[name]}.weight") for name in spec.low_parts)
            parts = [
                _normalised(part.float(), norm, spec.norm_eps or eps).to(rows.dtype)
                for part, norm in zip(parts, norms, strict=True)
            ]
        return torch.cat((rows, *parts, layer.gates[0](parts[0].contiguous())), 1)
    if not layer.gates:
        return rows
    low = rows[:, -len(layer.gates) * spec.gate_rank :].chunk(len(layer.gates), 1)
    return torch.cat((rows, *(gate(part.contiguous()) for gate, part in zip(layer.gates, low, strict=True))), 1)


def convolved_values(
    spec: RecurrentSpec, weights: Mapping[str, torch.Tensor], states: LayerState, start: int, values: torch.Tensor
) -> torch.Tensor:
    """Rows of values (rows, value_size), from position `start` on, of Mamba-1 → the same, convolved."""
    known = [*(row[: spec.value_size] for row in states.inputs), *values.float()]
    at = {states.first + i: row for i, row in enumerate(known)}
    made = []
    for position in range(start, start + len(values)):
        taps = [at.get(position - spec.conv_kernel + 1 + t) for t in range(spec.conv_kernel)]
        made.append(functional.silu(_weighted(spec, weights, "v_conv", taps)))
    return torch.stack(made).to(values.dtype)


def _parts(spec: RecurrentSpec, row: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip(spec.all_parts, row.split(list(spec.all_parts.values())), strict=True))


def _convolved(
    spec: RecurrentSpec, weights: Mapping[str, torch.Tensor], name: str, taps: list[torch.Tensor | None]
) -> torch.Tensor:
    """Σ over the last rows of weight · row, of one part; rows before the first are zeros."""
    read = []
    for row in taps:
        parts = None if row is None else _parts(spec, row)
        short = spec.kind == "short_conv"
        read.append(None if parts is None else parts["k_in"] * parts["v_in"] if short else parts[name])
    return _weighted(spec, weights, f"{name[0]}_conv", read)


def _weighted(
    spec: RecurrentSpec, weights: Mapping[str, torch.Tensor], conv: str, rows: list[torch.Tensor | None]
) -> torch.Tensor:
    weight = weights[f"{conv}.weight"].view(-1, spec.conv_kernel)
    total = weights.get(f"{conv}.bias", torch.zeros(len(weight)))
    for tap, row in enumerate(rows):
        if row is not None:
            total = total + weight[:, tap] * row
    return total


def _step(
    spec: RecurrentSpec,
    weights: Mapping[str, torch.Tensor],
    taps: list[torch.Tensor | None],
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One token: what it gives, (value_size,), and the state after it. taps: the last rows, its own the last."""
    assert taps[-1] is not None
    parts = _parts(spec, taps[-1])
    if spec.kind == "short_conv":
        return parts["q_in"] * _convolved(spec, weights, "v_in", taps), None
    if spec.kind == "mamba1":
        value = functional.silu(_convolved(spec, weights, "v_in", taps))
        return _selective_step(weights, parts, value, state)
    query, key, value = (functional.silu(_convolved(spec, weights, name, taps)) for name in ("q_in", "k_in", "v_in"))
    query, key = (x.view(spec.key_heads, -1).repeat_interleave(spec.heads // spec.key_heads, 0) for x in (query, key))
    value = value.view(spec.heads, -1)
    step = functional.softplus(parts["a_in"] + weights["dt_bias.weight"]).view(spec.heads, -1)  # or one of each key
    if spec.kind == "mamba2":
        step = step.clamp(*spec.step_limit)
    decay = torch.exp(-torch.exp(weights["a_log.weight"])[:, None] * step)
    if state is None:
        state = torch.zeros(spec.heads, spec.key_dim, spec.value_dim)
    state = state * decay[:, :, None]
    if spec.kind == "mamba2":
        change = value * step
    else:
        query, key = _unit(query) * spec.key_dim**-0.5, _unit(key)
        change = (value - (state * key[:, :, None]).sum(1)) * torch.sigmoid(parts["b_in"])[:, None] * spec.beta_scale
    state = state + key[:, :, None] * change[:, None]
    out = (state * query[:, :, None]).sum(1)
    if spec.kind == "mamba2":
        out = out + weights["skip.weight"][:, None] * value
    return out.flatten(), state


def _selective_step(
    weights: Mapping[str, torch.Tensor], parts: dict[str, torch.Tensor], value: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of Mamba-1; value: (channels,), convolved."""
    step = functional.softplus(parts["a_in"] + weights["dt_bias.weight"])
    rates = -torch.exp(weights["a_log.weight"]).view(len(value), -1).t()  # (key_dim, channels)
    if state is None:
        state = torch.zeros(1, *rates.shape)
    state = state * torch.exp(step * rates) + parts["k_in"][:, None] * (step * value)
    return (state[0] * parts["q_in"][:, None]).sum(0) + weights["skip.weight"] * value, state


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _UNIT_EPSILON)


def _gated(
    spec: RecurrentSpec, weights: Mapping[str, torch.Tensor], out: torch.Tensor, row: torch.Tensor, eps: float
) -> torch.Tensor:
    """What a token gives (value_size,), normalised and gated."""
    if not spec.scans:
        return out
    z, eps = _parts(spec, row)["z_in"], spec.norm_eps or eps
    gate = torch.sigmoid(z) if spec.kind == "kimi_delta" else functional.silu(z)
    if spec.is_delta:
        return _normalised(out.view(spec.heads, -1), weights["gated_norm.weight"], eps).flatten() * gate
    out = out * gate
    if not spec.norm_groups:
        return out
    weight = weights["gated_norm.weight"].view(spec.norm_groups, -1)
    return _normalised(out.view(spec.norm_groups, -1), weight, eps).flatten()


def _normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    normalised = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normalised if weight is None else normalised * weight
