"""Hidden states that passes of the torch executor give beside logits."""

from __future__ import annotations

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.executors.interface import Rows
from ipex_assist.models.draft_head import Taps
from ipex_assist.models.spec import DecoderSpec


class Tapped:
    """Hidden states of the passes of one call, taken at the layers that were asked for."""

    def __init__(self, taps: Taps, spec: DecoderSpec) -> None:
        self.taps, self._spec = taps, spec
        self._parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in taps.layers}

    def take(self, layer: int, x: torch.Tensor) -> None:
        """Keep what is asked of the rows x that enter a layer, (rows, hidden) or streams, where it is one of those."""
        if layer not in self._parts:
            return
        x = x.float()
        if self.taps.streams == "mean":
            x = x.unflatten(-1, (-1, self._spec.hidden_size)).mean(1)
        self._parts[layer].append(x)

    def rows(self) -> NDArray[np.float32]:
        """All of them, (rows, taps · width of a tap)."""
        width = self._spec.tap_width(self.taps)
        parts = [self._parts[layer] or [torch.empty(0, width)] for layer in self.taps.layers]
        made: NDArray[np.float32] = torch.cat([torch.cat(part) for part in parts], 1).numpy()
        return made


def rows_with_logits(rows: abc.Sequence[Rows]) -> list[int]:
    found, end = list[int](), 0
    for each in rows:
        end += len(each.tokens)
        found += range(end - each.last, end)
    return found
