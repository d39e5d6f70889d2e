"""A draft of a chosen acceptance: the draft model does its work, and what it proposes is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal


class SimulatedDraft(DraftSource):
    """A draft source around another one, with a coin for each position of a known text.

    Where the coin falls right, the proposal is the text's token; else the source's own, or another one where that
    happens to be the text's. So a drafted token that is reached by verification is accepted with exactly the chosen
    probability, independently of the others: the model of Leviathan et al. 2023 (arXiv:2211.17192), section 3.1.

    For greedy decoding, whose text is known beforehand: it is the plain run's.
    """

    def __init__(
        self, source: DraftSource, text: Sequence[int], acceptance: float, vocab_size: int, seed: Sequence[int] = (0,)
    ) -> None:
        """text: the prompt and the target's own continuation. Equal seeds give equal coins at equal positions."""
        import numpy

        self.source, self.text, self.vocab_size = source, text, vocab_size
        self._right = numpy.random.default_rng(list(seed)).random(len(text)) < acceptance

    def unread(self, tokens: Sequence[int]) -> int:
        """Return what the source itself says."""
        return self.source.unread(tokens)

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Propose as many tokens as the source, which never ends early: its confidence says nothing about these."""
        proposal = yield from self.source.steps(tokens, replace(plan, min_confidence=0.0))
        return Proposal([self._exchanged(len(tokens) + i, token) for i, token in enumerate(proposal.tokens)])

    def _exchanged(self, position: int, token: int) -> int:
        if position >= len(self.text):
            return token
        right = self.text[position]
        if self._right[position]:
            return right
        return token if token != right else (token + 1) % self.vocab_size

    def accept(self, count: int) -> None:
        """Tell the source, whose cache keeps rows of its own tokens, as many as there would be of the right ones."""
        self.source.accept(count)
