"""Drafts under a grammar: forbidden tokens are cut, forced tokens need no model."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.choosing.grammar import Grammar, follow
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal


class ConstrainedSource(DraftSource):
    """Wraps a draft source, or none, for a request under a grammar.

    The source's draft is cut before the first forbidden token. Forced tokens are drafted without a model, with
    confidence 1.
    """

    def __init__(
        self, grammar: Grammar, prompt_length: int, source: DraftSource | None = None, *, masks: bool = False
    ) -> None:
        """grammar: used for drafts only; brought to the state after the output tokens before each draft.

        masks: whether the source's model masks by this same grammar object, and continues after forced tokens.
        """
        self.grammar, self.source = grammar, source
        self.sources = () if source is None else (source,)
        self._prompt_length, self._masks = prompt_length, masks
        self._forced: list[int] = []
        self._forced_at = -1  # number of tokens for which `_forced` was computed
        self._asked = False  # whether the last proposal came from the source

    def forced_count(self, tokens: Sequence[int]) -> int:
        """Return how many tokens the grammar forces after `tokens`."""
        follow(self.grammar, tokens[self._prompt_length :])
        if self._forced_at != len(tokens):
            self._forced, self._forced_at = self.grammar.forced(), len(tokens)
        return len(self._forced)

    @property
    def drafted_by(self) -> str | None:
        """Who made the last proposal, where the source has several."""
        by = None if self.source is None else self.source.drafted_by
        return by if self._asked or by is None else "grammar"

    def unread(self, tokens: Sequence[int]) -> int:
        """Return the tokens the source has to read; 0 if the proposal will consist of forced tokens."""
        forced = self.forced_count(tokens)
        if self.source is None or (forced and not self._masks):
            return 0
        return self.source.unread(tokens)

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Draft at most `plan.k` tokens that the grammar allows."""
        certain = min(plan.k, self.forced_count(tokens))
        forced = self._forced[:certain]
        self._asked = self.source is not None and (self._masks or not forced)
        if self.source is None or not self._asked:
            return Proposal(forced, [1.0] * len(forced))
        proposal = yield from self.source.steps(tokens, plan)
        follow(self.grammar, tokens[self._prompt_length :])  # the source's model may have advanced it
        allowed = self.grammar.allows(proposal.tokens)
        if allowed < len(forced):  # the source proposed less than the forced tokens
            self.source.accept(0)
            self._asked = False
            return Proposal(forced, [1.0] * len(forced), proposal.read)
        return Proposal(proposal.tokens[:allowed], proposal.confidence[:allowed], proposal.read)

    def recover(self) -> None:
        """Reset the drafts' grammar, whatever state an interrupt left it in."""
        self.grammar.truncate(0)
        self._forced_at = -1

    def accept(self, count: int) -> None:
        """Pass it on to the source, if the proposal came from it."""
        if self.source is not None and self._asked:
            self.source.accept(count)
