"""A small model as a draft source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ipex_assist.executors.interface import DraftsInOneCall, LogitsError, Model
from ipex_assist.speculative.draft import Proposal
from ipex_assist.speculative.sampling import Sampling, draw


class AssistantModel:
    """A small model that decodes ahead of the target.

    A sequence of its own holds the text from token `_start` on, up to the last accepted token it has seen, so that a
    round feeds it one or two new tokens.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        generator: torch.Generator,
        vocab_size: int,
        draft_vocabulary: int | None = None,
        capacity: int | None = None,
        masked: frozenset[int] = frozenset(),
    ) -> None:
        """`vocab_size` is the target's: probabilities are cut or padded to it, since only rows may differ in number.

        draft_vocabulary: draft only among the first so many token ids. capacity: tokens of text to make room for,
        beyond which nothing is drafted; as many as the model's context holds where None. masked: ids that are never
        drafted. Tokens without a row in this model must not be in the text: see PartlyShared.
        """
        self.model, self.sampling, self.generator, self.vocab_size = model, sampling, generator, vocab_size
        self._choices = min(draft_vocabulary or vocab_size, vocab_size, model.spec.vocab_size)
        self._masked = sorted(token for token in masked if token < self._choices)
        context = model.spec.context_length
        self._sequence = model.new_sequence(min(capacity or context, context))
        self._start = self._base = 0

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of the text the assistant's sequence lacks."""
        return len(tokens) - self._start - self._sequence.length

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """Decode up to `k` tokens, greedily or by `sampling`, whichever the target uses."""
        if (context is None and self._start) or (context is not None and self.unread(tokens) > context):
            self._sequence.truncate(0)
            self._start = 0 if context is None else len(tokens) - context
        self._base = len(tokens) - self._start
        k = min(k, self._sequence.capacity - self._base)
        if k <= 0:
            return Proposal([])
        pending = list(tokens[self._start + self._sequence.length :])
        plain = not self.sampling.do_sample and not self.sampling.changes_logits and not self._masked
        if plain and isinstance(self.model, DraftsInOneCall):
            try:
                drafted, confidence = self.model.draft(self._sequence, pending, k, self._choices, min_confidence)
            except LogitsError:
                raise LogitsError("the assistant", len(tokens)) from None
            return Proposal(drafted, None, confidence)
        return self._decode(tokens, pending, k, min_confidence)

    def accept(self, count: int) -> None:
        """Forget the rows of rejected tokens; the last drafted token was never fed, so it has none."""
        self._sequence.truncate(min(self._base + count, self._sequence.length))

    def rewind(self, length: int) -> None:
        """Keep what the sequence holds of the text's first `length` tokens, and nothing else."""
        self._sequence.truncate(min(max(0, length - self._start), self._sequence.length))
        if length <= self._start:
            self._start = 0

    def _decode(self, tokens: Sequence[int], pending: list[int], k: int, min_confidence: float) -> Proposal:
        """Draft by one pass a token.

        It ends behind a token, never before it: one that is drawn and then dropped for what it is would shift the
        distribution of what takes its place.
        """
        drafted: list[int] = []
        confidence: list[float] = []
        rows: list[torch.Tensor] = []
        while len(drafted) < k and (not confidence or confidence[-1] >= min_confidence):
            logits = self.sampling.penalise(self._logits(pending), [*tokens, *drafted])
            if self.sampling.do_sample:
                probabilities = self.sampling.probabilities(logits)
            else:
                probabilities = torch.softmax(logits.float(), -1)
            if math.isnan(float(probabilities[0, 0])):  # NaN or infinity among the logits is NaN everywhere here
                raise LogitsError("the assistant", len(tokens) + len(drafted))
            if self.sampling.do_sample:
                token = draw(probabilities[0], self.generator)
                rows.append(self._padded(probabilities))
            else:
                token = int(logits.argmax())
            drafted.append(token)
            confidence.append(float(probabilities[0, token]))
            pending = [token]
        return Proposal(drafted, torch.cat(rows) if rows else None, confidence)

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        logits = self.model.extend(self._sequence, tokens, vocabulary=self._choices)
        if self._masked:
            logits = logits.clone()
            logits[:, self._masked] = -torch.inf
        return logits

    def _padded(self, probabilities: torch.Tensor) -> torch.Tensor:
        missing = self.vocab_size - probabilities.shape[-1]
        return torch.nn.functional.pad(probabilities, (0, missing)) if missing else probabilities
