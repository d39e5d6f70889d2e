"""How tokens are chosen, as the C++ core reads it."""

from __future__ import annotations

import ctypes
import functools
import math
from collections import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.row_choice import LOGIT_EDIT, RowChoice, SampledRows, SamplingRule
from ipex_assist.native.batch_structures import CRowChoice, CSamplingRule

Logits = NDArray[np.float32]


@functools.lru_cache(maxsize=1024)
def core_rule(rule: SamplingRule) -> Any:
    """A pointer to a rule as the core reads it; the same object for each row of a request."""
    return ctypes.pointer(
        CSamplingRule(
            temperature=rule.temperature,
            top_p=rule.top_p,
            min_p_distance=rule.temperature * math.log(rule.min_p) if rule.min_p > 0 else -math.inf,
            seed=rule.seed,
            top_k=min(rule.top_k, (1 << 31) - 1),
            repetition_penalty=rule.repetition_penalty,
            presence_penalty=rule.presence_penalty,
            frequency_penalty=rule.frequency_penalty,
        )
    )


@functools.lru_cache
def equal_rows(rule: SamplingRule, position: int, number: int) -> Any:
    """The choices after `number` rows by a rule alone, as those of greedy requests are in each pass."""
    fields: list[Any] = [(core_rule(rule), position, None, 0, None, None, None, 0)]
    return (CRowChoice * number)(*fields * number)


class CoreChoices:
    """The choices after one call's rows, where the core finds them, and the tokens that it writes."""

    def __init__(self, choices: abc.Sequence[RowChoice], vocabulary: int, kept: KeptLogits) -> None:
        """vocabulary: logits of a row. kept: memory for those that are asked for."""
        number, self._choices = len(choices), choices
        self.tokens = (ctypes.c_int32 * number)()
        self._logits: list[Logits] = []
        self._drafted: list[Any] = []  # referred to by address
        if len(set(map(id, choices))) == 1 and choices[0].is_rule_alone:
            self.rows = equal_rows(choices[0].rule, choices[0].position, number)
        else:
            self.rows = self._rows(choices, vocabulary, kept)

    def _rows(self, choices: abc.Sequence[RowChoice], vocabulary: int, kept: KeptLogits) -> Any:
        self._logits = kept.rows(sum([choice.keep_logits for choice in choices]), vocabulary)
        addresses = iter([row.ctypes.data for row in self._logits])
        fields: list[Any] = []  # in the order of CRowChoice's
        known, pointer = None, None
        edits_of, at, count = None, None, 0  # `edits` as the core reads them
        counted_of: abc.Sequence[int] | None = None
        drafted: Any = None  # `counted_of` as the core reads it
        for rule, position, edits, mask, keep_logits, following, counted in choices:
            allowed, tokens = None, None
            if rule is not known:
                known, pointer = rule, core_rule(rule)
            if edits is not edits_of:
                edits_of, at, count = edits, None, 0
                if edits is not None and len(edits):
                    assert edits.dtype == LOGIT_EDIT, edits.dtype
                    assert edits.flags.c_contiguous, "edits with gaps"
                    at, count = edits.ctypes.data, len(edits)
            if mask is not None:
                if len(mask) < vocabulary or not mask.flags.c_contiguous:
                    raise IpexAssistError(f"a mask of {len(mask)} tokens for {vocabulary} logits")
                allowed = mask.ctypes.data
            if counted:
                if following is not counted_of:
                    counted_of, drafted = following, (ctypes.c_int32 * len(following))(*following)
                    self._drafted.append(drafted)
                tokens = ctypes.addressof(drafted)
            logits = next(addresses) if keep_logits else None
            fields.append((pointer, position, at, count, allowed, logits, tokens, counted))
        return (CRowChoice * len(fields))(*fields)

    def count_own_tokens(self, tokens: int) -> None:
        """Have each row's own token, as they lie from address `tokens` on, in place of the one drafted before it."""
        if not self._drafted:
            return
        size = ctypes.sizeof(ctypes.c_int32)
        for place, row in enumerate(self.rows):
            if row.following_count:
                row.following = tokens + place * size

    def addresses(self, first: int) -> tuple[int, int]:
        """Of the choice of row `first`, and of its token."""
        return (
            ctypes.addressof(self.rows) + first * ctypes.sizeof(CRowChoice),
            ctypes.addressof(self.tokens) + first * ctypes.sizeof(ctypes.c_int32),
        )

    def found(self) -> SampledRows:
        """What the core has chosen, after the passes."""
        if not self._logits:
            return SampledRows(self.tokens[:], [None] * len(self._choices))
        logits = iter(self._logits)
        return SampledRows(self.tokens[:], [next(logits) if choice.keep_logits else None for choice in self._choices])


class KeptLogits:
    """Memory for logits that leave the core, used again by each call."""

    def __init__(self) -> None:
        self._memory: Logits = np.empty((0, 0), np.float32)

    def rows(self, count: int, vocabulary: int) -> list[Logits]:
        """Rows of `vocabulary` logits; those of the last call are overwritten."""
        if not count:
            return []
        if self._memory.shape[0] < count or self._memory.shape[1] != vocabulary:
            self._memory = np.empty((count, vocabulary), np.float32)
        return list(self._memory[:count])
