"""Drafts under a grammar: nothing that it forbids, and what it forces for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.batched_proposals import ProposalRequest, Steps, propose_alone
from ipex_assist.speculative.draft_source import DraftSource, Proposal
from ipex_assist.speculative.grammar import Grammar, follow
from ipex_assist.speculative.schedule import DraftPlan


class ConstrainedSource:
    """Any source, or none, for a text under a grammar.

    What the source drafts is cut before the first token that may not follow. Tokens that the grammar forces are drafted
    without a model, and count as certain.
    """

    def __init__(
        self, grammar: Grammar, prompt_length: int, source: DraftSource | None = None, *, masks: bool = False
    ) -> None:
        """grammar: of the drafts alone; brought to the state behind the text whenever they begin.

        masks: whether the source's model looks at that same grammar, in this state, and goes on behind what it forces.
        """
        self.grammar, self.source = grammar, source
        self._prompt_length, self._masks = prompt_length, masks
        self._forced: list[int] = []
        self._forced_at = -1  # the text's length
        self._asked = False  # whether the last proposal was the source's

    def forced_count(self, tokens: Sequence[int]) -> int:
        """How many tokens that must follow `tokens` can be drafted for nothing."""
        follow(self.grammar, tokens[self._prompt_length :])
        if self._forced_at != len(tokens):
            self._forced, self._forced_at = self.grammar.forced(), len(tokens)
        return len(self._forced)

    def unread(self, tokens: Sequence[int]) -> int:
        """What the source has to read; 0 where the proposal will be what is forced."""
        forced = self.forced_count(tokens)
        if self.source is None or (forced and not self._masks):
            return 0
        return self.source.unread(tokens)

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """At most `k` tokens that may follow."""
        return propose_alone(self.steps(tokens, k, min_confidence=min_confidence, context=context))

    def steps(self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None) -> Steps:
        """`propose` by calls of the source's model (see batched_proposals.py)."""
        certain = min(k, self.forced_count(tokens))
        forced = self._forced[:certain]
        self._asked = self.source is not None and (self._masks or not forced)
        if self.source is None or not self._asked:
            return Proposal(forced, [1.0] * len(forced))
        plan = DraftPlan(k, min_confidence, context)
        proposal = yield from ProposalRequest(self.source, tokens, k, plan).steps()
        follow(self.grammar, tokens[self._prompt_length :])  # the source's model has gone on with it
        allowed = self.grammar.allows(proposal.tokens)
        if allowed < len(forced):  # a copy that goes another way, or nothing
            self.source.accept(0)
            self._asked = False
            return Proposal(forced, [1.0] * len(forced), proposal.read)
        return Proposal(proposal.tokens[:allowed], proposal.confidence[:allowed], proposal.read)

    def recover(self) -> None:
        """Begin the drafts' grammar anew, whatever an interrupt left of it."""
        self.grammar.truncate(0)
        self._forced_at = -1

    def accept(self, count: int) -> None:
        """Tell the source, where the proposal was its."""
        if self.source is not None and self._asked:
            self.source.accept(count)
