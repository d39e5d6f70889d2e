"""Drafting for the requests of a pass: each by its own schedule, or all by one joint schedule. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.joint_schedule import ALL_UNREAD, JointDraft, JointSchedule
from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan, RoundResult, RoundState
from ipex_assist.speculative.sources.batched_proposals import propose_together
from ipex_assist.speculative.sources.head_assistant import READY_ROWS

Fail: TypeAlias = "Callable[[ScheduledRequest, IpexAssistError], None]"


class DraftScheduler:
    """Drafts for all requests of a pass together, and feeds the outcome back to their schedules.

    joint: the schedule of requests that share passes; None while no request is adaptive.
    """

    def __init__(self, shares_passes: bool, clock: Callable[[], float], longest: int = sys.maxsize) -> None:
        """shares_passes: whether a pass of the model may hold several requests, or one at a time.

        longest: tokens of a draft that the model can verify.
        """
        self._shares_passes, self._clock, self._longest = shares_passes, clock, longest
        self.joint: JointSchedule | None = None
        self._shared = False  # whether `joint` decides in the current pass
        self._requests = 1  # decoding in the current pass
        self._overhead_s = 0.0  # beside passes, and not charged yet
        self._resting = False  # `joint` plans nothing in the current pass
        self._may_pause = False  # nothing but plans makes any of its requests draft

    def draft(self, batch: Sequence[ScheduledRequest], prefill_rows: int, prefilling: int, fail: Fail) -> float:
        """Draft for `batch`, the decoding requests of a pass with `prefill_rows` prompt rows; returns the seconds.

        prefilling: number of requests whose prompts are being read. fail: ends a request whose draft source failed. It
        is not stored: a reference cycle would keep a dropped engine, and its prefix cache, alive.
        """
        drafters = [scheduled for scheduled in batch if scheduled.request.draft is not None and scheduled.remaining > 1]
        self._shared = self._shares_passes and self.joint is not None and len(batch) + prefill_rows > 1
        self._requests = max(1, len(batch))
        self._resting = self._shared and bool(drafters) and self._all_rest(drafters)
        if self._resting:
            return 0.0
        if not self._shared:
            drafters = [scheduled for scheduled in drafters if not self._rests(scheduled)]
        if not drafters:
            return 0.0
        started = self._clock()
        asked = []
        for scheduled, plan in zip(drafters, self._plans(drafters, len(batch), prefill_rows, prefilling), strict=True):
            request = scheduled.request
            scheduled.forced_count = min(request.forced_count, LONGEST_DRAFT)
            k = min(max(plan.k, scheduled.forced_count), scheduled.remaining - 1, self._longest)
            if k > 0 and request.draft is not None:
                # A forced token is worth a row of the target, but not a pass of the draft to catch up for it.
                plan = plan if plan.k else replace(plan, context=ALL_UNREAD)
                asked.append((scheduled, request.draft.steps(request.tokens, replace(plan, k=k))))
        for (scheduled, _), proposal in zip(asked, propose_together([steps for _, steps in asked]), strict=True):
            if isinstance(proposal, IpexAssistError):
                fail(scheduled, proposal)
            else:
                scheduled.set_proposal(proposal)
        self._trim([scheduled for scheduled, _ in asked])
        return self._clock() - started

    def _all_rest(self, drafters: Sequence[ScheduledRequest]) -> bool:
        """Whether the joint schedule has a pause, and all who could draft are under it."""
        requests = [scheduled.request for scheduled in drafters]
        self._may_pause = all(request.may_pause and not request.copies for request in requests)
        adaptive = [each.schedule for each in requests if isinstance(each.schedule, AdaptiveSchedule)]
        return self._may_pause and self.joint is not None and self.joint.rests(adaptive, self._requests)

    @staticmethod
    def _rests(scheduled: ScheduledRequest) -> bool:
        """Whether a request's schedule has a pause, and it has nothing to copy.

        The rows that its head will read after it are kept in time.
        """
        schedule = scheduled.request.schedule
        if not (isinstance(schedule, AdaptiveSchedule) and schedule.pause and scheduled.request.may_pause):
            return False
        scheduled.rests, scheduled.keeps_hidden = not scheduled.request.copies, schedule.pause <= READY_ROWS
        return scheduled.rests

    def _plans(
        self, drafters: Sequence[ScheduledRequest], requests: int, prefill_rows: int, prefilling: int
    ) -> list[DraftPlan]:
        if not self._shared or self.joint is None:
            return [scheduled.request.schedule.plan(scheduled.request.state()) for scheduled in drafters]
        for scheduled in drafters:
            if isinstance(scheduled.request.schedule, AdaptiveSchedule):
                scheduled.joint_draft = JointDraft(scheduled.request.schedule, scheduled.request.state())
        self.joint.plan(
            [scheduled.joint_draft for scheduled in drafters if scheduled.joint_draft is not None],
            requests,
            prefill_rows,
            prefilling,
        )
        return [
            scheduled.request.schedule.plan(scheduled.request.state())
            if scheduled.joint_draft is None
            else scheduled.joint_draft.plan
            for scheduled in drafters
        ]

    def _trim(self, batch: Sequence[ScheduledRequest]) -> None:
        if not self._shared or self.joint is None:
            for scheduled in batch:
                if isinstance(schedule := scheduled.request.schedule, AdaptiveSchedule) and scheduled.proposal.tokens:
                    kept = max(len(schedule.trim(scheduled.proposal).tokens), scheduled.forced_count)
                    scheduled.set_proposal(replace(scheduled.proposal, tokens=scheduled.proposal.tokens[:kept]))
            return
        for scheduled in batch:
            if scheduled.joint_draft is not None:
                scheduled.joint_draft.proposal = scheduled.proposal
        self.joint.trim()
        for scheduled in batch:
            if scheduled.joint_draft is not None and not scheduled.request.finished:
                kept = max(len(scheduled.joint_draft.proposal.tokens), scheduled.forced_count)
                scheduled.set_proposal(replace(scheduled.proposal, tokens=scheduled.proposal.tokens[:kept]))

    def observe(
        self, scheduled: ScheduledRequest, accepted: int, draft_s: float, target_s: float, experts: float | None = None
    ) -> None:
        """Record one request's round. experts: distinct experts the pass read, mean over the layers."""
        if self._resting:
            return
        alone = experts if self._requests == 1 else None
        schedule = scheduled.request.schedule
        if scheduled.joint_draft is not None:
            scheduled.joint_draft.proposal, scheduled.joint_draft.accepted = scheduled.proposal, accepted
        elif scheduled.rests and isinstance(schedule, AdaptiveSchedule):
            schedule.rest(target_s / self._requests, alone)
        elif scheduled.request.draft is not None and scheduled.remaining > 1:
            started = self._clock()
            drafted, confidence = len(scheduled.proposal.tokens), scheduled.proposal.confidence
            seconds = draft_s / self._requests, target_s / self._requests
            overhead_s = self._overhead_s + (0.0 if drafted else seconds[0]) if scheduled.request.may_pause else 0.0
            schedule.observe(RoundResult(drafted, accepted, confidence, *seconds, alone, overhead_s))
            self._overhead_s = self._clock() - started

    def book_overhead(self, seconds: float) -> None:
        """Charge what draft heads took beside passes; the next round that is planned bears it."""
        self._overhead_s += seconds

    def observe_pass(self, rows: int, read: int, seconds: float, draft_s: float, experts: float | None = None) -> None:
        """Record the whole pass: its rows, `read` of them of prompts, seconds of pass and drafts, experts a layer."""
        if not self._shared or self.joint is None:
            return
        if self._resting:
            self.joint.rest(read, seconds, experts)
            return
        started = self._clock()
        planning_s = draft_s if rows - read == self._requests else 0.0  # nothing was drafted
        overhead_s = self._overhead_s + planning_s if self._may_pause else 0.0
        self.joint.observe(rows, read, seconds, draft_s, experts, overhead_s)
        self._overhead_s = self._clock() - started

    def repays_reading(self, request: Request, unread: int, running: int) -> bool:
        """Whether drafts should repay a draft head's pass over `unread` rows of a prompt, among `running` requests."""
        if not isinstance(request.schedule, AdaptiveSchedule):
            return True
        now = RoundState(len(request.tokens), request.remaining, unread, rereads=False)
        if self.joint is not None and self._shares_passes and running > 1:
            return self.joint.repays_reading(JointDraft(request.schedule, now), running)
        return request.schedule.repays_reading(now)

    def book_reading(self, request: Request, seconds: float) -> None:
        """Charge the seconds of a draft head's pass over a prompt to whoever allowed it."""
        if not isinstance(request.schedule, AdaptiveSchedule):
            return
        if self.joint is not None and self.joint.has_adopted(request.schedule):
            self.joint.book_reading(seconds)
        else:
            request.schedule.budget.book_reading(seconds)

    def plain_s(self, scheduled: ScheduledRequest, tokens: int) -> float | None:
        """Return the seconds of plain decoding for each of a round's `tokens` tokens; None if not measured."""
        if self.joint is None or (scheduled.joint_draft is None and not self._resting):
            return scheduled.request.schedule.plain_s
        return self.joint.plain_s(tokens)
