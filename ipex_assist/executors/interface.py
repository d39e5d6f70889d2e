"""What every executor offers: a decoder, rows in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from ipex_assist.models.spec import DecoderSpec

if TYPE_CHECKING:
    import torch


class Decoder(Protocol):
    """A loaded model with its cache. A row is one token at its position.

    A row's logits are the same, bit for bit, whatever rows run beside it in a decode step.
    """

    spec: DecoderSpec

    @property
    def length(self) -> int:
        """Rows in the cache."""
        ...

    @property
    def exact_rows(self) -> int:
        """Rows that one pass over the weights can verify exactly; 1 means that verifying costs a pass a token."""
        ...

    def reserve(self, tokens: int) -> None:
        """Make room for a sequence of `tokens` tokens; empties the cache."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        ...

    def forward(self, tokens: Sequence[int], last: int = 1) -> torch.Tensor:
        """Append `tokens` to the cached sequence; logits (last, vocab) of the last `last` of them."""
        ...


@runtime_checkable
class NarrowDecoder(Protocol):
    """A decoder that computes logits of the vocabulary's first tokens alone, and drafts in one call (native.py)."""

    def forward(self, tokens: Sequence[int], last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        """Append `tokens`; logits (last, vocabulary) of the last `last`."""
        ...

    def draft(
        self, tokens: Sequence[int], count: int, vocabulary: int | None = None, min_confidence: float = 0.0
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then up to `count` greedy tokens out of the first `vocabulary`, and their probabilities.

        Ends behind a token whose probability is below `min_confidence`.
        """
        ...
