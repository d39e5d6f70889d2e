"""The adaptive schedule: drafts as long as measured costs and observed acceptance make worth while. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipex_assist.speculative.acceptance import EDGES, Acceptance
from ipex_assist.speculative.costs import Costs
from ipex_assist.speculative.draft_budget import EXPECTED_TOKENS, DraftBudget
from ipex_assist.speculative.live_costs import CostFindings, LiveCosts
from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan, RoundResult, RoundState

TRUSTED_TOKENS = 16  # seen before a pair is trusted
# Tokens of the text's end that a draft reads where reading all of it costs too much.
CONTEXTS = (64, 32, 16, 8)
WORTH = 1.01  # a draft must promise that much more than plain decoding
# Of the credit a round may lose no more than this share, or one drafted token: two drafts tell more about an
# assistant than one long one.
SHARE = 0.5
KEPT_TOKENS = 8  # for which a choice is kept where nothing is drafted


@dataclass(frozen=True)
class DraftChoice:
    """The best way to draft that was found, and the tokens per second it promises."""

    k: int
    min_confidence: float
    rate: float


def best_draft(acceptance: Acceptance, costs: Costs, longest: int) -> DraftChoice:
    """Return the number and the threshold with the most expected tokens per second; k = 0 is plain decoding.

    Without a threshold, and with each token right with probability h, that is (1 - h^(k+1)) / (1 - h) tokens in
    k·draft + verify(k+1) seconds: Leviathan et al. 2023, section 3.5, with the verification's own cost for each number
    of rows.
    """
    plain = costs.verifying(1)
    verify = np.array([costs.verifying(rows) for rows in range(1, longest + 2)])
    drafted, tokens = acceptance.expected_tokens(longest)
    seconds = plain + np.cumsum(drafted * (costs.draft + np.diff(verify)), axis=1)
    rates = (1 + tokens) / seconds
    edge, number = divmod(int(rates.argmax()), longest)
    rate = float(rates[edge, number])
    return DraftChoice(number + 1, EDGES[edge], rate) if rate * plain > 1 else DraftChoice(0, 0.0, 1 / plain)


@dataclass
class AdaptiveSchedule:
    """Drafts as much as promises the most tokens per second, and nothing where plain decoding promises more.

    The budget has the last word: no more is drafted than may turn out wrong. While nothing is drafted, one token is
    tried now and then, by which a text that has become easier is noticed.

    `model_acceptance` and `lookup_acceptance` are what is known of sources that read the text at a cost, and of those
    that do not. shared: what passes cost at every moment, where others take part in them; a text alone finds that out
    by itself.
    """

    costs: Costs
    limit: int  # tokens that the text may get
    longest: int = LONGEST_DRAFT
    model_acceptance: Acceptance = field(default_factory=Acceptance)
    lookup_acceptance: Acceptance = field(default_factory=Acceptance)
    shared: LiveCosts | None = None
    budget: DraftBudget = field(init=False)
    drafts: int = 0  # rounds with one
    skipped: int = 0  # tokens at the text's beginning that the source has not read
    # Of the sources that read the text (True) and those that do not, which were there to draft, and which were let.
    _available: set[bool] = field(default_factory=set)
    _allowed: set[bool] = field(default_factory=set)
    _chosen: DraftChoice = DraftChoice(0, 0.0, 0.0)
    _chosen_for: tuple[object, ...] = ()
    _now: RoundState = field(default_factory=lambda: RoundState(0, 0, 0))
    _plan: DraftPlan = field(default_factory=lambda: DraftPlan(0))

    def __post_init__(self) -> None:
        self._live = LiveCosts(self.costs) if self.shared is None else self.shared
        self.budget = DraftBudget(self.limit, self._looks_promising())

    def _looks_promising(self) -> bool:
        """Whether what earlier texts taught promises much, in the company that the text has."""
        if self.model_acceptance.seen < TRUSTED_TOKENS:
            return False
        return best_draft(self.model_acceptance, self._live.costs, self.longest).rate * self.plain_s > 1.1

    @property
    def credit(self) -> float:
        """Seconds that may be lost from here on."""
        return self.budget.credit(self.plain_s, self._is_worthwhile())

    def plan(self, now: RoundState) -> DraftPlan:
        """Return the best choice that can be afforded."""
        self._now = now
        if not self.budget.tokens:
            self.budget.trusted = self._looks_promising()
        longest = min(self.longest, now.remaining - 1)
        choice = self._choice(longest) if longest > 0 else DraftChoice(0, 0.0, 0.0)
        if choice.k and choice.rate * self.plain_s > WORTH:
            self._plan = self._affordable(choice)
        else:
            self._plan = self._trial() if longest > 0 else DraftPlan(0)
        if longest > 0:
            self._available.add(now.unread > 0)
        if self._plan.k:
            self._allowed.add(now.unread > 0)
        return self._plan

    def observe(self, outcome: RoundResult) -> None:
        """Book the round, and learn from it what passes cost and how often drafts are right."""
        now, drafted, context = self._now, outcome.drafted, self._plan.context
        unread = now.unread if context is None else min(now.unread, context)
        self._live.observe(outcome, now.length if context is None and self.skipped else unread)
        tokens, plain = outcome.accepted + 1, self.plain_s
        self.budget.book_round(tokens, plain)
        # A source that had nothing to propose has read nothing either.
        if not drafted:
            return
        self.budget.book_draft(tokens, plain, plain + self._loss(drafted, context), outcome.draft_s + outcome.target_s)
        if context is None and self.budget.grants_reading:
            self.budget.grant_reading(self._reading(None))
        self.drafts += 1
        if context is None:
            self.skipped = 0
        elif now.unread > context:
            self.skipped = now.length - context
        self._known.observe(outcome.confidence, drafted, outcome.accepted)

    @property
    def untried(self) -> bool:
        """Whether a source was there to draft that was never let."""
        return self._available > self._allowed

    def findings(self) -> CostFindings:
        """Return what the text so far taught about the costs that it began with."""
        return self._live.findings(self.untried)

    @property
    def _known(self) -> Acceptance:
        return self.model_acceptance if self._now.unread else self.lookup_acceptance

    @property
    def _costs(self) -> Costs:
        return self._live.costs if self._now.unread else self._live.lookup_costs

    @property
    def plain_s(self) -> float:
        """Seconds of a plain pass, the same whatever drafts: calibration's, corrected by the rounds of this text."""
        return self._live.costs.verifying(1)

    def _is_worthwhile(self) -> bool:
        """Whether first tokens, by what was seen of them alone, are right often enough to pay for a draft of one."""
        known, costs = self._known, self._costs
        cost = costs.draft + costs.verifying(2) - costs.verifying(1)
        return known.first.seen >= TRUSTED_TOKENS / 2 and known.first_rate * costs.verifying(1) > 1.2 * cost

    def _choice(self, longest: int) -> DraftChoice:
        """Return the best choice, searched for anew when a draft taught something, and now and then: costs drift."""
        key = (self._known is self.lookup_acceptance, self.drafts, longest, self.budget.tokens // KEPT_TOKENS)
        if key != self._chosen_for:
            self._chosen, self._chosen_for = best_draft(self._known, self._costs, longest), key
        return self._chosen

    def _affordable(self, choice: DraftChoice) -> DraftPlan:
        """Plan the choice with as much of the text read, and as many tokens, as the credit covers."""
        context, credit = self._context(choice), self.credit
        reading = self._reading(context)
        if context is None and self.budget.grants_reading:
            credit += reading
        k, most = choice.k, reading + SHARE * (credit - reading)
        while k and self._loss(k, context) > (credit if k == 1 else most):
            k -= 1
        return DraftPlan(k, choice.min_confidence, context)

    def _trial(self) -> DraftPlan:
        """Plan nothing, or now and then one token, by which a text that has become easier is noticed."""
        context = None if self._has_read_nearly_all else CONTEXTS[-1]
        cost = self._loss(1, context)
        affordable = self.budget.trial_is_due(cost) and cost <= self.credit
        return DraftPlan(1, 0.0, context) if affordable else DraftPlan(0)

    def _loss(self, k: int, context: int | None) -> float:
        """Return the seconds that a round with `k` drafted tokens takes longer than a plain one."""
        costs = self._costs
        return self._reading(context) + k * costs.draft + costs.verifying(k + 1) - costs.verifying(1)

    def _reading(self, context: int | None) -> float:
        """Return the seconds to read the last `context` tokens as far as they are unread; None: whatever is unread."""
        now = self._now
        if context is None:
            return self._costs.reading(now.length if self.skipped else now.unread)
        return self._costs.reading(min(now.unread, context))

    @property
    def _has_read_nearly_all(self) -> bool:
        return self._now.unread <= CONTEXTS[-1] and not self.skipped

    def _context(self, choice: DraftChoice) -> int | None:
        """Return how much to read; None is the whole text: where that pays in the tokens to come and may be lost."""
        if self._has_read_nearly_all:
            return None
        plain, cost = self.plain_s, self._reading(None)
        won = min(self._now.remaining, EXPECTED_TOKENS) * (plain - 1 / choice.rate)
        if self.skipped:
            # It drafts as it is; knowing the whole text makes it better by an amount that only trying would tell.
            whole = cost < 0.5 * self.budget.balance and cost < 0.25 * won
        else:
            whole = cost < won and (self.budget.trusts_reading(cost, plain) or cost < self.credit / 2)
        return None if whole else self._end_of_text()

    def _end_of_text(self) -> int:
        """Return how many tokens of the text's end half of the credit pays for."""
        half = self.credit / 2
        return next((size for size in CONTEXTS if self._costs.reading(size) < half), CONTEXTS[-1])
