"""What a mixer is given beside its rows: where they are, what they may see, and the layer's weights and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ipex_assist.executors.torch.kernels import Kernels
from ipex_assist.executors.torch.kv_cache import KVCache
from ipex_assist.executors.torch.mixers.states import RecurrentStates
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.spec import DecoderSpec


class See(Protocol):
    """Is shown what a layer's operations give, by the core's names of these and of the buffers that they write."""

    def __call__(self, operation: str, buffer: str, *parts: torch.Tensor, column: int = 0) -> None:
        """parts: (rows, columns) each, side by side from `column` on; each begins at a multiple of the core's lanes."""
        ...


def unseen(layer: int, operation: str, buffer: str, *parts: torch.Tensor, column: int = 0) -> None:
    """Nobody watches a layer."""


@dataclass(frozen=True)
class AttentionMetadata:
    """The rows of one pass: their first position, their rotation, what they may see, and whether a decode step's."""

    start: int
    rotary: tuple[torch.Tensor, torch.Tensor] | None
    mask: torch.Tensor | None
    step: bool
    count: int  # rows that are the sequence's; those after them are padding
    growth: torch.Tensor | None = None  # (rows, 1, 1), that queries are multiplied with
    entry_rotary: tuple[torch.Tensor, torch.Tensor] | None = None  # of entries, or pools, from the first on
    block: bool = False  # whether the rows see what the first of them does, and all of each other


@dataclass(frozen=True)
class LayerRows:
    """The rows of one pass in one layer. index: the layer's. see: is shown what the layer's operations give."""

    kernels: Kernels
    spec: DecoderSpec
    index: int
    weights: Layer
    cache: KVCache
    metadata: AttentionMetadata
    states: RecurrentStates | None
    see: See
    tokens: torch.Tensor | None = None  # (rows,), of layers that read them
