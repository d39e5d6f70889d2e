"""RG-LRU (Griffin, De et al. 2024, arXiv:2402.19427, section 2.4): see RecurrentSpec."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.recurrence import LastRows, Recurrence, parts_of
from ipex_assist.executors.torch.weights import Layer


class RgLru(Recurrence):
    """A linear recurrence of each channel by itself, with gates of the convolved row."""

    activated = False
    reversed_in_core = True

    def inputs(
        self, layer: Layer, rows: torch.Tensor, convolve: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Each block of channels has matrices of its own."""
        spec = self.spec
        blocks = convolve(rows[:, : spec.value_size]).reshape(-1, spec.value_dim)
        made = (gate(blocks).view(len(rows), spec.heads, spec.heads, -1) for gate in self.gates(layer))
        return torch.cat((rows, *(each.diagonal(0, 1, 2).transpose(1, 2).flatten(1) for each in made)), 1)

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence. The first row of a text enters the state as a whole."""
        assert rows[-1] is not None
        parts = parts_of(self.spec, rows[-1])
        entering = self.convolved_part("v_in", rows) * torch.sigmoid(parts["b_in"])
        if state is None:
            return entering, entering
        rate = functional.softplus(self.weights["a_param.weight"]) * torch.sigmoid(parts["a_in"])
        state = torch.exp(-8 * rate) * state + torch.sqrt(-torch.expm1(-16 * rate)) * entering
        return state, state

    def gated(self, out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """GELU of the gate."""
        return out * functional.gelu(parts_of(self.spec, row)["z_in"], approximate="tanh")
