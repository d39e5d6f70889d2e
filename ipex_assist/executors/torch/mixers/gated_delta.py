"""Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): see RecurrentSpec."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.recurrence import HeadRecurrence, LastRows, normalised, parts_of

_UNIT_EPSILON = 1e-6


class GatedDelta(HeadRecurrence):
    """S ← decay·S; S ← S + k ⊗ beta·(v - k·S); out = q·S, with q and k of unit length."""

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence."""
        spec = self.spec
        assert rows[-1] is not None
        parts = parts_of(spec, rows[-1])
        query, key, value = self.heads_of(rows)
        state = self.decayed(state, self.log_decays(parts["a_in"]))
        query, key = _unit(query) * spec.key_dim**-0.5, _unit(key)
        change = (value - (state * key[:, :, None]).sum(1)) * torch.sigmoid(parts["b_in"])[:, None] * spec.beta_scale
        state = state + key[:, :, None] * change[:, None]
        return (state * query[:, :, None]).sum(1).flatten(), state

    def log_decays(self, a: torch.Tensor) -> torch.Tensor:
        """Of the state, one for each head, or for each channel of its keys."""
        return -self.rates * self.steps_of(a)

    def gated(self, out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """A norm of each head, then the gate."""
        heads = out.view(self.spec.heads, -1)
        normed = normalised(heads, self.weights["gated_norm.weight"], self.eps).flatten()
        return normed * self.gate(parts_of(self.spec, row)["z_in"])

    def gate(self, z: torch.Tensor) -> torch.Tensor:
        """What the output gate z is multiplied as."""
        return torch.sigmoid(z) if self.spec.sigmoid_gate else functional.silu(z)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _UNIT_EPSILON)
