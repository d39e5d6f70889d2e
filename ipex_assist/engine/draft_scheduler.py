"""What the texts of a pass draft: each by its own schedule, or all by one. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.batched_proposals import ProposalRequest, propose_together
from ipex_assist.speculative.joint_schedule import WHOLE, JointDraft, JointSchedule
from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan, RoundResult

Fail: TypeAlias = "Callable[[ScheduledRequest, IpexAssistError], None]"


class DraftScheduler:
    """Lets the texts of a pass draft together, and hears what came of it.

    joint: the schedule of texts that share passes; None where no text adapts.
    """

    def __init__(self, shares_passes: bool, clock: Callable[[], float]) -> None:
        """shares_passes: whether the model takes rows of several texts at once, or one text after the other."""
        self._shares_passes, self._clock = shares_passes, clock
        self.joint: JointSchedule | None = None
        self._shared = False  # whether `joint` decides in the pass under way
        self._texts = 1  # in it

    def draft(self, parts: Sequence[ScheduledRequest], others: int, coming: int, fail: Fail) -> float:
        """Draft for `parts`, texts that go on beside `others` rows of prompts; returns the seconds that took.

        coming: texts whose prompts are being read. fail: ends the request of a part whose source failed. (It is not
        kept: an engine that nobody keeps shall be gone at once, with its memory of prefixes.)
        """
        drafters = [part for part in parts if part.request.draft is not None and part.remaining > 1]
        self._shared = self._shares_passes and self.joint is not None and len(parts) + others > 1
        self._texts = max(1, len(parts))
        if not drafters:
            return 0.0
        started = self._clock()
        asked = []
        for part, plan in zip(drafters, self._plans(drafters, len(parts), others, coming), strict=True):
            request = part.request
            part.sure = min(request.sure, LONGEST_DRAFT)
            k = min(max(plan.k, part.sure), part.remaining - 1)
            if k > 0 and request.draft is not None:
                # What is certain is worth a row, not that a model reads for it.
                plan = plan if plan.k else replace(plan, context=WHOLE)
                asked.append((part, ProposalRequest(request.draft, request.tokens, k, plan)))
        for (part, _), proposal in zip(asked, propose_together([each for _, each in asked]), strict=True):
            if isinstance(proposal, IpexAssistError):
                fail(part, proposal)
            else:
                part.set_proposal(proposal)
        self._trim([part for part, _ in asked])
        return self._clock() - started

    def _plans(self, drafters: Sequence[ScheduledRequest], texts: int, others: int, coming: int) -> list[DraftPlan]:
        if not self._shared or self.joint is None:
            return [part.request.schedule.plan(part.request.state()) for part in drafters]
        for part in drafters:
            if isinstance(part.request.schedule, AdaptiveSchedule):
                part.turn = JointDraft(part.request.schedule, part.request.state())
        self.joint.plan([part.turn for part in drafters if part.turn is not None], texts, others, coming)
        return [
            part.request.schedule.plan(part.request.state()) if part.turn is None else part.turn.plan
            for part in drafters
        ]

    def _trim(self, parts: Sequence[ScheduledRequest]) -> None:
        if not self._shared or self.joint is None:
            return
        for part in parts:
            if part.turn is not None:
                part.turn.proposal = part.proposal
        self.joint.trim()
        for part in parts:
            if part.turn is not None and not part.request.over:
                kept = max(len(part.turn.proposal.tokens), part.sure)
                part.set_proposal(replace(part.proposal, tokens=part.proposal.tokens[:kept]))

    def observe(
        self, part: ScheduledRequest, accepted: int, draft_s: float, target_s: float, experts: float | None = None
    ) -> None:
        """Hear of one text's round. experts: distinct ones that the pass read, a layer."""
        if part.turn is not None:
            part.turn.proposal, part.turn.accepted = part.proposal, accepted
        elif part.request.draft is not None and part.remaining > 1:
            drafted, confidence = len(part.proposal.tokens), part.proposal.confidence
            alone = experts if self._texts == 1 else None
            each = RoundResult(drafted, accepted, confidence, draft_s / self._texts, target_s / self._texts, alone)
            part.request.schedule.observe(each)

    def observe_pass(self, rows: int, read: int, seconds: float, draft_s: float, experts: float | None = None) -> None:
        """Hear of the pass as a whole: its rows, `read` of prompts, what drafting and it took, its experts a layer."""
        if self._shared and self.joint is not None:
            self.joint.observe(rows, read, seconds, draft_s, experts)

    def plain_s(self, part: ScheduledRequest, tokens: int) -> float | None:
        """Seconds that plain decoding would take for each of so many tokens of a round; None where nobody measures."""
        if part.turn is None or self.joint is None:
            return part.request.schedule.plain_s
        return self.joint.plain_s(tokens)
