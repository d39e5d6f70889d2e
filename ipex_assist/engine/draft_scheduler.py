"""Drafting for the requests of a pass: by the planner, or by a schedule that a request names itself. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.head_reading import repays_reading
from ipex_assist.speculative.pass_drafts import PassDrafts, RequestDraft
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import ALL_UNREAD
from ipex_assist.speculative.sources.batched_proposals import propose_together
from ipex_assist.speculative.sources.head_assistant import READY_ROWS

FORCED_TOKENS = 15  # that a grammar forces, and a pass verifies at most whatever their rows cost

Fail: TypeAlias = "Callable[[ScheduledRequest, IpexAssistError], None]"


class DraftScheduler:
    """Drafts for all requests of a pass together, and tells the planner what became of it.

    Where a pass of the model holds one request at a time, each is planned as if it were alone.
    """

    def __init__(self, shares_passes: bool, clock: Callable[[], float], longest: int = sys.maxsize) -> None:
        """shares_passes: whether a pass of the model may hold several requests, or one at a time.

        longest: tokens of a draft that the model can verify.
        """
        self._shares_passes, self._clock, self._longest = shares_passes, clock, longest
        self._planned: list[tuple[Planner, PassDrafts]] = []  # of the current pass
        self._resting: list[Planner] = []  # that plan nothing in the current pass
        self._requests = 1  # decoding in the current pass
        self._overhead_s = 0.0  # beside passes, and not charged yet

    def draft(self, batch: Sequence[ScheduledRequest], prefill_rows: int, prefilling: int, fail: Fail) -> float:
        """Draft for `batch`, the decoding requests of a pass with `prefill_rows` prompt rows; returns the seconds.

        prefilling: number of requests whose prompts are being read. fail: ends a request whose draft source failed. It
        is not stored: a reference cycle would keep a dropped engine, and its prefix cache, alive.
        """
        drafters = [scheduled for scheduled in batch if scheduled.request.draft is not None and scheduled.remaining > 1]
        self._requests, self._planned, self._resting = max(1, len(batch)), [], []
        if not drafters:
            return 0.0
        started = self._clock()
        for planner, group in self._groups(drafters):
            together = len(batch) if self._shares_passes else 1
            if self._rests(planner, group, together):
                self._resting.append(planner)
                continue
            for scheduled in group:
                assert scheduled.request.planned is not None
                scheduled.planned = RequestDraft(scheduled.request.planned, scheduled.request.state())
            planned = [scheduled.planned for scheduled in group if scheduled.planned is not None]
            made = planner.plan(planned, together, prefill_rows, prefilling)
            self._planned.append((planner, made))
        if not self._planned and all(scheduled.request.planner is not None for scheduled in drafters):
            return self._clock() - started  # all of them rest
        asked = []
        for scheduled in drafters:
            request = scheduled.request
            if scheduled.planned is not None:
                plan = scheduled.planned.plan
            elif request.schedule is not None:
                plan = request.schedule.plan(request.state())
            else:  # its planner rests
                scheduled.forced_count = 0
                continue
            scheduled.forced_count = min(request.forced_count, FORCED_TOKENS)
            k = min(max(plan.k, scheduled.forced_count), scheduled.remaining - 1, self._longest)
            if k > 0 and request.draft is not None:
                # A forced token is worth a row of the target, but not a pass of the draft to catch up for it.
                plan = plan if plan.k else replace(plan, context=ALL_UNREAD)
                plan = plan if plan.k == k else replace(plan, k=k)
                asked.append((scheduled, request.draft.steps(request.tokens, plan)))
        for (scheduled, _), proposal in zip(asked, propose_together([steps for _, steps in asked]), strict=True):
            if isinstance(proposal, IpexAssistError):
                fail(scheduled, proposal)
            else:
                scheduled.set_proposal(proposal)
        self._trim([scheduled for scheduled, _ in asked])
        return self._clock() - started

    def _groups(self, drafters: Iterable[ScheduledRequest]) -> list[tuple[Planner, list[ScheduledRequest]]]:
        """Return those that are planned together: all requests of a planner, or each for itself."""
        groups: dict[int, tuple[Planner, list[ScheduledRequest]]] = {}
        for scheduled in drafters:
            if (planner := scheduled.request.planner) is not None:
                key = id(planner) if self._shares_passes else id(scheduled)
                groups.setdefault(key, (planner, []))[1].append(scheduled)
        return list(groups.values())

    def _rests(self, planner: Planner, group: Sequence[ScheduledRequest], together: int) -> bool:
        """Whether the planner has a pause, and nothing but plans makes any of its requests draft.

        The rows that a head will read after it are kept in time.
        """
        requests = [scheduled.request for scheduled in group]
        pause = planner.rests([request.planned for request in requests if request.planned is not None], together)
        if not pause or not all(request.may_pause and not request.copies for request in requests):
            return False
        for scheduled in group:
            scheduled.keeps_hidden, scheduled.rests = pause <= READY_ROWS, True
        return True

    def _trim(self, batch: Sequence[ScheduledRequest]) -> None:
        for scheduled in batch:
            if scheduled.planned is not None:
                scheduled.planned.proposal = scheduled.proposal
        for planner, made in self._planned:
            planner.trim(made)
        for scheduled in batch:
            if scheduled.planned is not None and not scheduled.request.finished:
                kept = max(len(scheduled.planned.proposal.tokens), scheduled.forced_count)
                scheduled.set_proposal(replace(scheduled.proposal, tokens=scheduled.proposal.tokens[:kept]))

    def observe(self, scheduled: ScheduledRequest, accepted: int) -> None:
        """Record how many drafted tokens of one request were accepted."""
        if scheduled.planned is not None:
            scheduled.planned.proposal, scheduled.planned.accepted = scheduled.proposal, accepted
        elif scheduled.request.schedule is not None:
            scheduled.request.schedule.observe(len(scheduled.proposal.tokens), accepted)

    def book_overhead(self, seconds: float) -> None:
        """Charge what draft heads took beside passes; the next pass beside a planner bears it."""
        self._overhead_s += seconds

    def observe_pass(self, took: PassTimes) -> None:
        """Record the whole pass."""
        took = replace(took, overhead_s=self._overhead_s)
        if not self._shares_passes:
            took = took.of_one(self._requests)
        started = self._clock()
        for planner in self._resting:
            planner.rest(took.without_drafts())
        for planner, made in self._planned:
            rows = took.rows if self._shares_passes else 1 + made.drafted
            of_drafts = took if any(draft.plan.k for draft in made.drafts) else took.without_drafts()
            planner.observe(made, replace(of_drafts, rows=rows))
        if self._planned or self._resting:
            self._overhead_s = self._clock() - started

    def repays_reading(self, request: Request, unread: int, running: int) -> bool:
        """Whether drafts should repay a draft head's pass over `unread` rows of a prompt, among `running` requests."""
        if request.planner is None or request.planned is None:
            return True
        now = request.state_with(unread)
        return repays_reading(request.planner, request.planned, now, running if self._shares_passes else 1)

    @staticmethod
    def doubts(request: Request) -> bool:
        """Whether a request's draft head did not pay in earlier texts, so that it reads no prompt."""
        planner, planned = request.planner, request.planned
        return planner is not None and planned is not None and planner.assistants[0].doubts(planned.adapter)

    @staticmethod
    def charge(request: Request, seconds: float) -> None:
        """Charge what drafting took for a request beside passes: a head's reading of its prompt, or hidden states."""
        if request.planner is not None and request.planned is not None:
            request.planner.charge(request.planned, seconds)

    def plain_s(self, scheduled: ScheduledRequest, tokens: int) -> float | None:
        """Return the seconds of plain decoding for each of a round's `tokens` tokens; None if not measured."""
        planner = scheduled.request.planner
        return None if planner is None else planner.plain_s(tokens)
