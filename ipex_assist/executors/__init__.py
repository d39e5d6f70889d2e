"""Executors run a DecoderSpec: torch (the reference, anywhere) and ipex (IPEX's kernels)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ipex_assist.spec import DecoderSpec

if TYPE_CHECKING:
    import torch

# Input columns that share an int4 scale and zero. A target's quality is its users'; what a draft gets wrong costs time
# only, and its passes are shorter by 6 % so.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128


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
