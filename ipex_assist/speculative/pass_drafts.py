"""The requests of a planner, and their drafts in a pass. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ipex_assist.speculative.account import LOST_SHARE
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.schedule import LONGEST_DRAFT, NOTHING, DraftPlan, RoundState
from ipex_assist.speculative.sources.proposal import NO_PROPOSAL, Proposal


@dataclass(eq=False)
class PlannedRequest:
    """A request's place in the planner: its limit of output tokens, its longest draft, and its adapter.

    ahead: tokens whose allowance it was granted, and that have not come. skipped: by assistant, tokens at the start of
    the context that it has not read.
    """

    limit: int
    longest: int = LONGEST_DRAFT
    adapter: str | None = None
    ahead: float = -1.0  # before it runs
    skipped: list[int] = field(default_factory=list)
    joined: bool = False  # a pass
    allowed: bool = False  # to draft, at least once


@dataclass
class RequestDraft:
    """One request's draft in a pass."""

    request: PlannedRequest
    now: RoundState
    plan: DraftPlan = NOTHING
    proposal: Proposal = NO_PROPOSAL
    accepted: int = 0  # tokens of the proposal

    @property
    def most(self) -> int:
        """Longest draft allowed."""
        return min(self.request.longest, self.now.remaining - 1)

    @property
    def copies(self) -> bool:
        """Whether it would copy earlier text, which no model has to read."""
        return not self.now.unread


@dataclass
class PassDrafts:
    """The drafts of a pass, all of one assistant, and what was expected of them.

    rate: tokens per second that a verified row must bring. covered_s: seconds of verified rows that the account covers.
    trial: one of the drafts is one, and is not trimmed. resting_s: what a pass without a plan takes beside the target.
    """

    drafts: Sequence[RequestDraft]
    live: LiveCosts
    costs: BatchCosts
    prefilling: int = 0  # requests whose prompts are being read
    assistant: int = 0
    rate: float = 0.0
    covered_s: float = math.inf
    trial: RequestDraft | None = None
    expected_s: tuple[float, float] = (0.0, 0.0)  # of drafting, and of reading before it, by calibration
    likely_s: float = 0.0  # of both, by what is known now
    resting_s: float = 0.0
    others: dict[int, BatchCosts] = field(default_factory=dict)

    @property
    def drafted(self) -> int:
        """Tokens that are verified."""
        return sum(len(draft.proposal.tokens) for draft in self.drafts)

    @property
    def token_s(self) -> float:
        """Seconds of plain decoding for each token of all requests, once those whose prompts are being read decode."""
        requests = self.costs.requests + self.prefilling
        return float(self.costs.pass_s(requests)) / requests

    @property
    def _allowance_s(self) -> float:
        """What a token that comes without a plan adds to the balance."""
        allowance_s = LOST_SHARE * self.token_s
        return max(allowance_s / 2, allowance_s - self.resting_s / self.costs.requests)

    def allowed_s(self, passes: float) -> float:
        """Return what that many passes without plans add to the balance, which has the first tokens' allowance."""
        return self._allowance_s * sum(max(0.0, passes - draft.request.ahead) for draft in self.drafts)

    def passes_until(self, missing_s: float) -> float:
        """Return the passes without plans that add `missing_s` seconds to the balance."""
        tokens = max(0.0, missing_s) / self._allowance_s
        aheads = sorted(draft.request.ahead for draft in self.drafts)
        passes = math.inf
        for count in range(len(aheads), 0, -1):  # those who bring any by then: the others have more ahead
            passes = (tokens + sum(aheads[:count])) / count
            if count == 1 or passes >= aheads[count - 1]:
                break
        return passes if tokens else 0.0

    def costs_of(self, live: LiveCosts) -> BatchCosts:
        """The same pass with another assistant's costs."""
        if live is self.live:
            return self.costs
        if id(live) not in self.others:
            known = self.costs
            self.others[id(live)] = BatchCosts(
                live.costs_from(known.requests), known.requests, known.base - known.requests
            )
        return self.others[id(live)]

    def expect(self, live: LiveCosts) -> None:
        """Set the calibrated seconds of drafting what was proposed: of its passes, and of reading before them."""
        counts = [len(draft.proposal.tokens) for draft in self.drafts if draft.proposal.read]
        if counts:
            rows = [sum(count > depth for count in counts) for depth in range(max(counts))]
            calibrated, now = BatchCosts(live.calibrated, len(counts)), BatchCosts(live.costs, len(counts))
            steps_s, likely_s = (
                each.block_s(len(counts)) + sum(float(each.draft_s(count)) for count in rows)
                for each in (calibrated, now)
            )
            self.expected_s = steps_s, sum(live.reading(draft.proposal.read) for draft in self.drafts)
            self.likely_s = likely_s + sum(live.costs.reading(draft.proposal.read) for draft in self.drafts)
