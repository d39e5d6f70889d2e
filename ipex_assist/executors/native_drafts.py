"""Greedy drafts as the C++ core reads and writes them."""

from __future__ import annotations

import ctypes
from collections import abc

import numpy as np
from numpy.typing import NDArray

from ipex_assist.executors.interface import DraftInput
from ipex_assist.native.structures import GreedyDraft


class CoreDrafts:
    """What one call of the core drafts for several sequences."""

    def __init__(self, requests: abc.Sequence[DraftInput], target_tokens: NDArray[np.int32] | None) -> None:
        """target_tokens: of a draft head with a vocabulary of its own."""
        number, self._stride = len(requests), max(each.count for each in requests)
        self._tokens = (ctypes.c_int32 * (number * self._stride))()
        self._probabilities = (ctypes.c_float * (number * self._stride))()
        self.drafted = (ctypes.c_int32 * number)()
        self._target_tokens = target_tokens  # referred to by address
        self.struct = GreedyDraft(
            (ctypes.c_int32 * number)(*(each.count for each in requests)),
            (ctypes.c_float * number)(*(each.min_confidence for each in requests)),
            self._stride,
            self._tokens,
            self._probabilities,
            self.drafted,
            None if target_tokens is None else target_tokens.ctypes.data,
        )

    def found(self, index: int) -> tuple[list[int], list[float]]:
        """The tokens of a sequence and their probabilities, after the call."""
        first, last = index * self._stride, index * self._stride + self.drafted[index]
        return self._tokens[first:last], self._probabilities[first:last]
