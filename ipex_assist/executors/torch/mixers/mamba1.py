"""Mamba-1 (Gu and Dao 2023, arXiv:2312.00752, algorithm 2): see RecurrentSpec."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.recurrence import LastRows, Recurrence, normalised, parts_of
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.mixers.mamba1 import LOW_NORMS


class Mamba1(Recurrence):
    """As Mamba-2 with all channels in one head, a dt for each channel, and a decay for each element of the state."""

    reversed_in_core = True

    def inputs(
        self, layer: Layer, rows: torch.Tensor, convolve: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """B, C and the row that dt is made of are made of convolved values, with norms if it has any."""
        spec = self.spec
        low = layer.linears["mixer_low"](convolve(rows[:, : spec.value_size]))
        parts = list(low.split(list(spec.low_parts.values()), 1))
        if spec.selection_norm is not None:
            norms = (layer.vectors.get(f"{LOW_NORMS[name]}.weight") for name in spec.low_parts)
            parts = [
                normalised(part.float(), norm, self.eps).to(rows.dtype) for part, norm in zip(parts, norms, strict=True)
            ]
        return torch.cat((rows, *parts, self.gates(layer)[0](parts[0].contiguous())), 1)

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence."""
        assert rows[-1] is not None
        weights, parts, value = self.weights, parts_of(self.spec, rows[-1]), self.convolved_part("v_in", rows)
        step = functional.softplus(parts["a_in"] + weights["dt_bias.weight"])
        rates = -torch.exp(weights["a_log.weight"]).view(len(value), -1).t()  # (key_dim, channels)
        if state is None:
            state = torch.zeros(1, *rates.shape)
        state = state * torch.exp(step * rates) + parts["k_in"][:, None] * (step * value)
        return (state[0] * parts["q_in"][:, None]).sum(0) + weights["skip.weight"] * value, state

    def gated(self, out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """silu of the gate."""
        return out * functional.silu(parts_of(self.spec, row)["z_in"])
