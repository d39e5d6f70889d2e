"""An assistant that lacks some of the target's tokens: it reads the context without them."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal


class PartialVocabularyAssistant(DraftSource):
    """Drops tokens that the assistant does not know from its context, and does not draft right after one.

    Such tokens are mostly special tokens of a chat template or of infilling, between text that both models know. The
    assistant keeps that text; replacing the tokens by others would mislead it. It cannot predict what directly follows
    such a token, so the target decodes one token plainly there.
    """

    def __init__(self, model: AssistantModel, unknown: frozenset[int]) -> None:
        """unknown: ids that the assistant must not read, besides those beyond its embedding."""
        self._model, self._unknown = model, unknown
        self._rows = model.model.spec.vocab_size
        self._known: list[int] = []  # the context without unknown tokens …
        self._left_out = [0, 0]  # … how many were dropped from prompt and from output …
        self._followed = 0  # … up to this position

    def unread(self, tokens: Sequence[int]) -> int:
        """Unread tokens among those the assistant knows; at least 1, since 0 would mean that reading costs nothing."""
        self._follow(tokens)
        return max(1, self._model.unread(self._known))

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """The assistant's draft, cut before a token it does not know; nothing right after one."""
        self._follow(tokens)
        if not self._reads(tokens[-1]):
            return Proposal([])
        left_out = (self._left_out[0], self._left_out[1])
        steps = self._model.steps(self._known, plan, left_out)
        proposal = yield from steps
        # An unknown id may still have an embedding row, and a logit: what is dropped from the context must not stay in
        # the assistant's sequence either.
        known = next((i for i, token in enumerate(proposal.tokens) if not self._reads(token)), len(proposal.tokens))
        if known == len(proposal.tokens):
            return proposal
        self._model.accept(known)
        return Proposal(proposal.tokens[:known], proposal.confidence[:known], proposal.read)

    def accept(self, count: int) -> None:
        """Pass it on to the assistant: all drafted tokens are known to it."""
        self._model.accept(count)

    def _follow(self, tokens: Sequence[int]) -> None:
        for place in range(self._followed, len(tokens)):
            if self._reads(tokens[place]):
                self._known.append(tokens[place])
            else:
                self._left_out[place >= self._model.sampling.prompt_length] += 1
        self._followed = len(tokens)

    def _reads(self, token: int) -> bool:
        return token < self._rows and token not in self._unknown
