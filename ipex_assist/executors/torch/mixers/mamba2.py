"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): see RecurrentSpec."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.recurrence import HeadRecurrence, LastRows, normalised, parts_of


class Mamba2(HeadRecurrence):
    """S ← decay·S + B ⊗ dt·x; out = C·S + skip·x, with C, B and x in the places of q, k and v."""

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence."""
        assert rows[-1] is not None
        query, key, value = self.heads_of(rows)
        step = self.steps_of(parts_of(self.spec, rows[-1])["a_in"]).clamp(*self.spec.step_limit)
        state = self.decayed(state, -self.rates * step) + key[:, :, None] * (value * step)[:, None]
        out = (state * query[:, :, None]).sum(1) + self.weights["skip.weight"][:, None] * value
        return out.flatten(), state

    def gated(self, out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """silu of the gate, then a norm of each group, if it has norms."""
        out, groups = out * functional.silu(parts_of(self.spec, row)["z_in"]), self.spec.norm_groups
        if not groups:
            return out
        weight = self.weights["gated_norm.weight"].view(groups, -1)
        return normalised(out.view(groups, -1), weight, self.eps).flatten()
