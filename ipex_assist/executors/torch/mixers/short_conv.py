"""The short convolution of LFM2: C · conv(B · x), with no state beside the rows that it reads."""

from __future__ import annotations

import torch

from ipex_assist.executors.torch.mixers.recurrence import LastRows, Recurrence, convolved, parts_of


class ShortConv(Recurrence):
    """A causal convolution between two gates."""

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence."""
        parts = [None if row is None else parts_of(self.spec, row) for row in rows]
        assert parts[-1] is not None
        read = [None if each is None else each["k_in"] * each["v_in"] for each in parts]
        return parts[-1]["q_in"] * convolved(self.spec, self.weights, "v_conv", read), None
