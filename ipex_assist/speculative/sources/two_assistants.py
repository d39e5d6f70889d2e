"""Two assistants of one request, a draft head and a small model: in each round, one of them drafts."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
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
        self._last = 0

    @property
    def drafted_by(self) -> str:
        """Who made the last proposal."""
        return SMALL_MODEL if self._last else self.head.spec.kind

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many rows the head must read before it can draft; at least 1."""
        return self.head.unread(tokens)

    def model_unread(self, tokens: Sequence[int]) -> int:
        """Return how many tokens the small model must read before it can draft; at least 1, since it is never free."""
        return max(1, self.model.unread(tokens))

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """The draft of the assistant that the plan names."""
        self._last = plan.assistant
        return (yield from self.sources[self._last].steps(tokens, plan))

    def accept(self, count: int) -> None:
        """Passed on to the one that made the last proposal."""
        self.sources[self._last].accept(count)
