"""The convolution behind embeddings of n-grams: see NgramSpec."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.recurrence import LastRows, Recurrence


class Ngrams(Recurrence):
    """A convolution of rows that are some positions apart, whose inputs end with their token."""

    def step(self, rows: LastRows, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See Recurrence."""
        assert self.spec.hashes is not None
        weight = self.weights["v_conv.weight"].view(-1, self.spec.hashes.kernel)
        total = torch.zeros(len(weight))
        for tap, row in enumerate(rows[:: -self.spec.hashes.size][: self.spec.hashes.kernel]):
            if row is not None:
                total = total + weight[:, -1 - tap] * row[:-1]
        return functional.silu(total), None
