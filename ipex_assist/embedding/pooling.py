"""Pools hidden states into one vector, row by row in the order of tokens, so that no chunk changes a bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Pooler:
    """Takes the rows of one text as passes bring them; `vector` is what sentence-transformers' Pooling gives.

    first: the first position that counts: tokens of a prompt before it do not, where a model says so.
    """

    def __init__(self, poolings: Sequence[str], hidden_size: int, first: int = 0) -> None:
        self._poolings, self._first = tuple(poolings), first
        self._position = self._count = 0
        self._weights = 0.0
        summed = {"mean", "mean_sqrt_len_tokens"} & set(poolings)
        self._sum = np.zeros(hidden_size) if summed else None
        self._weighted = np.zeros(hidden_size) if "weightedmean" in poolings else None
        self._most = np.full(hidden_size, -np.inf, np.float32) if "max" in poolings else None
        self._ends: dict[str, Vector] = {}

    def take(self, rows: NDArray[np.float32]) -> None:
        """The hidden states (rows, hidden) of the next tokens."""
        begin = min(max(0, self._first - self._position), len(rows))
        position, counted = self._position + begin, rows[begin:]
        self._position += len(rows)
        if not len(counted):
            return
        if not self._count:
            self._ends["cls"] = counted[0].copy()
        self._ends["lasttoken"] = counted[-1].copy()
        self._count += len(counted)
        if self._most is not None:
            np.maximum(self._most, counted.max(0), out=self._most)
        if self._sum is not None:
            for row in counted:  # one after the other: a sum of parts would depend on where they are cut
                self._sum += row
        if self._weighted is not None:
            for weight, row in enumerate(counted, position + 1):
                self._weighted += float(weight) * row.astype(np.float64)
                self._weights += weight

    def vector(self) -> Vector:
        """The pooled vector (poolings · hidden,)."""
        parts = [self._part(pooling) for pooling in self._poolings]
        return np.concatenate(parts).astype(np.float32)

    def _part(self, pooling: str) -> NDArray[np.floating]:
        if pooling in ("cls", "lasttoken"):
            return self._ends[pooling]
        if pooling == "max":
            assert self._most is not None
            return self._most
        if pooling == "weightedmean":
            assert self._weighted is not None
            return self._weighted / self._weights
        assert self._sum is not None
        return self._sum / (self._count if pooling == "mean" else np.sqrt(self._count))
