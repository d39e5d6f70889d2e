"""What the references of recurrent mixers have in common: the parts of a row, its convolution, norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.recurrent_spec import RecurrentSpec

Vectors = Mapping[str, torch.Tensor]  # a layer's weights that are no matrices, by our names
LastRows = list[torch.Tensor | None]  # the last rows, of which the convolution reads; None before the first


def parts_of(spec: RecurrentSpec, row: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts of one row (columns,) by our names."""
    return dict(zip(spec.all_parts, row.split(list(spec.all_parts.values())), strict=True))


def convolved(
    spec: RecurrentSpec, weights: Mapping[str, torch.Tensor], conv: str, rows: list[torch.Tensor | None]
) -> torch.Tensor:
    """Σ over the last rows of weight · row, of the convolution of this name; rows before the first are None: zeros."""
    weight = weights[f"{conv}.weight"].view(-1, spec.conv_kernel)
    total = weights.get(f"{conv}.bias", torch.zeros(len(weight)))
    for tap, row in enumerate(rows):
        if row is not None:
            total = total + weight[:, tap] * row
    return total


def normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm over the last dimension."""
    made = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return made if weight is None else made * weight


class Recurrence:
    """A kind of recurrent mixer, one token at a time. eps: of its norms."""

    activated = True  # whether a silu follows convolutions
    reversed_in_core = False  # whether the core has the parts of the first linear the other way round

    def __init__(self, spec: RecurrentSpec, weights: Vectors, eps: float) -> None:
        self.spec, self.weights, self.eps = spec, weights, spec.norm_eps or eps

    def inputs(
        self, layer: Layer, rows: torch.Tensor, convolve: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Rows (rows, columns) of the first linear, with what else is made of them before the scan.

        convolve: rows of values (rows, value_size) → the same, convolved.
        """
        return rows

    def gates(self, layer: Layer) -> list[Linear]:
        """Those of its `gate_parts`."""
        return [layer.linears[name] for name in self.spec.gate_parts]

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token: what it gives, (value_size,), and the state after it. rows: the last rows, its own the last."""
        raise NotImplementedError

    def gated(self, out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """What a token gives (value_size,), normalised and gated."""
        return out

    def convolved_part(self, name: str, rows: LastRows) -> torch.Tensor:
        """A part of the row through its convolution and silu."""
        return self.convolved(name, [None if row is None else parts_of(self.spec, row)[name] for row in rows])

    def convolved(self, name: str, rows: LastRows) -> torch.Tensor:
        """Likewise, of the last rows of this part alone."""
        made = convolved(self.spec, self.weights, f"{name[0]}_conv", rows)
        return functional.silu(made) if self.activated else made


class HeadRecurrence(Recurrence):
    """Of kinds with heads, whose state decays by a factor of each head or channel: S ← decay·S + k ⊗ change."""

    def heads_of(self, rows: LastRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys (heads, key_dim) and values (heads, value_dim) of a row."""
        spec = self.spec
        query, key, value = (self.convolved_part(name, rows) for name in ("q_in", "k_in", "v_in"))
        each = spec.heads // spec.key_heads
        query, key = (x.view(spec.key_heads, -1).repeat_interleave(each, 0) for x in (query, key))
        return query, key, value.view(spec.heads, -1)

    def steps_of(self, a: torch.Tensor) -> torch.Tensor:
        """softplus(a + dt_bias), one of each head, or of each channel of its keys."""
        return functional.softplus(a + self.weights["dt_bias.weight"]).view(self.spec.heads, -1)

    @property
    def rates(self) -> torch.Tensor:
        """exp(A_log): (heads, 1)."""
        return torch.exp(self.weights["a_log.weight"])[:, None]

    def decayed(self, state: torch.Tensor | None, log: torch.Tensor) -> torch.Tensor:
        """The state (heads, key_dim, value_dim) after its decay, of this logarithm; zeros where None."""
        if state is None:
            state = torch.zeros(self.spec.heads, self.spec.key_dim, self.spec.value_dim)
        return state * torch.exp(log)[:, :, None]
