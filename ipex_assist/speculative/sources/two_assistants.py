"""Two assistants of one request, a draft head and a small model: in each round, one of them drafts."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import ProposalRequest, Steps, propose_alone
from ipex_assist.speculative.sources.draft_source import DraftSource, Proposal
from ipex_assist.speculative.sources.head_assistant import HeadAssistant

SMALL_MODEL = "model"  # what statistics call it; a head is called by its kind


class TwoAssistants(DraftSource):
    """Asks the one that the schedule chose. The other reads what came meanwhile when it is asked again.

    The head is given the hidden states of all passes, whoever drafted for them: what waits is read by its next draft,
    or dropped, as in a pause. The small model reads tokens that it lacks, several a pass.
    """

    def __init__(self, head: HeadAssistant, model: DraftSource) -> None:
        self.head, self.model = head, model
        self.sources, self.may_pause = (head, model), model.may_pause
        self._chosen = self._last = 0

    @property
    def drafted_by(self) -> str:
        """Who made the last proposal."""
        return SMALL_MODEL if self._last else self.head.spec.kind

    def choose(self, number: int) -> None:
        """Have the head (0) or the small model (1) draft from now on."""
        self._chosen = number

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many rows the head must read before it can draft; at least 1."""
        return self.head.unread(tokens)

    def model_unread(self, tokens: Sequence[int]) -> int:
        """Return how many tokens the small model must read before it can draft; at least 1, since it is never free."""
        return max(1, self.model.unread(tokens))

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """The draft of the one that was chosen."""
        return propose_alone(self.steps(tokens, k, min_confidence=min_confidence, context=context))

    def steps(self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None) -> Steps:
        """`propose` by calls of a model (see batched_proposals.py)."""
        self._last = self._chosen
        plan = DraftPlan(k, min_confidence, context)
        return (yield from ProposalRequest(self.sources[self._last], tokens, k, plan).steps())

    def accept(self, count: int) -> None:
        """Passed on to the one that made the last proposal."""
        self.sources[self._last].accept(count)
