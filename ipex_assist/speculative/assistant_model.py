"""A small model as a draft source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, LogitsError, Model, Rows, truncate_or_clear
from ipex_assist.speculative.batched_proposals import DraftCall, RowsCall, Steps, propose_alone
from ipex_assist.speculative.draft_source import Proposal
from ipex_assist.speculative.grammar import Grammar, Row, masked
from ipex_assist.speculative.sampling import INVALID_LOGITS, Sampling, choose_for_draft
from ipex_assist.speculative.schedule import longest_draft

if TYPE_CHECKING:
    import torch


class AssistantModel:
    """A small model that decodes ahead of the target.

    Its own sequence holds the context from token `_start` to the last accepted token it has read, so that each round
    feeds it one or two new tokens.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        vocab_size: int,
        draft_vocabulary: int | None = None,
        capacity: int | None = None,
        masked: frozenset[int] = frozenset(),
        grammar: Grammar | None = None,
    ) -> None:
        """sampling, vocab_size: the target's, since what it cannot choose is not worth drafting.

        draft_vocabulary: draft only ids below this. capacity: tokens of context to allocate, beyond which nothing is
        drafted; the model's context length where None. masked: ids that are never drafted. Tokens without an embedding
        row in this model must not be passed: see PartialVocabularyAssistant. grammar: ConstrainedSource brings it to
        the state after `tokens` before each draft; drafting advances it.
        """
        self.grammar = grammar
        self.model, self.sampling = model, sampling
        self._choices = min(draft_vocabulary or vocab_size, vocab_size, model.spec.vocab_size)
        self._longest = longest_draft(model.spec)
        self._in_one_call = isinstance(model, DraftsInOneCall)  # cached: the protocol check takes microseconds
        self._masked = sorted(token for token in masked if token < self._choices)
        context = model.spec.context_length
        self._sequence = model.new_sequence(min(capacity or context, context))
        self._start = self._base = 0

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` the assistant has not read."""
        return len(tokens) - self._start - self._sequence.length

    def propose(
        self,
        tokens: Sequence[int],
        k: int,
        *,
        min_confidence: float = 0.0,
        context: int | None = None,
        left_out: tuple[int, int] = (0, 0),
    ) -> Proposal:
        """Decode up to `k` tokens as the target does: greedily, or by `sampling` with the same Gumbel noise."""
        return propose_alone(self.steps(tokens, k, min_confidence=min_confidence, context=context, left_out=left_out))

    def steps(
        self,
        tokens: Sequence[int],
        k: int,
        *,
        min_confidence: float = 0.0,
        context: int | None = None,
        left_out: tuple[int, int] = (0, 0),
    ) -> Steps:
        """`propose` by calls of the model (see batched_proposals.py).

        left_out: how many prompt tokens and how many output tokens are missing from `tokens`.
        """
        if (context is None and self._start) or (context is not None and self.unread(tokens) > context):
            self._sequence.truncate(0)
            self._start = 0 if context is None else len(tokens) - context
        self._base = len(tokens) - self._start
        k = min(k, self._sequence.capacity - self._base, self._longest)
        if k <= 0:
            return Proposal([])
        # A pass needs at least one row; after an interrupted round there may be none, so the last token is read again.
        truncate_or_clear(self._sequence, min(self._sequence.length, max(0, self._base - 1)))
        pending = list(tokens[self._start + self._sequence.length :])
        plain = not self.sampling.do_sample and not self.sampling.changes_logits and not self._masked
        if plain and self._in_one_call and self.grammar is None:
            request = DraftInput(self._sequence, pending, k, min_confidence)
            try:
                drafted, confidence = yield DraftCall(self.model, request, self._choices)
            except LogitsError:
                raise LogitsError("the assistant", len(tokens)) from None
            return Proposal(drafted, confidence, len(pending))
        try:
            return (yield from self._decode(tokens, pending, k, min_confidence, left_out))
        except IpexAssistError:  # for example no free block: the tokens drafted so far are discarded
            self.accept(0)
            raise

    def accept(self, count: int) -> None:
        """Truncate the sequence to the accepted tokens; the last drafted token was never read."""
        self._sequence.truncate(min(self._base + count, self._sequence.length))

    def rewind(self, length: int) -> None:
        """Truncate the sequence to the first `length` tokens of the context."""
        truncate_or_clear(self._sequence, min(max(0, length - self._start), self._sequence.length))
        if length <= self._start:
            self._start = 0

    def _decode(
        self, tokens: Sequence[int], pending: list[int], k: int, min_confidence: float, left_out: tuple[int, int]
    ) -> Steps:
        """Draft with one pass per token; stop after the first token below `min_confidence`."""
        sampling = self.sampling
        if left_out[0]:
            sampling = replace(sampling, prompt_length=sampling.prompt_length - left_out[0])
        generated = len(tokens) + left_out[1] - sampling.prompt_length
        drafted: list[int] = []
        confidence: list[float] = []
        unread, read = len(pending), 0
        while len(drafted) < k and (not confidence or confidence[-1] >= min_confidence):
            forced = self._forced(k - len(drafted))
            if forced is None:
                break
            if forced:  # not predicted by the model, which reads them with the next pass
                drafted += forced
                confidence += [1.0] * len(forced)
                pending += forced
                continue
            logits = yield RowsCall(self.model, Rows(self._sequence, pending), self._choices)
            read, pending = unread, []
            logits = sampling.apply_penalties(self._unmasked(logits), [*tokens, *drafted])
            row = logits[0].float().numpy()
            numbers = self._may_follow(row)
            if numbers is None:
                break
            token, sure = choose_for_draft(numbers, sampling, generated + len(drafted))
            if token == INVALID_LOGITS:
                raise LogitsError("the assistant", len(tokens) + len(drafted))
            if self.grammar is not None:
                if not self.grammar.allows([token]):  # an end-of-text token, which only the target chooses
                    break
                self.grammar.advance(token)
            drafted.append(token)
            confidence.append(sure)
            pending = [token]
        return Proposal(drafted, confidence, read)

    def _forced(self, most: int) -> list[int] | None:
        """Return at most `most` forced tokens, [] without a grammar; None if the model does not know the first."""
        forced = [] if self.grammar is None else self.grammar.forced()[:most]
        known = next((i for i, token in enumerate(forced) if token >= self._choices), len(forced))
        if forced and not known:
            return None
        for token in forced[:known]:
            assert self.grammar is not None
            self.grammar.advance(token)
        return forced[:known]

    def _may_follow(self, row: Row) -> Row | None:
        """Mask a row of logits by the grammar; None if it allows no token of this model."""
        if self.grammar is None or not math.isfinite(row.max()):  # reported when the token is chosen
            return row
        row = masked(row, self.grammar)
        return row if row.max() > -np.inf else None

    def _unmasked(self, logits: torch.Tensor) -> torch.Tensor:
        if self._masked:
            logits = logits.clone()
            logits[:, self._masked] = -math.inf
        return logits
