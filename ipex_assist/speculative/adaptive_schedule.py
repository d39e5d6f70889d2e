"""The adaptive schedule: draft lengths chosen by measured costs and observed acceptance rates. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ipex_assist.speculative.context_choice import CONTEXTS, MOST_DISTURBED, WORTH, ContextChoice, RoundCosts
from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance
from ipex_assist.speculative.costs.live_costs import CostFindings, LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import DOUBTED_TOKENS, STAKE, DraftBudget
from ipex_assist.speculative.joint_draft_choice import BatchCosts, worth_verifying
from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan, RoundResult, RoundState
from ipex_assist.speculative.sources.proposal import Proposal

TRUSTED_TOKENS = 16  # verified before a pair is trusted
# A round may risk at most this share of the credit, or one drafted token: two short drafts tell more about an
# assistant than a long one.
SHARE = 0.3
KEPT_TOKENS = 8  # for which a choice is reused while nothing is drafted
# Rounds without a plan: at most this many where costs alone decide when a draft is tried again, and where acceptance
# promises a gain that the credit does not cover yet. They are more where plans would otherwise take more than a share
# of the time; a source that never helped in earlier texts is first asked after FIRST_PAUSE.
LONGEST_PAUSE, SHORT_PAUSE, FIRST_PAUSE = 64, 16, 16
ASKING_SHARE, MOST_PAUSES = 0.0015, 2
_OVERHEAD_MEMORY, _ASKING_MEMORY = 0.9, 0.5  # decay, per round with and without a draft, of the mean overhead


@dataclass(frozen=True)
class DraftChoice:
    """The best draft length and confidence threshold, expected tokens per second, and their ratio to plain decoding.

    A choice is kept for several rounds, in which the machine's speed may change: the gain stays right then.
    """

    k: int
    min_confidence: float
    rate: float
    gain: float = 1.0


def best_draft(acceptance: Acceptance, costs: Costs, longest: int, overhead_s: float = 0.0) -> DraftChoice:
    """Return the draft length and threshold with the most expected tokens per second; k = 0 is plain decoding.

    overhead_s: seconds of a round with a draft beside the passes.

    Without a threshold, and with each token accepted with probability h, this maximises (1 - h^(k+1)) / (1 - h) tokens
    in k·draft + verify(k+1) seconds: Leviathan et al. 2023, section 3.5, with a measured verification cost for each
    number of rows.
    """
    plain = costs.verifying(1)
    verify = np.array([costs.verifying(rows) for rows in range(1, longest + 2)])
    drafted, tokens = acceptance.expected_tokens(longest)
    seconds = plain + overhead_s + costs.blocks(1) + np.cumsum(drafted * (costs.draft + np.diff(verify)), axis=1)
    rates = (1 + tokens) / seconds
    edge, number = divmod(int(rates.argmax()), longest)
    rate = float(rates[edge, number])
    if rate * plain <= 1:
        return DraftChoice(0, 0.0, 1 / plain)
    return DraftChoice(number + 1, EDGES[edge], rate, rate * plain)


@dataclass
class AdaptiveSchedule:
    """Drafts the number of tokens that maximises expected tokens per second; none where plain decoding is faster.

    The budget bounds the risk: nothing is drafted whose loss, if all of it is rejected, the credit does not cover.
    While nothing is drafted, one token is tried from time to time, to notice when the text becomes easier.

    model_acceptance, lookup_acceptance: statistics of sources whose model must read the context, and of prompt lookup.
    Drafts from a part of the context have statistics of their own: if they are wrong, the part may be too short.
    shared: the live costs of an engine whose passes several requests share; a request alone tracks its own.
    adapter: of the request, whose acceptance rates these are.
    """

    costs: Costs
    limit: int  # output tokens at most
    longest: int = LONGEST_DRAFT
    model_acceptance: Acceptance = field(default_factory=Acceptance)
    lookup_acceptance: Acceptance = field(default_factory=Acceptance)
    shared: LiveCosts | None = None
    adapter: str | None = None
    stake: float = STAKE  # share of the time that the first drafts may lose
    budget: DraftBudget = field(init=False)
    round: RoundCosts = field(init=False)
    drafts: int = 0  # rounds with a draft
    pause: int = 0  # rounds in which nothing will be planned: they need not ask, and are told by `rest`
    # Kinds of sources (True: a model that reads) that could have drafted, and those that were allowed to.
    _available: set[bool] = field(default_factory=set)
    _allowed: set[bool] = field(default_factory=set)
    _part_acceptance: Acceptance | None = None
    _chosen: dict[tuple[int, ...], DraftChoice] = field(default_factory=dict)
    _worthwhile: tuple[tuple[int, int, int, bool], bool] | None = None
    _rested: list[tuple[float, float | None]] = field(default_factory=list)  # seconds and experts of a pause's passes
    _overhead_s: float = 0.0  # decayed mean of drafts
    _asking_s: float = 0.0  # decayed mean of rounds in which nothing was drafted: what asking takes
    _plan: DraftPlan = field(default_factory=lambda: DraftPlan(0))

    def __post_init__(self) -> None:
        self._live = LiveCosts(self.costs) if self.shared is None else self.shared
        self.round = RoundCosts(self._live)
        first = self.model_acceptance.first
        # Otherwise each text would lose the stake again to a source that is always wrong.
        left = 1.0 if self._pays_by_counts() else DOUBTED_TOKENS / (DOUBTED_TOKENS + first.seen)
        self.budget = DraftBudget(self.limit, self._looks_promising(), self.stake * left)
        self._contexts = ContextChoice(self.round, self.budget, lambda: self.credit)
        if self.is_doubted:
            self.pause = FIRST_PAUSE

    def _pays_by_counts(self) -> bool:
        """Whether first tokens were right often enough to pay for themselves, without the prior; true before any."""
        costs, first = self._live.costs, self.model_acceptance.first
        return float(first.accepted.sum()) * costs.verifying(1) >= first.seen * costs.loss(1)

    @property
    def joint_stake(self) -> float:
        """The share of the time that its drafts may lose first where requests share passes."""
        return self.budget.stake

    @property
    def is_doubted(self) -> bool:
        """Whether the source did not pay in earlier texts: its text begins without it, and it reads no prompt."""
        return self.budget.stake <= self.stake / 2 and not self._pays_by_counts()

    def _looks_promising(self) -> bool:
        """Whether acceptance in earlier requests promises a gain above 10 % at the current costs."""
        if self.model_acceptance.seen < TRUSTED_TOKENS or not self._pays_by_counts():
            return False
        return best_draft(self.model_acceptance, self._live.costs, self.longest, self._overhead_s).gain > 1.1

    @property
    def credit(self) -> float:
        """Seconds that drafts may still lose."""
        return self.budget.credit(self.plain_s, self._is_worthwhile())

    def plan(self, now: RoundState) -> DraftPlan:
        """Return the best plan that the budget can afford."""
        pause = self.pause
        self._wake()
        self.round.now = now
        if not self.budget.account.tokens:
            self.budget.trusted = self._looks_promising()
        longest = min(self.longest, now.remaining - 1)
        self._plan = (self._draft(longest) or self._trial(longest)) if longest > 0 else DraftPlan(0)
        if longest > 0:
            self._available.add(now.unread > 0)
        if self._plan.k:
            self._allowed.add(now.unread > 0)
        elif longest > 0 and now.unread:
            self.pause = self._rounds_to_wait(longest)
        if not now.unread and pause:  # of the model, whose turn it was not
            self.pause = pause - 1
        return self._plan

    def rest(self, target_s: float, experts: float | None = None) -> None:
        """Count a round of the `pause`: a pass of one row that took `target_s`. What it says is learnt after the last.

        experts: distinct experts that it read, as in RoundResult.
        """
        self.pause -= 1
        self._rested.append((target_s, experts))

    def _wake(self) -> None:
        """Learn from the rounds of a pause."""
        self.pause = 0
        if not self._rested:
            return
        self._live.observe_plain(self._rested)
        for _ in self._rested:
            self.budget.book_round(1, self.plain_s)
        self._rested.clear()

    def _rounds_to_wait(self, longest: int) -> int:
        """Return for how many rounds nothing would be planned, if costs stay as they are."""
        part = self._contexts.end_of_text()
        choices = ((context, self._choice(longest, context)) for context in (None, part))
        plain, asking, waits = self.plain_s, self._asking_s, []
        seldom = math.ceil(min(asking / (ASKING_SHARE * plain), MOST_PAUSES * LONGEST_PAUSE))
        for context, choice in choices:
            promising, reading = choice.gain > WORTH, self.round.reading(context)
            wait = self.budget.rounds_until(
                self.round.loss(1, context), reading, plain, self._is_worthwhile(), trial=not promising, asking=asking
            )
            waits.append(min(wait, max(seldom, SHORT_PAUSE if promising else LONGEST_PAUSE)))
        return min(waits)

    def trim(self, proposal: Proposal) -> Proposal:
        """Return the tokens of a block that are worth verifying: all of them were drafted at the same cost.

        That of verifying one more is compared with what the same time brings otherwise.
        """
        costs = self._live.costs
        if not costs.block or not proposal.read:
            return proposal
        [chances] = self._known(self._plan.context).chances([proposal.confidence], [len(proposal.tokens)])
        rate = self._choice(min(self.longest, self.round.now.remaining - 1), None).gain / self.plain_s
        [kept] = worth_verifying([chances], BatchCosts(costs, 1), rate)
        return replace(proposal, tokens=proposal.tokens[: max(1, kept)])

    def repays_reading(self, now: RoundState) -> bool:
        """Whether drafts should repay a draft head's pass over the unread tokens, and the budget allows it."""
        self.round.now = now
        self.budget.trusted = self.budget.trusted or self._looks_promising()
        if now.remaining <= 1:
            return False
        whole = self._choice(min(self.longest, now.remaining - 1), None)
        return whole.gain > WORTH and self._contexts.reads_all(whole.gain, last_chance=False)

    def charge_prompt(self, seconds: float, prompt_s: float) -> None:
        """Charge what a prompt's hidden states took beyond the stake of the `prompt_s` seconds that it took itself."""
        self.budget.book_start(max(0.0, seconds - self.stake * prompt_s), self.plain_s)

    def observe(self, outcome: RoundResult) -> None:
        """Book the round, and update costs and acceptance rates."""
        now, drafted, context = self.round.now, outcome.drafted, self._plan.context
        self._live.observe(outcome, self.round.to_read(context))
        tokens, plain = outcome.accepted + 1, self.plain_s
        self.budget.book_round(tokens, plain)
        overhead_s = outcome.overhead_s
        if not drafted and self._plan.k and now.unread:
            self.budget.book_empty_draft(self.round.drafting(self._plan.k, context), outcome.draft_s)
            overhead_s = max(0.0, overhead_s - outcome.draft_s)
        if now.unread:  # a source that copies is asked whatever its schedule says
            self.budget.book_overhead(overhead_s, plain)
        if not drafted:
            self._asking_s += (1 - _ASKING_MEMORY) * (min(overhead_s, plain) - self._asking_s)
            return
        expected = self.round.drafting(drafted, context), self.round.costs.verifying(drafted + 1)
        self.budget.book_draft(tokens, plain, expected, (outcome.draft_s, outcome.target_s))
        if context is None and self.budget.grants_reading:
            self.budget.grant_reading(self.round.reading(None))
        self.drafts += 1
        self._overhead_s += (1 - _OVERHEAD_MEMORY) * (min(outcome.overhead_s, plain) - self._overhead_s)
        if self.round.is_part(context) and now.unread and self._part_acceptance is None:
            self._part_acceptance = Acceptance(self.model_acceptance.memory)
            self._part_acceptance.take(self.model_acceptance)
        known = self._known(context)
        if context is None:
            self.round.skipped *= not now.unread  # a copy reads nothing
        elif now.unread > context and now.rereads:
            self.round.skipped = now.length - context
        known.observe(outcome.confidence, drafted, outcome.accepted)
        if known is self._part_acceptance and self.budget.account.balance > 0:
            # All of the context would be as good at least. Where drafts from a part gain nothing, that says nothing.
            self.model_acceptance.take(known)

    @property
    def untried(self) -> bool:
        """Whether a source could have drafted and was never allowed to."""
        return self._available > self._allowed

    def findings(self) -> CostFindings:
        """Return what this request's rounds say about the costs it started with."""
        self._wake()
        return self._live.findings(self.untried)

    def _known(self, context: int | None) -> Acceptance:
        """Return the acceptance rates of drafts from the last `context` tokens; None: from all tokens."""
        if not self.round.now.unread:
            return self.lookup_acceptance
        return (self._part_acceptance if self.round.is_part(context) else None) or self.model_acceptance

    @property
    def skipped(self) -> int:
        """Tokens at the start of the context that the source has not read."""
        return self.round.skipped

    @property
    def plain_s(self) -> float:
        """Seconds of a pass with one row: the calibrated value, corrected by the observed rounds."""
        return self._live.costs.verifying(1)

    def _is_worthwhile(self) -> bool:
        """Whether first tokens, by observed counts alone, are accepted often enough to make drafting worthwhile.

        A plan asks several times, and counts and costs change with rounds only.
        """
        known = self._known(CONTEXTS[-1] if self.skipped else None)
        key = id(known), self.drafts, self.budget.account.tokens, self.round.now.unread > 0
        if self._worthwhile is None or self._worthwhile[0] != key:
            won, cost = known.first_rate * self.plain_s, self.round.costs.loss(1)
            often = known.first.seen >= TRUSTED_TOKENS / 2 and won > 1.2 * cost
            self._worthwhile = key, often
        return self._worthwhile[1]

    def _choice(self, longest: int, context: int | None) -> DraftChoice:
        """Return the best choice, recomputed after every draft and every few tokens, since costs drift."""
        known = self._known(context)
        key = (id(known), self.drafts, longest, self.budget.account.tokens // KEPT_TOKENS)
        if key not in self._chosen:
            kept = {old: choice for old, choice in self._chosen.items() if old[1:] == key[1:]}
            self._chosen = {**kept, key: best_draft(known, self.round.costs, longest, self._overhead_s)}
        return self._chosen[key]

    def _draft(self, longest: int) -> DraftPlan | None:
        """Plan a draft from all of the context, or else from a part; None where neither promises a gain."""
        part = self._contexts.end_of_text()
        whole, choice = self._choice(longest, None), self._choice(longest, part)
        reserve = self._contexts.reserve(whole.gain)
        last_chance = reserve > self.credit - self.round.loss(1, part)
        if whole.gain > WORTH and self._contexts.reads_all(whole.gain, last_chance and reserve > 0):
            return self._affordable(whole, None)
        return self._affordable(choice, part, reserve) if choice.gain > WORTH else None

    def _affordable(self, choice: DraftChoice, context: int | None, reserve: float = 0.0) -> DraftPlan:
        """Plan the choice with as many tokens as the credit without the reserve covers."""
        credit, reading = self.credit - reserve, self.round.reading(context)
        if context is None and self.budget.grants_reading:
            credit += reading
        k, most = choice.k, reading + SHARE * (credit - reading)
        if self.round.costs.block and k:  # of which `trim` leaves what is worth verifying
            k, choice = min(self.longest, self.round.now.remaining - 1), replace(choice, min_confidence=0.0)
        if self.round.is_part(context) and self._contexts.may_afford_all(MOST_DISTURBED):
            k = min(k, 1)  # what reading takes is known after this draft, which should leave credit to read all
        while k and self.round.loss(k, context) > (credit if k == 1 else most):
            k -= 1
        return DraftPlan(k, choice.min_confidence, context)

    def _trial(self, longest: int) -> DraftPlan:
        """Plan nothing, or from time to time one token, to notice when the text becomes easier."""
        # It catches up rather than start again from a part, as long as the credit covers that.
        catches_up = self.round.has_read_nearly_all or (not self.skipped and self.round.loss(1, None) <= self.credit)
        context = None if catches_up else self._contexts.end_of_text()
        cost = self.round.loss(1, context)
        affordable = self.budget.trial_is_due(cost - self.round.reading(None) * catches_up) and cost <= self.credit
        return DraftPlan(1, 0.0, context) if affordable else DraftPlan(0)
