"""A small model as a draft source."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, LogitsError, Model, Rows, truncate_or_clear
from ipex_assist.speculative.choosing.grammar import Grammar
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.schedule import DraftPlan, longest_draft
from ipex_assist.speculative.sources.batched_proposals import Call, DraftCall, RowsCall, Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.step_drafts import Reader, StepDrafts

if TYPE_CHECKING:
    import torch


class AssistantModel(DraftSource):
    """A small model that decodes ahead of the target.

    Its own sequence holds the context from token `_start` to the last accepted token it has read, so that each round
    feeds it one or two new tokens.
    """

    may_pause = True

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
        self.model, self.sampling = model, sampling
        choices = min(draft_vocabulary or vocab_size, vocab_size, model.spec.lm_head_rows)
        self._drafts = StepDrafts(sampling, choices, sorted(token for token in masked if token < choices), grammar)
        self._longest = longest_draft(model.spec)
        self._in_one_call = self._drafts.in_one_call(model)
        context = model.spec.context_length
        self._sequence = model.new_sequence(min(capacity or context, context))
        self._start = self._base = 0

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` the assistant has not read."""
        return len(tokens) - self._start - self._sequence.length

    def steps(self, tokens: Sequence[int], plan: DraftPlan, left_out: tuple[int, int] = (0, 0)) -> Steps:
        """Decode up to `plan.k` tokens as the target does: greedily, or by `sampling` with the same Gumbel noise.

        left_out: how many prompt tokens and how many output tokens are missing from `tokens`.
        """
        context = plan.context
        if (context is None and self._start) or (context is not None and self.unread(tokens) > context):
            self._sequence.truncate(0)
            self._start = 0 if context is None else len(tokens) - context
        self._base = len(tokens) - self._start
        k = min(plan.k, self._sequence.capacity - self._base, self._longest)
        if k <= 0:
            return Proposal([])
        # A pass needs at least one row; after an interrupted round there may be none, so the last token is read again.
        truncate_or_clear(self._sequence, min(self._sequence.length, max(0, self._base - 1)))
        pending = list(tokens[self._start + self._sequence.length :])
        if self._in_one_call:
            choice = self._drafts.choice(tokens, left_out)
            request = DraftInput(self._sequence, pending, k, plan.min_confidence, choice=choice)
            try:
                drafted, confidence = yield DraftCall(self.model, request, self._drafts.choices)
            except LogitsError:
                raise LogitsError("the assistant", len(tokens)) from None
            return Proposal(drafted, confidence, len(pending))
        try:
            read = self._reader(pending)
            return (yield from self._drafts.draft(tokens, k, plan.min_confidence, read, len(pending), left_out))
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

    def _reader(self, unread: list[int]) -> Reader:
        """Read tokens; `unread` before the first of them."""

        def read(drafted: list[int]) -> Generator[Call, Any, torch.Tensor]:
            nonlocal unread
            rows, unread = [*unread, *drafted], []
            logits: torch.Tensor = yield RowsCall(self.model, Rows(self._sequence, rows), self._drafts.choices)
            return logits

        return read
