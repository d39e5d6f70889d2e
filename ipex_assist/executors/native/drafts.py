"""Drafts as the C++ core reads and writes them."""

from __future__ import annotations

import ctypes
from collections import abc

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput
from ipex_assist.executors.native.choices import CoreChoices, KeptLogits
from ipex_assist.executors.native.hidden import check_hidden
from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.batch_structures import DraftRequest
from ipex_assist.native.rows import PASS_ROWS


def draft_rows(request: DraftInput) -> int:
    """How many rows its sequence grows by at most: the last drafted token is not appended."""
    return len(request.tokens) + request.count - 1


def context_rows(request: DraftInput) -> int:
    """Of a head that drafts blocks: how many rows of hidden states become keys and values first."""
    return 0 if request.hidden is None else len(request.hidden)


def check_draft(spec: DecoderSpec, request: DraftInput) -> None:
    """Raise IpexAssistError where a draft head, or another model, cannot draft what is asked."""
    head = spec.head
    if head is None or head.kind != "dflash":
        check_hidden(spec, request.hidden, len(request.tokens))
        if head is not None and head.kind == "shared_kv" and len(request.tokens) != 1:
            raise IpexAssistError(
                f"{len(request.tokens)} tokens where a draft goes on after one, which is its target's"
            )
        return
    if request.hidden is not None:
        check_hidden(spec, request.hidden, len(request.hidden))
    if len(request.tokens) != 1:
        raise IpexAssistError(f"a block is drafted after one token: {len(request.tokens)} given")
    if not 1 <= request.count < head.block_size <= PASS_ROWS:
        raise IpexAssistError(
            f"{request.count} tokens of a block of {head.block_size}: it drafts 1 to {head.block_size - 1}, "
            f"and a block has {PASS_ROWS} rows at most"
        )


_LIKELIEST = RowChoice()


class CoreDrafts:
    """What one call of the core drafts for several sequences."""

    def __init__(
        self, requests: abc.Sequence[DraftInput], target_tokens: NDArray[np.int32] | None, vocabulary: int = 0
    ) -> None:
        """target_tokens: of a draft head with a vocabulary of its own. vocabulary: columns of logits."""
        number, self._stride = len(requests), max(each.count for each in requests)
        self._tokens = (ctypes.c_int32 * (number * self._stride))()
        self._probabilities = (ctypes.c_float * (number * self._stride))()
        self.drafted = (ctypes.c_int32 * number)()
        self._target_tokens = target_tokens  # referred to by address
        self.struct = DraftRequest(
            (ctypes.c_int32 * number)(*(each.count for each in requests)),
            (ctypes.c_float * number)(*(each.min_confidence for each in requests)),
            self._stride,
            self._tokens,
            self._probabilities,
            self.drafted,
            None if target_tokens is None else target_tokens.ctypes.data,
        )
        self._choices: CoreChoices | None = None
        if any(each.choice is not None for each in requests):
            self._choices = CoreChoices([each.choice or _LIKELIEST for each in requests], vocabulary, KeptLogits())
            self.struct.choices, _ = self._choices.addresses(0)

    def all(self) -> list[tuple[list[int], list[float]]]:
        """The tokens of each sequence and their probabilities, after the call."""
        starts = range(0, len(self._tokens), self._stride)
        ends = [first + count for first, count in zip(starts, self.drafted, strict=True)]
        return [(self._tokens[a:b], self._probabilities[a:b]) for a, b in zip(starts, ends, strict=True)]
