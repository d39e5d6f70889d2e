"""Kimi Delta Attention (Kimi Linear 2025, arXiv:2510.26692, equation 1): see RecurrentSpec."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ipex_assist.executors.torch.mixers.gated_delta import GatedDelta
from ipex_assist.executors.torch.weights import Layer


class KimiDelta(GatedDelta):
    """As Gated DeltaNet, with a decay for each channel of a head's keys and a sigmoid of the output gate."""

    def inputs(
        self, layer: Layer, rows: torch.Tensor, convolve: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Decay and output gate, where they are made of rows of a low rank, which are the first linear's last."""
        gates = self.gates(layer)
        if not gates:
            return rows
        low = rows[:, -len(gates) * self.spec.gate_rank :].chunk(len(gates), 1)
        return torch.cat((rows, *(gate(part.contiguous()) for gate, part in zip(gates, low, strict=True))), 1)

    def log_decays(self, a: torch.Tensor) -> torch.Tensor:
        """One for each channel of a head's keys; with a bound they are between that and 0."""
        bound = self.spec.decay_bound
        if bound is None:
            return super().log_decays(a)
        return bound * torch.sigmoid(self.rates * (a + self.weights["dt_bias.weight"]).view(self.spec.heads, -1))

    def gate(self, z: torch.Tensor) -> torch.Tensor:
        """What the output gate z is multiplied as."""
        return torch.sigmoid(z)
