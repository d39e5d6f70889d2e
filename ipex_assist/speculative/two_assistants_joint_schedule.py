"""The joint schedule of requests with two assistants each: in each pass, one of the assistants drafts. No torch here.

Requests that share passes share those of the assistant as well, so one is chosen for all of them: the one with fewer
expected seconds a token, after what must be read before it drafts. The credit is one for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ipex_assist.speculative.adapter_acceptance import AdapterAcceptance, KnownOf, mean_of
from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import EXPECTED_TOKENS
from ipex_assist.speculative.joint_draft_choice import (
    BatchCosts,
    ExpectedTokens,
    JointDraftChoice,
    best_joint_draft,
)
from ipex_assist.speculative.joint_schedule import KNOWN_TOKENS, MEMORY, WORTH, JointDraft, JointSchedule
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.two_assistants_schedule import EXPLORED_SHARE, READING_TOKENS, TwoAssistantsSchedule


@dataclass
class _Assistant:
    """What is known of one of the assistants."""

    live: LiveCosts
    acceptance: AdapterAcceptance
    untried_s: float  # seconds of plain passes since its last draft, infinite before the first: for trials
    unasked_s: float  # the same, as far as it counts: for rounds of the one that promises less


@dataclass(frozen=True)
class _Promise:
    """What drafts of an assistant should bring: seconds a token of all requests, tokens and seconds of the next pass.

    gain: relative to plain decoding, without reading.
    """

    gain: float
    token_s: float
    tokens: float
    pass_s: float


class TwoAssistantsJointSchedule(JointSchedule):
    """Between passes its costs and acceptance rates are those of the first assistant, a draft head."""

    def __init__(
        self,
        costs: Costs,
        model_acceptance: Acceptance,
        lookup_acceptance: Acceptance,
        known_of: KnownOf | None,
        second_costs: Costs,
        second_acceptance: Acceptance,
        second_known_of: KnownOf | None,
    ) -> None:
        """costs, model_acceptance, known_of: of the first assistant."""
        super().__init__(costs, model_acceptance, lookup_acceptance, known_of)
        second = AdapterAcceptance(second_acceptance, second_known_of, MEMORY)
        known = ((self.live, self._model), (self.live.beside(second_costs), second))
        self._assistants = [
            _Assistant(live, rates, math.inf, 0.0 if rates.without.seen >= KNOWN_TOKENS else self._most_unasked_s)
            for live, rates in known
        ]
        self._used = 0
        self._others: Sequence[JointDraft] = ()  # the same requests with the assistant that is not used

    @property
    def _most_unasked_s(self) -> float:
        return EXPECTED_TOKENS * self._batch_costs.plain_s

    def _use(self, number: int) -> None:
        """Plan, and learn from the pass, by what is known of this assistant."""
        self._assistants[self._used].untried_s = self._undrafted_s
        self._used, used = number, self._assistants[number]
        self.live, self._model, self._undrafted_s = used.live, used.acceptance, used.untried_s

    def has_adopted(self, schedule: AdaptiveSchedule) -> bool:
        """Whether a request's drafts are paid from this schedule's credit."""
        return any(schedule.model_acceptance is each.acceptance.of(schedule.adapter) for each in self._assistants)

    def plan(self, drafts: Sequence[JointDraft], requests: int, prefill_rows: int, prefilling: int = 0) -> None:
        """Set the plan of each request that may draft in the next pass: all of them by the same assistant."""
        self._use(0)  # after a pass that failed it may be the other
        self._others = ()
        super().plan(drafts, requests, prefill_rows, prefilling)

    def _adopt_new(self) -> None:
        super()._adopt_new()
        for draft in self._drafts:
            if isinstance(draft.schedule, TwoAssistantsSchedule):
                draft.schedule.second.model_acceptance = self._assistants[1].acceptance.of(draft.schedule.adapter)

    def _plan_able(self, able: Sequence[JointDraft]) -> None:
        reading = [draft for draft in able if draft.now.second is not None]
        if not reading:
            super()._plan_able(able)
            return
        mine = (reading, [_with_second(draft) for draft in reading])
        self._others, costs = mine[1], (self._batch_costs, self._costs_of(1))
        chosen = self._choose([self._promise(number, mine[number], costs[number]) for number in (0, 1)])
        for number in (chosen, 1 - chosen):  # the other where nothing of the chosen one is covered
            if number != self._used:
                _swap(*mine)
            self._use(number)
            self._batch_costs, self._pause = costs[number], 0
            super()._plan_able(able)
            if any(draft.plan.k for draft in reading):
                break
        for draft in reading:
            draft.plan = replace(draft.plan, assistant=self._used)

    def _costs_of(self, number: int) -> BatchCosts:
        known = self._batch_costs
        live = self._assistants[number].live
        return BatchCosts(live.costs_from(known.requests), known.requests, known.base - known.requests)

    def _promise(self, number: int, drafts: Sequence[JointDraft], costs: BatchCosts) -> _Promise:
        used, count = self._assistants[number], len(drafts)
        known = mean_of([used.acceptance.of(draft.schedule.adapter) for draft in drafts])
        choice = best_joint_draft(known, costs, count, LONGEST_DRAFT)
        readings = [self._reading.seconds(draft, used.live.costs) for draft in drafts]
        if choice.gain <= WORTH:  # what a trial brings
            tokens, pass_s = costs.requests + used.acceptance.without.first_rate, costs.plain_s + costs.loss(1, 1)
            return _Promise(choice.gain, 1 / choice.rate, tokens, pass_s + min(readings))
        brought, reading_s = self._brought(known, choice, costs, count), sum(readings)
        token_s = 1 / choice.rate + reading_s / sum(min(READING_TOKENS, draft.now.remaining) for draft in drafts)
        return _Promise(choice.gain, token_s, brought, brought / choice.rate + reading_s)

    @staticmethod
    def _brought(acceptance: ExpectedTokens, choice: JointDraftChoice, costs: BatchCosts, drafters: int) -> float:
        """Return the expected tokens of a pass by this choice."""
        _, tokens = acceptance.expected_tokens(LONGEST_DRAFT)
        return costs.requests + drafters * float(tokens[EDGES.index(choice.min_confidence), choice.k - 1])

    def _choose(self, promises: Sequence[_Promise]) -> int:
        """Return the assistant of the next pass: the better one, or now and then the other."""
        promising = [promise.gain > WORTH for promise in promises]
        if not any(promising):  # the one whose trial is due first
            cost = [promise.pass_s - self._batch_costs.plain_s for promise in promises]
            waited = [min(each.untried_s, 1e9) for each in self._assistants]
            return int(waited[1] / max(cost[1], 1e-9) > waited[0] / max(cost[0], 1e-9))
        token_s = [promise.token_s if each else math.inf for promise, each in zip(promises, promising, strict=True)]
        better = int(token_s[1] < token_s[0])
        other = promises[1 - better]
        lost = other.pass_s - other.tokens * token_s[better]
        due = self._assistants[1 - better].unasked_s * EXPLORED_SHARE >= max(lost, self._batch_costs.plain_s / 10)
        return 1 - better if due else better

    def _passes_to_wait(self, drafts: Sequence[JointDraft]) -> int:
        """Return for how many passes no draft of either would be due or covered."""
        used, costs, passes = self._used, self._batch_costs, super()._passes_to_wait(drafts)
        if not self._others:
            return passes
        self._use(1 - used)
        self._batch_costs = self._costs_of(1 - used)
        other = super()._passes_to_wait(self._others)
        self._use(used)
        self._batch_costs = costs
        return min(passes, other)

    def rest(self, read: int, seconds: float, experts: float | None = None) -> None:
        """Count a pass of a pause."""
        super().rest(read, seconds, experts)
        self._count(None)

    def observe(
        self,
        rows: int,
        read: int,
        seconds: float,
        draft_s: float,
        experts: float | None = None,
        overhead_s: float = 0.0,
    ) -> None:
        """Record the outcome of the round for the assistant that drafted in it."""
        super().observe(rows, read, seconds, draft_s, experts, overhead_s)
        drafted = any(draft.proposal.tokens and draft.now.unread for draft in self._drafts)
        self._count(self._used if drafted else None)
        self._use(0)

    def _count(self, drafter: int | None) -> None:
        """Count the time since each assistant's last draft; `_undrafted_s` is counted already."""
        plain_s = self._batch_costs.plain_s
        for number, each in enumerate(self._assistants):
            grown = min(each.unasked_s + plain_s, self._most_unasked_s)
            each.unasked_s = 0.0 if number == drafter else grown
            if number != self._used:
                each.untried_s += plain_s


def _swap(drafts: Sequence[JointDraft], others: Sequence[JointDraft]) -> None:
    """Have each draft be of the request's other assistant."""
    for draft, other in zip(drafts, others, strict=True):
        draft.schedule, other.schedule = other.schedule, draft.schedule
        draft.now, other.now = other.now, draft.now


def _with_second(draft: JointDraft) -> JointDraft:
    """The same request with its second assistant."""
    assert isinstance(draft.schedule, TwoAssistantsSchedule)
    assert draft.now.second is not None
    return JointDraft(draft.schedule.second, draft.now.second)
