"""Draft sources: what guesses the next tokens, for the target to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from ipex_assist.executors import Decoder
from ipex_assist.sampling import Sampling, draw


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens and, when sampling, the distributions (len(tokens), vocab) they were drawn from.

    `probabilities` None means the source was certain of its tokens. `confidence` is the probability the source gave
    each token, by which the schedule learns when to stop; empty where the source has none to give.
    """

    tokens: list[int]
    probabilities: torch.Tensor | None = None
    confidence: list[float] = field(default_factory=list)


@runtime_checkable
class GreedyDrafter(Protocol):
    """A decoder that drafts several greedy tokens in one call (executors/native.py)."""

    def draft(
        self, tokens: Sequence[int], count: int, vocabulary: int | None = None, least: float = 0.0
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then up to `count` greedy tokens out of the first `vocabulary`, and their probabilities."""
        ...


class DraftSource(Protocol):
    """Guesses tokens, and is told how many of them were right."""

    def propose(self, tokens: Sequence[int], k: int, *, least: float = 0.0, context: int | None = None) -> Proposal:
        """At most `k` tokens to follow `tokens`, the whole text so far; fewer, or none, where it cannot.

        least: end behind a token to which the source gives a smaller probability. context: where more than so many
        tokens are yet unread, start anew and read only the last so many of the text.
        """
        ...

    def unread(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the source must read before it can draft; 0 where it reads for nothing."""
        ...

    def accept(self, count: int) -> None:
        """`count` of the last proposal's tokens were kept; the rest never happened."""
        ...


class AssistantModel:
    """A small model that decodes ahead of the target.

    Its cache holds the text up to the last accepted token it has seen, so that a round feeds it one or two new tokens.
    """

    def __init__(self, decoder: Decoder, sampling: Sampling, generator: torch.Generator, vocab_size: int) -> None:
        """`vocab_size` is the target's: probabilities are cut or padded to it, since only rows may differ in number."""
        self.decoder, self.sampling, self.generator, self.vocab_size = decoder, sampling, generator, vocab_size
        self._base = 0
        decoder.truncate(0)

    def unread(self, tokens: Sequence[int]) -> int:
        """Tokens that its cache lacks."""
        return len(tokens) - self.decoder.length

    def propose(self, tokens: Sequence[int], k: int, *, least: float = 0.0, context: int | None = None) -> Proposal:
        """Decode `k` tokens, greedily or by `sampling`, whichever the target uses."""
        k = min(k, self.decoder.spec.context_length - len(tokens))
        if k <= 0:
            return Proposal([])
        self._base = len(tokens)
        drafted: list[int] = []
        rows: list[torch.Tensor] = []
        # A target may hold padding rows that the assistant lacks; such a token says nothing to either.
        last = self.decoder.spec.vocab_size - 1
        pending = [min(token, last) for token in tokens[self.decoder.length :]]
        plain = not self.sampling.do_sample and self.sampling.repetition_penalty == 1.0
        if plain and isinstance(self.decoder, GreedyDrafter):
            return Proposal(self.decoder.draft(pending, k, self.vocab_size)[0])
        for _ in range(k):
            logits = self.decoder.forward(pending)[:, : self.vocab_size]
            logits = self.sampling.penalise(logits, [*tokens, *drafted])
            if self.sampling.do_sample:
                rows.append(self._padded(self.sampling.probabilities(logits)))
                drafted.append(draw(rows[-1][0], self.generator))
            else:
                drafted.append(int(logits.argmax()))
            pending = drafted[-1:]
        return Proposal(drafted, torch.cat(rows) if rows else None)

    def accept(self, count: int) -> None:
        """Forget the rows of rejected tokens; the last drafted token was never fed, so it has none."""
        self.decoder.truncate(min(self._base + count, self.decoder.length))

    def _padded(self, probabilities: torch.Tensor) -> torch.Tensor:
        missing = self.vocab_size - probabilities.shape[-1]
        return torch.nn.functional.pad(probabilities, (0, missing)) if missing else probabilities
