"""The adaptive schedule of a request with two assistants: in each round, the one that promises more. No torch here.

Each assistant has a schedule of its own, with its own costs and acceptance rates. They share what is known of the
target's passes, the budget's account, and pauses. Both plan a round; the plan with fewer expected seconds a token is
followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ipex_assist.speculative.adaptive_schedule import TRUSTED_TOKENS, AdaptiveSchedule, best_draft
from ipex_assist.speculative.context_choice import WORTH
from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import EXPECTED_TOKENS
from ipex_assist.speculative.schedule import DraftPlan, RoundResult, RoundState
from ipex_assist.speculative.sources.proposal import Proposal

# What an assistant reads before it drafts is spread over this many tokens, in which it should stay the better one.
READING_TOKENS = 64
# Rounds of the assistant that promises less may cost this share of the time, to notice when it has become the better.
EXPLORED_SHARE = 0.02
PROBED_TOKENS = 16  # from which it drafts in such a round, where reading all would cost too much


@dataclass
class TwoAssistantsSchedule(AdaptiveSchedule):
    """The schedule of the first assistant, with the second's beside it; see AdaptiveSchedule.

    second_costs, second_acceptance: as `costs` and `model_acceptance`, of the second.
    """

    second_costs: Costs = field(kw_only=True)
    second_acceptance: Acceptance = field(default_factory=Acceptance, kw_only=True)
    second: AdaptiveSchedule = field(init=False)
    chosen: int = 0  # whose plan the current round follows: 0 is the first's
    # Seconds of plain decoding since each one's last draft, as far as they count.
    _undrafted_s: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.second = AdaptiveSchedule(
            self.second_costs,
            self.limit,
            self.longest,
            self.second_acceptance,
            self.lookup_acceptance,
            shared=self._live.beside(self.second_costs),
            adapter=self.adapter,
        )
        # Both together risk what one may. Trust and stake are each assistant's own, and so is the time since its last
        # draft: a cheap one that is tried often must not keep an expensive one from ever being tried.
        self.second.budget.account = self.budget.account
        self.pause, self.second.pause = min(self.pause, self.second.pause), 0
        known = (self.model_acceptance, self.second_acceptance)
        self._undrafted_s = [0.0 if each.seen >= TRUSTED_TOKENS else self._most_undrafted_s for each in known]

    @property
    def _schedules(self) -> tuple[AdaptiveSchedule, AdaptiveSchedule]:
        return self, self.second

    @property
    def joint_stake(self) -> float:
        """The larger one of both: the account is the same."""
        return max(self.budget.stake, self.second.budget.stake)

    @property
    def _most_undrafted_s(self) -> float:
        return EXPECTED_TOKENS * self.plain_s

    def plan(self, now: RoundState) -> DraftPlan:
        """Return the plan of the assistant that promises more; of both their trials, the one that waited longer."""
        first = super().plan(now)
        self.chosen = 0
        if now.second is None:  # the prompt is copied from, or nothing may be drafted
            return first
        second = self.second.plan(now.second)
        if not first.k and not second.k:
            self.pause = min(self.pause, self.second.pause)
            return first
        self.pause = 0
        self.chosen = self._choose((first, second))
        return replace(self.second._plan, assistant=1) if self.chosen else self._plan

    def _choose(self, plans: tuple[DraftPlan, DraftPlan]) -> int:
        if not (plans[0].k and plans[1].k):
            return int(plans[1].k > 0)
        promising = [self._promises(number) for number in (0, 1)]
        if promising == [False, False]:
            return int(self.second.budget.undrafted_s > self.budget.undrafted_s)
        token_s = [self._token_s(number, plan) for number, plan in enumerate(plans)]
        better = int(token_s[1] < token_s[0]) if promising == [True, True] else int(promising[1])
        other = 1 - better
        return other if self._is_due(other, plans[other], token_s[better]) else better

    def _is_due(self, number: int, plan: DraftPlan, token_s: float) -> bool:
        """Whether to follow this plan though the other assistant promises tokens in `token_s` seconds each.

        Where reading all is what makes it expensive, the plan becomes one from the end of the text.
        """
        schedule, due_s = self._schedules[number], self._undrafted_s[number] * EXPLORED_SHARE
        if self.plain_s / 10 > due_s:
            return False
        if self._lost_s(number, plan, token_s) <= due_s:
            return True
        if plan.context is not None or schedule.round.now.unread <= PROBED_TOKENS:
            return False
        probe = replace(plan, context=PROBED_TOKENS)
        if self._lost_s(number, probe, token_s) > due_s:
            return False
        schedule._plan = probe
        return True

    def _promises(self, number: int) -> bool:
        """Whether an assistant's drafts should gain."""
        schedule = self._schedules[number]
        longest = min(schedule.longest, schedule.round.now.remaining - 1)
        return schedule._choice(longest, schedule._plan.context).gain > WORTH

    def _lost_s(self, number: int, plan: DraftPlan, token_s: float) -> float:
        """Return the seconds that a round by this plan should take beyond those of its tokens at `token_s` each."""
        tokens, round_s = self._expected(number, plan)
        return round_s + self._schedules[number].round.reading(plan.context) - tokens * token_s

    def _token_s(self, number: int, plan: DraftPlan) -> float:
        """Return the expected seconds for each token while this one drafts by such plans."""
        (tokens, round_s), schedule = self._expected(number, plan), self._schedules[number]
        reading_s = schedule.round.reading(plan.context)
        return round_s / tokens + reading_s / min(READING_TOKENS, schedule.round.now.remaining)

    def _expected(self, number: int, plan: DraftPlan) -> tuple[float, float]:
        """Return the expected tokens and seconds of a round with this plan, without reading."""
        schedule = self._schedules[number]
        costs, longest = schedule.round.costs, min(schedule.longest, schedule.round.now.remaining - 1)
        k, min_confidence = plan.k, plan.min_confidence
        if costs.block:  # of which `trim` leaves what is worth verifying
            choice = schedule._choice(longest, plan.context)
            k, min_confidence = max(1, choice.k), choice.min_confidence
        drafted, accepted = schedule._known(plan.context).expected_tokens(longest)
        edge = EDGES.index(min_confidence)
        seconds = costs.verifying(1) + schedule._overhead_s + costs.blocks(1)
        for rows, share in enumerate(drafted[edge, :k].tolist(), 1):
            seconds += share * (costs.draft + costs.verifying(rows + 1) - costs.verifying(rows))
        return 1 + float(accepted[edge, k - 1]), seconds

    def trim(self, proposal: Proposal) -> Proposal:
        """Return the tokens of a block that are worth verifying."""
        return self.second.trim(proposal) if self.chosen else super().trim(proposal)

    def observe(self, outcome: RoundResult) -> None:
        """Book the round for the assistant that drafted."""
        if self.chosen:
            self.second.observe(outcome)
        else:
            super().observe(outcome)
        copied = not self.round.now.unread
        self._count_undrafted(self.chosen if outcome.drafted and not copied else None, 1)
        (self.budget if self.chosen else self.second.budget).undrafted_s += self.plain_s

    def _wake(self) -> None:
        rounds = len(self._rested)
        super()._wake()
        if rounds:
            self.second.budget.undrafted_s += rounds * self.plain_s
            self._count_undrafted(None, rounds)

    def _count_undrafted(self, drafter: int | None, rounds: int) -> None:
        for number in (0, 1):
            grown = self._undrafted_s[number] + rounds * self.plain_s
            self._undrafted_s[number] = 0.0 if number == drafter else min(grown, self._most_undrafted_s)

    def repays_reading(self, now: RoundState) -> bool:
        """Whether drafts of the head should repay its pass over the unread tokens, and be better than the second's."""
        if not super().repays_reading(now):
            return False
        if self.second_acceptance.seen < TRUSTED_TOKENS:
            return True
        longest = min(self.longest, now.remaining - 1)
        first, second = (
            best_draft(schedule.model_acceptance, schedule._live.costs, longest).rate for schedule in self._schedules
        )
        return first >= second
