"""Hidden states that passes of the torch executor give beside logits."""

from __future__ import annotations

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.executors.interface import Rows
from ipex_assist.models.draft_head import Taps


class Tapped:
    """Hidden states of the passes of one call, taken at the layers that were asked for."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self._parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in taps.layers}

    def take(self, layer: int, x: torch.Tensor) -> None:
        """Keep the rows x (rows, hidden) that enter a layer, where it is one of those."""
        if layer in self._parts:
            self._parts[layer].append(x.float())

    def rows(self, hidden_size: int) -> NDArray[np.float32]:
        """All of them, (rows, taps · hidden_size)."""
        parts = [self._parts[layer] or [torch.empty(0, hidden_size)] for layer in self.taps.layers]
        made: NDArray[np.float32] = torch.cat([torch.cat(part) for part in parts], 1).numpy()
        return made


def rows_with_logits(rows: abc.Sequence[Rows]) -> list[int]:
    found, end = list[int](), 0
    for each in rows:
        end += len(each.tokens)
        found += range(end - each.last, end)
    return found
