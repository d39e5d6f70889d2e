"""One text decoded by a planner of its own, for tests that say what its passes take and what becomes of its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.live_costs import CostFindings, LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.pass_drafts import RequestDraft
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import LONGEST_DRAFT, NOTHING, DraftPlan, RoundState, Schedule
from ipex_assist.speculative.sources.proposal import Proposal


@dataclass(frozen=True)
class RoundResult:
    """What became of a plan: drafted and accepted tokens, the draft's confidence, and what everything took."""

    drafted: int
    accepted: int
    confidence: Sequence[float] = ()
    draft_s: float = 0.0
    target_s: float = 0.0
    experts: float | None = None
    overhead_s: float = 0.0

    @property
    def took(self) -> PassTimes:
        """Of the pass, in which everything that was drafted was verified."""
        rows = self.drafted + 1
        return PassTimes(rows, self.target_s, self.draft_s, experts=self.experts, overhead_s=self.overhead_s)


def state_of(length: int, remaining: int, unread: int, *, rereads: bool = True) -> RoundState:
    """The progress of a request with one assistant, which is asked where anything is unread."""
    return RoundState(length, remaining, (unread,) if unread else (), (rereads,))


class PlannedText:
    """A text of at most `limit` tokens, alone; with a planner of its own, or with the one that earlier texts had."""

    def __init__(
        self,
        costs: Costs,
        limit: int,
        longest: int = LONGEST_DRAFT,
        model_acceptance: Acceptance | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.planner = planner or Planner([KnownAssistant(costs, model_acceptance or Acceptance())])
        self.request = self.planner.join(limit, longest)
        self.draft = RequestDraft(self.request, RoundState(0, 0))
        self.rests = False  # in a pause

    def plan(self, now: RoundState) -> DraftPlan:
        """Return the plan of the next pass; nothing in a pause."""
        self.rests = self.planner.rests([self.request], 1) > 0
        if self.rests:
            return NOTHING
        self.draft = RequestDraft(self.request, now)
        self.made = self.planner.plan([self.draft], 1)
        return self.draft.plan

    def trim(self, proposal: Proposal) -> Proposal:
        """Return what is worth verifying."""
        self.draft.proposal = proposal
        self.planner.trim(self.made)
        return self.draft.proposal

    def observe(self, outcome: RoundResult) -> None:
        """Record the pass, of which everything that was drafted was verified."""
        if self.rests:
            self.planner.rest(PassTimes(1, outcome.target_s, experts=outcome.experts))
            return
        self.draft.proposal = Proposal([1] * outcome.drafted, list(outcome.confidence), self._read(outcome))
        self.draft.accepted = outcome.accepted
        self.made.expect(self.planner.live)
        self.planner.observe(self.made, outcome.took)

    def _read(self, outcome: RoundResult) -> int:
        now, context = self.draft.now, self.draft.plan.context
        if not outcome.drafted or not now.unread:
            return 0
        if context is None and self.request.skipped[0]:
            return now.length
        return now.unread[0] if context is None else min(now.unread[0], context)

    def next_text(self, limit: int) -> PlannedText:
        """Return the next text of a pair that has decoded this one, in the same process or another."""
        self.planner.leave(self.request)
        known = KnownAssistant(self.planner.live.calibrated, self.acceptance)
        return PlannedText(known.costs, limit, planner=Planner([known], gained_passes=self.planner.gained_passes))

    @property
    def acceptance(self) -> Acceptance:
        """What is known of the assistant now."""
        return self.planner.learnt()[0]

    def findings(self) -> CostFindings:
        """What the passes say of the costs."""
        return self.planner.findings(self.request)[0]


def observe(live: LiveCosts, outcome: RoundResult, read: int) -> None:
    """Tell costs of one request's pass, before which an assistant read `read` tokens."""
    expected = 0.0, 0.0
    if outcome.drafted and read:
        expected = live.calibrated.drafting(outcome.drafted), live.reading(read)
    live.observe_pass(outcome.took, expected)


def record(schedule: PlannedText | Schedule, outcome: RoundResult) -> None:
    """Tell a planner's text, or a schedule, what became of its plan."""
    if isinstance(schedule, PlannedText):
        schedule.observe(outcome)
    else:
        schedule.observe(outcome.drafted, outcome.accepted)
